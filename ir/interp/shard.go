package interp

import (
	"fmt"
	"slices"

	"quill/ir"
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
	if whole, err = view(Cast(whole, t.DType), src); err != nil {
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
