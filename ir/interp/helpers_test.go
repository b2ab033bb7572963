package interp

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes/dtype"
)

var (
	nan    = float32(math.NaN())
	inf    = float32(math.Inf(1))
	negInf = float32(math.Inf(-1))
	negZ   = float32(math.Copysign(0, -1))
)

// sh is a shape.
func sh(d ...int64) []int64 { return d }

func f32(shape []int64, v ...float32) *Tensor  { return FromF32(shape, v...) }
func bf16(shape []int64, v ...float32) *Tensor { return FromBF16(shape, v...) }
func i32(shape []int64, v ...int32) *Tensor    { return FromI32(shape, v...) }

// i8 makes a predicate.
func i8(shape []int64, v ...int64) *Tensor {
	return &Tensor{DType: dtype.I8, Shape: shape, I: v}
}

// parse reads a module without verifying it.
func parse(t testing.TB, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("test.qir", []byte(text))
	require.NoError(t, err)
	return m
}

// letter names parameter i of evaluated bodies.
func letter(i int) string { return string(rune('a' + i)) }

// evalRanks runs a body whose parameters %a, %b … have the distributions and,
// on each rank, the values given; it returns the results of the last op by
// result and rank.
func evalRanks(t testing.TB, tp int, body string, dists []string, args [][]*Tensor) ([]value, error) {
	t.Helper()
	var params []string
	for i, a := range args {
		shape := strings.ReplaceAll(strings.Trim(fmt.Sprint(a[0].Shape), "[]"), " ", ", ")
		params = append(params, fmt.Sprintf("temp %%%s: %s[%s]%s", letter(i), a[0].DType, shape, dists[i]))
	}
	m := parse(t, fmt.Sprintf("module @m {tp = %d}\nfunc @f(%s) -> () {\n%s\nreturn\n}\n", tp, strings.Join(params, ", "), body))
	ranks := make([]map[string]*Tensor, tp)
	for r := range ranks {
		ranks[r] = map[string]*Tensor{}
		for i, a := range args {
			ranks[r][letter(i)] = a[r]
		}
	}
	f := m.Entry()
	last := f.Ops[len(f.Ops)-1]
	out := make([]value, len(last.Results))
	_, err := Run(context.Background(), m, f, nil, ranks, Options{Tap: func(_ int, o *ir.Op, i int, x *Tensor) {
		require.NoError(t, x.Check())
		if o == last {
			out[i] = append(out[i], x)
		}
	}})
	return out, err
}

// eval runs a body on one rank.
func eval(t testing.TB, body string, args ...*Tensor) ([]*Tensor, error) {
	t.Helper()
	in := make([][]*Tensor, len(args))
	for i, a := range args {
		in[i] = []*Tensor{a}
	}
	out, err := evalRanks(t, 1, body, make([]string, len(args)), in)
	var flat []*Tensor
	for _, v := range out {
		flat = append(flat, v...)
	}
	return flat, err
}

// same requires bit-equal tensors.
func same(t testing.TB, want, got *Tensor) {
	t.Helper()
	if !Equal(want, got) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

// opCase is a hand-computed case of an op.
type opCase struct {
	name string
	body string
	in   []*Tensor
	want []*Tensor
}

func in(t ...*Tensor) []*Tensor { return t }

func runCases(t *testing.T, cases []opCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := eval(t, c.body, c.in...)
			require.NoError(t, err)
			require.Len(t, got, len(c.want))
			for i := range got {
				same(t, c.want[i], got[i])
			}
		})
	}
}

func replace(text, old, with string) string { return strings.Replace(text, old, with, 1) }
