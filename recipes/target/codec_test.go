package target

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes"
	"quill/recipes/dtype"
)

func load(t testing.TB) *Profile {
	t.Helper()
	p, err := Load(Default)
	require.NoError(t, err)
	return p
}

func ints(name string, t recipes.FieldType, v ...int64) recipes.Field {
	return recipes.Field{Name: name, Type: t, Ints: v}
}

func f32(name string, v float32) recipes.Field {
	return recipes.Field{Name: name, Type: recipes.F32, Float: v}
}

// Bytes of structures that a card is known to take, written out.
func TestKnownBytes(t *testing.T) {
	p := load(t)
	for _, c := range []struct {
		v    *recipes.Params
		of   dtype.Type
		want []byte
	}{
		{&recipes.Params{Struct: "ns_Sdpa::Params", Fields: []recipes.Field{
			f32("scale", 0.125), ints("is_causal", recipes.U8, 0), f32("dropout.ratio", 0), ints("dropout.seed", recipes.U32, 0),
			ints("dropout.disableMaskOut", recipes.U8, 1), ints("is_inference", recipes.U8, 1),
		}}, dtype.BF16, []byte{0, 0, 0, 0x3e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}},
		{&recipes.Params{Struct: "ns_LayerNormKernel::ParamsRmsNorm", Fields: []recipes.Field{
			ints("epsValid", recipes.U8, 1), f32("eps", 1e-6), ints("NormAxisBmp", recipes.I32, 1), ints("ParamAxisBmp", recipes.I32, 1),
			ints("normalizedShapeDims", recipes.U32, 1), ints("fastMath", recipes.U8, 0),
		}}, dtype.BF16, []byte{1, 0, 0, 0, 0xbd, 0x37, 0x86, 0x35, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}},
		{&recipes.Params{Struct: "synSliceAxisParamsV2", Fields: []recipes.Field{
			ints("axis", recipes.U32, 2), ints("begin", recipes.U64, 3), ints("end", recipes.U64, 1<<33),
		}}, dtype.Invalid, []byte{2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0}},
		{
			&recipes.Params{Struct: "ns_ConstantKernel::Params", Fields: []recipes.Field{f32("value", float32(math.Inf(-1)))}},
			dtype.F32,
			[]byte{0, 0, 0x80, 0xff},
		},
		{
			&recipes.Params{Struct: "ns_ConstantKernel::Params", Fields: []recipes.Field{ints("value", recipes.I32, -2)}},
			dtype.I32,
			[]byte{0xfe, 0xff, 0xff, 0xff},
		},
	} {
		b, err := p.Encode(c.v)
		require.NoError(t, err)
		require.Equal(t, c.want, b, c.v.Struct)
		again, err := p.Decode(c.v.Struct, b, c.of)
		require.NoError(t, err)
		require.Equal(t, c.v, again)
	}
	// The rest of a permutation stays where it is.
	b, err := p.Encode(&recipes.Params{Struct: "synTransposeParamsNDims", Fields: []recipes.Field{
		ints("tensorDim", recipes.U32, 3), ints("permutation", recipes.U32, 2, 0, 1),
	}})
	require.NoError(t, err)
	require.Len(t, b, 104)
	require.Equal(t, []byte{3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0}, b[:20])
	require.Equal(t, byte(24), b[100])
	// Both transposes are false where they are not given.
	b, err = p.Encode(&recipes.Params{Struct: "synGEMMParams", Fields: []recipes.Field{ints("transpose_b", recipes.U8, 1)}})
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1}, b)
}

func TestWhatCannotBeEncoded(t *testing.T) {
	p := load(t)
	sdpa := func(f ...recipes.Field) *recipes.Params {
		return &recipes.Params{Struct: "ns_Sdpa::ParamsV3", Fields: f}
	}
	enum := func(name, sym string) recipes.Field {
		return recipes.Field{Name: name, Type: recipes.Enum, Sym: sym}
	}
	one := func(name string, f ...recipes.Field) *recipes.Params { return &recipes.Params{Struct: name, Fields: f} }
	for _, c := range []struct {
		v    *recipes.Params
		want string
	}{
		{one("ns_Nothing"), "profile gaudi2-1.21 has no structure ns_Nothing"},
		{one("ns_MoeKernel::ParamsV2"), "has no layout of ns_MoeKernel::ParamsV2 (not in public headers"},
		{one("ns_GatherKernel::Params"), "ns_GatherKernel::Params: field axis is missing and has no default"},
		{one("ns_GatherKernel::Params", ints("axes", recipes.I32, 0)), "ns_GatherKernel::Params: there is no field axes; there are axis"},
		{one("ns_GatherKernel::Params", ints("axis", recipes.U32, 0)), "ns_GatherKernel::Params: field axis is of type u32, want i32"},
		{one("ns_GatherKernel::Params", ints("axis", recipes.I32)), "field axis has 0 numbers [], want 1"},
		{one("ns_GatherKernel::Params", ints("axis", recipes.I32, 1, 2)), "field axis has 2 numbers [1 2], want 1"},
		{one("ns_GatherKernel::Params", ints("axis", recipes.I32, 1<<31)), "field axis is 2147483648, want -2147483648 to 2147483647"},
		{one("ns_GatherKernel::Params", ints("axis", recipes.I32, 1), ints("axis", recipes.I32, 1)), "field axis is given twice"},
		{one("ns_GatherKernel::Params", recipes.Field{Name: "axis", Type: recipes.I32, Ints: []int64{1}, Sym: "x"}), "field axis has values that are not of its type i32"},
		{one("synGEMMParams", ints("transpose_a", recipes.U8, 2)), "synGEMMParams: field transpose_a is 2, want 0 to 1"},
		{one("synConcatenateParams", ints("axis", recipes.U32, -1)), "synConcatenateParams: field axis is -1, want 0 to 4294967295"},
		{one("synSliceAxisParamsV2", ints("_structPadding", recipes.U32, 0)), "there is no field _structPadding; there are axis, begin, end"},
		{one("ns_CastKernel::Params", ints("round_mode", recipes.I32, 7)), "field round_mode is 7, want one of CAST_ROUND_HALF_NE (0), CAST_ROUND_DOWN (1)"},
		{one("ns_ConstantKernel::Params", ints("value", recipes.U8, 7)), "field value is of type u8, want f32 or i32"},
		{one("ns_ConstantKernel::Params"), "field value is missing"},
		{one("synTransposeParamsNDims", ints("tensorDim", recipes.U32, 26), ints("permutation", recipes.U32)), "tensorDim is 26, want 0 to 25 elements"},
		{one("synTransposeParamsNDims", ints("tensorDim", recipes.U32, 2), ints("permutation", recipes.U32, 1)), "field permutation has 1 numbers [1], want 2"},
		{sdpa(enum("softmax_mode", "FAST")), `field softmax_mode is "FAST", want one of SDPA_DEFAULT_SOFTMAX (0)`},
		{sdpa(enum("flags", "SDPA_FLAGS_AMAX_S|X")), `field flags is "X", want one of SDPA_FLAGS_AMAX_S (1)`},
		{sdpa(enum("flags", "SDPA_FLAGS_AMAX_S|SDPA_FLAGS_AMAX_S")), "SDPA_FLAGS_AMAX_S adds nothing of its own"},
	} {
		_, err := p.Encode(c.v)
		require.ErrorContains(t, err, c.want)
	}
}

func TestWhatCannotBeDecoded(t *testing.T) {
	p := load(t)
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"ns_Nothing", nil, "has no structure ns_Nothing"},
		{"ns_MoeKernel::ParamsV2", nil, "has no layout"},
		{"synGEMMParams", []byte{1}, "synGEMMParams has 1 bytes, want 2"},
		{"synGEMMParams", []byte{1, 2}, "field transpose_b is 2, want 0 to 1"},
		{"ns_CastKernel::Params", []byte{7, 0, 0, 0}, "field round_mode is 7, want one of"},
		{"synSliceAxisParamsV2", append(make([]byte, 4), append([]byte{1}, make([]byte, 19)...)...), "byte 4 (field _structPadding) is 0x01, want 0x00"},
		{"ns_Sdpa::Params", append([]byte{0, 0, 0, 0, 1, 9}, make([]byte, 18)...), "byte 5 (padding) is 0x09, want 0x00"},
		{"synSliceAxisParamsV2", bytes.Repeat([]byte{0xff}, 24), "field begin is 18446744073709551615, want 0 to 9223372036854775807"},
		{"synTransposeParamsNDims", append([]byte{30}, make([]byte, 103)...), "field tensorDim is 30, want 0 to 25 elements of permutation"},
		{"ns_Sdpa::ParamsV3", append(make([]byte, 24), 9, 0, 0, 0, 0, 0, 0, 0), "field softmax_mode is 9, want one of"},
		{"ns_Sdpa::ParamsV3", append(make([]byte, 28), 2, 1, 0, 0), "field flags is 0x102, of which 0x2 is no flag"},
	} {
		_, err := p.Decode(c.name, c.b, dtype.F32)
		require.ErrorContains(t, err, c.want)
	}
}

// wide is a profile with a structure that has all kinds of fields.
const wide = `{"name": "wide", "device": "d", "software": "s", "sources": [{"id": "x", "what": "a test"}], "limits": [], "types": [], "nodes": [],
"enums": [{"name": "E", "type": "int8_t", "values": [{"name": "LOW", "number": -3}, {"name": "HIGH", "number": 5}], "source": "x"},
  {"name": "F", "type": "uint32_t", "values": [{"name": "A", "number": 1}, {"name": "B", "number": 16}, {"name": "C", "number": 2147483648}], "source": "x"}],
"structs": [{"name": "Wide", "size": 120, "align": 8, "header": "h", "source": "x", "fields": [
  {"offset": 0, "name": "b", "type": "bool"}, {"offset": 1, "name": "i8", "type": "int8_t"}, {"offset": 2, "name": "i16", "type": "int16_t", "count": 3},
  {"offset": 8, "name": "i64", "type": "int64_t", "count": 2}, {"offset": 24, "name": "u8", "type": "uint8_t"}, {"offset": 26, "name": "u16", "type": "uint16_t"},
  {"offset": 28, "name": "e", "type": "E", "symbols": {"low": "LOW"}}, {"offset": 32, "name": "flags", "type": "uint32_t", "flags": "F"},
  {"offset": 40, "name": "d", "type": "double"}, {"offset": 48, "name": "null", "type": "pointer", "reserved": true},
  {"offset": 56, "name": "n", "type": "uint32_t"}, {"offset": 60, "name": "list", "type": "uint32_t", "count": 5, "used": "n"},
  {"offset": 80, "name": "u.f", "type": "double", "union": "u", "recipe": "u"}, {"offset": 80, "name": "u.i", "type": "uint16_t", "count": 2, "union": "u", "recipe": "u"},
  {"offset": 88, "name": "pad", "type": "uint8_t", "count": 2, "default": [7], "reserved": true}, {"offset": 92, "name": "f", "type": "float"},
  {"offset": 96, "name": "as", "type": "E", "as": "i32"}, {"offset": 104, "name": "v.a", "type": "uint8_t", "union": "v"}, {"offset": 104, "name": "v.b", "type": "int64_t", "union": "v"},
  {"offset": 112, "name": "last", "type": "bool"}]}]}`

// draw gives complete parameters of a structure, in its order.
func draw(t *rapid.T, p *Profile, s *Struct, of dtype.Type) *recipes.Params {
	c := coder{p: p, s: s}
	v := &recipes.Params{Struct: rapid.SampledFrom(append([]string{s.Name}, s.Aliases...)).Draw(t, "name")}
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Reserved || f.Union != "" && c.member(f.Union, of) != f {
			continue
		}
		v.Fields = append(v.Fields, drawField(t, p, v, f))
	}
	return v
}

func drawField(t *rapid.T, p *Profile, v *recipes.Params, f *Field) recipes.Field {
	out := recipes.Field{Name: f.Key(), Type: p.carried(f)}
	n, e, err := p.scalarOf(f)
	require.NoError(t, err)
	switch {
	case out.Type == recipes.F32:
		out.Float = rapid.Float32().Draw(t, f.Name)
		return out
	case f.Flags != "":
		var set []string
		for _, x := range p.Enum(f.Flags).Values {
			if rapid.Bool().Draw(t, x.Name) {
				set = append(set, x.Name)
			}
		}
		out.Sym = strings.Join(set, "|")
		return out
	case out.Type == recipes.Enum:
		out.Sym = f.symbol(rapid.SampledFrom(e.Values).Draw(t, f.Name).Name)
		return out
	}
	count := f.elems()
	if f.Used != "" {
		used, _ := v.Int(f.Used)
		count = int(used)
	}
	for range count {
		low, high := int64(n.min), int64(min(n.max, math.MaxInt64-1024))
		if slices.ContainsFunc(p.Struct(v.Struct).Fields, func(g Field) bool { return g.Used == f.Name }) {
			high = 5
		}
		x := rapid.Int64Range(low, high).Draw(t, f.Name)
		if e != nil {
			x = rapid.SampledFrom(e.Values).Draw(t, f.Name).Number
		}
		out.Ints = append(out.Ints, x)
	}
	return out
}

// What is encoded decodes to itself, in bytes that encode to themselves.
func TestRoundTrip(t *testing.T) {
	other, err := Parse([]byte(wide))
	require.NoError(t, err)
	for _, p := range []*Profile{load(t), other} {
		for i := range p.Structs {
			s := &p.Structs[i]
			if s.Missing != "" {
				continue
			}
			t.Run(s.Name, rapid.MakeCheck(func(t *rapid.T) {
				of := rapid.SampledFrom([]dtype.Type{dtype.F32, dtype.I32}).Draw(t, "of")
				v := draw(t, p, s, of)
				b, err := p.Encode(v)
				require.NoError(t, err)
				require.Len(t, b, s.Size)
				again, err := p.Decode(v.Struct, b, of)
				require.NoError(t, err)
				require.Equal(t, v, again)

				// The order in which a recipe has the fields does not matter.
				shuffled := &recipes.Params{Struct: v.Struct, Fields: rapid.Permutation(v.Fields).Draw(t, "order")}
				same, err := p.Encode(shuffled)
				require.NoError(t, err)
				require.Equal(t, b, same)
			}))
		}
	}
}

// Bytes that decode are what their parameters encode to; others are refused.
func FuzzDecode(f *testing.F) {
	other, err := Parse([]byte(wide))
	require.NoError(f, err)
	profiles := []*Profile{load(f), other}
	n := 0
	for _, p := range profiles {
		for i := range p.Structs {
			f.Add(n, make([]byte, p.Structs[i].Size), true)
			f.Add(n, bytes.Repeat([]byte{1, 0, 0, 0}, 32)[:min(128, p.Structs[i].Size)], false)
			n++
		}
	}
	f.Fuzz(func(t *testing.T, at int, b []byte, float bool) {
		p, list := profiles[0], profiles[0].Structs
		if at = int(uint(at) % uint(len(list)+1)); at == len(list) {
			p, list, at = other, other.Structs, 0
		}
		of := dtype.I32
		if float {
			of = dtype.BF16
		}
		v, err := p.Decode(list[at].Name, b, of)
		if err != nil {
			require.Nil(t, v)
			return
		}
		again, err := p.Encode(v)
		require.NoError(t, err)
		require.Equal(t, b, again)
	})
}

// Any text is a profile or an error, and a profile is what its file says.
func FuzzProfile(f *testing.F) {
	f.Add([]byte(wide))
	file, err := load(f).Format()
	require.NoError(f, err)
	f.Add(file)
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if err != nil {
			return
		}
		file, err := p.Format()
		require.NoError(t, err)
		again, err := Parse(file)
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
