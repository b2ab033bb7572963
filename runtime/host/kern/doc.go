// Package kern multiplies matrices on the CPU, and does to their elements what
// comes between products. There are two kinds of products: those of rows of
// activations x by rows of weights w (Gemm…),
//
//	y[i, j] = Σ_k x[i, k] · w[j, k]    x is [m, k], w is [n, k], y is [m, n]
//
// and those by a matrix that is not transposed (Mul…),
//
//	y[i, j] = Σ_k x[i, k] · w[k, j]    x is [m, k], w is [k, n], y is [m, n]
//
// with bf16 or f32 operands and f32 results. Operands are read where they lie,
// at any alignment and any distance of rows.
//
// # Two laws
//
// Every element of y is summed in one order, and every tier of kernels gives the
// same bits. So a result does not depend on the processor, on m and n, on the
// tile or range of rows it is computed in, or on the number of threads.
//
// By rows of w, the order is that of DotBF16 or DotF32:
//
//   - A row is cut into chunks of 4096 bytes, and a chunk into vectors of 64
//     bytes; the last vector is padded with +0.
//   - 16 lanes, +0 at first, sum a chunk, a vector at a time. For f32, lane l
//     takes element l: s = fma(x[l], w[l], s). For bf16 it takes the odd element
//     of its pair, then the even one: s = fma(x[2l+1], w[2l+1], s), then
//     s = fma(x[2l], w[2l], s).
//   - The lanes are added: (l0 + l2) + (l1 + l3) in each block of four, then
//     (b0 + b2) + (b1 + b3).
//   - y is +0 at first, and the sums of the chunks are added in order.
//   - A NaN is 0x7fc00000.
//
// By a matrix that is not transposed, it is that of the index:
//
//   - s is +0 at first, and s = fma(x[k], w[k], s) for k = 0, 1, … Operands in
//     bf16 are widened.
//   - y = s, but +0 if s is −0, and 0x7fc00000 if it is NaN.
//
// A term of the second law that is a zero of either sign thus changes nothing:
// rows of w that are finite and multiplied by zeros might as well not be there.
//
// All operations round to nearest even. Those of bf16 lanes are the ones of
// VDPBF16PS: denormal operands are zeros, and so is a result that is below
// 2⁻¹²⁶ after rounding to 24 bits; the signs of zeros stay. All others keep
// denormals. Processors without VDPBF16PS widen bf16 and use FMAs in a mode that
// flushes denormals in just this way.
//
// With K elements, u = 2⁻²⁴ and a chunk of c elements (2048 or 1024), the error
// is at most
//
//	γ(c/16 + 4 + ⌈K/c⌉) · Σ |x·w| + K · e    γ(d) = d·u / (1 − d·u)
//
// to the product of operands as they are read, unless a sum overflows; e is
// 2⁻¹²⁵ for bf16, whose small sums are flushed, and 2⁻¹⁴⁹ for f32. Of the second
// law it is γ(K) · Σ |x·w| + K · 2⁻¹⁴⁹.
//
// # Elements
//
// Functions of elements round each result to nearest even, keep denormals, and
// are as exact as they say; a NaN of arithmetic is 0x7fc00000. What only moves
// elements (Select…) leaves their bits alone. Sum has an order of its own.
// They, too, give the same bits in every tier, and their Go code is the law. Where
// a name ends in S, the last operand is one element for all.
//
// # Use
//
// Kernels are chosen once, by Select or FromEnv. Their functions do not
// allocate and use no goroutines: a caller that has threads gives each one a
// range of rows of w, as slices of w and y; of a matrix that is not transposed, a
// range of rows of x or of columns. Functions panic if a slice is shorter than
// its shape; they neither read nor write beyond the shapes. y must not overlap
// what a product reads.
package kern

//go:generate go run ./internal/gen
