package ir

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

// seed is a valid module for tests that break it.
const seed = `module @m {level = plan, tp = 2}
sym q: 1..8
sym w = floor(q + 1, 2)
func @seg(temp %x: f32[q, 4], state %s: f32[8, 2, 2], temp %i: i32[1]) -> (temp y: f32[q, 4], temp z: f32[1, 2, 2]) {
  %a = exp %x loc(3, "attn")
  %b = slice %a {axis = 1, start = 0, stop = 2}
  %c = reshape %b {shape = [2*q]}
  %d, %e = topk %a {k = 2}
  %g = const 0.5 {dtype = f32}
  %h = conv_read %s, %i
  return %a, %h
}
func @f(input %x: f32[q, 4], weight %v: f32[2] = "t", weight %u: f32[1] = fill(1, 0), state %s: f32[8, 2, 2], input %i: i32[1]) -> (output y: f32[q, 4]) {
  %0, %1 = call @seg %x, %s, %i
  return %0
}
`

func parsed(t require.TestingT) *Module {
	m, err := VerifyText("seed.qir", []byte(seed))
	require.NoError(t, err)
	return m
}

// What text cannot say, or the parser refuses, the verifier finds in a module
// that was built.
func TestVerifyFindsWhatTextCannotSay(t *testing.T) {
	seg := func(m *Module) *Func { return m.Funcs[0] }
	op := func(m *Module, i int) *Op { return m.Funcs[0].Ops[i] }
	for _, c := range []struct {
		name  string
		spoil func(m *Module)
		want  string
	}{
		{"empty name", func(m *Module) { m.Syms[0].Name = "" }, `error[V01]: symbol name "" is not a name`},
		{"blank in a name", func(m *Module) { seg(m).Results[0].Name = "a b" }, `error[V01]: result name "a b" is not a name`},
		{"line break in a name", func(m *Module) { m.Name = "a\n" }, `error[V01]: module name "a\n" is not a name`},
		{"operand of another function", func(m *Module) { op(m, 0).Args[0] = m.Entry().Params[0].Value }, "error[V02]: operand 0 of exp is not defined above it in this function"},
		{"no operand", func(m *Module) { op(m, 0).Args[0] = nil }, "error[V02]: operand 0 of exp is not defined"},
		{"returned value of another function", func(m *Module) { m.Entry().Return[0] = op(m, 0).Results[0] }, "error[V02]: result y is not defined in this function"},
		{"one op twice", func(m *Module) { seg(m).Ops = slices.Insert(seg(m).Ops, 1, op(m, 0)) }, "error[V03]: a result of exp is defined twice"},
		{"one value for two parameters", func(m *Module) { m.Entry().Params[1].Value = m.Entry().Params[0].Value }, "error[V03]: %v is the value of another parameter too"},
		{"no table row", func(m *Module) { op(m, 0).Def = nil }, "error[V04]: an op without a row in the table"},
		{"another table row", func(m *Module) { op(m, 0).Def = &ops.Op{Name: "hardswish"} }, "error[V04]: op hardswish is not in the table"},
		{"a copy of a table row", func(m *Module) { d := *op(m, 0).Def; op(m, 0).Def = &d }, "error[V04]: op exp is not in the table"},
		{"no element type", func(m *Module) { seg(m).Params[0].Value.Type.DType = 0 }, "error[V04]: %x has no element type"},
		{"attribute twice", func(m *Module) { op(m, 1).Attrs = append(op(m, 1).Attrs, op(m, 1).Attrs[0]) }, "error[V05]: slice: attribute axis is given twice"},
		{"another attribute", func(m *Module) { op(m, 0).Attrs = []Attr{{Name: "axis"}} }, "error[V05]: exp has no attribute axis"},
		{"not a number", func(m *Module) { op(m, 4).Attr("value").Float = math.NaN() }, "error[V05]: const: attribute value is NaN, want a finite number"},
		{"infinity", func(m *Module) { op(m, 4).Attr("value").Float = math.Inf(-1) }, "error[V05]: const: attribute value is -Inf, want a finite number"},
		{"no element type among attributes", func(m *Module) { op(m, 4).Attr("dtype").DType = 0 }, "error[V05]: const: attribute dtype is not an element type"},
		{"no callee", func(m *Module) { m.Entry().Ops[0].Attr("callee").Func = nil }, "error[V05]: call: attribute callee is not a function"},
		{"callee attribute missing", func(m *Module) { m.Entry().Ops[0].Attrs = nil }, "error[V05]: call: attribute callee is missing"},
		{"a result too many", func(m *Module) { op(m, 0).Results = append(op(m, 0).Results, &Value{}) }, "error[V06]: exp has 2 results, want 1"},
		{"no results", func(m *Module) { op(m, 0).Results = nil }, "error[V06]: exp has 0 results, want 1"},
		{"a symbol's range is endless", func(m *Module) { m.Syms[0].Max = math.MaxInt64 }, "error[V14]: symbol q has the range 1..9223372036854775807"},
		{"a symbol by an unknown function", func(m *Module) { m.Syms[1].Def.Fn = "mod" }, "error[V14]: symbol w is defined by mod; want floor, ceil, min or max"},
		{"a symbol of endless size", func(m *Module) { m.Syms[1].Def.X = tooLarge }, "error[V15]: symbol w has a size that overflows"},
		{"an endless size", func(m *Module) { seg(m).Params[0].Value.Type.Shape[0] = D(math.MaxInt64) }, "error[V15]: %x has a size that overflows"},
		{"an endless size among attributes", func(m *Module) { op(m, 1).Attr("stop").Dim = tooLarge }, "error[V15]: slice attribute stop has a size that overflows"},
		{"no ranks", func(m *Module) { m.TP = 0 }, "error[V16]: the module runs on 0 ranks"},
		{"a negative axis", func(m *Module) { seg(m).Params[0].Value.Type.Dist = Dist{Sharded, -1, 2} }, "error[V16]: %x: sharded along axis -1 of rank 2"},
		{"a callee of another module", func(m *Module) { m.Entry().Ops[0].Attr("callee").Func = parsed(t).Funcs[0] }, "error[V17]: call of @seg, which is not above this function"},
		{"a recursion", func(m *Module) { m.Entry().Ops[0].Attr("callee").Func = m.Entry() }, "error[V17]: call of @f, which is not above this function"},
		{"two sources", func(m *Module) { m.Entry().Params[1].Source.PerRank = true }, "error[V18]: %v: a constant is not filled from a tensor too"},
		{"a view of a constant", func(m *Module) { m.Entry().Params[2].Source.Perm = []int64{0} }, "error[V18]: %u: a constant is not filled from a tensor too"},
		{"a constant that is not a number", func(m *Module) { m.Entry().Params[2].Source.Fill = math.NaN() }, "error[V18]: %u: fill(NaN, 0) is not a number of type f32 on every rank"},
		{"a view of nothing", func(m *Module) { m.Entry().Params[1].Source = Source{Perm: []int64{0}} }, "error[V18]: %v: the weight has no source"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := parsed(t)
			c.spoil(m)
			err := Verify(m)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// A module that was not read says where the problem is in words.
func TestVerifyNamesThePlace(t *testing.T) {
	m := &Module{Name: "m", Level: ops.Model, TP: 1}
	f := &Func{Name: "f"}
	m.Funcs = []*Func{f}
	b := NewBuilder(m, f)
	x := b.Param(Host, "x", T(dtype.F32, D(4)), Source{})
	b.Neg(x)
	y := b.At(Loc{Layer: 7, Op: "attn.q_proj", Tensor: "wq"}).Exp(x)
	b.Result(Host, "y", y)
	require.NoError(t, b.Err())
	require.NoError(t, Verify(m))
	y.Type.Shape = []Dim{D(5)}
	m.Name = "1"
	err := Verify(m)
	require.EqualError(t, err, `module @1: error[V01]: module name "1" is not a name
help: names are words of letters, digits and _ joined by single dots, and do not start with a digit
module @1 func @f op 1: error[V06]: exp: result 0 is declared f32[5], its operands give f32[4]
note: from layer 7 attn.q_proj wq`)
}

// Diagnostics come in order of place, whatever finds them first.
func TestVerifySorts(t *testing.T) {
	_, err := VerifyText("t.qir", []byte(`module @m
func @f(state %a: f32[3, 2, 4], input %i: i32[3], input %r: f32[3, 2, 4]) -> (
    output y: f32[3]) {
  %0 = conv_write %a, %i, %r
  return %i
}
`))
	ds, ok := errors.AsType[Diags](err)
	require.True(t, ok)
	require.Len(t, ds, 2)
	require.Equal(t, []string{"V11", "V12"}, []string{ds[0].Code, ds[1].Code})
}

// Every sound module still is when its symbols get values.
func TestSpecialise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModule(t)
		base := map[string]int64{}
		for _, s := range m.Syms {
			if s.Def == nil {
				base[s.Name] = rapid.Int64Range(s.Min, s.Max).Draw(t, s.Name)
			}
		}
		before := m.String()
		s, err := Specialise(m, base)
		require.NoError(t, err)
		require.NoError(t, Verify(s), "%s", s)
		text := s.String()
		back, err := VerifyText("special.qir", []byte(text))
		require.NoError(t, err, "%s", text)
		require.Equal(t, text, back.String())
		require.Equal(t, before, m.String(), "the original has changed")
	})
	// A size that becomes 1 does not change which axis of a reshape is sharded.
	m, err := VerifyText("t.qir", []byte(`module @m {level = plan, tp = 2}
sym n: 1..4
func @seg(temp %x: f32[n]@shard(0, 2)) -> () {
  %0 = reshape %x {shape = [1, n]} : f32[1, n]@shard(1, 2)
  return
}
func @f() -> () {
  return
}
`))
	require.NoError(t, err)
	s, err := Specialise(m, map[string]int64{"n": 1})
	require.NoError(t, err)
	require.NoError(t, Verify(s), "%s", s)

	_, err = Specialise(parsed(t), map[string]int64{"q": 9})
	require.EqualError(t, err, "specialising @m: sym q: 1..8: is 9, outside its range")
}

func TestEnv(t *testing.T) {
	m := parsed(t)
	env, err := m.Env(map[string]int64{"q": 5})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"q": 5, "w": 3}, env)
	again, err := m.Env(env)
	require.NoError(t, err)
	require.Equal(t, env, again)
	for _, c := range []struct {
		base map[string]int64
		want string
	}{
		{nil, "sym q: 1..8: has no value"},
		{map[string]int64{"q": 0}, "sym q: 1..8: is 0, outside its range"},
		{map[string]int64{"q": 5, "w": 2}, "sym w = floor(q + 1, 2): is 3, not 2"},
		{map[string]int64{"q": 5, "z": 2, "a": 1}, "module @m has no symbol a, z"},
	} {
		_, err := m.Env(c.base)
		require.EqualError(t, err, c.want)
	}
	m.Syms[1].Def.Y = SymDim("q").Sub(D(5))
	_, err = m.Env(map[string]int64{"q": 5})
	require.ErrorContains(t, err, "divides 6 by 0")
	m.Syms[1].Def.X = SymDim("z")
	_, err = m.Env(map[string]int64{"q": 5})
	require.ErrorContains(t, err, "symbol z has no value")
}

func TestOpCheck(t *testing.T) {
	m := parsed(t)
	for _, f := range m.Funcs {
		for _, o := range f.Ops {
			require.NoError(t, o.Check())
		}
	}
	o := m.Funcs[0].Ops[0]
	o.Results[0].Type.Shape = []Dim{D(1)}
	require.ErrorContains(t, o.Check(), "exp: result 0 is declared f32[1], its operands give f32[q, 4]")
	o.Results = nil
	require.ErrorContains(t, o.Check(), "exp has 0 results, want 1")
	o.Args = nil
	require.ErrorContains(t, o.Check(), "exp takes 1 operand, got 0")
	p := m.Funcs[0].Ops[1]
	p.Attrs = nil
	require.ErrorContains(t, p.Check(), "attribute axis is missing")
}

func TestModuleParts(t *testing.T) {
	m := parsed(t)
	require.Equal(t, "f", m.Entry().Name)
	require.Equal(t, "seg", m.Func("seg").Name)
	require.Nil(t, m.Func("g"))
	require.Nil(t, (&Module{}).Entry())
	require.Equal(t, Weight, m.Entry().Param("v").Kind)
	require.Nil(t, m.Entry().Param("z"))
	require.Equal(t, "%x", m.Entry().Params[0].Value.Name())
	require.Equal(t, "result of exp", m.Funcs[0].Ops[0].Results[0].Name())
	require.Equal(t, "layer 3 attn", m.Funcs[0].Ops[0].Loc.String())
	require.Empty(t, NoLoc.String())
	require.Equal(t, "temp", Temp.String())
	require.Equal(t, []int64{1}, []int64{m.Funcs[0].Ops[1].Int("axis")})
}

// Functions that compute the same have the same shape, whatever their names.
func TestFuncShape(t *testing.T) {
	shape := func(text string) string {
		m, err := VerifyText("t.qir", []byte("module @m {level = plan}\n"+text+"\nfunc @main() -> () {\n  return\n}\n"))
		require.NoError(t, err)
		return m.Funcs[0].Shape()
	}
	a := shape("func @a(temp %x: f32[4], weight %w: f32[4] = \"u\") -> (temp y: f32[4]) {\n  %0 = mul %x, %w loc(3, \"n\")\n  return %0\n}")
	require.Equal(t, a, shape("func @b(temp %z: f32[4], weight %v: f32[4]) -> (temp r: f32[4]) {\n  %c = mul %z, %v loc(4, \"m\", \"t\")\n  return %c\n}"))
	for _, other := range []string{
		"func @a(temp %x: f32[4], weight %w: f32[4]) -> (temp y: f32[4]) {\n  %0 = mul %w, %x\n  return %0\n}",
		"func @a(temp %x: f32[4], temp %w: f32[4]) -> (temp y: f32[4]) {\n  %0 = mul %x, %w\n  return %0\n}",
		"func @a(temp %x: f32[4], weight %w: f32[4]) -> (temp y: f32[4]) {\n  %0 = mul %x, %w\n  return %x\n}",
		"func @a(temp %x: f32[5], weight %w: f32[5]) -> (temp y: f32[5]) {\n  %0 = mul %x, %w\n  return %0\n}",
		"func @a(temp %x: f32[4], weight %w: f32[4]) -> (output y: f32[4]) {\n  %0 = mul %x, %w\n  return %0\n}",
	} {
		require.NotEqual(t, a, shape(other))
	}
}

func TestNames(t *testing.T) {
	want := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*$`)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.StringOfN(rapid.SampledFrom([]rune("aZz_09.@[`{/:-é\n")), 0, 6, -1), rapid.String()).Draw(t, "name")
		require.Equal(t, want.MatchString(s), isName(s), "%q", s)
	})
}
