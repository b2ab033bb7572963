package interp

import (
	"fmt"
	"slices"
)

// kvRead takes whole blocks of slots.
func kvRead(a attrs, in []*Tensor) ([]*Tensor, error) {
	cache, blocks, size := in[0], in[1], a.op.Int("block_size")
	slots := cache.Shape[0]
	if slots%size != 0 {
		return nil, fmt.Errorf("blocks of %d slots do not divide the %d slots of the cache", size, slots)
	}
	byBlock, err := cache.Reshape(append([]int64{slots / size, size}, cache.Shape[1:]...)...)
	if err != nil {
		return nil, err
	}
	return takeRows("block", byBlock, blocks)
}

func convRead(_ attrs, in []*Tensor) ([]*Tensor, error) { return takeRows("row", in[0], in[1]) }

// takeRows picks along axis 0.
func takeRows(what string, x, index *Tensor) ([]*Tensor, error) {
	offsets, err := rows(what, x, index, 0)
	if err != nil {
		return nil, err
	}
	return one(pick(x, withAxis(x.Shape, 0, index.Shape[0]), offsets))
}

// stateWrite replaces rows along axis 0 in a copy of the state. Of several
// values for one row the last counts.
func stateWrite(what string) func(attrs, []*Tensor) ([]*Tensor, error) {
	return func(_ attrs, in []*Tensor) ([]*Tensor, error) {
		state, index, values := in[0], in[1], in[2]
		next := &Tensor{DType: state.DType, Shape: state.Shape, F: slices.Clone(state.F)}
		n := product(state.Shape[1:])
		for i, row := range index.I {
			if err := inside(what, index, i, int(state.Shape[0])); err != nil {
				return nil, err
			}
			copy(next.F[int(row)*n:][:n], values.F[i*n:][:n])
		}
		return one(next)
	}
}
