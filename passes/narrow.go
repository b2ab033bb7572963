package passes

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/ir/ops"
)

// cut is a part of an axis: elements start … stop−1.
type cut struct {
	axis        int
	start, stop ir.Dim
}

// narrower builds parts of values: what is computed element by element is
// computed of the parts of the operands, so that nothing but the part is
// computed; the rest is sliced.
type narrower struct {
	*rewriter
	// slices builds slices, which are of values that were there before.
	slices *ir.Builder
	made   map[string]*ir.Value
	// always are ops whose results are computed again, of whatever size they are.
	always map[*ir.Op]bool
	// whole are values that are computed anyway, so that parts of them are sliced.
	whole []*ir.Value
	// attention, where set, builds parts of rows of an sdpa or sdpa_stats.
	attention func(o *ir.Op, c cut) []*ir.Value
}

func newNarrower(r *rewriter) *narrower {
	return &narrower{rewriter: r, slices: r.Builder, made: map[string]*ir.Value{}}
}

// part is the part of a value that cuts leave.
func (n *narrower) part(v *ir.Value, cuts ...cut) *ir.Value {
	cuts = slices.DeleteFunc(slices.Clone(cuts), func(c cut) bool {
		return c.start.Is(0) && c.stop.Equal(v.Type.Shape[c.axis])
	})
	if len(cuts) == 0 {
		return v
	}
	slices.SortFunc(cuts, func(a, b cut) int { return a.axis - b.axis })
	key := keyOf(v, cuts)
	if n.made[key] == nil {
		n.made[key] = n.build(v, cuts)
	}
	return n.made[key]
}

func keyOf(v *ir.Value, cuts []cut) string {
	key := fmt.Sprintf("%p", v)
	for _, c := range cuts {
		key += fmt.Sprintf(" %d:%s:%s", c.axis, c.start, c.stop)
	}
	return key
}

func (n *narrower) build(v *ir.Value, cuts []cut) *ir.Value {
	if v.Def != nil && !slices.Contains(n.whole, v) && (len(withoutOnes(v.Type.Shape)) > 1 || n.always[v.Def]) {
		if y := n.again(v, v.Def, cuts); y != nil {
			return y
		}
	}
	return n.slice(v, cuts...)
}

// slice is the part of a value that is not computed again.
func (n *narrower) slice(v *ir.Value, cuts ...cut) *ir.Value {
	for _, c := range cuts {
		if !c.start.Is(0) || !c.stop.Equal(v.Type.Shape[c.axis]) {
			v = n.slices.Slice(v, int64(c.axis), c.start, c.stop)
		}
	}
	return v
}

// again computes the part from parts of the operands, nil if that cannot be done.
func (n *narrower) again(v *ir.Value, o *ir.Op, cuts []cut) *ir.Value {
	switch {
	case o.Def.Has(ops.Elementwise):
		args := make([]*ir.Value, len(o.Args))
		for i, a := range o.Args {
			args[i] = n.part(a, broadcastCuts(a, cuts)...)
		}
		return n.Again(o, args...)[0]
	case o.Name() == "gather_elements":
		x, index := o.Args[0], o.Args[1]
		others := slices.DeleteFunc(slices.Clone(cuts), func(c cut) bool { return int64(c.axis) == o.Int("axis") })
		return n.GatherElements(n.part(x, others...), n.part(index, broadcastCuts(index, cuts)...), o.Int("axis"))
	case o.Name() == "transpose":
		perm := o.Ints("perm")
		in := slices.Clone(cuts)
		for i := range in {
			in[i].axis = int(perm[in[i].axis])
		}
		return n.Transpose(n.part(o.Args[0], in...), perm)
	case o.Name() == "broadcast":
		shape := slices.Clone(v.Type.Shape)
		for _, c := range cuts {
			shape[c.axis] = c.stop.Sub(c.start)
		}
		return n.BroadcastTo(n.part(o.Args[0], broadcastCuts(o.Args[0], cuts)...), v.Type.Dist, shape...)
	case o.Name() == "reshape":
		return n.reshaped(v, o.Args[0], cuts)
	case o.Name() == "reduce_sum", o.Name() == "reduce_max", o.Name() == "softmax":
		axis := v.Type.Rank() - 1
		if a := o.Attr("axis"); a != nil {
			axis = int(o.Int("axis"))
		}
		if !slices.ContainsFunc(cuts, func(c cut) bool { return c.axis == axis }) {
			return n.Again(o, n.part(o.Args[0], cuts...))[0]
		}
	case o.Name() == "matmul" && v.Type.Rank() > 2: // a product with a weight stays whole
		return n.product(o, cuts)
	case n.attention != nil && isAttention(o) && v.Type.Rank() == 4 && len(cuts) == 1 && cuts[0].axis == 2:
		results := n.attention(o, cuts[0])
		for i, r := range results {
			n.made[keyOf(o.Results[i], cuts)] = r
		}
		return results[v.Index]
	case o.Name() == "concat" && len(cuts) == 1 && int64(cuts[0].axis) == o.Int("axis"):
		return n.joined(o, cuts[0])
	}
	return nil
}

// product is a part of the rows of a product, or of its batch.
func (n *narrower) product(o *ir.Op, cuts []cut) *ir.Value {
	x, y := o.Args[0], o.Args[1]
	rank := x.Type.Rank()
	var batch []cut
	for _, c := range cuts {
		switch {
		case c.axis == rank-1:
			return nil
		case c.axis < rank-2:
			batch = append(batch, c)
		}
	}
	return n.Again(o, n.part(x, broadcastCuts(x, cuts)...), n.part(y, broadcastCuts(y, batch)...))[0]
}

// broadcastCuts are the cuts of an operand: none along axes that it repeats.
func broadcastCuts(x *ir.Value, cuts []cut) []cut {
	return slices.DeleteFunc(slices.Clone(cuts), func(c cut) bool { return x.Type.Shape[c.axis].Is(1) })
}

// reshaped finds the axes that a reshape leaves as they are.
func (n *narrower) reshaped(v, x *ir.Value, cuts []cut) *ir.Value {
	in, shape := slices.Clone(cuts), slices.Clone(v.Type.Shape)
	for i, c := range cuts {
		axis := sameAxis(v.Type.Shape, x.Type.Shape, c.axis)
		if axis < 0 {
			return nil
		}
		in[i].axis, shape[c.axis] = axis, c.stop.Sub(c.start)
	}
	return n.ReshapeShard(n.part(x, in...), v.Type.Dist.Axis, shape...)
}

// sameAxis is the axis of another shape of the same elements that an axis is:
// equally many elements lie before it, and it is of equal size. −1 if there is
// none.
func sameAxis(shape, other []ir.Dim, axis int) int {
	before := elems(shape[:axis])
	for i, d := range other {
		if d.Equal(shape[axis]) && elems(other[:i]).Equal(before) {
			return i
		}
	}
	return -1
}

// joined takes the parts of a concat's operands, nil if the sizes do not say where
// the cut lies in them.
func (n *narrower) joined(o *ir.Op, c cut) *ir.Value {
	var parts []*ir.Value
	at := ir.D(0)
	for _, x := range o.Args {
		end := at.Add(x.Type.Shape[c.axis])
		start, stop := ir.D(0), x.Type.Shape[c.axis]
		switch {
		case n.mod.AtLeast(c.start.Sub(end), 0), n.mod.AtLeast(at.Sub(c.stop), 0):
			at = end
			continue
		case n.mod.AtLeast(at.Sub(c.start), 0):
		case n.mod.AtLeast(c.start.Sub(at), 0) && n.mod.AtLeast(end.Sub(c.start), 1):
			start = c.start.Sub(at)
		default:
			return nil
		}
		switch {
		case n.mod.AtLeast(c.stop.Sub(end), 0):
		case n.mod.AtLeast(end.Sub(c.stop), 0) && n.mod.AtLeast(c.stop.Sub(at), 1):
			stop = c.stop.Sub(at)
		default:
			return nil
		}
		parts = append(parts, n.part(x, cut{c.axis, start, stop}))
		at = end
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return n.Concat(int64(c.axis), parts...)
}
