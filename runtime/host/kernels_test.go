package host

import (
	"math"
	"slices"
	"strings"
	"testing"

	"quill/recipes"
	"quill/recipes/dtype"
)

// casesPerGUID is how many random cases each GUID runs.
const casesPerGUID = 300

// eps32 and eps16 are half a unit in the last place of 1.
const (
	eps32 = 1.0 / (1 << 24)
	eps16 = 1.0 / (1 << 8)
)

func epsOf(dt dtype.Type) float64 {
	if dt == bf16 {
		return eps16
	}
	return eps32
}

// Every kernel against its meaning in double precision.
func TestKernels(t *testing.T) {
	names := make([]string, 0, len(oracles))
	for name := range oracles {
		names = append(names, name)
	}
	slices.Sort(names)
	for seed, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGen(uint64(seed))
			for range casesPerGUID {
				c := oracles[name](g)
				if r := table[name]; r.types != nil {
					c.guid = name + "_" + c.guid
				} else {
					c.guid = name
				}
				c.check(t)
			}
		})
	}
}

// Each entry of the table has an oracle.
func TestOraclesComplete(t *testing.T) {
	for name := range table {
		if oracles[name] == nil {
			t.Errorf("no oracle for %s", name)
		}
	}
}

// oracles draw a case of a GUID; where the GUID has a type suffix the case's
// guid is only that.
var oracles = map[string]func(gen) *testCase{
	"gemm":       oracleGemm,
	"batch_gemm": oracleBatchGemm,

	"add_fwd":  oracleBinary(func(a, b float64) float64 { return a + b }),
	"sub_fwd":  oracleBinary(func(a, b float64) float64 { return a - b }),
	"mult_fwd": oracleBinary(func(a, b float64) float64 { return a * b }),
	"div_fwd":  oracleDiv,
	"max_fwd":  oracleBinary(func(a, b float64) float64 { return max(a, b) }),
	"min_fwd":  oracleBinary(func(a, b float64) float64 { return min(a, b) }),

	"less_fwd":       oracleCompare(func(a, b float64) bool { return a < b }),
	"less_equal_fwd": oracleCompare(func(a, b float64) bool { return a <= b }),
	"equal_fwd":      oracleCompare(func(a, b float64) bool { return a == b }),

	"and_fwd": oracleLogic(func(a, b float64) bool { return a != 0 && b != 0 }),
	"or_fwd":  oracleLogic(func(a, b float64) bool { return a != 0 || b != 0 }),
	"not_fwd": func(g gen) *testCase {
		x := g.values(i8, false, g.dims(g.rank())...)
		return mapped(x, i8, func(v float64) float64 { return 1 - v })
	},
	"where_fwd": oracleWhere,

	"neg_fwd": func(g gen) *testCase {
		x := g.values(pick(g, f32, bf16, i32), true, g.dims(g.rank())...)
		return mapped(x, x.dt, func(v float64) float64 {
			if x.dt == i32 {
				return 0 - v
			}
			return -v
		})
	},
	"exp_fwd":     oracleFloat(math.Exp),
	"log_fwd":     oracleFloat(math.Log),
	"sigmoid_fwd": oracleFloat(func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }),
	"silu_fwd":    oracleFloat(func(x float64) float64 { return x * (1 / (1 + math.Exp(-x))) }),
	"softplus_fwd": oracleFloat(func(x float64) float64 {
		if x > 40 {
			return x
		}
		return math.Log1p(math.Exp(x))
	}),

	"cast_f32_to_bf16": oracleCast(f32, bf16),
	"cast_bf16_to_f32": oracleCast(bf16, f32),
	"cast_i32_to_f32":  oracleCast(i32, f32),
	"cast_f32_to_i32":  oracleCast(f32, i32),
	"cast_i32_to_i8":   oracleCast(i32, i8),
	"cast_i8_to_i32":   oracleCast(i8, i32),

	"constant": func(g gen) *testCase {
		v := g.values(pick(g, f32, i32), true, 1).x[0]
		if math.IsInf(v, 0) || v != v {
			v = -0.75 // no JSON has the value of such a constant
		}
		dt := i32
		field := ints("value", recipes.I32, int64(v))
		if v != float64(int32(v)) || g.IntN(2) == 0 {
			dt = pick(g, f32, bf16)
			field = recipes.Field{Name: "value", Type: recipes.F32, Float: float32(v)}
		}
		y := newVal(dt, g.dims(g.rank())...)
		for i := range y.x {
			y.x[i] = rounded(dt, v)
		}
		return &testCase{guid: dt.String(), out: []*val{y}, params: params("ns_ConstantKernel::Params", field)}
	},
	"range": oracleRange,
	"identity": func(g gen) *testCase {
		x := g.values(g.anyType(), true, g.dims(g.rank())...)
		return &testCase{in: []*val{x}, out: []*val{x}}
	},
	"reshape": func(g gen) *testCase {
		x := g.values(g.anyType(), true, g.dims(g.rank())...)
		y := newVal(x.dt, len(x.x))
		if g.IntN(2) == 0 {
			y.dims = append(slices.Clone(x.dims[1:]), 1, x.dims[0])
		}
		copy(y.x, x.x)
		return &testCase{in: []*val{x}, out: []*val{y}}
	},
	"transpose":  oracleTranspose,
	"broadcast":  oracleBroadcast,
	"slice_axis": oracleSlice,
	"concat":     oracleConcat,

	"reduce_sum_fwd": oracleReduceSum,
	"reduce_max_fwd": oracleReduceMax,
	"softmax_fwd":    oracleSoftmax,
	"topk":           oracleTopk,

	"gather_fwd":          oracleGather,
	"gather_elements_fwd": oracleGatherElements,
	"index_copy_fwd":      oracleIndexCopy,
	"rms_norm_fwd":        oracleRMSNorm,
	"moe":                 oracleMoE,
}

// bitType is a type of the nodes that pick elements, anyType one of those that
// take every type.
func (g gen) bitType() dtype.Type { return pick(g, f32, bf16, i32, i8) }
func (g gen) anyType() dtype.Type { return pick(g, f32, bf16, i32, i8, dtype.U8, dtype.I64) }

// mapped is a case of one operand without parameters.
func mapped(x *val, dt dtype.Type, f func(float64) float64) *testCase {
	y := newVal(dt, x.dims...)
	for i, v := range x.x {
		y.x[i] = rounded(dt, f(v))
	}
	return &testCase{guid: x.dt.String(), in: []*val{x}, out: []*val{y}}
}

func oracleFloat(f func(float64) float64) func(gen) *testCase {
	return func(g gen) *testCase {
		x := g.values(pick(g, f32, bf16), true, g.dims(g.rank())...)
		c := mapped(x, x.dt, f)
		c.tol = [][]float64{make([]float64, len(x.x))}
		for i, v := range c.out[0].x {
			// kern's error, at most 3.5 ulp of f32 and 2⁻¹⁴² below its normal
			// numbers, and one rounding.
			c.tol[0][i] = (2*epsOf(x.dt)+7*eps32)*math.Abs(v) + 0x1p-142
			if math.IsInf(v, 0) {
				c.tol[0][i] = 0
			}
		}
		return c
	}
}

// zipped is a case of two broadcast operands.
func zipped(a, b *val, dt dtype.Type, f func(a, b float64) float64) *testCase {
	y := newVal(dt, joint(a.dims, b.dims)...)
	y.each(func(i int, idx []int) { y.x[i] = rounded(dt, f(a.get(idx...), b.get(idx...))) })
	return &testCase{guid: a.dt.String(), in: []*val{a, b}, out: []*val{y}}
}

func oracleBinary(f func(a, b float64) float64) func(gen) *testCase {
	return func(g gen) *testCase {
		dt, dims := pick(g, f32, bf16, i32), g.dims(g.rank())
		return zipped(g.values(dt, true, g.thin(dims)...), g.values(dt, true, g.thin(dims)...), dt, func(a, b float64) float64 {
			if dt == i32 && math.Abs(a*b) > 1<<52 {
				// Only a product of integers loses bits in a float64.
				if v := f(a, b); v == a*b {
					return float64(int32(int64(a) * int64(b)))
				}
			}
			return f(a, b)
		})
	}
}

func oracleDiv(g gen) *testCase {
	dt, dims := pick(g, f32, bf16, i32), g.dims(g.rank())
	a, b := g.values(dt, true, g.thin(dims)...), g.values(dt, true, g.thin(dims)...)
	if dt == i32 {
		for i := range b.x {
			if b.x[i] == 0 {
				b.x[i] = 3
			}
		}
	}
	return zipped(a, b, dt, func(a, b float64) float64 {
		if dt == i32 {
			return math.Trunc(a/b) + 0
		}
		return a / b
	})
}

func oracleCompare(f func(a, b float64) bool) func(gen) *testCase {
	return func(g gen) *testCase {
		dt, dims := pick(g, f32, bf16, i32), g.dims(g.rank())
		a, b := g.values(dt, true, g.thin(dims)...), g.values(dt, true, g.thin(dims)...)
		for i := range a.x {
			if i < len(b.x) && g.IntN(4) == 0 {
				a.x[i] = b.x[i]
			}
		}
		return zipped(a, b, i8, func(a, b float64) float64 { return bit(f(a, b)) })
	}
}

func oracleLogic(f func(a, b float64) bool) func(gen) *testCase {
	return func(g gen) *testCase {
		dims := g.dims(g.rank())
		return zipped(g.values(i8, false, g.thin(dims)...), g.values(i8, false, g.thin(dims)...), i8,
			func(a, b float64) float64 { return bit(f(a, b)) })
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func oracleWhere(g gen) *testCase {
	dt, dims := g.bitType(), g.dims(g.rank())
	c, a, b := g.values(i8, false, g.thin(dims)...), g.values(dt, true, g.thin(dims)...), g.values(dt, true, g.thin(dims)...)
	y := newVal(dt, joint(c.dims, a.dims, b.dims)...)
	y.each(func(i int, idx []int) {
		y.x[i] = b.get(idx...)
		if c.get(idx...) != 0 {
			y.x[i] = a.get(idx...)
		}
	})
	return &testCase{guid: dt.String(), in: []*val{c, a, b}, out: []*val{y}}
}

func oracleCast(from, to dtype.Type) func(gen) *testCase {
	return func(g gen) *testCase {
		x := g.values(from, true, g.dims(g.rank())...)
		if from == f32 && to == i32 {
			for i := range x.x {
				if g.IntN(4) == 0 {
					x.x[i] = rounded(f32, g.NormFloat64()*3e9)
				}
			}
		}
		c := mapped(x, to, func(v float64) float64 {
			switch {
			case to == i8:
				return float64(int8(int64(v)))
			case to == i32 && v != v:
				return 0
			case to == i32:
				return math.Trunc(min(max(v, math.MinInt32), math.MaxInt32)) + 0
			}
			return v
		})
		c.params = axisP("ns_CastKernel::Params", "round_mode", recipes.I32, 0)
		return c
	}
}

func oracleRange(g gen) *testCase {
	start, delta, n := g.IntN(2000)-1000, 1+g.IntN(9), g.IntN(700)
	limit := start + n*delta - g.IntN(delta)
	if n == 0 {
		limit = start
	}
	if g.IntN(2) == 0 {
		start, limit, delta = -start, -limit, -delta
	}
	y := newVal(i32, n)
	for i := range y.x {
		y.x[i] = float64(start + i*delta)
	}
	return &testCase{guid: "i32", out: []*val{y}, params: params("ns_RangeKernel::Params",
		ints("start", recipes.I32, int64(start)), ints("limit", recipes.I32, int64(limit)), ints("delta", recipes.I32, int64(delta)))}
}

func oracleTranspose(g gen) *testCase {
	x := g.values(g.anyType(), true, g.dims(g.rank())...)
	perm := g.Perm(len(x.dims))
	y := newVal(x.dt, x.dims...)
	for i, p := range perm {
		y.dims[i] = x.dims[p]
	}
	y.each(func(i int, idx []int) {
		from := make([]int, len(idx))
		for j, p := range perm {
			from[p] = idx[j]
		}
		y.x[i] = x.get(from...)
	})
	return &testCase{in: []*val{x}, out: []*val{y}, params: transposeP(perm)}
}

func oracleBroadcast(g gen) *testCase {
	dims := g.dims(g.rank())
	x := g.values(g.anyType(), true, g.thin(dims)...)
	y := newVal(x.dt, dims...)
	y.each(func(i int, idx []int) { y.x[i] = x.get(idx...) })
	return &testCase{in: []*val{x}, out: []*val{y}}
}

func oracleSlice(g gen) *testCase {
	x := g.values(g.anyType(), true, g.dims(g.rank())...)
	axis := g.IntN(len(x.dims))
	begin := g.IntN(x.dims[axis] + 1)
	end := begin + g.IntN(x.dims[axis]-begin+1)
	dims := slices.Clone(x.dims)
	dims[axis] = end - begin
	y := newVal(x.dt, dims...)
	y.each(func(i int, idx []int) {
		from := slices.Clone(idx)
		from[axis] += begin
		y.x[i] = x.get(from...)
	})
	return &testCase{in: []*val{x}, out: []*val{y}, params: sliceP(axis, begin, end)}
}

func oracleConcat(g gen) *testCase {
	dt, dims := g.anyType(), g.dims(g.rank())
	axis, n := g.IntN(len(dims)), 1+g.IntN(4)
	dims[axis] = min(dims[axis], 50)
	c := &testCase{params: axisP("synConcatenateParams", "axis", recipes.U32, axis)}
	total := 0
	for range n {
		d := slices.Clone(dims)
		d[axis] = g.IntN(dims[axis] + 2)
		total += d[axis]
		c.in = append(c.in, g.values(dt, true, d...))
	}
	dims[axis] = total
	y := newVal(dt, dims...)
	y.each(func(i int, idx []int) {
		from := slices.Clone(idx)
		for _, x := range c.in {
			if from[axis] < x.dims[axis] {
				y.x[i] = x.get(from...)
				return
			}
			from[axis] -= x.dims[axis]
		}
	})
	c.out = []*val{y}
	return c
}

// line collects the elements of x along an axis through idx.
func line(x *val, axis int, idx []int) []float64 {
	from := slices.Clone(idx)
	v := make([]float64, x.dims[axis])
	for i := range v {
		from[axis] = i
		v[i] = x.get(from...)
	}
	return v
}

// moderate draws values whose sums stay finite: numbers, and rarely an
// infinity or NaN.
func (g gen) moderate(dt dtype.Type, dims ...int) *val {
	v := g.values(dt, false, dims...)
	if dt != i32 && g.IntN(4) == 0 {
		for i := range v.x {
			if g.IntN(40) == 0 {
				v.x[i] = pick(g, math.Inf(1), math.Inf(-1), math.NaN(), 0, math.Copysign(0, -1))
			}
		}
	}
	return v
}

func oracleReduceSum(g gen) *testCase {
	x := g.moderate(pick(g, f32, bf16, i32), g.dims(g.rank())...)
	axis := g.IntN(len(x.dims))
	dims := slices.Clone(x.dims)
	dims[axis] = 1
	y := newVal(x.dt, dims...)
	tol := make([]float64, len(y.x))
	y.each(func(i int, idx []int) {
		sum, abs := 0.0, 0.0
		for _, v := range line(x, axis, idx) {
			sum += v
			abs += math.Abs(v)
		}
		y.x[i] = rounded(x.dt, sum)
		tol[i] = float64(x.dims[axis])*eps32*abs + 2*epsOf(x.dt)*math.Abs(sum)
		if x.dt == i32 || sum != sum || math.IsInf(sum, 0) {
			tol[i] = 0
		}
	})
	return &testCase{
		guid: x.dt.String(), in: []*val{x}, out: []*val{y}, tol: [][]float64{tol},
		params: axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, axis),
	}
}

func oracleReduceMax(g gen) *testCase {
	x := g.values(pick(g, f32, bf16, i32), true, g.full(g.rank())...)
	axis := g.IntN(len(x.dims))
	dims := slices.Clone(x.dims)
	dims[axis] = 1
	y := newVal(x.dt, dims...)
	y.each(func(i int, idx []int) {
		y.x[i] = math.Inf(-1)
		for _, v := range line(x, axis, idx) {
			y.x[i] = max(y.x[i], v)
		}
	})
	return &testCase{
		guid: x.dt.String(), in: []*val{x}, out: []*val{y},
		params: axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, axis),
	}
}

func oracleSoftmax(g gen) *testCase {
	x := g.moderate(pick(g, f32, bf16), g.dims(g.rank())...)
	axis := g.IntN(len(x.dims))
	y := newVal(x.dt, x.dims...)
	tol := make([]float64, len(y.x))
	y.each(func(_ int, idx []int) {
		if idx[axis] > 0 {
			return
		}
		l := line(x, axis, idx)
		top, sum := slices.Max(l), 0.0
		for _, v := range l {
			sum += math.Exp(v - top)
		}
		at := slices.Clone(idx)
		for j, v := range l {
			at[axis] = j
			v = math.Exp(v-top) / sum
			y.x[y.at(at)] = rounded(x.dt, v)
			tol[y.at(at)] = v*(2*epsOf(x.dt)+1e-5) + 1e-37
		}
	})
	return &testCase{
		guid: x.dt.String(), in: []*val{x}, out: []*val{y}, tol: [][]float64{tol},
		params: axisP("ns_Softmax::Params", "dim", recipes.I32, axis),
	}
}

func oracleTopk(g gen) *testCase {
	x := g.values(pick(g, f32, bf16, i32), true, g.full(g.rank())...)
	if g.IntN(2) == 0 { // many equal values
		for i := range x.x {
			x.x[i] = pick(g, 0.0, math.Copysign(0, -1), 1, 2, x.x[i])
			if x.dt == i32 {
				x.x[i] += 0
			}
		}
	}
	axis := g.IntN(len(x.dims))
	k := 1 + g.IntN(x.dims[axis])
	dims := slices.Clone(x.dims)
	dims[axis] = k
	values, indices := newVal(x.dt, dims...), newVal(i32, dims...)
	values.each(func(_ int, idx []int) {
		if idx[axis] > 0 {
			return
		}
		l := line(x, axis, idx)
		order := make([]int, len(l))
		for j := range order {
			order[j] = j
		}
		slices.SortStableFunc(order, func(p, q int) int {
			a, b := l[p], l[q]
			switch {
			case a != a && b != b:
				return 0
			case a != a || a > b:
				return -1
			case b != b || a < b:
				return 1
			}
			return 0
		})
		at := slices.Clone(idx)
		for j, from := range order[:k] {
			at[axis] = j
			i := values.at(at)
			indices.x[i], values.x[i] = float64(from), l[from]
		}
	})
	return &testCase{in: []*val{x, nil, nil}, out: []*val{values, indices}, params: topkP(k, axis)}
}

func oracleGather(g gen) *testCase {
	x := g.values(g.bitType(), true, g.full(1+g.IntN(3))...)
	axis := g.IntN(len(x.dims))
	idx := g.indices(x.dims[axis], g.dims(g.IntN(3))...)
	for len(idx.x)*len(x.x) > 200000 {
		idx = g.indices(x.dims[axis], 1+g.IntN(5))
	}
	y := newVal(x.dt, slices.Concat(x.dims[:axis], idx.dims, x.dims[axis+1:])...)
	y.each(func(i int, at []int) {
		n := len(idx.dims)
		from := slices.Concat(at[:axis], []int{int(idx.get(at[axis : axis+n]...))}, at[axis+n:])
		y.x[i] = x.get(from...)
	})
	return &testCase{
		guid: x.dt.String(), in: []*val{x, idx}, out: []*val{y},
		params: axisP("ns_GatherKernel::Params", "axis", recipes.I32, axis),
	}
}

func oracleGatherElements(g gen) *testCase {
	x := g.values(g.bitType(), true, g.full(g.rank())...)
	axis := g.IntN(len(x.dims))
	dims := slices.Clone(x.dims)
	dims[axis] = g.IntN(8)
	idx := g.indices(x.dims[axis], dims...)
	y := newVal(x.dt, dims...)
	y.each(func(i int, at []int) {
		from := slices.Clone(at)
		from[axis] = int(idx.x[i])
		y.x[i] = x.get(from...)
	})
	return &testCase{
		guid: x.dt.String(), in: []*val{x, idx}, out: []*val{y},
		params: axisP("ns_GatherElementsKernel::Params", "axis", recipes.I32, axis),
	}
}

func oracleIndexCopy(g gen) *testCase {
	x := g.values(g.bitType(), true, g.full(g.rank())...)
	axis := len(x.dims) - 1
	idx := g.indices(x.dims[axis], g.IntN(5))
	dims := slices.Clone(x.dims)
	dims[axis] = len(idx.x)
	src := g.values(x.dt, true, dims...)
	y := newVal(x.dt, x.dims...)
	y.each(func(i int, at []int) {
		y.x[i] = x.x[i]
		for j, v := range idx.x {
			if int(v) == at[axis] {
				from := slices.Clone(at)
				from[axis] = j
				y.x[i] = src.get(from...)
			}
		}
	})
	return &testCase{
		guid: x.dt.String(), in: []*val{x, idx, src}, out: []*val{y},
		params: axisP("ns_IndexCopy::Params", "axis", recipes.I32, 0),
	}
}

func (g gen) extents() (m, n, k int) {
	m, n, k = 1+g.IntN(5), 1+g.IntN(40), g.IntN(70)
	if g.IntN(5) == 0 {
		m = 60 + g.IntN(80)
	}
	if g.IntN(30) == 0 {
		m, n, k = min(m, 2), min(n, 4), 1000+g.IntN(4000)
	}
	return m, n, k
}

// dotError is the error of a product relative to the magnitude of its terms:
// the number of roundings that a term can pass, times what one does. With
// transpose_b there are 16 lanes to chunks of 4096 bytes (kern's law).
func dotError(dt dtype.Type, k int, tb bool) float64 {
	roundings := k
	if tb {
		chunk := 4096 / dt.Size()
		roundings = (min(k, chunk)+31)/32*2 + 4 + (k+chunk-1)/chunk
	}
	return float64(roundings) * eps32 / (1 - float64(roundings)*eps32)
}

// flushed is what a term can lose by itself.
func flushed(dt dtype.Type) float64 {
	if dt == bf16 {
		return 0x1p-125
	}
	return 0x1p-149
}

// product64 fills c = a·b for the two fastest dims, before the rounding to its
// type.
func product64(c *testCase, a, b *val, cdt dtype.Type, k int, ta, tb bool, dims ...int) {
	y := newVal(cdt, dims...)
	tol := make([]float64, len(y.x))
	y.each(func(i int, idx []int) {
		sum, abs := 0.0, 0.0
		for j := range k {
			ia, ib := slices.Clone(idx), slices.Clone(idx)
			ia[0], ia[1] = j, idx[1]
			if ta {
				ia[0], ia[1] = idx[1], j
			}
			ib[0], ib[1] = idx[0], j
			if tb {
				ib[0], ib[1] = j, idx[0]
			}
			v := a.get(ia...) * b.get(ib...)
			sum += v
			abs += math.Abs(v)
		}
		y.x[i] = sum
		tol[i] = dotError(a.dt, k, tb)*abs + float64(k)*flushed(a.dt)
		tol[i] += epsOf(cdt)*(math.Abs(sum)+tol[i]) + 2*float64(k)*0x1p-52*abs // of y and of this sum
		if sum != sum || math.IsInf(sum, 0) {
			tol[i] = 0
		}
	})
	c.in, c.out, c.tol, c.params = []*val{a, b}, []*val{y}, [][]float64{tol}, gemmP(int64(bit(ta)), int64(bit(tb)))
}

func oracleGemm(g gen) *testCase {
	m, n, k := g.extents()
	ta, tb, dt := g.IntN(3) == 0, g.IntN(3) != 0, pick(g, f32, bf16)
	ad, bd := []int{k, m}, []int{n, k}
	if ta {
		slices.Reverse(ad)
	}
	if tb {
		slices.Reverse(bd)
	}
	c := &testCase{}
	product64(c, g.moderate(dt, ad...), g.moderate(dt, bd...), pick(g, dt, f32), k, ta, tb, n, m)
	return c
}

func oracleBatchGemm(g gen) *testCase {
	m, n, k := g.extents()
	ta, tb, dt := g.IntN(3) == 0, g.IntN(3) != 0, pick(g, f32, bf16)
	m = min(m, 66)
	batch := make([]int, 1+g.IntN(3))
	for i := range batch {
		batch[i] = 1 + g.IntN(3)
	}
	ad, bd := []int{k, m}, []int{n, k}
	if ta {
		slices.Reverse(ad)
	}
	if tb {
		slices.Reverse(bd)
	}
	ab, bb := g.thin(batch), g.thin(batch)
	c := &testCase{}
	product64(c, g.moderate(dt, append(ad, ab...)...), g.moderate(dt, append(bd, bb...)...), pick(g, dt, f32), k, ta, tb,
		append([]int{n, m}, joint(ab, bb)...)...)
	return c
}

func oracleRMSNorm(g gen) *testCase {
	dt := pick(g, f32, bf16)
	x := g.moderate(dt, g.full(g.rank())...)
	gamma := g.values(dt, false, x.dims[0])
	const eps = 1e-6
	dims := slices.Clone(x.dims)
	dims[0] = 1
	y, inv := newVal(dt, x.dims...), newVal(f32, dims...)
	ty, ti := make([]float64, len(y.x)), make([]float64, len(inv.x))
	inv.each(func(i int, idx []int) {
		sum := 0.0
		for _, v := range line(x, 0, idx) {
			sum += v * v
		}
		inv.x[i] = rounded(f32, 1/math.Sqrt(sum/float64(x.dims[0])+float64(float32(eps))))
		ti[i] = float64(x.dims[0]+4) * 2 * eps32 * inv.x[i]
	})
	y.each(func(i int, idx []int) {
		t := rounded(dt, rounded(f32, x.x[i]*inv.get(idx...)))
		y.x[i] = rounded(dt, rounded(f32, t*gamma.x[idx[0]]))
		ty[i] = (float64(x.dims[0]+8)*2*eps32+4*epsOf(dt))*math.Abs(y.x[i]) + 1e-38
	})
	return &testCase{guid: dt.String(), in: []*val{x, gamma}, out: []*val{y, inv}, tol: [][]float64{ty, ti}, params: normP(eps)}
}

func oracleMoE(g gen) *testCase {
	dt := pick(g, f32, bf16)
	tokens, h, f, k, experts, low := g.IntN(6), 1+g.IntN(40), 1+g.IntN(20), g.IntN(4), 1+g.IntN(4), g.IntN(3)
	if g.IntN(10) == 0 {
		tokens = 100
	}
	x := g.values(dt, false, h, tokens)
	tab := g.indices(low+experts+2, k, tokens)
	w := g.values(dt, false, k, tokens)
	c := &testCase{guid: dt.String(), in: []*val{x, tab, w}, params: moeP(low, low+experts-1)}
	for range experts {
		c.in = append(c.in, g.values(dt, false, h, 2*f))
	}
	for range experts {
		c.in = append(c.in, g.values(dt, false, f, h))
	}
	y := newVal(dt, h, tokens)
	tol := make([]float64, len(y.x))
	for t := range tokens {
		for e := low; e < low+experts; e++ {
			for j := range k {
				if int(tab.get(j, t)) != e {
					continue
				}
				up, down := c.in[3+e-low], c.in[3+experts+e-low]
				gu, mag := make([]float64, 2*f), make([]float64, 2*f)
				for o := range gu {
					for i := range h {
						gu[o] += up.get(i, o) * x.get(i, t)
						mag[o] += math.Abs(up.get(i, o) * x.get(i, t))
					}
					gu[o] = rounded(dt, gu[o])
				}
				for o := range h {
					sum, abs := 0.0, 0.0
					for i := range f {
						silu := gu[i] / (1 + math.Exp(-gu[i]))
						act := rounded(dt, silu*gu[f+i])
						sum += down.get(i, o) * act
						// The error of g·u is relative to the magnitude of its sums.
						abs += math.Abs(down.get(i, o)) * (math.Abs(act) + 4*(mag[i]*(math.Abs(gu[f+i])+1)+mag[f+i]*(math.Abs(silu)+1)))
					}
					y.x[t*h+o] += w.get(j, t) * rounded(dt, sum)
					tol[t*h+o] += math.Abs(w.get(j, t)) * abs
				}
			}
		}
	}
	for i := range y.x {
		y.x[i] = rounded(dt, y.x[i])
		tol[i] = tol[i]*4*epsOf(dt) + 2*epsOf(dt)*math.Abs(y.x[i])
		if dt == f32 {
			tol[i] *= 8
		}
	}
	c.out, c.tol = []*val{y}, [][]float64{tol}
	return c
}

// What is not picked must not matter, whatever its bits.
func TestNaNDoesNotLeak(t *testing.T) {
	nan := math.NaN()
	for _, dt := range []dtype.Type{f32, bf16} {
		v := func(dims []int, x ...float64) *val { return &val{dt, dims, x} }
		n := func(x ...float64) *val { return &val{i32, []int{len(x)}, x} }
		for _, c := range []*testCase{
			{guid: "where_fwd", in: []*val{{i8, []int{2}, []float64{1, 0}}, v([]int{2}, 1, nan), v([]int{2}, nan, 2)}, out: []*val{v([]int{2}, 1, 2)}},
			{
				guid: "gather_fwd", in: []*val{v([]int{3}, nan, 1, nan), n(1, 1)}, out: []*val{v([]int{2}, 1, 1)},
				params: axisP("ns_GatherKernel::Params", "axis", recipes.I32, 0),
			},
			{
				guid: "index_copy_fwd", in: []*val{v([]int{2}, nan, 1), n(0), v([]int{1}, 3)}, out: []*val{v([]int{2}, 3, 1)},
				params: axisP("ns_IndexCopy::Params", "axis", recipes.I32, 0),
			},
			{
				guid: "reduce_max_fwd", in: []*val{v([]int{2, 2}, nan, 1, 2, 3)}, out: []*val{v([]int{1, 2}, nan, 3)},
				params: axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 0),
			},
			{
				guid: "softmax_fwd", in: []*val{v([]int{2, 2}, nan, 1, 2, 2)}, out: []*val{v([]int{2, 2}, nan, nan, 0.5, 0.5)},
				params: axisP("ns_Softmax::Params", "dim", recipes.I32, 0),
			},
		} {
			c.guid += "_" + dt.String()
			c.check(t)
		}
	}
}

// Signalling NaNs and all other bits survive nodes that only move elements.
func TestMovesKeepBits(t *testing.T) {
	for _, guid := range []string{"where_fwd_bf16", "where_fwd_f32"} {
		dt, _ := dtype.Parse(guid[strings.LastIndexByte(guid, '_')+1:])
		cond := &val{i8, []int{1}, []float64{1}}
		c := &testCase{guid: guid, in: []*val{cond, newVal(dt, 1), newVal(dt, 1)}, out: []*val{newVal(dt, 1)}}
		r, offsets := c.recipe()
		withProgram(t, 1, r, func(d *Device, run func() error) {
			m := d.Bytes(0, recipes.Arena)
			m[offsets[0]] = 1
			pattern := []byte{0x01, 0x00, 0x81, 0x7f} // as f32 and, from its end, as bf16
			copy(m[offsets[1]:], pattern[4-dt.Size():])
			if err := run(); err != nil {
				t.Fatal(err)
			}
			if got := m[offsets[3] : offsets[3]+int64(dt.Size())]; !slices.Equal(got, pattern[4-dt.Size():]) {
				t.Errorf("%s: % x", guid, got)
			}
		})
	}
}
