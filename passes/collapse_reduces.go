package passes

import (
	"quill/ir"
	"quill/recipes/dtype"
)

// collapsePass adds partial values before they are summed over the ranks: what
// was a reduction for each of them is one.
//
// Before:
//
//	%0 = matmul %x, %u {dtype = f32, trans_b = true} : f32[4, 8]@partial
//	%1 = all_reduce %0 : f32[4, 8]
//	%2 = matmul %x, %v {dtype = f32, trans_b = true} : f32[4, 8]@partial
//	%3 = all_reduce %2 : f32[4, 8]
//	%4 = add %1, %3 : f32[4, 8]
//
// After:
//
//	%0 = matmul %x, %u {dtype = f32, trans_b = true} : f32[4, 8]@partial
//	%1 = matmul %x, %v {dtype = f32, trans_b = true} : f32[4, 8]@partial
//	%2 = add %0, %1 : f32[4, 8]@partial
//	%3 = all_reduce %2 : f32[4, 8]
//
// A difference is rewritten alike, sums of more than two become one reduction too,
// and reshapes and transposes in between move to the partial values. It does not
// fire where another op reads one of the sums, since it would still be needed; in
// types narrower than f32, where the sum of each rank would be rounded before the
// ranks meet; where an operand is broadcast, which would make the message longer;
// and where something else than a movement lies in between, such as a cast that
// rounds.
//
// Sums are associated in another way: with R ranks and n reductions, each of the
// two forms is off by no more than (R + n)·2⁻²⁴ times the sum of the absolute
// values of all ranks, and by nothing as long as sums are exact, as those of small
// integers are.
//
// It may run anywhere before outlining.
var collapsePass = Pass{
	Name:     "collapse-reduces",
	Summary:  "adds partial values first, so that one reduction sums them all",
	Stages:   Family,
	Optional: true,
	Inexact:  true,
	Run:      collapseReduces,
}

func collapseReduces(c *Context, m *ir.Module) (changed bool, err error) {
	list := []pattern{{"sum of reductions", []string{"add", "sub"}, sumOfReductions}}
	if changed, err = applyPatterns(c, m, list); err != nil {
		return changed, err
	}
	for _, f := range m.Funcs {
		uses := ir.NewUses(f)
		for _, o := range f.Ops {
			if why := keptApart(uses, o); why != "" {
				c.Remark(o.Loc, "not collapsed: %s", why)
			}
		}
	}
	return changed, nil
}

func sumOfReductions(r *rewriter, o *ir.Op) bool {
	if !sumsReductions(o) || keptApart(r.uses, o) != "" {
		return false
	}
	x, y := r.partial(o.Args[0]), r.partial(o.Args[1])
	if o.Name() == "sub" {
		return r.replace(r.AllReduce(r.Sub(x, y)))
	}
	return r.replace(r.AllReduce(r.Add(x, y)))
}

// sumsReductions reports whether an op adds or subtracts two sums over the ranks.
func sumsReductions(o *ir.Op) bool {
	return (o.Name() == "add" || o.Name() == "sub") && reduction(o.Args[0]) != nil && reduction(o.Args[1]) != nil
}

// reduction is the all_reduce that a value is a movement of, nil when it is none.
func reduction(v *ir.Value) *ir.Op {
	for v.Def != nil {
		switch v.Def.Name() {
		case "all_reduce":
			return v.Def
		case "reshape", "transpose":
			v = v.Def.Args[0]
		default:
			return nil
		}
	}
	return nil
}

// keptApart says why the reductions that an op adds stay two, "" where it adds
// none or they need not.
func keptApart(uses *ir.Uses, o *ir.Op) string {
	if !sumsReductions(o) {
		return ""
	}
	x, y := o.Args[0], o.Args[1]
	switch {
	case readElsewhere(uses, x) || readElsewhere(uses, y):
		return "one of the sums is also read by another op"
	case x.Type.DType != dtype.F32:
		return "sums of " + x.Type.DType.String() + " would be rounded on every rank"
	case !ir.SameShape(x.Type.Shape, y.Type.Shape):
		return "an operand is broadcast, and the ranks would have to sum all copies"
	}
	return ""
}

// readElsewhere reports whether a sum has a reader beside the one that it was
// found from, or a movement of it has.
func readElsewhere(uses *ir.Uses, v *ir.Value) bool {
	for ; ; v = v.Def.Args[0] {
		if uses.Count(v) > 1 {
			return true
		}
		if v.Def.Name() == "all_reduce" {
			return false
		}
	}
}

// partial builds what a value is the sum of over the ranks.
func (r *rewriter) partial(v *ir.Value) *ir.Value {
	x := v.Def.Args[0]
	switch v.Def.Name() {
	case "reshape":
		return r.Reshape(r.partial(x), v.Type.Shape)
	case "transpose":
		return r.Transpose(r.partial(x), v.Def.Ints("perm"))
	}
	return x
}
