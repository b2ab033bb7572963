package passes

import (
	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// splitExpertsPass cuts an op of more experts than moe_experts_per_node into several,
// each of as many and the last of the rest, and adds what they compute in f32.
//
// Before:
//
//	%0 = moe %x, %e, %w, %w13, %w2 : f32[3, 8]
//
// After:
//
//	%0 = slice %w13 {axis = 0, start = 0, stop = 2} : f32[2, 2, 6, 8]
//	%1 = slice %w2 {axis = 0, start = 0, stop = 2} : f32[2, 8, 6]
//	%2 = moe %x, %e, %w, %0, %1 {first = 0} : f32[3, 8]
//	%3 = slice %w13 {axis = 0, start = 2, stop = 3} : f32[1, 2, 6, 8]
//	%4 = slice %w2 {axis = 0, start = 2, stop = 3} : f32[1, 8, 6]
//	%5 = moe %x, %e, %w, %3, %4 {first = 2} : f32[3, 8]
//	%6 = add %2, %5 : f32[3, 8]
//
// Parts come in the order of the experts' numbers, so that terms are added in the order
// of one op; each part's sum is rounded, though. A part of a bank is no copy: emission
// takes single matrices from where the bank lies. A bank that a part takes as a whole
// is taken as it is.
//
// It does not fire without moe_experts_per_node, on as many experts or fewer, and on a
// part.
var splitExpertsPass = Pass{
	Name:     "split-experts",
	Summary:  "cuts an op of many experts into several of moe_experts_per_node",
	Stages:   Family,
	Optional: true,
	Inexact:  true,
	After:    []Order{{"join-experts", "shared experts are joined with one op of all routed ones"}},
	Run:      splitExperts,
}

func splitExperts(c *Context, m *ir.Module) (bool, error) {
	if m.Level == ops.Plan || c.Params.ExpertsPerNode == 0 {
		return false, nil
	}
	return applyPatterns(c, m, []pattern{
		{"experts whose sum is cast to f32", []string{"cast"}, castOfExperts},
		{"experts", []string{"moe"}, manyExperts},
	})
}

// castOfExperts keeps the sum of parts in f32 where that is what is wanted.
func castOfExperts(r *rewriter, o *ir.Op) bool {
	moe := def(o.Args[0], "moe")
	if moe == nil || !onlyCast(r, moe) {
		return false
	}
	sum := r.expertParts(moe)
	return sum != nil && r.replace(sum)
}

// onlyCast reports whether experts of another type are cast to f32 and not used
// otherwise.
func onlyCast(r *rewriter, moe *ir.Op) bool {
	y := moe.Results[0]
	uses := r.uses.Of(y)
	return y.Type.DType != dtype.F32 && len(uses) == 1 && uses[0].Op != nil && uses[0].Op.Name() == "cast" && uses[0].Op.Results[0].Type.DType == dtype.F32
}

func manyExperts(r *rewriter, o *ir.Op) bool {
	if onlyCast(r, o) {
		return false
	}
	sum := r.expertParts(o)
	if sum == nil {
		return false
	}
	return r.replace(r.CastTo(sum, o.Results[0].Type.DType))
}

// expertParts is the f32 sum of the parts of an op of experts, nil if it stays whole.
func (r *rewriter) expertParts(o *ir.Op) *ir.Value {
	all, most := int64(0), int64(r.ctx.Params.ExpertsPerNode)
	for i := 3; i < len(o.Args); i += 2 {
		n, ok := o.Args[i].Type.Shape[0].Const()
		if !ok {
			return nil
		}
		all += n
	}
	if all <= most || o.Attr("first") != nil {
		return nil
	}
	var sum *ir.Value
	for first := int64(0); first < all; first += most {
		y := r.MoE(o.Args[0], o.Args[1], o.Args[2], r.banksOf(o, first, min(all, first+most))...)
		if r.Err() != nil {
			return nil
		}
		y.Def.Attrs = append(y.Def.Attrs, ir.Attr{Name: "first", Dim: ir.D(first)})
		if y = r.wide(y); sum != nil {
			y = r.Add(sum, y)
		}
		sum = y
	}
	return sum
}

// banksOf are those of experts from first to stop−1: banks, and parts of them.
func (r *rewriter) banksOf(o *ir.Op, first, stop int64) []*ir.Value {
	var banks []*ir.Value
	begin := int64(0)
	for i := 3; i < len(o.Args); i += 2 {
		n, _ := o.Args[i].Type.Shape[0].Const()
		a, b := max(first-begin, 0), min(stop-begin, n)
		for _, bank := range o.Args[i : i+2] {
			switch {
			case a >= b:
			case b-a == n:
				banks = append(banks, bank)
			default:
				banks = append(banks, r.Slice(bank, 0, ir.D(a), ir.D(b)))
			}
		}
		begin += n
	}
	return banks
}
