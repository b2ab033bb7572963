package passes

import (
	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// fuseElementwisePass shortens chains of ops that work element by element, where the
// result is as good but may have other last bits.
//
// Before:
//
//	%0 = cast %x {dtype = bf16} : bf16[4, 8]
//	%1 = cast %0 {dtype = f32} : f32[4, 8]
//	%2 = mul %1, %y : f32[4, 8]
//	%3 = gather_elements %z, %i {axis = 1} : f32[4, 2]
//	%4 = logsigmoid %3 : f32[4, 2]
//	%5 = softmax %4 : f32[4, 2]
//
// After:
//
//	%0 = mul %x, %y : f32[4, 8]
//	%1 = sigmoid %z : f32[4, 6]
//	%2 = gather_elements %1, %i {axis = 1} : f32[4, 2]
//	%3 = reduce_sum %2 {axis = 1} : f32[4, 1]
//	%4 = const 1.1754943508222875e-38 {dtype = f32} : f32[1]
//	%5 = reshape %4 {shape = [1, 1]} : f32[1, 1]
//	%6 = max %3, %5 : f32[4, 1]
//	%7 = div %2, %6 : f32[4, 2]
//
// What is rounded to bf16 only to be widened again is not rounded: models round
// wherever a tensor is stored, and here none is. It must be one segment that does
// both, since a wider value would have to cross otherwise.
//
// The weights that a router gives its experts, exp(logsigmoid(zᵢ))/Σ exp(logsigmoid(zⱼ)),
// are sigmoids over their sum. A router has the sigmoids of all logits already, so it
// picks from those. They are the same up to rounding unless all logits that are chosen
// are below −87, where sigmoids vanish in f32: the weights are then 0.
//
// Chains that stay are left to the target's compiler, which makes one kernel of them.
// There is no pass that makes one op of a residual addition and the norm behind it: on
// Gaudi 2 the node for both is slower than the two.
var fuseElementwisePass = Pass{
	Name:     "fuse-elementwise",
	Summary:  "shortens chains of element-wise ops: roundings in between, normalised sigmoids",
	Stages:   Family,
	Optional: true,
	Inexact:  true,
	After:    []Order{{"join-experts", "it knows a router by its softmax"}},
	Run:      fuseElementwise,
}

func fuseElementwise(c *Context, m *ir.Module) (bool, error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	segments := map[*ir.Op]int{}
	for _, f := range m.Funcs {
		n := len(segments)
		for _, o := range f.Ops {
			if ir.EndsSegment(o) {
				n++
			}
			segments[o] = n
		}
	}
	return applyPatterns(c, m, []pattern{
		{"rounding in between", []string{"cast"}, func(r *rewriter, o *ir.Op) bool { return roundedBetween(r, o, segments) }},
		{"normalised sigmoids", []string{"softmax"}, normalisedSigmoids},
	})
}

// roundedBetween widens what was narrowed from a value as wide.
func roundedBetween(r *rewriter, o *ir.Op, segments map[*ir.Op]int) bool {
	if o.Attr("dtype").DType != dtype.F32 || o.Args[0].Type.DType != dtype.BF16 {
		return false
	}
	narrow := bare(o.Args[0])
	c := def(narrow, "cast")
	if c == nil || c.Args[0].Type.DType != dtype.F32 {
		return false
	}
	if at, known := segments[c]; !known || at != segments[o] {
		r.ctx.Remark(o.Loc, "not fused: the value was rounded in another segment")
		return false
	}
	wide := c.Args[0]
	if narrow != o.Args[0] {
		t := o.Results[0].Type
		wide = r.ReshapeShard(wide, t.Dist.Axis, t.Shape...)
	}
	return r.replace(wide)
}

// leastNormal is the smallest f32 that has all its bits.
const leastNormal = 0x1p-126

// normalisedSigmoids computes a softmax of logarithms of sigmoids without logarithms.
func normalisedSigmoids(r *rewriter, o *ir.Op) bool {
	logs := def(o.Args[0], "logsigmoid")
	if logs == nil || o.Results[0].Type.DType != dtype.F32 {
		return false
	}
	x := logs.Args[0]
	var s *ir.Value
	if pick := def(x, "gather_elements"); pick != nil {
		s = r.GatherElements(r.Sigmoid(pick.Args[0]), pick.Args[1], pick.Int("axis"))
	} else {
		s = r.Sigmoid(x)
	}
	rank := s.Type.Rank()
	sum := r.ReduceSum(s, int64(rank-1))
	least := r.number(leastNormal, dtype.F32, rank)
	return r.replace(r.Div(s, r.Max(sum, least)))
}
