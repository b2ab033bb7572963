package e2e

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// stateTensor is where one state of a layer lies in a rank's buffer: rows of
// equal size, one for each slot of a cache, one for each block of a
// convolution.
type stateTensor struct {
	buffer  recipes.Buffer
	offset  int64
	rows    int64
	columns int64
	dtype   dtype.Type
}

func (s *stateTensor) bytes() int64 { return s.rows * s.columns * int64(s.dtype.Size()) }

// statesOf finds all states: a bundle does not list them, but what its launches
// reach in the buffers of states are the states, and nothing else is there.
func statesOf(t testing.TB, b *recipes.Bundle, set *recipes.Set) []stateTensor {
	t.Helper()
	var list []stateTensor
	for i := range set.Plans {
		for _, l := range launchesOf(&set.Plans[i]) {
			r := b.Recipes[l.Recipe]
			for _, x := range r.Tensors {
				if x.Section == recipes.Workspace || !isState(r.Sections[x.Section].Buffer) {
					continue
				}
				at := l.Bindings[x.Section]
				rows := x.Dims[len(x.Dims)-1]
				s := stateTensor{at.Buffer, at.Offset + x.Offset, rows, x.Elems() / rows, x.DType}
				if !slices.Contains(list, s) {
					list = append(list, s)
				}
			}
		}
	}
	// A tensor that spans several states is none itself.
	list = slices.DeleteFunc(slices.Clone(list), func(s stateTensor) bool {
		return slices.ContainsFunc(list, func(x stateTensor) bool {
			return x.buffer == s.buffer && x.offset >= s.offset && x.offset+x.bytes() <= s.offset+s.bytes() && x.bytes() < s.bytes()
		})
	})
	// They fill their buffers, but for what alignment takes.
	const align = 128
	total := map[recipes.Buffer]int64{}
	for i := range list {
		total[list[i].buffer] += (list[i].bytes() + align - 1) / align * align
	}
	for buffer, bytes := range total {
		require.Equal(t, set.Info.Bytes[buffer], bytes, "buffer %s", buffer)
	}
	return list
}

func isState(b recipes.Buffer) bool { return b == recipes.KV || b == recipes.Conv }

// fill overwrites a row of a state with one of some values, taking turns.
func (s *stateTensor) fill(mem []byte, row int64, values []float32) {
	size := int64(s.dtype.Size())
	for i := range s.columns {
		at := s.offset + (row*s.columns+i)*size
		v := values[(row+i)%int64(len(values))]
		if s.dtype == dtype.BF16 {
			binary.LittleEndian.PutUint16(mem[at:], dtype.ToBF16(v))
		} else {
			binary.LittleEndian.PutUint32(mem[at:], math.Float32bits(v))
		}
	}
}
