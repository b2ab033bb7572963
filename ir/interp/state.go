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
		next, err := writeRows(what, in[0], in[1], in[2].F)
		if err != nil {
			return nil, err
		}
		return one(next)
	}
}

func writeRows(what string, state, index *Tensor, values []float32) (*Tensor, error) {
	next := &Tensor{DType: state.DType, Shape: state.Shape, F: slices.Clone(state.F)}
	n := product(state.Shape[1:])
	for i, row := range index.I {
		if err := inside(what, index, i, int(state.Shape[0])); err != nil {
			return nil, err
		}
		copy(next.F[int(row)*n:][:n], values[i*n:][:n])
	}
	return next, nil
}

// convReads takes the same rows of several states, one state behind the other.
func convReads(_ attrs, in []*Tensor) ([]*Tensor, error) {
	index, states := in[0], in[1:]
	y := Zeros(states[0].DType, append([]int64{int64(len(states)), index.Shape[0]}, states[0].Shape[1:]...)...)
	part := len(y.F) / len(states)
	for i, s := range states {
		rows, err := takeRows("row", s, index)
		if err != nil {
			return nil, err
		}
		copy(y.F[i*part:], rows[0].F)
	}
	return one(y)
}

// convWrites replaces the same rows of several states by values of each.
func convWrites(_ attrs, in []*Tensor) ([]*Tensor, error) {
	index, values, states := in[0], in[1], in[2:]
	part := len(values.F) / len(states)
	out := make([]*Tensor, len(states))
	for i, s := range states {
		next, err := writeRows("row", s, index, values.F[i*part:][:part])
		if err != nil {
			return nil, err
		}
		out[i] = next
	}
	return out, nil
}
