package native

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Error reports what of a file is wrong, and where.
type Error struct {
	Part   string // of the file
	Offset int    // bytes from its start
	What   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at byte %d: %s", e.Part, e.Offset, e.What)
}

// ChecksumError reports a file whose fields end where they should, and whose checksum is
// not that of its bytes.
type ChecksumError struct{ Have, Want uint32 }

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("the file is damaged or of another layout: its checksum is %#08x, its bytes have %#08x", e.Have, e.Want)
}

// trailer is the size of the checksum.
const trailer = 4

// Decode reads a file. It takes memory in proportion to the file, whatever its counts
// say. Beside a [ChecksumError] it returns the recipe, since Synapse itself reads such a
// file; beside other errors it returns nil.
func Decode(data []byte) (*Recipe, error) {
	if len(data) < trailer {
		return nil, &Error{"checksum", 0, fmt.Sprintf("the file has %d bytes, too few for one", len(data))}
	}
	end := len(data) - trailer
	r := new(Recipe)
	c := coder{data: data[:end], reading: true}
	r.code(&c)
	if c.err == nil && c.at != end {
		c.part = "checksum"
		c.fail("%d bytes lie between the last field and the checksum at byte %d", end-c.at, end)
	}
	if c.err != nil {
		return nil, c.err
	}
	have, want := binary.LittleEndian.Uint32(data[end:]), checksum(data[:end])
	if have != want {
		return r, &ChecksumError{have, want}
	}
	return r, nil
}

// Encode writes a file. Texts must not have zero bytes, and each node must have a number
// of blobs for each program.
func (r *Recipe) Encode() ([]byte, error) {
	var c coder
	r.code(&c)
	if c.err != nil {
		return nil, c.err
	}
	return binary.LittleEndian.AppendUint32(c.data, checksum(c.data)), nil
}

// coder reads or writes the fields: one description of them does both. After the first
// error it reads zeros.
type coder struct {
	data    []byte
	at      int // read so far
	reading bool
	part    string
	err     error
}

func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		at := c.at
		if !c.reading {
			at = len(c.data)
		}
		c.err = &Error{c.part, at, fmt.Sprintf(format, args...)}
	}
}

// take reads n bytes, nil if there are not as many.
func (c *coder) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if left := len(c.data) - c.at; n > left {
		c.fail("%d bytes are wanted, %d are left", n, left)
		return nil
	}
	b := c.data[c.at : c.at+n : c.at+n]
	c.at += n
	return b
}

func (c *coder) u8(v *uint8) {
	if !c.reading {
		c.data = append(c.data, *v)
	} else if b := c.take(1); b != nil {
		*v = b[0]
	}
}

func (c *coder) u16(v *uint16) {
	if !c.reading {
		c.data = binary.LittleEndian.AppendUint16(c.data, *v)
	} else if b := c.take(2); b != nil {
		*v = binary.LittleEndian.Uint16(b)
	}
}

func (c *coder) u32(v *uint32) {
	if !c.reading {
		c.data = binary.LittleEndian.AppendUint32(c.data, *v)
	} else if b := c.take(4); b != nil {
		*v = binary.LittleEndian.Uint32(b)
	}
}

func (c *coder) u64(v *uint64) {
	if !c.reading {
		c.data = binary.LittleEndian.AppendUint64(c.data, *v)
	} else if b := c.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

func (c *coder) f64(v *float64) {
	bits := math.Float64bits(*v)
	c.u64(&bits)
	*v = math.Float64frombits(bits)
}

func (c *coder) flag(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	c.u8(&n)
	if n > 1 {
		c.fail("a flag is %d, want 0 or 1", n)
	}
	*v = n == 1
}

// count32 and count64 code the number of elements, of which each has least bytes or more.
func (c *coder) count32(have, least int) int {
	n := uint32(have)
	if !c.reading && int64(have) > math.MaxUint32 {
		c.fail("%d elements are more than 32 bits count", have)
	}
	c.u32(&n)
	return c.bounded(uint64(n), least)
}

func (c *coder) count64(have, least int) int {
	n := uint64(have)
	c.u64(&n)
	return c.bounded(n, least)
}

func (c *coder) bounded(n uint64, least int) int {
	if !c.reading {
		return int(n)
	}
	if c.err != nil {
		return 0
	}
	if left := len(c.data) - c.at; n > uint64(left/least) {
		c.fail("%d elements of at least %d bytes are wanted, %d bytes are left", n, least, left)
		return 0
	}
	return int(n)
}

// raw codes n bytes.
func (c *coder) raw(v *[]byte, n int) {
	if !c.reading {
		c.data = append(c.data, *v...)
	} else if b := c.take(n); len(b) > 0 {
		*v = slices.Clone(b)
	}
}

func (c *coder) bytes32(v *[]byte) { c.raw(v, c.count32(len(*v), 1)) }
func (c *coder) bytes64(v *[]byte) { c.raw(v, c.count64(len(*v), 1)) }

// text codes a text with its zero byte, which its length counts.
func (c *coder) text(v *string) {
	if !c.reading && strings.IndexByte(*v, 0) >= 0 {
		c.fail("text %q has a zero byte", *v)
	}
	n := c.count32(len(*v)+1, 1)
	if !c.reading {
		c.data = append(append(c.data, *v...), 0)
		return
	}
	from := c.at
	b := c.take(n)
	if c.err == nil && (n == 0 || strings.IndexByte(string(b), 0) != n-1) {
		c.at = from
		c.fail("text %q of %d bytes does not end with its only zero byte", b, n)
	}
	if c.err == nil {
		*v = string(b[:n-1])
	}
}

// list codes n elements, as many as v has when writing.
func list[T any](c *coder, v *[]T, n int, element func(*T)) {
	if c.reading && n > 0 {
		*v = make([]T, n)
	}
	for i := range *v {
		if c.err != nil {
			return
		}
		element(&(*v)[i])
	}
}

// checksum is the checksum of a file's bytes before it: a CRC of polynomial 0xAD0424F3, most
// significant bit first, from 0, without a final inversion.
func checksum(data []byte) uint32 {
	var crc uint32
	for _, b := range data {
		crc = table[byte(crc>>24)^b] ^ crc<<8
	}
	return crc
}

var table = func() (t [256]uint32) {
	for i := range t {
		v := uint32(i) << 24
		for range 8 {
			carry := v >> 31
			v = v<<1 ^ carry*0xAD0424F3
		}
		t[i] = v
	}
	return t
}()
