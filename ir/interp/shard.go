package interp

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/recipes/dtype"
)

// Shard gives each of tp ranks its part of a whole value: the same for all if
// replicated, part floor(rank·ways/tp) along the axis if sharded. A partial
// value has no one way to be divided.
func Shard(whole *Tensor, d ir.Dist, tp int) ([]*Tensor, error) {
	parts := make([]*Tensor, tp)
	for rank := range parts {
		part, ok := partOf(d, rank, tp)
		if !ok {
			return nil, fmt.Errorf("a %s distribution cannot be taken of a whole", d)
		}
		if d.Kind == ir.Replicated {
			parts[rank] = whole
			continue
		}
		if d.Axis < 0 || d.Axis >= len(whole.Shape) || d.Ways < 1 || whole.Shape[d.Axis]%int64(d.Ways) != 0 {
			return nil, fmt.Errorf("shape %v cannot be sharded %d ways along axis %d", whole.Shape, d.Ways, d.Axis)
		}
		n := whole.Shape[d.Axis] / int64(d.Ways)
		var err error
		if parts[rank], err = cut(whole, d.Axis, int64(part)*n, int64(part+1)*n); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// Join is the whole value of which the ranks hold parts: any one if replicated,
// the parts in order if sharded, their sum as all_reduce makes it if partial.
func Join(parts []*Tensor, d ir.Dist) (*Tensor, error) {
	if len(parts) == 0 {
		return nil, fmt.Errorf("no parts to join")
	}
	for _, p := range parts {
		if p.DType != parts[0].DType || !slices.Equal(p.Shape, parts[0].Shape) || p.Len() != parts[0].Len() {
			return nil, fmt.Errorf("parts have different types or shapes")
		}
	}
	switch d.Kind {
	case ir.Partial:
		if !parts[0].DType.IsFloat() {
			return nil, fmt.Errorf("partial values of %s cannot be joined", parts[0].DType)
		}
		return sumRanks(parts), nil
	case ir.Sharded:
		if d.Axis < 0 || d.Axis >= len(parts[0].Shape) {
			return nil, fmt.Errorf("shape %v has no axis %d", parts[0].Shape, d.Axis)
		}
		var different []*Tensor
		for rank, p := range parts {
			if part, _ := partOf(d, rank, len(parts)); part == len(different) {
				different = append(different, p)
			}
		}
		return join(different, d.Axis), nil
	}
	return parts[0], nil
}

// Weight is what each of the module's ranks holds of a weight. A constant per
// rank needs no checkpoint tensor; else whole is that tensor, which is cast to
// the weight's type, viewed as its source says and cut into shards.
func Weight(m *ir.Module, p *ir.Param, env map[string]int64, whole *Tensor) ([]*Tensor, error) {
	parts, err := weight(m, p, env, whole)
	if err != nil {
		return nil, fmt.Errorf("weight %%%s: %w", p.Name, err)
	}
	return parts, nil
}

func weight(m *ir.Module, p *ir.Param, base map[string]int64, whole *Tensor) ([]*Tensor, error) {
	env, err := m.Env(base)
	if err != nil {
		return nil, err
	}
	t, src := p.Value.Type, p.Source
	shape, err := evalShape(t.Shape, env)
	if err != nil {
		return nil, err
	}
	if src.PerRank {
		parts := make([]*Tensor, m.TP)
		for rank := range parts {
			v := src.Fill
			if src.Step != 0 { // −0 + 0 is 0
				v += float64(rank) * src.Step
			}
			if parts[rank], err = constant(t.DType, v, shape); err != nil {
				return nil, err
			}
		}
		return parts, nil
	}
	if whole == nil {
		return nil, fmt.Errorf("there is no tensor %q", src.Tensor)
	}
	if whole, err = view(whole, src); err != nil {
		return nil, err
	}
	if whole, err = part(whole, src, t.DType); err != nil {
		return nil, err
	}
	parts, err := Shard(whole, t.Dist, m.TP)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(parts[0].Shape, shape) {
		return nil, fmt.Errorf("tensor %q gives parts of shape %v, want %v", src.Tensor, parts[0].Shape, shape)
	}
	return parts, nil
}

// view reshapes and permutes a tensor as a source says.
func view(x *Tensor, src ir.Source) (*Tensor, error) {
	var err error
	if src.Reshape != nil {
		if x, err = x.Reshape(src.Reshape...); err != nil {
			return nil, err
		}
	}
	if src.Perm == nil {
		return x, nil
	}
	axes := make([]int64, len(x.Shape))
	for i := range axes {
		axes[i] = int64(i)
	}
	if !slices.Equal(slices.Sorted(slices.Values(src.Perm)), axes) {
		return nil, fmt.Errorf("%v does not permute the axes of shape %v", src.Perm, x.Shape)
	}
	return permute(x, src.Perm), nil
}

// part takes the rows of a view that a source wants, in a type, and computes with them
// what it says.
func part(x *Tensor, src ir.Source, t dtype.Type) (*Tensor, error) {
	if len(src.Rows) == 2 {
		if len(x.Shape) == 0 {
			return nil, fmt.Errorf("a tensor without axes has no rows")
		}
		var err error
		if x, err = cut(x, 0, src.Rows[0], src.Rows[1]); err != nil {
			return nil, err
		}
	}
	x = Cast(x, t)
	if src.Times == 0 && src.Plus == 0 {
		return x, nil
	}
	if !t.IsFloat() {
		return nil, fmt.Errorf("%s is multiplied or added to, which is for floats", t)
	}
	y := Zeros(t, x.Shape...)
	for i, v := range x.F {
		if src.Times != 0 {
			v = round(t, float64(v*float32(src.Times)))
		}
		if src.Plus != 0 {
			v = round(t, float64(v+float32(src.Plus)))
		}
		y.F[i] = v
	}
	return y, nil
}

// Complete adds to the args of all ranks the weights of a module's entry that passes have
// given it: constants, and what the loader makes of weights of the original.
func Complete(m *ir.Module, base map[string]int64, original *ir.Func, args []map[string]*Tensor) error {
	for _, p := range m.Entry().Params {
		parts := make([]*Tensor, len(args))
		switch of, take := viewOf(original, p); {
		case p.Source.PerRank:
			var err error
			if parts, err = Weight(m, p, base, nil); err != nil {
				return err
			}
		case args[0][p.Name] != nil || of == nil:
			continue
		default:
			for r := range args {
				var err error
				if parts[r], err = part(args[r][of.Name], take, p.Value.Type.DType); err != nil {
					return fmt.Errorf("weight %%%s: %w", p.Name, err)
				}
			}
		}
		for r := range args {
			args[r][p.Name] = parts[r]
		}
	}
	return nil
}

// viewOf is the first parameter of a function that has what a weight takes of a tensor, and
// what part takes of that one; nil if there is none. Whole tensors go before parts.
func viewOf(f *ir.Func, p *ir.Param) (of *ir.Param, take ir.Source) {
	for _, parts := range []bool{false, true} {
		for _, q := range f.Params {
			if s := q.Source; !parts && (len(s.Rows) > 0 || s.Times != 0 || s.Plus != 0) {
				continue
			}
			if take, ok := taken(q, p); ok {
				return q, take
			}
		}
	}
	return nil, ir.Source{}
}

// taken is what part takes of q to make p, if q has all of it, cut into shards alike.
func taken(q, p *ir.Param) (take ir.Source, ok bool) {
	have, want := q.Value.Type, p.Value.Type
	a, b := q.Source, p.Source
	if b.Tensor == "" || a.Tensor != b.Tensor || !slices.Equal(a.Reshape, b.Reshape) || !slices.Equal(a.Perm, b.Perm) || have.Dist != want.Dist {
		return take, false
	}
	if have.DType != want.DType && !(have.DType.IsFloat() && want.DType.IsFloat() && a.Times == 0 && a.Plus == 0) {
		return take, false
	}
	take = ir.Source{Times: b.Times, Plus: b.Plus}
	switch {
	case a.Plus != 0: // after which nothing is multiplied
		take.Times, take.Plus, ok = 0, 0, a.Times == b.Times && a.Plus == b.Plus
	case a.Times != 0:
		take.Times, ok = 0, a.Times == b.Times
	default:
		ok = true
	}
	if slices.Equal(a.Rows, b.Rows) {
		return take, ok && ir.SameShape(have.Shape, want.Shape)
	}
	if len(b.Rows) == 0 || len(have.Shape) != len(want.Shape) || have.Dist.Kind == ir.Sharded && have.Dist.Axis == 0 {
		return take, false // rows of what is cut along axis 0 are not a part of what a rank has
	}
	take.Rows = slices.Clone(b.Rows)
	if len(a.Rows) > 0 {
		take.Rows[0] -= a.Rows[0]
		take.Rows[1] -= a.Rows[0]
	}
	n, _ := have.Shape[0].Const()
	return take, ok && take.Rows[0] >= 0 && take.Rows[1] <= n && ir.SameShape(have.Shape[1:], want.Shape[1:])
}
