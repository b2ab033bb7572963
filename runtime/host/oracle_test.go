package host

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quill/recipes"
	"quill/recipes/dtype"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	i8   = dtype.I8
	i32  = dtype.I32
	bf16 = dtype.BF16
	f32  = dtype.F32
)

// val is a tensor of an oracle: its elements are exact in its type.
type val struct {
	dt   dtype.Type
	dims []int
	x    []float64
}

func newVal(dt dtype.Type, dims ...int) *val {
	return &val{dt, slices.Clone(dims), make([]float64, product(dims))}
}

// at is the flat index of a multi-index; dims of 1 repeat.
func (v *val) at(idx []int) int {
	n, stride := 0, 1
	for i, d := range v.dims {
		if d > 1 {
			n += idx[i] * stride
		}
		stride *= d
	}
	return n
}

func (v *val) get(idx ...int) float64 { return v.x[v.at(idx)] }

// each calls f with every index of the tensor, in order.
func (v *val) each(f func(i int, idx []int)) {
	idx := make([]int, len(v.dims))
	for i := range v.x {
		f(i, idx)
		for j := range idx {
			if idx[j]++; idx[j] < v.dims[j] {
				break
			}
			idx[j] = 0
		}
	}
}

// rounded is x as an element of dt.
func rounded(dt dtype.Type, x float64) float64 {
	switch dt {
	case f32:
		return float64(float32(x))
	case bf16:
		return float64(dtype.RoundBF16(float32(x)))
	case i32:
		return float64(int32(int64(x)))
	}
	return x
}

func (v *val) encode(m []byte) {
	for i, x := range v.x {
		switch v.dt {
		case f32:
			as[float32](m)[i] = float32(x)
		case bf16:
			as[uint16](m)[i] = dtype.ToBF16(float32(x))
		case i32:
			as[int32](m)[i] = int32(x)
		case i8:
			as[int8](m)[i] = int8(x)
		case dtype.U8:
			m[i] = uint8(x)
		case dtype.I64:
			as[int64](m)[i] = int64(x)
		default:
			panic(v.dt)
		}
	}
}

func (v *val) decode(m []byte) []float64 {
	x := make([]float64, len(v.x))
	for i := range x {
		switch v.dt {
		case f32:
			x[i] = float64(as[float32](m)[i])
		case bf16:
			x[i] = float64(dtype.FromBF16(as[uint16](m)[i]))
		case i32:
			x[i] = float64(as[int32](m)[i])
		case i8:
			x[i] = float64(as[int8](m)[i])
		case dtype.U8:
			x[i] = float64(m[i])
		case dtype.I64:
			x[i] = float64(as[int64](m)[i])
		default:
			panic(v.dt)
		}
	}
	return x
}

// testCase is one node with its operands and what must come out. tol is the
// allowed absolute error by output and element; nil is bit equality of values.
type testCase struct {
	guid   string
	params *recipes.Params
	in     []*val // nil is absent
	out    []*val
	tol    [][]float64
}

// recipe lays the case out in one arena section.
func (c *testCase) recipe() (*recipes.Recipe, []int64) {
	r := &recipes.Recipe{Name: "case", Sections: []recipes.Section{{Name: "all", Buffer: recipes.Arena}}}
	node := recipes.Node{Name: "n", GUID: c.guid, Params: c.params, Origin: "model.op"}
	var offsets []int64
	at := int64(0)
	put := func(v *val, name string) int {
		t := recipes.Tensor{Name: name, DType: v.dt, Offset: at}
		for _, d := range v.dims {
			t.Dims = append(t.Dims, int64(d))
		}
		offsets = append(offsets, at)
		at = align(at+t.Bytes()) + alignment
		r.Tensors = append(r.Tensors, t)
		return len(r.Tensors) - 1
	}
	for i, v := range c.in {
		if v == nil {
			node.In = append(node.In, recipes.Absent)
			continue
		}
		node.In = append(node.In, put(v, fmt.Sprintf("x%d", i)))
	}
	for i, v := range c.out {
		node.Out = append(node.Out, put(v, fmt.Sprintf("y%d", i)))
	}
	r.Sections[0].Size = at
	r.Nodes = []recipes.Node{node}
	return r, offsets
}

func fill(m []byte, v byte) {
	for i := range m {
		m[i] = v
	}
}

// run executes the case over poisoned memory and returns the outputs' bytes.
func (c *testCase) run(t testing.TB) [][]byte {
	r, offsets := c.recipe()
	d, err := newDevice(1, map[recipes.Buffer]int64{recipes.Arena: r.Sections[0].Size}, 0)
	require.NoError(t, err)
	defer d.Close()
	p, err := d.Load(r)
	require.NoError(t, err)
	mem := d.Bytes(0, recipes.Arena)
	fill(mem, 0xff) // NaN as a float, −1 as an integer
	fill(d.ranks[0].workspace, 0xff)
	k := 0
	for _, v := range c.in {
		if v != nil {
			v.encode(mem[offsets[k]:])
			k++
		}
	}
	before := slices.Clone(mem)
	require.NoError(t, d.launchOnce(context.Background(), p, []recipes.Binding{{Buffer: recipes.Arena}}))
	var out [][]byte
	for i, v := range c.out {
		at := offsets[k+i]
		end := at + int64(len(v.x)*v.dt.Size())
		out = append(out, slices.Clone(mem[at:end]))
		copy(before[at:end], mem[at:end])
	}
	require.True(t, slices.Equal(before, mem), "wrote outside the outputs")
	return out
}

func (c *testCase) check(t testing.TB) {
	for o, m := range c.run(t) {
		want := c.out[o]
		for i, got := range want.decode(m) {
			w := want.x[i]
			ok := got == w && math.Signbit(got) == math.Signbit(w) || got != got && w != w
			if !ok && c.tol != nil && c.tol[o] != nil {
				ok = math.Abs(got-w) <= c.tol[o][i]
			}
			if !ok {
				t.Fatalf("%s: output %d element %d of %v: got %v, want %v\nparams %+v\noperands %s",
					c.guid, o, i, want.dims, got, w, c.params, c.operands())
			}
		}
	}
}

func (c *testCase) operands() string {
	s := ""
	for _, v := range c.in {
		if v == nil {
			s += "-\n"
			continue
		}
		s += fmt.Sprintf("%v %v %v\n", v.dt, v.dims, v.x[:min(len(v.x), 40)])
	}
	return s
}

// gen draws shapes and values.
type gen struct{ *rand.Rand }

func newGen(seed uint64) gen { return gen{rand.New(rand.NewPCG(seed, 1))} }

// dims draws a shape of a rank, at most about 3000 elements, sometimes with
// ones, rarely with a zero, sometimes long enough to span several chunks.
func (g gen) dims(rank int) []int {
	d := make([]int, rank)
	budget := 3000
	for _, i := range g.Perm(rank) {
		switch g.IntN(10) {
		case 0, 1:
			d[i] = 1
		case 2:
			d[i] = 1 + g.IntN(min(budget, 1400))
		default:
			d[i] = 1 + g.IntN(min(budget, 7))
		}
		budget = max(1, budget/d[i])
	}
	if g.IntN(40) == 0 && rank > 0 {
		d[g.IntN(rank)] = 0
	}
	return d
}

func (g gen) rank() int { return 1 + g.IntN(5) }

// full draws dims without a zero.
func (g gen) full(rank int) []int {
	for {
		if d := g.dims(rank); product(d) > 0 {
			return d
		}
	}
}

// thin replaces some dims by 1.
func (g gen) thin(dims []int) []int {
	d := slices.Clone(dims)
	switch g.IntN(4) {
	case 0:
		return d
	case 1: // scalar
		for i := range d {
			d[i] = 1
		}
		return d
	}
	for i := range d {
		if g.IntN(2) == 0 {
			d[i] = 1
		}
	}
	return d
}

// joint is the shape that broadcast operands have together.
func joint(shapes ...[]int) []int {
	d := slices.Clone(shapes[0])
	for _, s := range shapes {
		for i := range d {
			if s[i] != 1 {
				d[i] = s[i]
			}
		}
	}
	return d
}

var specials = []float64{0, math.Copysign(0, -1), 1, -1, 1e-40, -1e-40, 3e38, -3e38, math.Inf(1), math.Inf(-1), math.NaN(), 0.5, 88.8, -104}

// values fills with normal numbers and, with special set, special ones too.
func (g gen) values(dt dtype.Type, special bool, dims ...int) *val {
	v := newVal(dt, dims...)
	for i := range v.x {
		switch {
		case dt == i8, dt == dtype.U8:
			v.x[i] = float64(g.IntN(2))
		case dt == i32 && special && g.IntN(8) == 0:
			v.x[i] = []float64{0, -1, 1, math.MaxInt32, math.MinInt32}[g.IntN(5)]
		case dt == dtype.I64:
			v.x[i] = float64(g.Int64N(1<<50) - 1<<49)
		case dt == i32:
			v.x[i] = float64(g.IntN(2001) - 1000)
		case special && g.IntN(4) == 0:
			v.x[i] = rounded(dt, specials[g.IntN(len(specials))])
		default:
			v.x[i] = rounded(dt, g.NormFloat64()*[]float64{1, 1, 0.01, 10}[g.IntN(4)])
		}
	}
	return v
}

func (g gen) indices(bound int, dims ...int) *val {
	v := newVal(i32, dims...)
	for i := range v.x {
		v.x[i] = float64(g.IntN(bound))
	}
	return v
}

func pick[T any](g gen, xs ...T) T { return xs[g.IntN(len(xs))] }

func params(name string, fields ...recipes.Field) *recipes.Params {
	return &recipes.Params{Struct: name, Fields: fields}
}

func ints(name string, t recipes.FieldType, v ...int64) recipes.Field {
	return recipes.Field{Name: name, Type: t, Ints: v}
}

func gemmP(ta, tb int64) *recipes.Params {
	return params("synGEMMParams", ints("transpose_a", recipes.U8, ta), ints("transpose_b", recipes.U8, tb))
}

func axisP(name, field string, t recipes.FieldType, axis int) *recipes.Params {
	return params(name, ints(field, t, int64(axis)))
}

func topkP(k, axis int) *recipes.Params {
	return params("ns_TopkNodeV2::ParamsV4", ints("bsw", recipes.U32, int64(k)), ints("axis", recipes.U32, int64(axis)),
		ints("bottomK", recipes.U8, 0), ints("isStable", recipes.U8, 1), ints("isVcData", recipes.U8, 0), ints("kType", recipes.I32, 0))
}

func normP(eps float32) *recipes.Params {
	return params("ns_LayerNormKernel::ParamsRmsNorm", ints("epsValid", recipes.U8, 1),
		recipes.Field{Name: "eps", Type: recipes.F32, Float: eps}, ints("NormAxisBmp", recipes.I32, 1),
		ints("ParamAxisBmp", recipes.I32, 1), ints("normalizedShapeDims", recipes.U32, 1), ints("fastMath", recipes.U8, 0))
}

func moeP(low, high int) *recipes.Params {
	return params("ns_MoeKernel::ParamsV2", recipes.Field{Name: "activation", Type: recipes.Enum, Sym: "silu"},
		ints("experts_min", recipes.I32, int64(low)), ints("experts_max", recipes.I32, int64(high)),
		recipes.Field{Name: "flags", Type: recipes.Enum, Sym: "MOE_FLAGS_PERMUTED_WEIGHTS|MOE_FLAGS_FUSED_GEMM"})
}

func sliceP(axis, begin, end int) *recipes.Params {
	return params("synSliceAxisParamsV2", ints("axis", recipes.U32, int64(axis)),
		ints("begin", recipes.U64, int64(begin)), ints("end", recipes.U64, int64(end)))
}

func transposeP(perm []int) *recipes.Params {
	p := make([]int64, len(perm))
	for i, v := range perm {
		p[i] = int64(v)
	}
	return params("synTransposeParamsNDims", ints("tensorDim", recipes.U32, int64(len(perm))), ints("permutation", recipes.U32, p...))
}
