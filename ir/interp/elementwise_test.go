package interp

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
)

func TestArithmetic(t *testing.T) {
	const third = float32(1.0) / 3
	runCases(t, []opCase{
		{"const f32", "%r = const 0.1 {dtype = f32}", nil, in(f32(sh(1), 0.1))},
		{"const bf16", "%r = const 0.1 {dtype = bf16}", nil, in(f32to16(sh(1), 0.10009765625))},
		{"const i32", "%r = const -3 {dtype = i32}", nil, in(i32(sh(1), -3))},
		{"iota", "%r = iota {size = 4}", nil, in(i32(sh(4), 0, 1, 2, 3))},

		{"add", "%r = add %a, %b", in(f32(sh(3), 1, 2, -0.5), f32(sh(3), 10, -2, 0.25)), in(f32(sh(3), 11, 0, -0.25))},
		// 257 and 259 lie halfway between two bf16: the even one is 256 and 260.
		{"add bf16", "%r = add %a, %b", in(bf16(sh(2), 256, 256), bf16(sh(2), 1, 3)), in(f32to16(sh(2), 256, 260))},
		{"add f32 ties to even", "%r = add %a, %b", in(f32(sh(2), 1<<24, 1<<24), f32(sh(2), 1, 3)), in(f32(sh(2), 16777216, 16777220))},
		{"add wraps", "%r = add %a, %b", in(i32(sh(2), math.MaxInt32, math.MinInt32), i32(sh(2), 1, -1)), in(i32(sh(2), math.MinInt32, math.MaxInt32))},
		{"add infinities", "%r = add %a, %b", in(f32(sh(3), inf, inf, nan), f32(sh(3), 1, negInf, 1)), in(f32(sh(3), inf, nan, nan))},
		{"add overflow", "%r = add %a, %b", in(f32(sh(1), math.MaxFloat32), f32(sh(1), math.MaxFloat32)), in(f32(sh(1), inf))},
		{"broadcast row", "%r = add %a, %b", in(f32(sh(2, 3), 1, 2, 3, 4, 5, 6), f32(sh(1, 3), 10, 20, 30)), in(f32(sh(2, 3), 11, 22, 33, 14, 25, 36))},
		{"broadcast both", "%r = mul %a, %b", in(f32(sh(2, 1), 2, 3), f32(sh(1, 3), 1, 10, 100)), in(f32(sh(2, 3), 2, 20, 200, 3, 30, 300))},
		{
			"broadcast middle", "%r = sub %a, %b", in(i32(sh(2, 2, 1), 1, 2, 3, 4), i32(sh(2, 1, 2), 10, 20, 30, 40)),
			in(i32(sh(2, 2, 2), -9, -19, -8, -18, -27, -37, -26, -36)),
		},
		{"broadcast scalar", "%r = mul %a, %b", in(f32(sh(3), 1, 2, 3), f32(sh(1), -2)), in(f32(sh(3), -2, -4, -6))},

		{"sub", "%r = sub %a, %b", in(f32(sh(2), 1, 0), f32(sh(2), 3, 0)), in(f32(sh(2), -2, 0))},
		{"sub wraps", "%r = sub %a, %b", in(i32(sh(1), math.MinInt32), i32(sh(1), 1)), in(i32(sh(1), math.MaxInt32))},
		{"mul wraps", "%r = mul %a, %b", in(i32(sh(2), 65536, 46341), i32(sh(2), 65536, 46341)), in(i32(sh(2), 0, -2147479015))},
		// 1.0078125² is 1.01568603515625, nearest to 1.015625.
		{"mul bf16", "%r = mul %a, %b", in(bf16(sh(1), 1.0078125), bf16(sh(1), 1.0078125)), in(f32to16(sh(1), 1.015625))},
		{"mul subnormal", "%r = mul %a, %b", in(f32(sh(1), math.SmallestNonzeroFloat32), f32(sh(1), 0.5)), in(f32(sh(1), 0))},
		{"div", "%r = div %a, %b", in(f32(sh(5), 1, 1, -1, 0, negZ), f32(sh(5), 3, 0, 0, 0, 5)), in(f32(sh(5), third, inf, negInf, nan, negZ))},
		{"div bf16", "%r = div %a, %b", in(bf16(sh(1), 1), bf16(sh(1), 3)), in(f32to16(sh(1), 0.333984375))},
		{"max", "%r = max %a, %b", in(f32(sh(4), 1, -1, nan, negInf), f32(sh(4), 2, -2, 0, 0)), in(f32(sh(4), 2, -1, nan, 0))},
		{"max i32", "%r = max %a, %b", in(i32(sh(2), 1, -5), i32(sh(2), 2, -7)), in(i32(sh(2), 2, -5))},
		{"min", "%r = min %a, %b", in(f32(sh(4), 1, -1, 0, inf), f32(sh(4), 2, -2, nan, 0)), in(f32(sh(4), 1, -2, nan, 0))},
		{"min i32", "%r = min %a, %b", in(i32(sh(2), 1, -5), i32(sh(2), 2, -7)), in(i32(sh(2), 1, -7))},
		{"neg", "%r = neg %a", in(f32(sh(3), 1, 0, negInf)), in(f32(sh(3), -1, negZ, inf))},
		{"neg wraps", "%r = neg %a", in(i32(sh(2), 5, math.MinInt32)), in(i32(sh(2), -5, math.MinInt32))},
	})
}

func TestComparisons(t *testing.T) {
	a, b := f32(sh(6), 1, 2, 3, nan, 1, nan), f32(sh(6), 2, 2, 2, 1, nan, nan)
	runCases(t, []opCase{
		{"lt", "%r = lt %a, %b", in(a, b), in(i8(sh(6), 1, 0, 0, 0, 0, 0))},
		{"le", "%r = le %a, %b", in(a, b), in(i8(sh(6), 1, 1, 0, 0, 0, 0))},
		{"eq", "%r = eq %a, %b", in(a, b), in(i8(sh(6), 0, 1, 0, 0, 0, 0))},
		{"eq zeros", "%r = eq %a, %b", in(f32(sh(1), 0), f32(sh(1), negZ)), in(i8(sh(1), 1))},
		{"lt i32", "%r = lt %a, %b", in(i32(sh(2), math.MinInt32, 3), i32(sh(2), math.MaxInt32, 3)), in(i8(sh(2), 1, 0))},
		{"le i32 broadcast", "%r = le %a, %b", in(i32(sh(1, 3), 0, 1, 2), i32(sh(3, 1), 0, 1, 2)), in(i8(sh(3, 3), 1, 0, 0, 1, 1, 0, 1, 1, 1))},
		{"eq bf16", "%r = eq %a, %b", in(bf16(sh(1), 257), bf16(sh(1), 256)), in(i8(sh(1), 1))},
		{"and", "%r = and %a, %b", in(i8(sh(4), 0, 0, 1, 1), i8(sh(4), 0, 1, 0, 1)), in(i8(sh(4), 0, 0, 0, 1))},

		{"select", "%r = select %a, %b, %c", in(i8(sh(3), 1, 0, 1), f32(sh(3), 1, 2, 3), f32(sh(3), 10, 20, 30)), in(f32(sh(3), 1, 20, 3))},
		{"select hides NaN", "%r = select %a, %b, %c", in(i8(sh(2), 1, 0), f32(sh(2), 1, nan), f32(sh(2), inf, 2)), in(f32(sh(2), 1, 2))},
		{"select broadcast", "%r = select %a, %b, %c", in(i8(sh(2, 1), 1, 0), i32(sh(1, 2), 1, 2), i32(sh(1, 1), 9)), in(i32(sh(2, 2), 1, 2, 9, 9))},
	})
}

func TestFunctions(t *testing.T) {
	runCases(t, []opCase{
		{"exp", "%r = exp %a", in(f32(sh(5), 0, 1, negInf, inf, nan)), in(f32(sh(5), 1, 2.7182817, 0, inf, nan))},
		{"exp overflow", "%r = exp %a", in(f32(sh(2), 89, -104)), in(f32(sh(2), inf, 0))},
		{"exp bf16", "%r = exp %a", in(bf16(sh(1), 1)), in(f32to16(sh(1), 2.71875))},
		{"log", "%r = log %a", in(f32(sh(4), 1, 2, 0, -1)), in(f32(sh(4), 0, 0.6931472, negInf, nan))},
		{"sigmoid", "%r = sigmoid %a", in(f32(sh(5), 0, 2, negInf, inf, nan)), in(f32(sh(5), 0.5, 0.8807971, 0, 1, nan))},
		{
			"logsigmoid", "%r = logsigmoid %a", in(f32(sh(6), 0, 100, -100, inf, negInf, nan)),
			in(f32(sh(6), -0.6931472, -3.7835058e-44, -100, 0, negInf, nan)),
		},
		{"silu", "%r = silu %a", in(f32(sh(5), 0, 1, -1, 100, negInf)), in(f32(sh(5), 0, 0.7310586, -0.26894143, 100, nan))},
		{"silu bf16", "%r = silu %a", in(bf16(sh(1), 1)), in(f32to16(sh(1), 0.73046875))},
	})
}

func TestCast(t *testing.T) {
	floats := f32(sh(7), 1.9, -1.9, 3e9, -3e9, nan, inf, 2147483520)
	runCases(t, []opCase{
		{"f32 to bf16", "%r = cast %a {dtype = bf16}", in(f32(sh(5), 257, 259, 0.1, nan, -3.4e38)), in(f32to16(sh(5), 256, 260, 0.10009765625, nan, negInf))},
		{"bf16 to f32", "%r = cast %a {dtype = f32}", in(bf16(sh(2), 1.5, -2)), in(f32(sh(2), 1.5, -2))},
		{"f32 to i32", "%r = cast %a {dtype = i32}", in(floats), in(i32(sh(7), 1, -1, math.MaxInt32, math.MinInt32, 0, math.MaxInt32, 2147483520))},
		{"bf16 to i32", "%r = cast %a {dtype = i32}", in(bf16(sh(1), -2.5)), in(i32(sh(1), -2))},
		{"i32 to f32", "%r = cast %a {dtype = f32}", in(i32(sh(2), 16777217, -5)), in(f32(sh(2), 16777216, -5))},
		// By way of f32: 2^24+2^16+1 becomes 2^24+2^16, which is halfway to 2^24.
		{"i32 to bf16", "%r = cast %a {dtype = bf16}", in(i32(sh(2), 257, 1<<24+1<<16+1)), in(f32to16(sh(2), 256, 1<<24))},
		{"i32 to i8", "%r = cast %a {dtype = i8}", in(i32(sh(3), 1, 128, -1)), in(i8(sh(3), 1, -128, -1))},
		{"i8 to f32", "%r = cast %a {dtype = f32}", in(i8(sh(2), 0, 1)), in(f32(sh(2), 0, 1))},
		{"i8 to i32", "%r = cast %a {dtype = i32}", in(i8(sh(2), 0, 1)), in(i32(sh(2), 0, 1))},
		{"same", "%r = cast %a {dtype = f32}", in(f32(sh(1), 0.1)), in(f32(sh(1), 0.1))},
	})
	same(t, &Tensor{DType: dtype.U8, Shape: sh(4), I: []int64{255, 0, 2, 0}}, Cast(f32(sh(4), 300, -1, 2.5, nan), dtype.U8))
	same(t, &Tensor{DType: dtype.I64, Shape: sh(3), I: []int64{math.MaxInt64, math.MinInt64, 7}}, Cast(f32(sh(3), 1e19, -1e19, 7), dtype.I64))
	same(t, &Tensor{DType: dtype.U8, Shape: sh(2), I: []int64{255, 44}}, Cast(i32(sh(2), -1, 300), dtype.U8))
}

func TestBadConst(t *testing.T) {
	for _, body := range []string{"%r = const 0.5 {dtype = i32}", "%r = const 2147483648 {dtype = i32}", "%r = const 128 {dtype = i8}"} {
		_, err := eval(t, body)
		require.Error(t, err, body)
	}
}

// f32to16 makes a bf16 tensor of values that must be exact, so that expected
// values are written as they are.
func f32to16(shape []int64, v ...float32) *Tensor {
	x := &Tensor{DType: dtype.BF16, Shape: shape, F: v}
	if err := x.Check(); err != nil {
		panic(err)
	}
	return x
}
