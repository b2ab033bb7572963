package header

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/participle/v2/lexer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes/target"
)

// beside gives the files of a folder.
func beside(dir string) func(string) []byte {
	return func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil
		}
		return b
	}
}

func synthetic(t testing.TB) *Header {
	t.Helper()
	src, err := os.ReadFile("testdata/synthetic.h")
	require.NoError(t, err)
	h, err := Parse("synthetic.h", src, beside("testdata"))
	require.NoError(t, err)
	return h
}

// layouts lists structures and enumerations for people.
func layouts(h *Header) string {
	var b strings.Builder
	for _, e := range h.Enums {
		fmt.Fprintf(&b, "enum %s %s: %s\n", e.Name, e.Type, &e.Enum)
	}
	for _, s := range h.Structs {
		fmt.Fprintf(&b, "struct %s %v size %d align %d\n", s.Name, s.Aliases, s.Size, s.Align)
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "  %4d %s", f.Offset, place(&f))
			if f.Reserved {
				b.WriteString(" reserved")
			}
			if f.Union != "" {
				fmt.Fprintf(&b, " union %s", f.Union)
			}
			b.WriteByte('\n')
		}
	}
	for _, s := range h.Skipped {
		fmt.Fprintf(&b, "skipped %s: %v\n", s.Name, s.Err)
	}
	return b.String()
}

func TestLayouts(t *testing.T) {
	got := layouts(synthetic(t))
	const file = "testdata/synthetic.layouts"
	if os.Getenv("QUILL_BLESS") != "" {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o666))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "QUILL_BLESS=1 rewrites it")
}

// compiler is a C++ compiler of the machine.
func compiler(t *testing.T) string {
	for _, name := range []string{"g++", "clang++", "c++"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no C++ compiler here; testdata/synthetic.layouts is what one said")
	return ""
}

// measured compiles a program that prints the size, alignment and offsets of structures.
func measured(t *testing.T, dir string, include string, h *Header) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "#pragma GCC diagnostic ignored \"-Winvalid-offsetof\"\n#include <cstdio>\n#include <cstddef>\n#include \"%s\"\nint main() {\n", include)
	for _, s := range h.Structs {
		fmt.Fprintf(&b, "printf(\"%s %%zu %%zu\\n\", sizeof(%s), alignof(%s));\n", s.Name, s.Name, s.Name)
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "printf(\"%s.%s %%zu\\n\", offsetof(%s, %s));\n", s.Name, f.Name, s.Name, f.Name)
		}
	}
	b.WriteString("}\n")
	out := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(out, "m.cpp"), []byte(b.String()), 0o666))
	for _, args := range [][]string{
		{compiler(t), "-std=c++17", "-w", "-fno-access-control", "-I", dir, "-o", filepath.Join(out, "m"), filepath.Join(out, "m.cpp")},
		{filepath.Join(out, "m")},
	} {
		said, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		require.NoError(t, err, "%s", said)
		if len(args) == 1 {
			return string(said)
		}
	}
	return ""
}

func computed(h *Header) string {
	var b strings.Builder
	for _, s := range h.Structs {
		fmt.Fprintf(&b, "%s %d %d\n", s.Name, s.Size, s.Align)
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "%s.%s %d\n", s.Name, f.Name, f.Offset)
		}
	}
	return b.String()
}

// A compiler lays out the synthetic header as we do.
func TestLayoutsAreTheCompilers(t *testing.T) {
	h := synthetic(t)
	require.Equal(t, measured(t, "testdata", "synthetic.h", h), computed(h))
}

// randomHeader declares structures of all kinds, some of them bases and parts of others.
func randomHeader(t *rapid.T) string {
	var b strings.Builder
	b.WriteString("#pragma once\n#include <cstdint>\n#include <cstddef>\n")
	scalar := rapid.SampledFrom([]string{
		"bool", "char", "uint8_t", "short", "uint16_t", "int", "unsigned", "uint32_t", "long", "uint64_t", "size_t", "float", "double", "void*",
	})
	n := rapid.IntRange(3, 30).Draw(t, "structures")
	for i := range n {
		bases, some := "", ""
		for _, k := range rapid.SliceOfNDistinct(rapid.IntRange(0, max(i-1, 0)), 0, min(i, 2), rapid.ID[int]).Draw(t, "bases") {
			bases += fmt.Sprintf(", public S%d", k)
		}
		if bases != "" {
			bases = " : " + bases[2:]
		}
		for f := range rapid.IntRange(1, 5).Draw(t, "fields") {
			typ, all := scalar.Draw(t, "type"), []string{"", "", "", "[3]", "[2][2]"}
			if i > 0 && rapid.IntRange(0, 4).Draw(t, "inner") == 0 {
				typ, all = fmt.Sprintf("S%d", rapid.IntRange(0, i-1).Draw(t, "part")), all[2:4]
			}
			dims := rapid.SampledFrom(all).Draw(t, "dims")
			some += fmt.Sprintf("  %s f%d_%d%s;\n", typ, i, f, dims)
		}
		some += rapid.SampledFrom([]string{
			"", "", "", fmt.Sprintf("  S%d() {}\n", i), fmt.Sprintf("  S%d() = default;\n", i), fmt.Sprintf("  int v%d = 3;\n", i),
			fmt.Sprintf("private:\n  bool p%d;\n", i), fmt.Sprintf("  ~S%d() {}\n", i), fmt.Sprintf("  union { double d%d; char c%d; };\n", i, i),
		}).Draw(t, "rest")
		fmt.Fprintf(&b, "struct S%d%s {\n%s};\n", i, bases, some)
	}
	return b.String()
}

// A compiler lays out any structures as we do. Bases that are there twice are left out,
// since their members have two offsets.
func TestRandomLayoutsAreTheCompilers(t *testing.T) {
	compiler(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > 12 { // a compiler takes a second
			return
		}
		text := randomHeader(rt)
		h, err := Parse("random.h", []byte(text), nil)
		require.NoError(rt, err, "%s", text)
		require.Empty(rt, h.Skipped, "%s", text)
		h.Structs = slices.DeleteFunc(h.Structs, func(s Struct) bool {
			seen := map[string]bool{}
			for _, f := range s.Fields {
				if seen[f.Name] {
					return true
				}
				seen[f.Name] = true
			}
			return false
		})
		dir := t.TempDir()
		require.NoError(rt, os.WriteFile(filepath.Join(dir, "random.h"), []byte(text), 0o666))
		require.Equal(rt, measured(t, dir, "random.h", h), computed(h), "%s", text)
	})
}

func TestBadHeaders(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"struct A {\n  int x\n};", `bad.h:3:1: did not expect "}" here`},
		{"struct A { int x; }", `bad.h:1:20: did not expect the end of the file here`},
		{"namespace a {\n", `did not expect the end of the file here`},
		{"int x = $;", `bad.h:1:9: `},
		{"/* no end", `bad.h:1:1: this comment does not end`},
		{"\n#if 1\nint x;\n", `bad.h:2:1: this #if has no #endif`},
		{"#else\n", `bad.h:1:1: #else without #if`},
		{"  #endif\n", `bad.h:1:3: #endif without #if`},
		{"#if 1\n#else\n#else\n#endif", `bad.h:3:1: #else without #if`},
		{"#if 1 +\n#endif", `bad.h:1:1: #if 1 +: "1 +" is no constant expression`},
		{"#if 1 / 0\n#endif", `bad.h:1:1: #if 1 / 0: division by 0`},
		{"#error stop\n", `bad.h:1:1: #error stop`},
		{"#pragma pack(1)\n", `bad.h:1:1: #pragma pack is not supported`},
		{"#nonsense\n", `bad.h:1:1: unknown directive #nonsense`},
		{"#define FIELD(x) int x;\nstruct A { FIELD(a) };", `bad.h:2:21: did not expect`},
		{"#define MORE int x;\nstruct A { int n; MORE };", `bad.h:2:19: macro MORE stands for "int x;", which is no expression: such macros are not expanded`},
		{"#define PACKED __attribute__((packed))\nstruct A { int n; } PACKED;", `bad.h:2:21: macro PACKED stands for "__attribute__((packed))"`},
		{"struct A { [[no_unique_address]] int n; };", `bad.h:1:12: did not expect "[" here`},
		{"template <class T> struct A { T x; };", `bad.h:1:1: did not expect "template" here`},
		{strings.Repeat("(", 200), `bad.h:1:101: more than 100 brackets in each other`},
		{"#define A B\n#define B A\n#if A\n#endif", `bad.h:3:1: #if A: the macro at line 1 stands for itself`},
	} {
		_, err := Parse("bad.h", []byte(c.text), nil)
		require.ErrorContains(t, err, c.want, "%s", c.text)
		require.Regexp(t, `^bad.h:\d+:\d+: `, err.Error())
	}
}

// What a profile cannot have is skipped with its place; what it is part of too.
func TestSkipped(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"struct A { unsigned b : 2; };", "a.h:1:21: bit-fields are not supported"},
		{"struct A { unsigned : 2; };", "a.h:1:21: bit-fields are not supported"},
		{"struct A { virtual void f(); };", "a.h:1:12: virtual functions are not supported"},
		{"struct B {}; struct A : virtual B {};", "a.h:1:33: virtual bases are not supported"},
		{"struct A { char c __attribute__((packed)); };", "a.h:1:19: attribute packed is not supported"},
		{"struct A { char c __attribute__((aligned(3))); };", "attribute aligned ( 3 ) is no alignment"},
		{"struct A { int n; } __attribute__((packed));", "a.h:1:21: attribute packed of a structure is not supported"},
		{"struct __attribute__((packed)) A { int n; };", "a.h:1:8: attribute packed of a structure is not supported"},
		{"struct alignas(8) A { int n; };", "a.h:1:1: alignas is not supported"},
		{"struct A { alignas(8) int n; };", "a.h:1:12: alignas is not supported"},
		{"namespace n { enum { N = 1 }; } namespace m = n; struct A { int x[m::N - 1]; };", "an array of 0 elements"},
		{"struct A : B {};", "a.h:1:12: base B is not known"},
		{"struct A { B b; };", "a.h:1:12: type B is not known"},
		{"struct A { int& r; };", "a.h:1:15: references are not supported"},
		{"struct A { int n[N]; };", "a.h:1:17: size of an array: N is not known"},
		{"struct A { int n[0]; };", "a.h:1:17: an array of 0 elements"},
		{"struct A { int n[]; };", "a.h:1:17: an array without a size"},
		{"struct A { long double d; };", "a.h:1:12: a long double has no layout in a profile"},
		{"struct A { void v; };", "a.h:1:12: a void has no layout in a profile"},
		{"struct A { std::vector<int> v; };", "a.h:1:12: type std::vector is not known"},
		{"struct B {}; struct A { B b; };", "a.h:1:27: field b is of an empty structure"},
		{"struct B { int x, y; }; struct A { union { B b; int n; }; };", "a union of structures with several members is not supported"},
		{"struct A { A a; };", "type A has no layout: it is not complete here"},
		{"struct A { char c[70000]; };", "an array of 70000 elements"},
		{"enum A { X = Y };", "a.h:1:10: value of X: Y is not known"},
		{"enum A { X = 1.5 };", "a.h:1:10: value of X: it is no integer"},
	} {
		h, err := Parse("a.h", []byte(c.text), nil)
		require.NoError(t, err, c.text)
		require.NotEmpty(t, h.Skipped, c.text)
		s := h.Skipped[len(h.Skipped)-1]
		require.Equal(t, "A", s.Name)
		require.ErrorContains(t, s.Err, c.want, c.text)
	}
}

func TestExpressions(t *testing.T) {
	for text, want := range map[string]float64{
		"1 + 2 * 3": 7, "(1 + 2) * 3": 9, "10 - 3 - 2": 5, "1 << 4 | 1": 17, "0x10": 16, "010": 8, "0b101u": 5, "1'000": 1000, "-1": -1, "~0": -1, "!0": 1,
		"5 / 2": 2, "5. / 2": 2.5, "1e3f": 1000, ".5f": 0.5, "7 % 4": 3, "1 ? 2 : 3": 2, "0 ? 1 : 0 ? 2 : 3": 3, "1 && 0 || 1": 1, "3 > 2 == 1": 1, "2 <= 1": 0,
		"(int)2.7": 2, "static_cast<float>(3)": 3, "'A'": 65, "'\\n'": 10, "true + true": 2, "6 ^ 3 & 1": 7, "0xffUL >> 4": 15, "1 != 1": 0, "1.5 < 2": 1,
	} {
		n, err := (constants{}).text(text, lexer.Position{})
		require.NoError(t, err, text)
		require.Equal(t, want, n.value(), text)
	}
}

// Any text is parsed or refused, in little time.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/synthetic.h", "testdata/common.h"} {
		src, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(src)
	}
	f.Add([]byte("#if 0\n#elif 1\nenum E : long { A = 1 ? 2 : 3 };\n#endif"))
	f.Add([]byte("struct A { union { int a; float b; }; A* next; } ;"))
	f.Fuzz(func(t *testing.T, src []byte) {
		h, err := Parse("fuzz.h", src, nil)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			require.True(t, ok, "%v", err)
			require.NotEmpty(t, e.Msg)
			return
		}
		// Whatever has a layout can be in a profile.
		p, err := target.Load(target.Default)
		require.NoError(t, err)
		if _, err := h.Merge(p, "a header", true); err == nil {
			require.NoError(t, p.Check())
		}
	})
}
