package interp

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes/dtype"
)

const symText = `module @m {tp = 2}
sym q: 1..8
sym blocks = ceil(q, 4)
sym low = min(q, 3)
func @f(input %x: f32[q, 2]) -> (output y: f32[4*blocks, 2], output z: f32[low, 2]) {
  %i = iota {size = 4*blocks}
  %hi = const 0 {dtype = i32}
  %1 = mul %i, %hi
  %2 = gather %x, %1 {axis = 0}
  %3 = slice %x {axis = 0, start = q - low, stop = q}
  return %2, %3
}`

func TestSymbols(t *testing.T) {
	m := parse(t, symText)
	x := f32(sh(5, 2), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	args := []map[string]*Tensor{{"x": x}, {"x": x}}
	out, err := Run(context.Background(), m, m.Entry(), map[string]int64{"q": 5}, args, Options{})
	require.NoError(t, err)
	require.Equal(t, sh(8, 2), out[1]["y"].Shape)
	same(t, f32(sh(3, 2), 5, 6, 7, 8, 9, 10), out[0]["z"])

	env, err := m.Env(map[string]int64{"q": 5})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"q": 5, "blocks": 2, "low": 3}, env)
	again, err := m.Env(env)
	require.NoError(t, err)
	require.Equal(t, env, again)

	for _, c := range []struct {
		env  map[string]int64
		want string
	}{
		{nil, "sym q: 1..8: has no value"},
		{map[string]int64{"q": 9}, "sym q: 1..8: is 9, outside its range"},
		{map[string]int64{"q": 0}, "is 0, outside its range"},
		{map[string]int64{"q": 5, "blocks": 3}, "sym blocks = ceil(q, 4): is 2, not 3"},
		{map[string]int64{"q": 5, "r": 3, "p": 1}, "module @m has no symbol p, r"},
	} {
		_, err := Run(context.Background(), m, m.Entry(), c.env, args, Options{})
		require.ErrorContains(t, err, c.want)
	}
}

const callText = `module @m {level = plan, tp = 2}
func @segment(temp %x: f32[2]@partial, weight %w: f32[2], state %c: f32[4, 1, 2]) -> (state c: f32[4, 1, 2], temp y: f32[2]@partial) {
  %1 = mul %x, %w
  %s = iota {size = 1}
  %r = reshape %w {shape = [1, 1, 2]}
  %2 = kv_write %c, %s, %r
  return %2, %1
}
func @main(temp %x: f32[2]@partial, weight %w: f32[2], weight %v: f32[2], state %k: f32[4, 1, 2]) -> (output y: f32[2], state k: f32[4, 1, 2]) {
  %1, %2 = call @segment %x, %w, %k loc(3, "block")
  %3, %4 = call @segment %2, %v, %1
  %5 = all_reduce %4
  return %5, %3
}`

const replaceText = `module @m {tp = 2}
func @f(input %x: f32[2, 3]) -> (output i: i32[2, 2], output y: f32[2, 2]) {
  %v, %i = topk %x {k = 2}
  %y = gather_elements %x, %i {axis = 1}
  return %i, %y
}`

// What an op is replaced by is what those behind it read.
func TestReplace(t *testing.T) {
	m := parse(t, replaceText)
	x := f32(sh(2, 3), 1, 3, 2, 4, 4, 0)
	args := []map[string]*Tensor{{"x": x}, {"x": x}}
	chosen := i32(sh(2, 2), 2, 1, 0, 1)
	run := func(replace func(rank int, out []*Tensor) ([]*Tensor, error)) ([]map[string]*Tensor, error) {
		return Run(context.Background(), m, m.Entry(), nil, args, Options{Replace: func(rank int, o *ir.Op, in, out []*Tensor) ([]*Tensor, error) {
			require.Len(t, in, len(o.Args))
			require.Len(t, out, len(o.Results))
			if o.Name() != "topk" {
				return out, nil
			}
			same(t, x, in[0])
			same(t, i32(sh(2, 2), 1, 2, 0, 1), out[1])
			return replace(rank, out)
		}})
	}
	out, err := run(func(_ int, out []*Tensor) ([]*Tensor, error) { return []*Tensor{out[0], chosen}, nil })
	require.NoError(t, err)
	same(t, chosen, out[1]["i"])
	same(t, f32(sh(2, 2), 2, 3, 4, 4), out[1]["y"])

	for want, replace := range map[string]func(rank int, out []*Tensor) ([]*Tensor, error){
		"op 0 topk (line 3), rank 1: no such choice": func(rank int, out []*Tensor) ([]*Tensor, error) {
			if rank == 0 {
				return out, nil
			}
			return nil, errors.New("no such choice")
		},
		"rank 0: 1 results replace 2":       func(_ int, out []*Tensor) ([]*Tensor, error) { return out[:1], nil },
		"rank 0: nothing replaces result 1": func(_ int, out []*Tensor) ([]*Tensor, error) { return []*Tensor{out[0], nil}, nil },
		"rank 0: what replaces result 1: ": func(_ int, out []*Tensor) ([]*Tensor, error) {
			return []*Tensor{out[0], {DType: dtype.I32, Shape: sh(2, 2)}}, nil
		},
		"rank 0: result 1 is i32[2 1], its ": func(_ int, out []*Tensor) ([]*Tensor, error) { return []*Tensor{out[0], i32(sh(2, 1), 0, 0)}, nil },
		"ranks 0 and 1 have 1 and 2": func(rank int, out []*Tensor) ([]*Tensor, error) {
			return []*Tensor{out[0], i32(sh(2, 2), 0, 1, 0, int32(1+rank))}, nil
		},
	} {
		_, err := run(replace)
		require.ErrorContains(t, err, want)
	}
}

func TestCall(t *testing.T) {
	m := parse(t, callText)
	w, v, k := f32(sh(2), 2, 3), f32(sh(2), 10, 100), Zeros(dtype.F32, 4, 1, 2)
	args := []map[string]*Tensor{
		{"x": f32(sh(2), 1, 2), "w": w, "v": v, "k": k},
		{"x": f32(sh(2), 3, 4), "w": w, "v": v, "k": k},
	}
	taps := map[string]int{}
	out, err := Run(context.Background(), m, m.Entry(), nil, args, Options{Tap: func(_ int, o *ir.Op, _ int, _ *Tensor) { taps[o.Name()]++ }})
	require.NoError(t, err)
	same(t, f32(sh(2), 80, 1800), out[0]["y"])
	same(t, f32(sh(4, 1, 2), 10, 100, 0, 0, 0, 0, 0, 0), out[1]["k"])
	require.Equal(t, map[string]int{"mul": 4, "iota": 4, "reshape": 4, "kv_write": 4, "call": 8, "all_reduce": 2}, taps)

	// An error inside names both ops.
	m.Func("segment").Ops[1].Attrs[0].Dim = ir.D(1 << 40)
	m.Func("segment").Ops[1].Results[0].Type.Shape[0] = ir.D(1 << 40)
	_, err = Run(context.Background(), m, m.Entry(), nil, args, Options{})
	require.ErrorContains(t, err, "@main: op 0 call (layer 3 block, line 10): @segment: op 1 iota (line 4): i32[1099511627776]")
	require.ErrorContains(t, err, "more than 268435456 elements")

	// Calls cannot go round.
	m = parse(t, callText)
	m.Entry().Ops[0].Attrs[0].Func = m.Entry()
	_, err = Run(context.Background(), m, m.Entry(), nil, args, Options{})
	require.Error(t, err)
}

// Each mistake is an error that says where, on which rank and what.
func TestIndexErrors(t *testing.T) {
	x := f32(sh(3, 2), 1, 2, 3, 4, 5, 6)
	cache := Zeros(dtype.F32, 4, 1, 2)
	moeArgs := func(e int32) []*Tensor {
		return in(f32(sh(1, 1), 1), i32(sh(1, 2), 0, e), f32(sh(1, 2), 1, 1), Zeros(dtype.F32, 2, 2, 1, 1), Zeros(dtype.F32, 2, 1, 1))
	}
	for _, c := range []struct {
		body string
		in   []*Tensor
		want string
	}{
		{
			"%r = gather %a, %b {axis = 0} loc(2, \"attn.q\", \"w\")", in(x, i32(sh(2), 0, 3)),
			"@f: op 0 gather (layer 2 attn.q w, line 3), rank 0: index 3 at [1] is outside 0…2",
		},
		{"%r = gather %a, %b {axis = 1}", in(x, i32(sh(1), -1)), "index -1 at [0] is outside 0…1"},
		{"%r = gather_elements %a, %b {axis = 1}", in(x, i32(sh(1, 2), 0, 2)), "gather_elements (line 3), rank 0: index 2 at [0 1] is outside 0…1"},
		{"%r = kv_read %a, %b {block_size = 2}", in(cache, i32(sh(1), 2)), "kv_read (line 3), rank 0: block 2 at [0] is outside 0…1"},
		{"%r = kv_write %a, %b, %c", in(cache, i32(sh(1), 4), f32(sh(1, 1, 2), 1, 2)), "kv_write (line 3), rank 0: slot 4 at [0] is outside 0…3"},
		{"%r = conv_read %a, %b", in(cache, i32(sh(2), 0, -1)), "conv_read (line 3), rank 0: row -1 at [1] is outside 0…3"},
		{"%r = conv_write %a, %b, %c", in(cache, i32(sh(1), 9), f32(sh(1, 1, 2), 1, 2)), "conv_write (line 3), rank 0: row 9 at [0] is outside 0…3"},
		{"%r = moe %a, %b, %c, %d, %e", moeArgs(2), "moe (line 3), rank 0: expert 2 at [0 1] is outside 0…1"},
		{"%r = moe %a, %b, %c, %d, %e", moeArgs(-1), "expert -1 at [0 1] is outside 0…1"},
	} {
		_, err := eval(t, c.body, c.in...)
		require.ErrorContains(t, err, c.want, c.body)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 0, e.Rank)
	}
}

const sizesText = `module @m
sym n: 0..16
func @f(input %x: f32[n]) -> () {
  %OP
  return
}`

// What depends on the values of symbols is checked when they are known.
func TestSizeErrors(t *testing.T) {
	for op, want := range map[string]string{
		"%r, %s = topk %x {k = 5}":                          "op 0 topk (line 4), rank 0: k is 5, more than the 4 elements",
		"%r = slice %x {axis = 0, start = n - 1, stop = 5}": "elements [3, 5) are outside axis 0 of size 4",
		"%r = slice %x {axis = 0, start = n, stop = 4}":     "axis 0 has size 0",
		"%r = slice %x {axis = 0, start = n - 5, stop = 2}": "elements [-1, 2) are outside axis 0",
		"%r = iota {size = n*n*n*n*n*n*n*n*n*n*n*n*n*n*n}":  "more than",
		"%r = iota {size = n - 4}":                          "size 0",
	} {
		m := parse(t, replace(sizesText, "%OP", op))
		_, err := Run(context.Background(), m, m.Entry(), map[string]int64{"n": 4}, []map[string]*Tensor{{"x": Zeros(dtype.F32, 4)}}, Options{})
		require.ErrorContains(t, err, want, op)
	}
	m := parse(t, replace(sizesText, "%OP", "%r = neg %x"))
	_, err := Run(context.Background(), m, m.Entry(), map[string]int64{"n": 0}, []map[string]*Tensor{{"x": Zeros(dtype.F32, 0)}}, Options{})
	require.ErrorContains(t, err, "axis 0 has size 0")
	_, err = Run(context.Background(), m, m.Entry(), map[string]int64{"n": 4}, []map[string]*Tensor{{"x": Zeros(dtype.F32, 4)}}, Options{MaxElems: 3})
	require.ErrorContains(t, err, "more than 3 elements")

	m = parse(t, "module @m\nsym n: 1..16\nfunc @f(state %x: f32[n, 1, 1], input %i: i32[1]) -> () {\n%r = kv_read %x, %i {block_size = 4}\nreturn\n}")
	_, err = Run(context.Background(), m, m.Entry(), map[string]int64{"n": 6}, []map[string]*Tensor{{"x": Zeros(dtype.F32, 6, 1, 1), "i": i32(sh(1), 0)}}, Options{})
	require.ErrorContains(t, err, "blocks of 4 slots do not divide the 6 slots")
}

const addText = `module @m {tp = 2}
func @f(input %x: bf16[2], input %i: i32[2]) -> (output y: bf16[2]) {
  %1 = add %x, %x
  %2 = add %1, %x
  return %2
}`

func TestArgumentErrors(t *testing.T) {
	x, i := bf16(sh(2), 1, 2), i32(sh(2), 1, 2)
	good := map[string]*Tensor{"x": x, "i": i, "unused": x}
	with := func(name string, t *Tensor) []map[string]*Tensor {
		bad := map[string]*Tensor{"x": x, "i": i}
		bad[name] = t
		return []map[string]*Tensor{good, bad}
	}
	m := parse(t, addText)
	run := func(args []map[string]*Tensor) error {
		_, err := Run(context.Background(), m, m.Entry(), nil, args, Options{})
		return err
	}
	require.NoError(t, run(with("x", x)))
	for want, args := range map[string][]map[string]*Tensor{
		"arguments of 1 ranks, want 2":                                       {good},
		"@f: parameter %x has no argument on rank 1":                         with("x", nil),
		"@f, rank 1: parameter %x is f32[2], its type bf16[2] wants bf16[2]": with("x", f32(sh(2), 1, 2)),
		"@f, rank 1: parameter %x is bf16[2 1], its type bf16[2]":            with("x", bf16(sh(2, 1), 1, 2)),
		"%x on rank 1: the tensor has 3 elements, its shape [2] wants 2":     with("x", bf16(sh(2), 1, 2, 3)),
		"element [1] is 0.1, which is no bf16":                               with("x", &Tensor{DType: dtype.BF16, Shape: sh(2), F: []float32{1, 0.1}}),
		"element [0] is 2147483648, which is no i32":                         with("i", &Tensor{DType: dtype.I32, Shape: sh(2), I: []int64{1 << 31, 0}}),
		"no element type":          with("x", &Tensor{}),
		"axis 0 has size -1":       with("x", &Tensor{DType: dtype.BF16, Shape: sh(-1)}),
		"elements of another type": with("x", &Tensor{DType: dtype.BF16, Shape: sh(2), F: x.F, I: i.I}),
	} {
		require.ErrorContains(t, run(args), want)
	}

	_, err := Run(context.Background(), m, nil, nil, nil, Options{})
	require.Error(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Run(ctx, m, m.Entry(), nil, []map[string]*Tensor{good, good}, Options{})
	require.ErrorIs(t, err, context.Canceled)
}

// Broken modules, as a broken pass may leave them, are errors too.
func TestMalformedModules(t *testing.T) {
	for want, breakIt := range map[string]func(f *ir.Func){
		"operand 1 is not defined":             func(f *ir.Func) { f.Ops[0].Args[1] = f.Ops[1].Results[0] },
		"operand 0 is not defined":             func(f *ir.Func) { f.Ops[0].Args[0] = nil },
		"add takes 2 operands":                 func(f *ir.Func) { f.Ops[0].Args = f.Ops[0].Args[:1] },
		"y is i32":                             func(f *ir.Func) { f.Ops[0].Args[1] = f.Params[1].Value },
		"declared bf16[3]":                     func(f *ir.Func) { f.Ops[0].Results[0].Type.Shape = []ir.Dim{ir.D(3)} },
		"symbol z has no value":                func(f *ir.Func) { f.Params[0].Value.Type.Shape[0] = ir.SymDim("z") },
		"2 results, want 1":                    func(f *ir.Func) { f.Ops[0].Results = append(f.Ops[0].Results, f.Ops[0].Results[0]) },
		"add has no attribute axis":            func(f *ir.Func) { f.Ops[0].Attrs = []ir.Attr{{Name: "axis"}} },
		"the op is not in the table":           func(f *ir.Func) { f.Ops[0].Def = nil },
		"result y is not defined":              func(f *ir.Func) { f.Ops = f.Ops[:1] },
		"0 returned values for 1 declared":     func(f *ir.Func) { f.Return = nil },
		"result y is bf16[2], its type f32[2]": func(f *ir.Func) { f.Results[0].Type.DType = dtype.F32 },
	} {
		m := parse(t, addText)
		breakIt(m.Entry())
		a := map[string]*Tensor{"x": bf16(sh(2), 1, 2), "i": i32(sh(2), 1, 2)}
		_, err := Run(context.Background(), m, m.Entry(), nil, []map[string]*Tensor{a, a}, Options{})
		require.ErrorContains(t, err, want)
	}
}

const divergeText = `module @m {tp = 4}
func @f(weight %w: f32[2], weight %s: f32[2]@shard(0, 2), weight %part: f32[2]@partial, weight %own: f32[2]@shard(0, 4)) -> (temp y: f32[2]@partial) {
  %1 = add %part, %part loc(1, "mlp")
  %2 = neg %own
  return %1
}`

// Ranks that should hold the same value and do not are reported, unless this is
// turned off.
func TestDivergence(t *testing.T) {
	build := func() (*ir.Module, []map[string]*Tensor) {
		args := make([]map[string]*Tensor, 4)
		for r := range args {
			args[r] = map[string]*Tensor{
				"w": f32(sh(2), 1, nan), "s": f32(sh(2), float32(r/2), 0),
				"part": f32(sh(2), 1, float32(r/2)), "own": f32(sh(2), 1, float32(r)),
			}
		}
		return parse(t, divergeText), args
	}
	for _, c := range []struct {
		want    string
		breakIt func(m *ir.Module, args []map[string]*Tensor)
	}{
		{"", func(*ir.Module, []map[string]*Tensor) {}},
		{
			"@f: ranks diverge: parameter %w is replicated, but at [0] ranks 0 and 3 have 1 and 2",
			func(_ *ir.Module, args []map[string]*Tensor) { args[3]["w"] = f32(sh(2), 2, nan) },
		},
		{
			"parameter %w is replicated, but at [1] ranks 0 and 2 have NaN and 0",
			func(_ *ir.Module, args []map[string]*Tensor) { args[2]["w"] = f32(sh(2), 1, 0) },
		},
		{
			"parameter %s is sharded 2 ways along axis 0, but at [1] ranks 2 and 3 have 0 and -0",
			func(_ *ir.Module, args []map[string]*Tensor) { args[3]["s"] = f32(sh(2), 1, negZ) },
		},
		// A forgotten reduction.
		{
			"@f: op 0 add (layer 1 mlp, line 3): ranks diverge: result 0 is replicated, but at [1] ranks 0 and 2 have 0 and 2",
			func(m *ir.Module, _ []map[string]*Tensor) { m.Entry().Ops[0].Results[0].Type.Dist = ir.Dist{} },
		},
		{
			"@f: op 1 neg (line 4): ranks diverge: result 0 is sharded 2 ways along axis 0, but at [1] ranks 0 and 1 have -0 and -1",
			func(m *ir.Module, _ []map[string]*Tensor) { m.Entry().Ops[1].Results[0].Type.Dist = ir.Shard(0, 2) },
		},
		// Groups of ranks that do agree.
		{"", func(m *ir.Module, _ []map[string]*Tensor) { m.Entry().Ops[0].Results[0].Type.Dist = ir.Shard(0, 2) }},
		{
			"@f: ranks diverge: result y is replicated, but at [1] ranks 0 and 2 have 0 and 2",
			func(m *ir.Module, _ []map[string]*Tensor) { m.Entry().Results[0].Type.Dist = ir.Dist{} },
		},
	} {
		m, args := build()
		c.breakIt(m, args)
		_, err := Run(context.Background(), m, m.Entry(), nil, args, Options{})
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrDiverged)
		require.ErrorContains(t, err, c.want)
		_, err = Run(context.Background(), m, m.Entry(), nil, args, Options{Unchecked: true})
		require.NoError(t, err)
	}
}

func TestCompare(t *testing.T) {
	a := f32(sh(4), 1, nan, inf, 0)
	require.True(t, Equal(a, f32(sh(4), 1, nan, inf, 0)))
	require.False(t, Equal(a, f32(sh(4), 1, nan, inf, negZ)))
	require.False(t, Equal(a, f32(sh(2, 2), 1, nan, inf, 0)))
	require.False(t, Equal(bf16(sh(1), 1), f32(sh(1), 1)))

	d, err := MaxAbsDiff(a, f32(sh(4), 1.5, nan, inf, -2))
	require.NoError(t, err)
	require.Equal(t, 2.0, d)
	d, err = MaxAbsDiff(a, f32(sh(4), 1, 0, inf, 0))
	require.NoError(t, err)
	require.True(t, math.IsInf(d, 1))
	d, err = MaxAbsDiff(i32(sh(1), math.MinInt32), i32(sh(1), math.MaxInt32))
	require.NoError(t, err)
	require.Equal(t, float64(1<<32-1), d)
	_, err = MaxAbsDiff(a, f32(sh(1), 1))
	require.Error(t, err)

	require.NoError(t, Close(a, f32(sh(4), 1.1, nan, inf, 0.1), 0.2, 0))
	require.NoError(t, Close(f32(sh(1), 100), f32(sh(1), 101), 0, 0.01))
	require.ErrorContains(t, Close(a, f32(sh(4), 1.5, nan, inf, 3), 0.2, 0), "2 of 4 elements differ, the worst at [3]: got 0, want 3 (off by 3)")
	require.ErrorContains(t, Close(a, f32(sh(4), 1, nan, negInf, 0), 1e9, 1e9), "the worst at [2]: got +Inf, want -Inf")
	require.Error(t, Close(a, f32(sh(1), 1), 0, 0))
}

func TestShardAndJoin(t *testing.T) {
	x := i32(sh(2, 4), 0, 1, 2, 3, 4, 5, 6, 7)
	parts, err := Shard(x, ir.Shard(1, 2), 4)
	require.NoError(t, err)
	for r, want := range in(i32(sh(2, 2), 0, 1, 4, 5), i32(sh(2, 2), 0, 1, 4, 5), i32(sh(2, 2), 2, 3, 6, 7), i32(sh(2, 2), 2, 3, 6, 7)) {
		same(t, want, parts[r])
	}
	for _, d := range []ir.Dist{{}, ir.Shard(0, 2), ir.Shard(1, 2), ir.Shard(1, 4)} {
		parts, err := Shard(x, d, 4)
		require.NoError(t, err)
		whole, err := Join(parts, d)
		require.NoError(t, err)
		same(t, x, whole)
	}
	sum, err := Join(in(f32(sh(1), 1), f32(sh(1), 2)), ir.PartialSum)
	require.NoError(t, err)
	same(t, f32(sh(1), 3), sum)

	for _, d := range []ir.Dist{ir.PartialSum, ir.Shard(1, 3), ir.Shard(2, 2)} {
		_, err := Shard(x, d, 6)
		require.Error(t, err)
	}
	_, err = Join(nil, ir.Dist{})
	require.Error(t, err)
	_, err = Join(in(x, f32(sh(1), 1)), ir.Dist{})
	require.Error(t, err)
	_, err = Join(in(x, x), ir.Shard(2, 2))
	require.Error(t, err)
	_, err = Join(in(x, x), ir.PartialSum)
	require.Error(t, err)
}

const weightText = `module @m {tp = 2}
sym n: 1..9
func @f(weight %w: bf16[3, n]@shard(1, 2) = "w" {reshape = [4, 3], perm = [1, 0]}, weight %c: f32[2]@shard(0, 2) = fill(0.5, -2), weight %p: f32[2] = "v" {perm = []}) -> () {
  return
}`

func TestWeight(t *testing.T) {
	m := parse(t, weightText)
	f := m.Entry()
	env := map[string]int64{"n": 2}
	parts, err := Weight(m, f.Params[0], env, f32(sh(2, 6), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 257))
	require.NoError(t, err)
	same(t, f32to16(sh(3, 2), 0, 3, 1, 4, 2, 5), parts[0])
	same(t, f32to16(sh(3, 2), 6, 9, 7, 10, 8, 256), parts[1])
	parts, err = Weight(m, f.Params[1], env, nil)
	require.NoError(t, err)
	same(t, f32(sh(2), 0.5, 0.5), parts[0])
	same(t, f32(sh(2), -1.5, -1.5), parts[1])

	_, err = Weight(m, f.Params[0], env, nil)
	require.ErrorContains(t, err, `weight %w: there is no tensor "w"`)
	_, err = Weight(m, f.Params[0], env, f32(sh(1), 1))
	require.Error(t, err)
	_, err = Weight(m, f.Params[0], map[string]int64{"n": 3}, Zeros(dtype.F32, 12))
	require.ErrorContains(t, err, "gives parts of shape [3 2], want [3 3]")
	_, err = Weight(m, f.Params[2], env, f32(sh(2), 1, 2))
	require.ErrorContains(t, err, "does not permute")
	_, err = Weight(m, f.Params[0], nil, f32(sh(1), 1))
	require.Error(t, err)
}

// Rows are taken of the view and shared out; a product and a sum are rounded to the type, as
// is what they are computed of.
func TestWeightOfRows(t *testing.T) {
	m := parse(t, `module @m {tp = 2}
func @f(weight %w: f32[1, 2]@shard(1, 2) = "w" {reshape = [4, 3], perm = [1, 0], rows = [1, 2], plus = 1}, weight %b: bf16[1] = "v" {rows = [1, 2], times = 3, plus = 1}, weight %r: f32[2] = "v" {rows = [1, 3]}) -> () {
  return
}`)
	f := m.Entry()
	parts, err := Weight(m, f.Params[0], nil, f32(sh(2, 6), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
	require.NoError(t, err)
	same(t, f32(sh(1, 2), 2, 5), parts[0])
	same(t, f32(sh(1, 2), 8, 11), parts[1])
	// 1 + 3/256 is a tie that rounds to 1 + 1/64; three times that is 3 + 3/64, and 1 more a
	// tie that rounds to 4 + 1/16. Rounded once, it would be 4 + 1/32.
	parts, err = Weight(m, f.Params[1], nil, f32(sh(2), 0, 1+3.0/256))
	require.NoError(t, err)
	same(t, f32to16(sh(1), 4+1.0/16), parts[0])
	_, err = Weight(m, f.Params[2], nil, f32(sh(2), 1, 2))
	require.ErrorContains(t, err, "weight %r: elements [1, 3) are outside axis 0 of size 2")
	_, err = Weight(m, f.Params[2], nil, f32(sh(), 1))
	require.ErrorContains(t, err, "a tensor without axes has no rows")
}

// Args of a module serve one that passes have made of it: constants and parts of tensors
// are added, of the shards that each rank has.
func TestComplete(t *testing.T) {
	before := parse(t, `module @m {tp = 2}
func @f(weight %w: f32[4, 1]@shard(1, 2) = "w" {rows = [1, 5], times = 2}, weight %v: f32[2] = "v") -> () {
  return
}`)
	after := parse(t, `module @m {tp = 2}
func @f(weight %v: f32[2] = "v", weight %k: f32[1]@shard(0, 2) = fill(1, 2), weight %n: f32[1, 1]@shard(1, 2) = "w" {rows = [3, 4], times = 2, plus = 1}, weight %a: f32[1, 2] = "w" {rows = [1, 2], times = 2}, weight %b: f32[1, 1]@shard(1, 2) = "w" {rows = [0, 1], times = 2}, weight %c: f32[1, 1]@shard(1, 2) = "w" {rows = [1, 2], times = 3}) -> () {
  return
}`)
	args := []map[string]*Tensor{
		{"w": f32(sh(4, 1), 1, 2, 3, 4), "v": f32(sh(2), 7, 8)},
		{"w": f32(sh(4, 1), 4, 5, 6, 7), "v": f32(sh(2), 7, 8)},
	}
	require.NoError(t, Complete(after, nil, before.Entry(), args))
	for rank, want := range []map[string]*Tensor{
		{"v": f32(sh(2), 7, 8), "k": f32(sh(1), 1), "n": f32(sh(1, 1), 4)},
		{"v": f32(sh(2), 7, 8), "k": f32(sh(1), 3), "n": f32(sh(1, 1), 7)},
	} {
		require.Len(t, args[rank], 4, "nothing for what is shared out in another way, has other rows or is multiplied otherwise")
		for name, x := range want {
			same(t, x, args[rank][name])
		}
	}
}

func TestRandom(t *testing.T) {
	for _, d := range []dtype.Type{dtype.I8, dtype.U8, dtype.I32, dtype.I64, dtype.BF16, dtype.F32} {
		x := Random(7, d, 3, 100)
		require.NoError(t, x.Check())
		same(t, x, Random(7, d, 3, 100))
		require.False(t, Equal(x, Random(8, d, 3, 100)))
	}
	for _, v := range RandomInts(1, dtype.I32, -2, 3, 50).I {
		require.True(t, v >= -2 && v < 3)
	}
	require.Equal(t, "i32[2]{1, -2}", i32(sh(2), 1, -2).String())
	require.Equal(t, "f32[1]{0.5}", f32(sh(1), 0.5).String())
	require.Contains(t, Zeros(dtype.F32, 20).String(), "… 4 more}")
}
