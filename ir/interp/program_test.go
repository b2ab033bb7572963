package interp

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir"
	"quill/recipes/dtype"
)

// direct is another evaluation of a program: a value is a function of an
// element's position.
type direct struct {
	t     dtype.Type
	shape []int64
	at    func(pos []int64) float64
}

// program builds IR and its direct evaluation side by side.
type program struct {
	t      *rapid.T
	m      *ir.Module
	b      *ir.Builder
	args   map[string]*Tensor
	values []*ir.Value
	want   []direct
}

// Random programs of elementwise and layout ops.
func TestRandomPrograms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &program{t: t, m: &ir.Module{Name: "m", TP: 1}, args: map[string]*Tensor{}}
		f := &ir.Func{Name: "f"}
		p.m.Funcs = []*ir.Func{f}
		p.b = ir.NewBuilder(p.m, f)
		p.param()
		for range rapid.IntRange(1, 12).Draw(t, "ops") {
			p.op()
		}
		require.NoError(t, p.b.Err())
		for i, v := range p.values {
			p.b.Result(ir.Temp, fmt.Sprintf("r%d", i), v)
		}
		out, err := Run(context.Background(), p.m, f, nil, []map[string]*Tensor{p.args}, Options{})
		require.NoError(t, err)
		for i, want := range p.want {
			got := out[0][fmt.Sprintf("r%d", i)]
			require.NoError(t, got.Check())
			require.Equal(t, want.shape, got.Shape)
			eachPlace(want.shape, func(k int, pos []int64) {
				w, g := want.at(pos), got.Number(k)
				if math.Float64bits(w) != math.Float64bits(g) && (w == w || g == g) {
					t.Fatalf("value %d (%s) at %v is %v, want %v\n%s", i, p.values[i].Name(), pos, g, w, p.m)
				}
			})
		}
	})
}

// eachPlace visits the positions of a shape in row-major order.
func eachPlace(shape []int64, f func(k int, pos []int64)) {
	k := 0
	var loop func(pos []int64)
	loop = func(pos []int64) {
		if len(pos) == len(shape) {
			f(k, pos)
			k++
			return
		}
		for i := range shape[len(pos)] {
			loop(append(pos[:len(pos):len(pos)], i))
		}
	}
	loop(nil)
}

// add records a value; its direct elements are computed now, once.
func (p *program) add(v *ir.Value, d direct) {
	memo := map[string]float64{}
	eachPlace(d.shape, func(_ int, pos []int64) { memo[fmt.Sprint(pos)] = d.at(pos) })
	d.at = func(pos []int64) float64 { return memo[fmt.Sprint(pos)] }
	p.values = append(p.values, v)
	p.want = append(p.want, d)
}

func (p *program) param() {
	t := rapid.SampledFrom([]dtype.Type{dtype.F32, dtype.BF16, dtype.I32}).Draw(p.t, "type")
	p.paramOf(t, rapid.SliceOfN(rapid.Int64Range(1, 4), 1, 3).Draw(p.t, "shape"))
}

func (p *program) paramOf(t dtype.Type, shape []int64) int {
	name := fmt.Sprintf("p%d", len(p.args))
	x := Random(rapid.Uint64().Draw(p.t, "seed"), t, shape...)
	if t.IsFloat() && rapid.Bool().Draw(p.t, "special") {
		x.F[0] = rapid.SampledFrom([]float32{nan, inf, negInf, negZ, 1e38, 1e-40}).Draw(p.t, "value")
		x = Cast(Cast(x, dtype.F32), t)
		if t == dtype.BF16 {
			x = FromBF16(shape, x.F...)
		}
	}
	p.args[name] = x
	v := p.b.Param(ir.Host, name, ir.T(t, dims(shape)...), ir.Source{})
	p.add(v, direct{t, shape, func(pos []int64) float64 {
		k := int64(0)
		for a, i := range pos {
			k = k*shape[a] + i
		}
		return x.Number(int(k))
	}})
	return len(p.values) - 1
}

func dims(shape []int64) []ir.Dim {
	ds := make([]ir.Dim, len(shape))
	for i, d := range shape {
		ds[i] = ir.D(d)
	}
	return ds
}

// storeDirect is a second implementation of rounding, by scaling.
func storeDirect(t dtype.Type, v float64) float64 {
	switch t {
	case dtype.I32:
		return float64(int32(uint32(uint64(int64(v)))))
	case dtype.BF16:
		f := float64(float32(v))
		if f == 0 || math.IsInf(f, 0) || f != f {
			return f
		}
		_, e := math.Frexp(f)
		quantum := math.Ldexp(1, max(e-8, -133))
		r := math.RoundToEven(f/quantum) * quantum
		if math.Abs(r) >= math.Ldexp(1, 128) {
			return math.Inf(int(math.Copysign(1, r)))
		}
		return math.Copysign(r, f)
	}
	return float64(float32(v))
}

// op adds one random op.
func (p *program) op() {
	k := rapid.IntRange(0, len(p.values)-1).Draw(p.t, "operand")
	v, d := p.values[k], p.want[k]
	rank := len(d.shape)
	switch rapid.IntRange(0, 9).Draw(p.t, "kind") {
	case 0:
		p.param()
	case 1:
		p.binary(k)
	case 2:
		p.unary(k)
	case 3:
		perm := rapid.Permutation(axes(rank)).Draw(p.t, "perm")
		shape := make([]int64, rank)
		for i, a := range perm {
			shape[i] = d.shape[a]
		}
		p.add(p.b.Transpose(v, perm), direct{d.t, shape, func(pos []int64) float64 {
			from := make([]int64, rank)
			for i, a := range perm {
				from[a] = pos[i]
			}
			return d.at(from)
		}})
	case 4:
		shape := p.refactor(d.shape)
		p.add(p.b.Reshape(v, dims(shape)), direct{d.t, shape, func(pos []int64) float64 {
			n := int64(0)
			for a, i := range pos {
				n = n*shape[a] + i
			}
			from := make([]int64, rank)
			for a := rank - 1; a >= 0; a-- {
				from[a] = n % d.shape[a]
				n /= d.shape[a]
			}
			return d.at(from)
		}})
	case 5:
		shape := slices.Clone(d.shape)
		for a, n := range shape {
			if n == 1 {
				shape[a] = rapid.Int64Range(1, 3).Draw(p.t, "repeat")
			}
		}
		p.add(p.b.Broadcast(v, dims(shape)), direct{d.t, shape, func(pos []int64) float64 { return d.at(clip(pos, d.shape)) }})
	case 6:
		a := rapid.IntRange(0, rank-1).Draw(p.t, "axis")
		start := rapid.Int64Range(0, d.shape[a]-1).Draw(p.t, "start")
		stop := rapid.Int64Range(start+1, d.shape[a]).Draw(p.t, "stop")
		p.add(p.b.Slice(v, int64(a), ir.D(start), ir.D(stop)), direct{d.t, withAxis(d.shape, a, stop-start), func(pos []int64) float64 {
			from := slices.Clone(pos)
			from[a] += start
			return d.at(from)
		}})
	case 7:
		a := rapid.IntRange(0, rank-1).Draw(p.t, "axis")
		o := p.paramOf(d.t, withAxis(d.shape, a, rapid.Int64Range(1, 3).Draw(p.t, "more")))
		e := p.want[o]
		p.add(p.b.Concat(int64(a), v, p.values[o]), direct{d.t, withAxis(d.shape, a, d.shape[a]+e.shape[a]), func(pos []int64) float64 {
			if pos[a] < d.shape[a] {
				return d.at(pos)
			}
			from := slices.Clone(pos)
			from[a] -= d.shape[a]
			return e.at(from)
		}})
	case 8:
		to := rapid.SampledFrom([]dtype.Type{dtype.F32, dtype.BF16, dtype.I32}).Draw(p.t, "to")
		p.add(p.b.Cast(v, to), direct{to, d.shape, func(pos []int64) float64 {
			x := d.at(pos)
			if d.t.IsFloat() && to == dtype.I32 {
				if x != x {
					return 0
				}
				return math.Trunc(min(max(x, math.MinInt32), math.MaxInt32)) + 0 // no −0
			}
			return storeDirect(to, x)
		}})
	case 9:
		p.choose(k)
	}
}

// partner adds a parameter that broadcasts with value k.
func (p *program) partner(k int) int {
	shape := slices.Clone(p.want[k].shape)
	for a := range shape {
		switch {
		case rapid.Bool().Draw(p.t, "narrow"):
			shape[a] = 1
		case shape[a] == 1:
			shape[a] = rapid.Int64Range(1, 3).Draw(p.t, "wide")
		}
	}
	return p.paramOf(p.want[k].t, shape)
}

func (p *program) binary(k int) {
	o := p.partner(k)
	x, y, d, e := p.values[k], p.values[o], p.want[k], p.want[o]
	shape := wider(d.shape, e.shape)
	var v *ir.Value
	var f func(a, b float64) float64
	switch rapid.IntRange(0, 5).Draw(p.t, "binary") {
	case 0:
		v, f = p.b.Add(x, y), func(a, b float64) float64 { return a + b }
	case 1:
		v, f = p.b.Sub(x, y), func(a, b float64) float64 { return a - b }
	case 2:
		v, f = p.b.Mul(x, y), func(a, b float64) float64 {
			if d.t == dtype.I32 {
				return float64(int32(a) * int32(b))
			}
			return a * b
		}
	case 3:
		v, f = p.b.Max(x, y), math.Max
	case 4:
		v, f = p.b.Min(x, y), math.Min
	case 5:
		if d.t == dtype.I32 {
			return
		}
		v, f = p.b.Div(x, y), func(a, b float64) float64 { return a / b }
	}
	p.add(v, direct{d.t, shape, func(pos []int64) float64 {
		a, b := d.at(clip(pos, d.shape)), e.at(clip(pos, e.shape))
		if a != a || b != b {
			return math.NaN()
		}
		return storeDirect(d.t, f(a, b))
	}})
}

// choose compares two values and selects between them.
func (p *program) choose(k int) {
	o := p.partner(k)
	x, y, d, e := p.values[k], p.values[o], p.want[k], p.want[o]
	var c *ir.Value
	var f func(a, b float64) bool
	switch rapid.IntRange(0, 3).Draw(p.t, "compare") {
	case 0:
		c, f = p.b.Lt(x, y), func(a, b float64) bool { return a < b }
	case 1:
		c, f = p.b.Le(x, y), func(a, b float64) bool { return a <= b }
	case 2:
		c, f = p.b.Eq(x, y), func(a, b float64) bool { return a == b }
	case 3:
		c, f = p.b.And(p.b.Le(x, y), p.b.Le(y, x)), func(a, b float64) bool { return a == b }
	}
	p.add(p.b.Select(c, x, y), direct{d.t, wider(d.shape, e.shape), func(pos []int64) float64 {
		a, b := d.at(clip(pos, d.shape)), e.at(clip(pos, e.shape))
		if f(a, b) {
			return a
		}
		return b
	}})
}

func (p *program) unary(k int) {
	x, d := p.values[k], p.want[k]
	which := rapid.IntRange(0, 5).Draw(p.t, "unary")
	if d.t == dtype.I32 {
		which = 0
	}
	var v *ir.Value
	var f func(float64) float64
	switch which {
	case 0:
		v, f = p.b.Neg(x), func(a float64) float64 {
			if d.t == dtype.I32 {
				return float64(-int32(a))
			}
			return -a
		}
	case 1:
		v, f = p.b.Exp(x), math.Exp
	case 2:
		v, f = p.b.Log(x), math.Log
	case 3:
		v, f = p.b.Sigmoid(x), func(a float64) float64 { return 1 / (1 + math.Exp(-a)) }
	case 4:
		v, f = p.b.Logsigmoid(x), func(a float64) float64 {
			if a < 0 {
				return a - math.Log1p(math.Exp(a))
			}
			return 0 - math.Log1p(math.Exp(-a))
		}
	case 5:
		v, f = p.b.Silu(x), func(a float64) float64 { return a * (1 / (1 + math.Exp(-a))) }
	}
	p.add(v, direct{d.t, d.shape, func(pos []int64) float64 { return storeDirect(d.t, f(d.at(pos))) }})
}

// refactor draws another shape with the same number of elements.
func (p *program) refactor(shape []int64) []int64 { return refactor(p.t, shape) }

func refactor(t *rapid.T, shape []int64) []int64 {
	n := int64(product(shape))
	var out []int64
	for n > 1 && len(out) < 3 {
		var divisors []int64
		for d := int64(1); d <= n; d++ {
			if n%d == 0 {
				divisors = append(divisors, d)
			}
		}
		d := rapid.SampledFrom(divisors).Draw(t, "factor")
		out = append(out, d)
		n /= d
	}
	return append(out, n)
}

func axes(rank int) []int64 {
	as := make([]int64, rank)
	for i := range as {
		as[i] = int64(i)
	}
	return as
}

// clip is the position in an operand that is repeated along size-1 axes.
func clip(pos, shape []int64) []int64 {
	out := slices.Clone(pos)
	for a, n := range shape {
		if n == 1 {
			out[a] = 0
		}
	}
	return out
}

func wider(a, b []int64) []int64 {
	out := slices.Clone(a)
	for i := range out {
		out[i] = max(a[i], b[i])
	}
	return out
}
