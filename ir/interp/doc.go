// Package interp evaluates quill's IR one scalar at a time. It is the meaning
// of the IR: passes, lowered recipes and devices are compared with it, so it
// prefers obvious code to fast code.
//
//	module, function, symbol values, parameters of every rank
//	     │  Run: one op after the other, each on all ranks
//	     ├── rules[op]: computes, from concrete operands, concrete results
//	     ├── the results must have the shapes their types promise
//	     └── ranks that should hold the same value must hold the same bits
//	results of every rank
//
// # Rounding
//
// Every op computes in float64 from its operands, whose values are exact there,
// and rounds each result element once to float32 and then, for bf16, from
// float32 to bf16. Both roundings are to nearest, ties to even. In particular:
//
//   - sums (matmul, reduce_sum, mean of squares, softmax, moe, short_conv) run
//     in index order, all_reduce in rank order, without rounding in between.
//     Products of two operands are exact in float64, so that it makes no
//     difference whether a processor fuses them with the addition.
//   - rms_norm rounds twice: t = x/sqrt(mean(x²) + eps), then t·weight.
//   - moe rounds g, u, silu(g)·u and each expert's output, then the sum over
//     experts, which runs in ascending expert number.
//   - What only moves elements (layout, select, gather, state) moves bits.
//
// Integers wrap at the width of their type. Comparisons with NaN are false; max,
// min and reduce_max are NaN when an operand is. The cast of a float to an
// integer truncates, clamps to the range of the type and makes NaN 0.
package interp
