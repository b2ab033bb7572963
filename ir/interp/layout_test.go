package interp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
)

func TestLayout(t *testing.T) {
	six := f32(sh(2, 3), 1, 2, 3, 4, 5, 6)
	cube := i32(sh(2, 2, 3), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	runCases(t, []opCase{
		{"reshape", "%r = reshape %a {shape = [3, 2]}", in(six), in(f32(sh(3, 2), 1, 2, 3, 4, 5, 6))},
		{"reshape rank", "%r = reshape %a {shape = [1, 6, 1]}", in(six), in(f32(sh(1, 6, 1), 1, 2, 3, 4, 5, 6))},
		{"transpose", "%r = transpose %a {perm = [1, 0]}", in(six), in(f32(sh(3, 2), 1, 4, 2, 5, 3, 6))},
		{"transpose cycle", "%r = transpose %a {perm = [2, 0, 1]}", in(cube), in(i32(sh(3, 2, 2), 0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11))},
		{"transpose predicate", "%r = transpose %a {perm = [1, 0]}", in(i8(sh(1, 2), 1, 0)), in(i8(sh(2, 1), 1, 0))},
		{"broadcast", "%r = broadcast %a {shape = [2, 2, 2]}", in(i32(sh(2, 1, 2), 1, 2, 3, 4)), in(i32(sh(2, 2, 2), 1, 2, 1, 2, 3, 4, 3, 4))},
		{"broadcast none", "%r = broadcast %a {shape = [2, 3]}", in(six), in(six)},
		{"slice columns", "%r = slice %a {axis = 1, start = 1, stop = 3}", in(six), in(f32(sh(2, 2), 2, 3, 5, 6))},
		{"slice rows", "%r = slice %a {axis = 0, start = 1, stop = 2}", in(six), in(f32(sh(1, 3), 4, 5, 6))},
		{"slice middle", "%r = slice %a {axis = 1, start = 1, stop = 2}", in(cube), in(i32(sh(2, 1, 3), 3, 4, 5, 9, 10, 11))},
		{"concat rows", "%r = concat %a, %b {axis = 0}", in(six, f32(sh(1, 3), 7, 8, 9)), in(f32(sh(3, 3), 1, 2, 3, 4, 5, 6, 7, 8, 9))},
		{"concat columns", "%r = concat %a, %b, %b {axis = 1}", in(six, f32(sh(2, 1), 7, 8)), in(f32(sh(2, 5), 1, 2, 3, 7, 7, 4, 5, 6, 8, 8))},
		{"concat hides NaN", "%c1 = concat %a, %b {axis = 0}\n%r = slice %c1 {axis = 0, start = 0, stop = 1}", in(f32(sh(1), 1), f32(sh(1), nan)), in(f32(sh(1), 1))},
		{"concat one", "%r = concat %a {axis = 1}", in(six), in(six)},
	})
}

func TestReductions(t *testing.T) {
	x := f32(sh(2, 3), 1, 2, 3, 4, 5, 6)
	big := float32(1 << 60)
	runCases(t, []opCase{
		{"sum rows", "%r = reduce_sum %a {axis = 1}", in(x), in(f32(sh(2, 1), 6, 15))},
		{"sum columns", "%r = reduce_sum %a {axis = 0}", in(x), in(f32(sh(1, 3), 5, 7, 9))},
		{"sum middle", "%r = reduce_sum %a {axis = 1}", in(f32(sh(2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8)), in(f32(sh(2, 1, 2), 4, 6, 12, 14))},
		// One rounding at the end: bf16 sums step by step would stay at 256.
		{"sum bf16", "%r = reduce_sum %a {axis = 0}", in(bf16(sh(5), 256, 1, 1, 1, 1)), in(f32to16(sh(1), 260))},
		{"sum f64", "%r = reduce_sum %a {axis = 0}", in(f32(sh(3), 1<<24, 1, 1)), in(f32(sh(1), 16777218))},
		// In index order: the 1 is lost next to 2^60.
		{"sum order", "%r = reduce_sum %a {axis = 1}", in(f32(sh(2, 3), big, 1, -big, big, -big, 1)), in(f32(sh(2, 1), 0, 1))},
		{"sum NaN", "%r = reduce_sum %a {axis = 0}", in(f32(sh(2), inf, negInf)), in(f32(sh(1), nan))},
		{"max", "%r = reduce_max %a {axis = 1}", in(f32(sh(3, 2), 1, 2, -3, -4, nan, 1)), in(f32(sh(3, 1), 2, -3, nan))},
		{"max axis 0", "%r = reduce_max %a {axis = 0}", in(x), in(f32(sh(1, 3), 4, 5, 6))},
		{"max infinite", "%r = reduce_max %a {axis = 0}", in(f32(sh(2), negInf, negInf)), in(f32(sh(1), negInf))},

		{"softmax", "%r = softmax %a", in(f32(sh(2, 2), 0, 1.0986123, 1000, 1000)), in(f32(sh(2, 2), 0.25, 0.75, 0.5, 0.5))},
		{"softmax three", "%r = softmax %a", in(f32(sh(3), 1, 2, 3)), in(f32(sh(3), 0.09003057, 0.24472848, 0.66524094))},
		{"softmax masked", "%r = softmax %a", in(f32(sh(3), negInf, 0, negInf)), in(f32(sh(3), 0, 1, 0))},
		{"softmax NaN", "%r = softmax %a", in(f32(sh(3, 2), nan, 0, negInf, negInf, inf, 0)), in(f32(sh(3, 2), nan, nan, nan, nan, nan, nan))},
		{"softmax bf16", "%r = softmax %a", in(bf16(sh(3), 1, 2, 3)), in(f32to16(sh(3), 0.08984375, 0.2451171875, 0.6640625))},

		{
			"topk", "%v, %r = topk %a {k = 2}", in(f32(sh(2, 4), 1, 3, 2, 3, -1, -2, negInf, -1)),
			in(f32(sh(2, 2), 3, 3, -1, -1), i32(sh(2, 2), 1, 3, 0, 3)),
		},
		{"topk NaN", "%v, %r = topk %a {k = 4}", in(f32(sh(1, 4), inf, nan, 0, nan)), in(f32(sh(1, 4), nan, nan, inf, 0), i32(sh(1, 4), 1, 3, 0, 2))},
		{"topk zeros", "%v, %r = topk %a {k = 2}", in(f32(sh(2), negZ, 0)), in(f32(sh(2), negZ, 0), i32(sh(2), 0, 1))},
	})
}

// Equal elements stay in order however many there are.
func TestTopkStable(t *testing.T) {
	const n = 3 * 67
	x, want := Zeros(dtype.F32, n), Zeros(dtype.I32, n)
	for i := range n {
		x.F[i] = float32(i % 3)
		want.I[(2-i%3)*67+i/3] = int64(i)
	}
	got, err := eval(t, "%v, %i = topk %a {k = 201}", x)
	require.NoError(t, err)
	same(t, want, got[1])
}

func TestGather(t *testing.T) {
	x := f32(sh(3, 2), 1, 2, 3, 4, 5, 6)
	runCases(t, []opCase{
		{"rows", "%r = gather %a, %b {axis = 0}", in(x, i32(sh(4), 2, 0, 2, 1)), in(f32(sh(4, 2), 5, 6, 1, 2, 5, 6, 3, 4))},
		{"columns", "%r = gather %a, %b {axis = 1}", in(x, i32(sh(3), 1, 1, 0)), in(f32(sh(3, 3), 2, 2, 1, 4, 4, 3, 6, 6, 5))},
		{"index of rank 2", "%r = gather %a, %b {axis = 0}", in(x, i32(sh(1, 2), 1, 0)), in(f32(sh(1, 2, 2), 3, 4, 1, 2))},
		{"middle", "%r = gather %a, %b {axis = 1}", in(i32(sh(2, 2, 2), 0, 1, 2, 3, 4, 5, 6, 7), i32(sh(1, 1), 1)), in(i32(sh(2, 1, 1, 2), 2, 3, 6, 7))},
		{"hides NaN", "%r = gather %a, %b {axis = 0}", in(f32(sh(2), nan, 1), i32(sh(1), 1)), in(f32(sh(1), 1))},

		{"elements", "%r = gather_elements %a, %b {axis = 1}", in(x, i32(sh(3, 1), 1, 0, 1)), in(f32(sh(3, 1), 2, 3, 6))},
		{"elements axis 0", "%r = gather_elements %a, %b {axis = 0}", in(x, i32(sh(2, 2), 2, 0, 1, 1)), in(f32(sh(2, 2), 5, 2, 3, 4))},
		{"elements more than x", "%r = gather_elements %a, %b {axis = 1}", in(f32(sh(1, 2), 7, 8), i32(sh(1, 3), 1, 0, 1)), in(f32(sh(1, 3), 8, 7, 8))},
		{"elements broadcast", "%r = gather_elements %a, %b {axis = 1}", in(x, i32(sh(1, 3), 1, 0, 0)), in(f32(sh(3, 3), 2, 1, 1, 4, 3, 3, 6, 5, 5))},
		{
			"elements broadcast outer and inner", "%r = gather_elements %a, %b {axis = 1}",
			in(i32(sh(2, 2, 2), 0, 1, 2, 3, 4, 5, 6, 7), i32(sh(2, 1, 1), 1, 0)), in(i32(sh(2, 1, 2), 2, 3, 4, 5)),
		},
		{"elements along a broadcast axis of x", "%r = gather_elements %a, %b {axis = 0}", in(f32(sh(1, 2), 7, 8), i32(sh(2, 1), 0, 0)), in(f32(sh(2, 2), 7, 8, 7, 8))},
	})
}
