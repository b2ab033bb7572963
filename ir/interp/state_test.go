package interp

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes/dtype"
)

func TestState(t *testing.T) {
	cache := f32(sh(4, 1, 2), 0, 1, 10, 11, 20, 21, 30, 31)
	conv := bf16(sh(3, 2, 1), 1, 2, 3, 4, 5, 6)
	runCases(t, []opCase{
		{
			"kv_read", "%r = kv_read %a, %b {block_size = 2}", in(cache, i32(sh(3), 1, 0, 1)),
			in(f32(sh(3, 2, 1, 2), 20, 21, 30, 31, 0, 1, 10, 11, 20, 21, 30, 31)),
		},
		{
			"kv_write", "%r = kv_write %a, %b, %c", in(cache, i32(sh(2), 3, 0), f32(sh(2, 1, 2), 7, 8, nan, 9)),
			in(f32(sh(4, 1, 2), nan, 9, 10, 11, 20, 21, 7, 8)),
		},
		{
			"kv_write last wins", "%r = kv_write %a, %b, %c", in(cache, i32(sh(3), 1, 2, 1), f32(sh(3, 1, 2), 1, 2, 3, 4, 5, 6)),
			in(f32(sh(4, 1, 2), 0, 1, 5, 6, 3, 4, 30, 31)),
		},
		{"conv_read", "%r = conv_read %a, %b", in(conv, i32(sh(2), 2, 0)), in(bf16(sh(2, 2, 1), 5, 6, 1, 2))},
		{"conv_write", "%r = conv_write %a, %b, %c", in(conv, i32(sh(1), 1), bf16(sh(1, 2, 1), 8, 9)), in(bf16(sh(3, 2, 1), 1, 2, 8, 9, 5, 6))},
		{
			"read old version", "%n = kv_write %a, %b, %c\n%r = kv_read %a, %b {block_size = 1}", in(cache, i32(sh(1), 0), f32(sh(1, 1, 2), 7, 8)),
			in(f32(sh(1, 1, 1, 2), 0, 1)),
		},
	})
	// The state given was not touched.
	same(t, f32(sh(4, 1, 2), 0, 1, 10, 11, 20, 21, 30, 31), cache)
}

const convText = `module @m
sym n: 1..64
func @f(weight %taps: f32[4, 3] = "taps", state %conv: bf16[2, 3, 3], input %row: i32[1], input %x: bf16[n, 3])
    -> (state conv: bf16[2, 3, 3], output y: bf16[n, 3]) {
  %1 = conv_read %conv, %row
  %2 = reshape %1 {shape = [3, 3]}
  %3 = concat %2, %x {axis = 0}
  %4 = slice %3 {axis = 0, start = n, stop = n + 3}
  %5 = reshape %4 {shape = [1, 3, 3]}
  %6 = conv_write %conv, %row, %5
  %7 = short_conv %3, %taps
  return %6, %7
}`

// A sequence convolved in chunks, three rows carried over, is the sequence
// convolved at once; chunks may be shorter than the history.
func TestChunkedConv(t *testing.T) {
	m, err := ir.VerifyText("conv.qir", []byte(convText))
	require.NoError(t, err)
	const total = 11
	x, taps := Random(1, dtype.BF16, total, 3), Random(2, dtype.F32, 4, 3)
	chunked := func(sizes ...int64) (state, y *Tensor) {
		state = Zeros(dtype.BF16, 2, 3, 3)
		var ys []*Tensor
		at := int64(0)
		for _, n := range sizes {
			part, err := cut(x, 0, at, at+n)
			require.NoError(t, err)
			at += n
			out, err := Run(context.Background(), m, m.Entry(), map[string]int64{"n": n},
				[]map[string]*Tensor{{"taps": taps, "conv": state, "row": i32(sh(1), 1), "x": part}}, Options{})
			require.NoError(t, err)
			state = out[0]["conv"]
			ys = append(ys, out[0]["y"])
		}
		require.EqualValues(t, total, at)
		return state, join(ys, 0)
	}
	state, y := chunked(total)
	for _, sizes := range [][]int64{{5, 6}, {10, 1}, {1, 1, 1, 8}, {2, 2, 7}} {
		s, c := chunked(sizes...)
		same(t, state, s)
		same(t, y, c)
	}
	// Of the history, zeros at first, row 2 is the newest.
	want := float64(x.F[0]) + float64(taps.F[3*3])*float64(x.F[0])
	require.Equal(t, round(dtype.BF16, want), y.F[0])
}
