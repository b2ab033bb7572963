package e2e

import (
	"encoding/binary"
	"math"

	"quill/ir/interp"
	"quill/recipes/dtype"
)

// bytesOf is a tensor as the device holds it.
func bytesOf(x *interp.Tensor) []byte {
	var b []byte
	for i := range x.Len() {
		switch x.DType {
		case dtype.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x.F[i]))
		case dtype.BF16:
			b = binary.LittleEndian.AppendUint16(b, dtype.ToBF16(x.F[i]))
		case dtype.I32:
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(x.I[i])))
		default:
			b = append(b, byte(x.I[i]))
		}
	}
	return b
}

// tensorFrom reads a tensor of the type and shape of another.
func tensorFrom(b []byte, like *interp.Tensor) *interp.Tensor {
	x := interp.Zeros(like.DType, like.Shape...)
	for i := range x.Len() {
		switch x.DType {
		case dtype.F32:
			x.F[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		case dtype.BF16:
			x.F[i] = dtype.FromBF16(binary.LittleEndian.Uint16(b[2*i:]))
		case dtype.I32:
			x.I[i] = int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
		default:
			x.I[i] = int64(int8(b[i]))
		}
	}
	return x
}
