package recipes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"quill/recipes/dtype"
)

// Recipes and plans are encoded in a canonical form, of which each value has exactly
// one: a kind and a version, then the fields in the order of their declaration.
//
//	whole numbers   unsigned ones 7 bits a byte, least first (binary.AppendUvarint);
//	                signed ones zigzag (binary.AppendVarint)
//	f32             4 bytes, least first
//	text            its number among the texts so far; a new one has the next number,
//	                and is followed by its length and its bytes
//	lists           their length, then the elements
//	what may lack   0, or 1 and the value
//
// Names repeat, so numbers for them make a recipe a tenth of what it is as JSON.

// EncodingVersion is the version of the encoding that this code writes and reads.
const EncodingVersion = 1

// The kinds of encoded values.
const (
	recipeKind = "quill recipe\n"
	planKind   = "quill plan\n"
)

// coder writes a value or reads one: the same description of its fields does both, so
// what one writes the other reads. After the first fault it reads zeros.
type coder struct {
	data    []byte // written so far, or still to be read
	reading bool
	numbers map[string]uint64 // of texts, when writing
	texts   []string          // by number, when reading
	err     error
}

func encode(kind string, fields func(*coder)) []byte {
	c := coder{data: []byte(kind), numbers: map[string]uint64{}}
	version := uint64(EncodingVersion)
	c.uint(&version)
	fields(&c)
	return c.data
}

// decodeBytes reads what encode wrote. That data is the one encoding of the value, the
// caller must check.
func decodeBytes(data []byte, kind string, fields func(*coder)) error {
	if len(data) < len(kind) || string(data[:len(kind)]) != kind {
		return fmt.Errorf("does not begin with %q", kind)
	}
	c := coder{data: data[len(kind):], reading: true}
	var version uint64
	c.uint(&version)
	if c.err == nil && version != EncodingVersion {
		return &VersionError{What: "encoding version", Have: int64(version), Want: EncodingVersion}
	}
	fields(&c)
	if c.err == nil && len(c.data) > 0 {
		c.err = fmt.Errorf("%d bytes too many", len(c.data))
	}
	if c.err != nil {
		return fmt.Errorf("%w at byte %d", c.err, len(data)-len(c.data))
	}
	return nil
}

var (
	errShort  = errors.New("is cut short")
	errNumber = errors.New("a number is out of range")
)

func (c *coder) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *coder) uint(v *uint64) {
	if !c.reading {
		c.data = binary.AppendUvarint(c.data, *v)
		return
	}
	*v = 0
	if c.err != nil {
		return
	}
	n, size := binary.Uvarint(c.data)
	switch {
	case size == 0:
		c.fail(errShort)
	case size < 0:
		c.fail(errNumber)
	default:
		*v, c.data = n, c.data[size:]
	}
}

func (c *coder) int64(v *int64) {
	z := uint64(*v)<<1 ^ uint64(*v>>63)
	c.uint(&z)
	*v = int64(z>>1) ^ -int64(z&1)
}

func (c *coder) int(v *int) {
	n := int64(*v)
	c.int64(&n)
	*v = int(n)
}

func (c *coder) float(v *float32) {
	bits := math.Float32bits(*v)
	if !c.reading {
		c.data = binary.LittleEndian.AppendUint32(c.data, bits)
		return
	}
	if c.err == nil && len(c.data) < 4 {
		c.fail(errShort)
	}
	if c.err != nil {
		*v = 0
		return
	}
	*v, c.data = math.Float32frombits(binary.LittleEndian.Uint32(c.data)), c.data[4:]
}

// flag is whether there is what may lack.
func (c *coder) flag(v *bool) {
	var n uint64
	if *v {
		n = 1
	}
	c.uint(&n)
	if n > 1 {
		c.fail(errNumber)
	}
	*v = n == 1 && c.err == nil
}

func (c *coder) text(v *string) {
	if !c.reading {
		n, ok := c.numbers[*v]
		if !ok {
			n = uint64(len(c.numbers))
			c.numbers[*v] = n
		}
		c.uint(&n)
		if !ok {
			size := uint64(len(*v))
			c.uint(&size)
			c.data = append(c.data, *v...)
		}
		return
	}
	var n, size uint64
	*v = ""
	c.uint(&n)
	switch {
	case c.err != nil:
	case n < uint64(len(c.texts)):
		*v = c.texts[n]
	case n > uint64(len(c.texts)):
		c.fail(fmt.Errorf("text %d of %d", n, len(c.texts)))
	default:
		if c.uint(&size); c.err == nil && size > uint64(len(c.data)) {
			c.fail(errShort)
		}
		if c.err != nil {
			return
		}
		*v, c.data = string(c.data[:size]), c.data[size:]
		c.texts = append(c.texts, *v)
	}
}

// word is a text that has a type of its own.
func word[T ~string](c *coder, v *T) {
	s := string(*v)
	c.text(&s)
	*v = T(s)
}

func (c *coder) dtype(v *dtype.Type) {
	name := v.String()
	c.text(&name)
	if !c.reading || c.err != nil {
		return
	}
	var ok bool
	if *v, ok = dtype.Parse(name); !ok {
		c.fail(fmt.Errorf("unknown element type %q", name))
	}
}

// list codes the elements of a list. One without elements is read as nil.
func list[T any](c *coder, v *[]T, element func(*T)) {
	n := uint64(len(*v))
	if c.uint(&n); !c.reading {
		for i := range *v {
			element(&(*v)[i])
		}
		return
	}
	*v = nil
	if n > uint64(len(c.data)) { // an element has a byte at least
		c.fail(errShort)
	}
	for range n {
		if c.err != nil {
			return
		}
		var e T
		element(&e)
		*v = append(*v, e)
	}
}

// optional codes what may lack.
func optional[T any](c *coder, v **T, fields func(*T)) {
	have := *v != nil
	if c.flag(&have); !have {
		*v = nil
		return
	}
	if c.reading {
		*v = new(T)
	}
	fields(*v)
}
