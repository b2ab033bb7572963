package interp

import (
	"fmt"
	"reflect"
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

// part takes the rows of a view that a source wants and adds what it adds.
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
	if src.Plus != 0 {
		sum := Zeros(dtype.F32, x.Shape...)
		for i, v := range Cast(x, dtype.F32).F {
			sum.F[i] = v + float32(src.Plus)
		}
		x = sum
	}
	return Cast(x, t), nil
}

// Complete adds to the args of all ranks the weights of a module's entry that passes have
// given it: constants, and parts of tensors of which a parameter of the original has all.
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

// viewOf is the first parameter of a function that has what a weight takes of a tensor, nil
// if there is none, and what part takes of that one: the tensor in the view of which the
// weight is rows or, where none has all of it, what the weight is itself.
func viewOf(f *ir.Func, p *ir.Param) (of *ir.Param, take ir.Source) {
	for _, q := range f.Params {
		if hasView(q, p) {
			return q, p.Source
		}
	}
	for _, q := range f.Params {
		if p.Source.Tensor != "" && reflect.DeepEqual(q.Source, p.Source) && q.Value.Type.Equal(p.Value.Type) {
			return q, ir.Source{}
		}
	}
	return nil, ir.Source{}
}

// hasView reports whether q is a tensor in the view of which p is rows, cut into shards
// alike. Rows of what is cut along axis 0 are not a part of what a rank has.
func hasView(q, p *ir.Param) bool {
	view, have, want := p.Source, q.Value.Type, p.Value.Type
	view.Rows, view.Plus = nil, 0
	if view.Tensor == "" || view.Tensor != q.Source.Tensor || !reflect.DeepEqual(q.Source, view) ||
		have.Dist != want.Dist || have.DType != want.DType && !(have.DType.IsFloat() && want.DType.IsFloat()) {
		return false
	}
	rows := p.Source.Rows
	if len(rows) == 0 {
		return ir.SameShape(have.Shape, want.Shape)
	}
	if len(have.Shape) != len(want.Shape) || have.Dist.Kind == ir.Sharded && have.Dist.Axis == 0 {
		return false
	}
	n, _ := have.Shape[0].Const()
	return rows[1] <= n && ir.SameShape(have.Shape[1:], want.Shape[1:])
}
