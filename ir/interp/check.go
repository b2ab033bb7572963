package interp

import (
	"fmt"
	"math"
	"slices"

	"quill/ir"
)

// shape evaluates the shape of a type.
func (r *runner) shape(t ir.Type) ([]int64, error) {
	shape, err := evalShape(t.Shape, r.env)
	if err != nil {
		return nil, err
	}
	n := int64(1)
	for i, d := range shape {
		if d < 1 {
			return nil, fmt.Errorf("%s: axis %d has size %d", t, i, d)
		}
		if d > r.opt.MaxElems/n {
			return nil, fmt.Errorf("%s, that is %v, has more than %d elements", t, shape, r.opt.MaxElems)
		}
		n *= d
	}
	return shape, nil
}

// check compares a value with its type.
func (r *runner) check(what string, t ir.Type, v value) error {
	shape, err := r.shape(t)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for rank, x := range v {
		if x.DType != t.DType || !slices.Equal(x.Shape, shape) {
			return &rankError{rank, fmt.Errorf("%s is %s%v, its type %s wants %s%v", what, x.DType, x.Shape, t, t.DType, shape)}
		}
	}
	if r.opt.Unchecked {
		return nil
	}
	return agree(what, t.Dist, v)
}

// agree checks that ranks that hold the same part of a value hold the same bits.
// Any NaN is like any other.
func agree(what string, d ir.Dist, v value) error {
	first := map[int]int{} // rank by part
	for rank, x := range v {
		part, ok := partOf(d, rank, len(v))
		if !ok {
			return nil
		}
		of, seen := first[part]
		if !seen {
			first[part] = rank
			continue
		}
		if i := firstDiff(v[of], x); i >= 0 {
			return fmt.Errorf("%w: %s is %s, but at %v ranks %d and %d have %s and %s", ErrDiverged,
				what, describe(d), Place(x.Shape, i), of, rank, v[of].element(i), x.element(i))
		}
	}
	return nil
}

// partOf numbers the part of a value that a rank holds; ok is false for partial
// values, of which each rank has its own.
func partOf(d ir.Dist, rank, tp int) (part int, ok bool) {
	switch d.Kind {
	case ir.Replicated:
		return 0, true
	case ir.Sharded:
		return rank * d.Ways / tp, true
	}
	return 0, false
}

func describe(d ir.Dist) string {
	if d.Kind == ir.Sharded {
		return fmt.Sprintf("sharded %d ways along axis %d", d.Ways, d.Axis)
	}
	return "replicated"
}

// firstDiff finds the first element whose bits differ, −1 when there is none.
// Element types and shapes are equal.
func firstDiff(a, b *Tensor) int {
	if a == b {
		return -1
	}
	for i, x := range a.F {
		y := b.F[i]
		if math.Float32bits(x) != math.Float32bits(y) && (x == x || y == y) {
			return i
		}
	}
	for i, x := range a.I {
		if x != b.I[i] {
			return i
		}
	}
	return -1
}
