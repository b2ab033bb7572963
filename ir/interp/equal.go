package interp

import (
	"fmt"
	"math"
	"slices"
)

// Equal reports whether two tensors have the same type, shape and bits. Any NaN
// is like any other; −0 and 0 differ.
func Equal(a, b *Tensor) bool {
	return a.DType == b.DType && slices.Equal(a.Shape, b.Shape) && a.Len() == b.Len() && firstDiff(a, b) < 0
}

// MaxAbsDiff is the largest difference between elements. It is infinite where
// only one is NaN or infinite. Element types may differ.
func MaxAbsDiff(a, b *Tensor) (float64, error) {
	most := 0.0
	err := pairs(a, b, func(_ int, x, y float64) { most = max(most, Distance(x, y)) })
	return most, err
}

// Close reports the worst element of got that is farther from want than atol +
// rtol·|want|, nil when there is none. Element types may differ.
func Close(got, want *Tensor, atol, rtol float64) error {
	worst, worstBy, count := -1, 0.0, 0
	err := pairs(got, want, func(i int, x, y float64) {
		by := Distance(x, y)
		if by == 0 || !math.IsInf(by, 1) && by <= atol+rtol*math.Abs(y) {
			return
		}
		count++
		if by > worstBy {
			worst, worstBy = i, by
		}
	})
	if err != nil || worst < 0 {
		return err
	}
	return fmt.Errorf("%d of %d elements differ, the worst at %v: got %s, want %s (off by %.3g)",
		count, got.Len(), Place(got.Shape, worst), got.element(worst), want.element(worst), worstBy)
}

// pairs visits the elements of two tensors of one shape.
func pairs(a, b *Tensor, f func(i int, x, y float64)) error {
	if !slices.Equal(a.Shape, b.Shape) || a.Len() != b.Len() {
		return fmt.Errorf("shapes %v and %v differ", a.Shape, b.Shape)
	}
	for i := range a.Len() {
		f(i, a.Number(i), b.Number(i))
	}
	return nil
}

// Number is element i in row-major order.
func (t *Tensor) Number(i int) float64 {
	if t.DType.IsFloat() {
		return float64(t.F[i])
	}
	return float64(t.I[i])
}

// Distance is |x − y|, 0 for equal infinities and two NaNs, infinite for one.
func Distance(x, y float64) float64 {
	switch {
	case x == y, x != x && y != y:
		return 0
	case x != x, y != y:
		return math.Inf(1)
	}
	return math.Abs(x - y)
}
