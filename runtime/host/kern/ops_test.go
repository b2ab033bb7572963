package kern

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// choice is a function of two operands and, where cond is used, a condition. Of
// a scalar form the last operand is one element for all.
type choice[Y, A, B any] struct {
	name string
	run  func(s Kernels, y []Y, cond []uint8, a []A, b []B)
	want func(y Y, cond uint8, a A, b B) Y
	one  bool // b is the same everywhere
}

func fn[Y, A, B any](name string, run func(s Kernels, y []Y, a []A, b []B), want func(a A, b B) Y) choice[Y, A, B] {
	return choice[Y, A, B]{
		name, func(s Kernels, y []Y, _ []uint8, a []A, b []B) { run(s, y, a, b) },
		func(_ Y, _ uint8, a A, b B) Y { return want(a, b) }, false,
	}
}

func fn1[Y, A, B any](name string, run func(s Kernels, y []Y, a []A, v B), want func(a A, v B) Y) choice[Y, A, B] {
	c := fn(name, func(s Kernels, y []Y, a []A, b []B) {
		var v B // of no elements there is no operand
		if len(b) > 0 {
			v = b[0]
		}
		run(s, y, a, v)
	}, want)
	c.one = true
	return c
}

// round is an f64 result as f32: rounded once for sums, products and quotients
// of f32, for which f64 has more than twice the digits.
func round(v float64) float32 { return quiet(float32(v)) }

func in64(f func(a, b float64) float64) func(a, b float32) float32 {
	return func(a, b float32) float32 { return round(f(float64(a), float64(b))) }
}

var (
	sum64  = in64(func(a, b float64) float64 { return a + b })
	diff64 = in64(func(a, b float64) float64 { return a - b })
	prod64 = in64(func(a, b float64) float64 { return a * b })
	quot64 = in64(func(a, b float64) float64 { return a / b })
	max64  = in64(nanMax)
	min64  = in64(func(a, b float64) float64 { return -nanMax(-a, -b) })
)

// nanMax is Go's max: that of package math prefers an infinity to a NaN.
func nanMax(a, b float64) float64 {
	if a != a || b != b {
		return math.NaN()
	}
	return math.Max(a, b)
}

var floatOps = []choice[float32, float32, float32]{
	fn("Add", Kernels.Add, sum64),
	fn("Sub", Kernels.Sub, diff64),
	fn("Mul", Kernels.Mul, prod64),
	fn("Div", Kernels.Div, quot64),
	fn("Max", Kernels.Max, max64),
	fn("Min", Kernels.Min, min64),
	fn1("AddS", Kernels.AddS, sum64),
	fn1("SubS", Kernels.SubS, diff64),
	fn1("MulS", Kernels.MulS, prod64),
	fn1("DivS", Kernels.DivS, quot64),
	fn1("MaxS", Kernels.MaxS, max64),
	fn1("MinS", Kernels.MinS, min64),
	{"Axpy", func(s Kernels, y []float32, _ []uint8, a, b []float32) {
		if len(b) > 0 {
			s.Axpy(y, b[0], a)
		}
	}, func(y float32, _ uint8, a, b float32) float32 { return quiet(fma(b, a, y)) }, true},
}

func wrap(f func(a, b int64) int64) func(a, b int32) int32 {
	return func(a, b int32) int32 { return int32(f(int64(a), int64(b))) }
}

var (
	sumInt  = wrap(func(a, b int64) int64 { return a + b })
	diffInt = wrap(func(a, b int64) int64 { return a - b })
	maxInt  = wrap(func(a, b int64) int64 { return max(a, b) })
	minInt  = wrap(func(a, b int64) int64 { return min(a, b) })
)

var intOps = []choice[int32, int32, int32]{
	fn("AddI32", Kernels.AddI32, sumInt),
	fn("SubI32", Kernels.SubI32, diffInt),
	fn("MaxI32", Kernels.MaxI32, maxInt),
	fn("MinI32", Kernels.MinI32, minInt),
	fn1("AddI32S", Kernels.AddI32S, sumInt),
	fn1("SubI32S", Kernels.SubI32S, diffInt),
	fn1("MaxI32S", Kernels.MaxI32S, maxInt),
	fn1("MinI32S", Kernels.MinI32S, minInt),
}

// is is 1 where the sign of a − b is one of the signs.
func is(signs ...int) func(a, b int32) uint8 {
	return func(a, b int32) uint8 {
		d := int64(a) - int64(b)
		for _, s := range signs {
			if s == 0 && d == 0 || s < 0 && d < 0 || s > 0 && d > 0 {
				return 1
			}
		}
		return 0
	}
}

var predicates = []choice[uint8, int32, int32]{
	fn("LessI32", Kernels.LessI32, is(-1)),
	fn("LessEqualI32", Kernels.LessEqualI32, is(-1, 0)),
	fn("EqualI32", Kernels.EqualI32, is(0)),
	fn1("LessI32S", Kernels.LessI32S, is(-1)),
	fn1("LessEqualI32S", Kernels.LessEqualI32S, is(-1, 0)),
	fn1("EqualI32S", Kernels.EqualI32S, is(0)),
}

var truths = []choice[uint8, uint8, uint8]{
	fn("And8", Kernels.And8, func(a, b uint8) uint8 {
		if a == 0 || b == 0 {
			return 0
		}
		return 1
	}),
}

func chosen[T any](_ T, cond uint8, a, b T) T {
	if cond == 0 {
		return b
	}
	return a
}

var selects32 = []choice[uint32, uint32, uint32]{
	{"Select32", Kernels.Select32, chosen[uint32], false},
	{"Select32S", func(s Kernels, y []uint32, cond []uint8, a, b []uint32) {
		if len(b) > 0 {
			s.Select32S(y, cond, a, b[0])
		}
	}, chosen[uint32], true},
}

var selects16 = []choice[uint16, uint16, uint16]{
	{"Select16", Kernels.Select16, chosen[uint16], false},
	{"Select16S", func(s Kernels, y []uint16, cond []uint8, a, b []uint16) {
		if len(b) > 0 {
			s.Select16S(y, cond, a, b[0])
		}
	}, chosen[uint16], true},
}

func drawFloat(r *rand.Rand) float32 {
	if r.IntN(8) == 0 {
		return math.Float32frombits(r.Uint32())
	}
	return special.value(r)
}

func drawInt(r *rand.Rand) int32 {
	switch r.IntN(8) {
	case 0:
		return int32(r.Uint32())
	case 1:
		return [...]int32{math.MinInt32, math.MaxInt32, -1}[r.IntN(3)]
	}
	return int32(r.IntN(9) - 4)
}

func drawTruth(r *rand.Rand) uint8 { return [...]uint8{0, 0, 1, 1, 0x80, uint8(r.Uint32())}[r.IntN(6)] }

// Every tier gives what the functions say, at any length and alignment, and
// writes nothing else.
func TestOps(t *testing.T) {
	each(t, floatOps, drawFloat, drawFloat)
	each(t, intOps, drawInt, drawInt)
	each(t, predicates, drawInt, drawInt)
	each(t, truths, drawTruth, drawTruth)
	each(t, selects32, (*rand.Rand).Uint32, (*rand.Rand).Uint32)
	draw16 := func(r *rand.Rand) uint16 { return uint16(r.Uint32()) }
	each(t, selects16, draw16, draw16)
}

func each[Y, A, B any](t *testing.T, all []choice[Y, A, B], drawA func(*rand.Rand) A, drawB func(*rand.Rand) B) {
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(10, uint64(i)))
			for n := range 300 {
				if n >= 290 {
					n = 1 + r.IntN(20_000)
				}
				c.check(t, r, n, drawA, drawB)
			}
		})
	}
}

func (c choice[Y, A, B]) check(t *testing.T, r *rand.Rand, n int, drawA func(*rand.Rand) A, drawB func(*rand.Rand) B) {
	t.Helper()
	const margin = 64
	before := make([]Y, n+2*margin)
	for i := range asBytes(before) {
		asBytes(before)[i] = uint8(r.Uint32())
	}
	at := 1 + r.IntN(margin)
	cond, a, b := make([]uint8, n+at)[at:], make([]A, n+at)[at:], make([]B, n+at)[at:]
	for i := range n {
		cond[i], a[i], b[i] = drawTruth(r), drawA(r), drawB(r)
		if c.one {
			b[i] = b[0]
		}
	}
	want := append([]Y(nil), before...)
	for i := range n {
		want[at+i] = c.want(before[at+i], cond[i], a[i], b[i])
	}
	for _, s := range tiers() {
		where := fmt.Sprintf("%v, %d elements", s.Tier(), n)
		got := append([]Y(nil), before...)
		c.run(s, got[at:at+n], cond, a, b)
		same(t, where, got, want)
		// In place.
		if a, ok := any(a).([]Y); ok && c.name != "Axpy" {
			a = append([]Y(nil), a...)
			c.run(s, a, cond, any(a).([]A), b)
			same(t, where+" in a", a, want[at:at+n])
		}
		if b, ok := any(b).([]Y); ok && !c.one {
			b = append([]Y(nil), b...)
			c.run(s, b, cond, a, any(b).([]B))
			same(t, where+" in b", b, want[at:at+n])
		}
	}
}

// same compares bits.
func same[T any](t *testing.T, where string, got, want []T) {
	t.Helper()
	g, w := asBytes(got), asBytes(want)
	if bytes.Equal(g, w) {
		return
	}
	for i := range w {
		if size := len(w) / len(want); g[i] != w[i] {
			t.Fatalf("%s: element %d is %v, want %v", where, i/size, got[i/size], want[i/size])
		}
	}
}

// A NaN of any payload becomes the one NaN, but bits that are only moved stay.
func TestOpsNaN(t *testing.T) {
	odd := math.Float32frombits(0xff80_0001)
	for _, s := range tiers() {
		a, b := []float32{odd, 1, 0, float32(math.Inf(1))}, []float32{1, odd, 0, float32(math.Inf(1))}
		for _, c := range floatOps {
			y := []float32{0, 0, 0, 0}
			c.run(s, y, nil, a, b)
			for i, v := range y {
				if v != v && math.Float32bits(v) != nan {
					t.Errorf("%v %s: element %d is NaN %x", s.Tier(), c.name, i, math.Float32bits(v))
				}
			}
		}
		bits := []uint32{math.Float32bits(odd)}
		y := []uint32{0}
		if s.Select32(y, []uint8{1}, bits, y); y[0] != bits[0] {
			t.Errorf("%v: %x became %x", s.Tier(), bits[0], y[0])
		}
	}
}

// sumBound is the interval around a sum: a lane has n/16 additions, and four
// follow.
func sumBound(x []float32) (lo, hi float64) {
	var sum, abs float64
	for _, v := range x {
		sum += float64(v)
		abs += math.Abs(float64(v))
	}
	d := float64(len(x)/lanes+1+4) * 0x1p-24
	e := d/(1-d)*abs + abs*float64(len(x))*0x1p-52
	return sum - e, sum + e
}

func TestReductions(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	for i := range 3000 {
		n := 1 + i%200
		if i%100 == 0 {
			n = 1 + r.IntN(30_000)
		}
		kind := spice(r.IntN(int(spices)))
		x := make([]float32, n+5)[r.IntN(5):]
		for j := range x {
			x[j] = kind.value(r)
		}
		x = x[:n]
		sum, top := Kernels{}.Sum(x), Kernels{}.MaxOf(x)
		if lo, hi := sumBound(x); !within(sum, lo, hi) && !math.IsNaN(lo) && !math.IsInf(lo, 0) {
			t.Fatalf("the sum of %d is %v, not in [%v, %v]", n, sum, lo, hi)
		}
		want := float32(math.Inf(-1))
		for _, v := range x {
			want = max64(want, v)
		}
		if math.Float32bits(top) != math.Float32bits(want) {
			t.Fatalf("the largest of %d is %v, want %v", n, top, want)
		}
		for _, s := range tiers()[1:] {
			if v := s.Sum(x); math.Float32bits(v) != math.Float32bits(sum) {
				t.Fatalf("%v: the sum of %d is %v, want %v", s.Tier(), n, v, sum)
			}
			if v := s.MaxOf(x); math.Float32bits(v) != math.Float32bits(top) {
				t.Fatalf("%v: the largest of %d is %v, want %v", s.Tier(), n, v, top)
			}
		}
	}
}

// Zeros change no sum, and no position of one does; a sum of zeros is +0.
func TestSumZeros(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 12))
	negative := float32(math.Copysign(0, -1))
	for _, s := range tiers() {
		if v := s.Sum([]float32{negative, negative}); math.Float32bits(v) != 0 {
			t.Error(s.Tier(), v)
		}
		if v := s.Sum(nil); math.Float32bits(v) != 0 {
			t.Error(s.Tier(), v)
		}
		if v := s.MaxOf([]float32{negative, negative}); math.Float32bits(v) != 1<<31 {
			t.Error(s.Tier(), v)
		}
		x, z := make([]float32, 300), make([]float32, 333)
		for i := range x {
			if x[i] = tiny.value(r); r.IntN(3) == 0 {
				x[i] = 0
			}
			if z[i] = x[i]; x[i] == 0 && r.IntN(2) == 0 {
				z[i] = negative
			}
		}
		for i := len(x); i < len(z); i++ {
			z[i] = negative
		}
		if a, b := s.Sum(x), s.Sum(z); math.Float32bits(a) != math.Float32bits(b) {
			t.Errorf("%v: %v with zeros is %v", s.Tier(), a, b)
		}
	}
}

func TestMaxOfNothing(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Best().MaxOf(nil)
}

func asBytes[T any](s []T) []byte {
	var v T
	return unsafe.Slice((*byte)(ptr(s)), len(s)*int(unsafe.Sizeof(v)))
}
