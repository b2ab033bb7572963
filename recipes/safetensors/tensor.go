package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"quill/recipes/dtype"
)

// Tensor is one named array. Tensors of a File or a Checkpoint are views: their
// Data is read-only memory (a store to it faults) that is gone after Close, and
// their Shape must not be modified.
type Tensor struct {
	Name  string
	DType string  // as the file spells it, e.g. "BF16"
	Shape []int64 // outermost dimension first; empty for a scalar
	Data  []byte  // little-endian, row-major, packed; not necessarily aligned
	File  string  // path of the file it was read from, "" when there is none
}

// Type is the tensor's element type. It is false for one that files may hold
// but quill does not compute with, such as F16. BOOL is dtype.I8, as predicates
// are on the device.
func (t Tensor) Type() (dtype.Type, bool) {
	switch t.DType {
	case "F32":
		return dtype.F32, true
	case "BF16":
		return dtype.BF16, true
	case "I64":
		return dtype.I64, true
	case "I32":
		return dtype.I32, true
	case "U8":
		return dtype.U8, true
	case "I8", "BOOL":
		return dtype.I8, true
	}
	return dtype.Invalid, false
}

// F32 copies the elements out, in row-major order. BF16 is widened, which is
// exact. It is an error if the tensor is neither F32 nor BF16, or if its Data
// does not fit its Shape.
func (t Tensor) F32() ([]float32, error) {
	if t.DType != "F32" && t.DType != "BF16" {
		return nil, t.fail(fmt.Errorf("dtype is %s, expected F32 or BF16", quote(t.DType)))
	}
	if err := t.check(); err != nil {
		return nil, t.fail(err)
	}
	if t.DType == "BF16" {
		out := make([]float32, len(t.Data)/2)
		for i := range out {
			out[i] = dtype.FromBF16(binary.LittleEndian.Uint16(t.Data[2*i:]))
		}
		return out, nil
	}
	out := make([]float32, len(t.Data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return out, nil
}

// I32 copies the elements out, in row-major order. It is an error if the tensor
// is not I32 or if its Data does not fit its Shape.
func (t Tensor) I32() ([]int32, error) {
	if t.DType != "I32" {
		return nil, t.fail(fmt.Errorf("dtype is %s, expected I32", quote(t.DType)))
	}
	if err := t.check(); err != nil {
		return nil, t.fail(err)
	}
	out := make([]int32, len(t.Data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return out, nil
}

// FromF32 is an F32 tensor of a copy of values. Whether they fit the shape is
// checked when the tensor is written or decoded.
func FromF32(name string, shape []int64, values []float32) Tensor {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return Tensor{Name: name, DType: "F32", Shape: slices.Clone(shape), Data: data}
}

// FromI32 is an I32 tensor of a copy of values. Whether they fit the shape is
// checked when the tensor is written or decoded.
func FromI32(name string, shape []int64, values []int32) Tensor {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	return Tensor{Name: name, DType: "I32", Shape: slices.Clone(shape), Data: data}
}

// check reports whether Data has the size that DType and Shape ask for.
func (t Tensor) check() error {
	size, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if int64(len(t.Data)) != size {
		return fmt.Errorf("data is %d bytes, expected %d for %s of shape %s",
			len(t.Data), size, t.DType, dims(t.Shape))
	}
	return nil
}

// fail says which tensor of which file err is about.
func (t Tensor) fail(err error) error {
	err = tensorError(t.Name, err)
	if t.File != "" {
		err = fmt.Errorf("%s: %w", t.File, err)
	}
	return err
}

func tensorError(name string, err error) error {
	return fmt.Errorf("tensor %s: %w", quote(name), err)
}

// knownDTypes is what bitSize knows, for error texts.
const knownDTypes = "F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL C64 " +
	"F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ F6_E2M3 F6_E3M2 F4"

// bitSize is the number of bits of one element, 0 for an unknown dtype. It is
// in bits because elements of F4 and F6 are packed across byte boundaries.
func bitSize(dtype string) int64 {
	switch dtype {
	case "F64", "I64", "U64", "C64":
		return 64
	case "F32", "I32", "U32":
		return 32
	case "F16", "BF16", "I16", "U16":
		return 16
	case "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ":
		return 8
	case "F6_E2M3", "F6_E3M2":
		return 6
	case "F4":
		return 4
	}
	return 0
}

// byteSize is the number of bytes of a tensor.
func byteSize(dtype string, shape []int64) (int64, error) {
	bits := bitSize(dtype)
	if bits == 0 {
		return 0, fmt.Errorf("unknown dtype %s, expected one of %s", quote(dtype), knownDTypes)
	}
	n, err := elements(shape)
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt64/bits {
		return 0, fmt.Errorf("shape %s of %s overflows, expected fewer than 2^63 bits", dims(shape), dtype)
	}
	if n*bits%8 != 0 {
		return 0, fmt.Errorf("shape %s of %s is %d bits, expected whole bytes", dims(shape), dtype, n*bits)
	}
	return n * bits / 8, nil
}

// elements is the product of the dimensions. A zero among them does not excuse
// the others from fitting: strides are products of some of the dimensions, and
// must not overflow either.
func elements(shape []int64) (int64, error) {
	product, empty := int64(1), false
	for i, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("dimension %d of shape %s is %d, expected 0 or more", i, dims(shape), d)
		case d == 0:
			empty = true
		case product > math.MaxInt64/d:
			return 0, fmt.Errorf("shape %s overflows, expected fewer than 2^63 elements", dims(shape))
		default:
			product *= d
		}
	}
	if empty {
		return 0, nil
	}
	return product, nil
}

// Error texts show at most so much of a name or a shape: those of a hostile
// file can have millions of bytes.
const (
	maxQuoted = 120 // bytes
	maxDims   = 16
)

// quote is s as a quoted string, shortened.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q… (%d bytes)", strings.ToValidUTF8(s[:maxQuoted], ""), len(s))
}

// dims is a shape as the file writes it, shortened.
func dims(shape []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range shape {
		if i > 0 {
			b.WriteByte(',')
		}
		if i == maxDims {
			fmt.Fprintf(&b, "… (%d dimensions)", len(shape))
			break
		}
		b.WriteString(strconv.FormatInt(d, 10))
	}
	b.WriteByte(']')
	return b.String()
}
