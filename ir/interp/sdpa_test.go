package interp

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Without a mask all rows see all keys.
func TestSDPAWithoutMask(t *testing.T) {
	m := parse(t, `module @m {level = fused}
func @f(input %q: f32[2, 3, 5, 8], input %k: f32[2, 1, 7, 8]) -> (output a: f32[2, 3, 5, 8], output b: f32[2, 3, 5, 8], output m: f32[2, 3, 5, 1], output n: f32[2, 3, 5, 1]) {
  %i = iota {size = 7}
  %zero = sub %i, %i
  %f = cast %zero {dtype = f32}
  %mask = reshape %f {shape = [1, 1, 1, 7]}
  %a, %m, %l = sdpa_stats %q, %k, %k, %mask {scale = 0.25}
  %x, %n, %y = sdpa_stats %q, %k, %k {scale = 0.25}
  %b = sdpa %q, %k, %k {scale = 0.25}
  return %a, %b, %m, %n
}`)
	out, err := Run(context.Background(), m, m.Entry(), nil, randomArgs(t, m, m.Entry()), Options{})
	require.NoError(t, err)
	require.Equal(t, out[0]["a"].F, out[0]["b"].F)
	require.Equal(t, out[0]["m"].F, out[0]["n"].F)
}

// The fused attention is the product, softmax and product that it stands for;
// parts of its keys, joined by their statistics, give the whole, also when all
// keys of a part are hidden; a row that sees nothing is finite.
func TestSDPA(t *testing.T) {
	for _, c := range []struct {
		typ  string
		atol float64
	}{{"f32", 1e-6}, {"bf16", 0.03}} {
		m := parse(t, `module @m {level = fused}
func @f(input %q: `+c.typ+`[2, 3, 5, 8], input %k: `+c.typ+`[2, 1, 7, 8], input %v: `+c.typ+`[2, 1, 7, 4], input %mask: `+c.typ+`[1, 3, 5, 7]) -> (output a: f32[2, 3, 5, 4], output b: f32[2, 3, 5, 4], output c: f32[2, 3, 5, 4]) {
  %s = matmul %q, %k {dtype = f32, trans_b = true}
  %c = const 0.25 {dtype = f32}
  %c4 = reshape %c {shape = [1, 1, 1, 1]}
  %s1 = mul %s, %c4
  %wide = cast %mask {dtype = f32}
  %s2 = add %s1, %wide
  %p = softmax %s2
  %v32 = cast %v {dtype = f32}
  %a = matmul %p, %v32 {dtype = f32, trans_b = false}
  %o = sdpa %q, %k, %v, %mask {scale = 0.25}
  %b = cast %o {dtype = f32}
  %k1 = slice %k {axis = 2, start = 0, stop = 3}
  %k2 = slice %k {axis = 2, start = 3, stop = 7}
  %v1 = slice %v {axis = 2, start = 0, stop = 3}
  %v2 = slice %v {axis = 2, start = 3, stop = 7}
  %mask1 = slice %mask {axis = 3, start = 0, stop = 3}
  %mask2 = slice %mask {axis = 3, start = 3, stop = 7}
  %o1, %m1, %l1 = sdpa_stats %q, %k1, %v1, %mask1 {scale = 0.25}
  %o2, %m2, %l2 = sdpa_stats %q, %k2, %v2, %mask2 {scale = 0.25}
  %f1 = cast %m1 {dtype = f32}
  %f2 = cast %m2 {dtype = f32}
  %top = max %f1, %f2
  %d1 = sub %f1, %top
  %d2 = sub %f2, %top
  %e1 = exp %d1
  %e2 = exp %d2
  %w1 = div %e1, %l1
  %w2 = div %e2, %l2
  %g1 = cast %o1 {dtype = f32}
  %g2 = cast %o2 {dtype = f32}
  %n1 = mul %g1, %w1
  %n2 = mul %g2, %w2
  %n = add %n1, %n2
  %w = add %w1, %w2
  %joined = div %n, %w
  return %a, %b, %joined
}`)
		args := randomArgs(t, m, m.Entry())
		mask := args[0]["mask"]
		hide := round(mask.DType, -1e30)
		for i := range 7 {
			mask.F[0*7+i] = hide // head 0, row 0 sees nothing
			if i < 3 {
				mask.F[1*7+i] = hide // row 1 nothing of the first part
			} else {
				mask.F[2*7+i] = hide // row 2 nothing of the second
			}
		}
		out, err := Run(context.Background(), m, m.Entry(), nil, args, Options{})
		require.NoError(t, err)
		require.NoError(t, Close(out[0]["b"], out[0]["a"], c.atol, 0))
		require.NoError(t, Close(out[0]["c"], out[0]["a"], c.atol, 0))
		v := args[0]["v"]
		mean := 0.0
		for j := range 7 {
			mean += float64(v.F[j*4]) / 7
		}
		require.InDelta(t, mean, float64(out[0]["b"].F[0]), c.atol)
		require.False(t, math.IsNaN(float64(out[0]["c"].F[0])))
	}
}

// Each element of a batch is attention of its own.
func TestSDPAOfABatch(t *testing.T) {
	m := parse(t, `module @m {level = fused}
func @f(input %q: f32[2, 2, 3, 5, 8], input %k: f32[2, 2, 1, 7, 8], input %v: f32[2, 2, 1, 7, 4], input %mask: f32[2, 1, 3, 1, 7]) -> (output a: f32[2, 2, 3, 5, 4], output b: f32[2, 2, 3, 5, 4], output m: f32[2, 2, 3, 5, 1], output n: f32[2, 2, 3, 5, 1]) {
  %a, %m, %l = sdpa_stats %q, %k, %v, %mask {scale = 0.25}
  %q0 = slice %q {axis = 0, start = 0, stop = 1}
  %q1 = slice %q {axis = 0, start = 1, stop = 2}
  %k0 = slice %k {axis = 0, start = 0, stop = 1}
  %k1 = slice %k {axis = 0, start = 1, stop = 2}
  %v0 = slice %v {axis = 0, start = 0, stop = 1}
  %v1 = slice %v {axis = 0, start = 1, stop = 2}
  %r0 = slice %mask {axis = 0, start = 0, stop = 1}
  %r1 = slice %mask {axis = 0, start = 1, stop = 2}
  %q2 = reshape %q0 {shape = [2, 3, 5, 8]}
  %q3 = reshape %q1 {shape = [2, 3, 5, 8]}
  %k2 = reshape %k0 {shape = [2, 1, 7, 8]}
  %k3 = reshape %k1 {shape = [2, 1, 7, 8]}
  %v2 = reshape %v0 {shape = [2, 1, 7, 4]}
  %v3 = reshape %v1 {shape = [2, 1, 7, 4]}
  %r2 = reshape %r0 {shape = [1, 3, 1, 7]}
  %r3 = reshape %r1 {shape = [1, 3, 1, 7]}
  %o0, %m0, %l0 = sdpa_stats %q2, %k2, %v2, %r2 {scale = 0.25}
  %o1, %m1, %l1 = sdpa_stats %q3, %k3, %v3, %r3 {scale = 0.25}
  %o = concat %o0, %o1 {axis = 0}
  %b = reshape %o {shape = [2, 2, 3, 5, 4]}
  %top = concat %m0, %m1 {axis = 0}
  %n = reshape %top {shape = [2, 2, 3, 5, 1]}
  return %a, %b, %m, %n
}`)
	out, err := Run(context.Background(), m, m.Entry(), nil, randomArgs(t, m, m.Entry()), Options{})
	require.NoError(t, err)
	require.Equal(t, out[0]["b"], out[0]["a"])
	require.Equal(t, out[0]["n"], out[0]["m"])
}
