package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A document is a JSON text known to be well-formed. Values in it are read in
// place, which keeps three things that decoding into Go values loses: where a
// value stands, keys given twice, and keys nobody asked for.
type document struct {
	file string
	data []byte
}

// A value is the value that starts at off. The zero value means there is none.
type value struct {
	doc *document
	off int
}

// parseDocument checks the syntax of data and returns its one value.
func parseDocument(file string, data []byte) (value, error) {
	d := &document{file: file, data: data}
	if at := invalidUTF8(data); at >= 0 {
		return value{}, fmt.Errorf("%s: byte 0x%02x is not UTF-8", d.position(at), data[at])
	}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		at := len(data)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			// The offset counts the bytes read, the offending one included.
			at = max(0, int(syntax.Offset)-1)
		}
		return value{}, fmt.Errorf("%s: %w", d.position(at), err)
	}
	return d.root(), nil
}

// invalidUTF8 returns the place of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

// position returns file:line:column, counting lines and bytes from 1.
func (d *document) position(off int) string {
	before := d.data[:off]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := off - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("%s:%d:%d", d.file, line, column)
}

func (d *document) root() value { return value{d, d.blanks(0)} }

// blanks returns the place of the first byte from off on that is no white
// space.
func (d *document) blanks(off int) int {
	for off < len(d.data) && strings.IndexByte(" \t\r\n", d.data[off]) >= 0 {
		off++
	}
	return off
}

// skip returns the place after the value at off.
func (d *document) skip(off int) int {
	depth := 0
	for {
		switch d.data[off] {
		case '"':
			off = d.skipString(off)
		case '{', '[':
			depth++
			off++
		case '}', ']':
			depth--
			off++
		case ',', ':', ' ', '\t', '\r', '\n':
			off++
		default:
			off = d.skipBare(off)
		}
		if depth == 0 {
			return off
		}
	}
}

func (d *document) skipString(off int) int {
	for off++; d.data[off] != '"'; off++ {
		if d.data[off] == '\\' {
			off++
		}
	}
	return off + 1
}

// skipBare skips a number, true, false or null.
func (d *document) skipBare(off int) int {
	for off < len(d.data) && strings.IndexByte(",:]} \t\r\n", d.data[off]) < 0 {
		off++
	}
	return off
}

// errorf makes an error that says where v stands: file, line, column and the
// path of keys that leads to it.
func (v value) errorf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if path := v.path(); path != "" {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Errorf("%s: %w", v.doc.position(v.off), err)
}

// path finds v again from the top. Only errors need it, and keeping track on
// the way down would cost an allocation for each of half a million merges.
func (v value) path() string {
	path := ""
	for at := v.doc.root(); at.off < v.off; {
		label := ""
		at, label = at.childAt(v.off)
		path += label
	}
	return strings.TrimPrefix(path, ".")
}

// childAt returns the member or element that off lies in, and how a path
// spells the step to it.
func (v value) childAt(off int) (child value, label string) {
	for key, c := range v.members() {
		if c.off > off {
			break
		}
		child, label = c, "."+key
		if !plainKey(key) {
			label = "[" + strconv.Quote(key) + "]"
		}
	}
	for i, c := range v.elements() {
		if c.off > off {
			break
		}
		child, label = c, fmt.Sprintf("[%d]", i)
	}
	return child, label
}

// plainKey reports whether a path can spell key without quotes.
func plainKey(key string) bool {
	return key != "" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// brief returns v as written, shortened, for messages.
func (v value) brief() string {
	const most = 60
	raw := v.doc.data[v.off:v.doc.skip(v.off)]
	text := string(bytes.Join(bytes.Fields(raw[:min(len(raw), 4*most)]), []byte(" ")))
	if len(text) <= most && len(raw) <= 4*most {
		return text
	}
	return strings.ToValidUTF8(text[:min(len(text), most)], "") + "…"
}

func (v value) exists() bool { return v.doc != nil }

// isNull is also true of what is not there.
func (v value) isNull() bool { return !v.exists() || v.first() == 'n' }

// first returns the byte that tells the kind of value.
func (v value) first() byte { return v.doc.data[v.off] }

// members yields what an object holds; for other values, nothing.
func (v value) members() iter.Seq2[string, value] {
	return func(yield func(string, value) bool) {
		if v.first() != '{' {
			return
		}
		d := v.doc
		for off := d.blanks(v.off + 1); d.data[off] != '}'; {
			key := value{d, off}.unquoted()
			colon := d.blanks(d.skipString(off))
			member := value{d, d.blanks(colon + 1)}
			if !yield(key, member) {
				return
			}
			off = d.next(member)
		}
	}
}

// elements yields what an array holds; for other values, nothing.
func (v value) elements() iter.Seq2[int, value] {
	return func(yield func(int, value) bool) {
		if v.first() != '[' {
			return
		}
		d := v.doc
		i := 0
		for off := d.blanks(v.off + 1); d.data[off] != ']'; i++ {
			element := value{d, off}
			if !yield(i, element) {
				return
			}
			off = d.next(element)
		}
	}
}

// next returns the place of what follows v: the next member or element, or the
// bracket that closes them.
func (d *document) next(v value) int {
	off := d.blanks(d.skip(v.off))
	if d.data[off] == ',' {
		off = d.blanks(off + 1)
	}
	return off
}

// unquoted returns the text of a string.
func (v value) unquoted() string {
	raw := v.doc.data[v.off:v.doc.skipString(v.off)]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var text string
	_ = json.Unmarshal(raw, &text) // cannot fail: the syntax has been checked
	return text
}

// text returns the text of v, which must be a string.
func (v value) text() (string, error) {
	if v.first() != '"' {
		return "", v.errorf("%s is not a string", v.brief())
	}
	return v.unquoted(), nil
}

// integer returns the number v, which must be written as an integer.
func (v value) integer() (int, error) {
	raw := string(v.doc.data[v.off:v.doc.skip(v.off)])
	n, err := strconv.Atoi(raw)
	if err != nil {
		return 0, v.errorf("%s is not an integer", v.brief())
	}
	return n, nil
}

// array returns an error unless v is an array.
func (v value) array() error {
	if v.first() != '[' {
		return v.errorf("%s is not an array", v.brief())
	}
	return nil
}

// An object is an object whose keys are all known.
type object struct {
	value
	fields map[string]value
}

// object reads v, which must be an object with no keys but these, each at most
// once.
func (v value) object(keys ...string) (object, error) {
	if v.first() != '{' {
		return object{}, v.errorf("%s is not an object", v.brief())
	}
	o := object{v, map[string]value{}}
	for key, member := range v.members() {
		switch _, twice := o.fields[key]; {
		case twice:
			return object{}, member.errorf("the key is given twice")
		case !slices.Contains(keys, key):
			return object{}, member.errorf("the key is not known; its value is %s", member.brief())
		}
		o.fields[key] = member
	}
	return o, nil
}

// get returns a member that must be there.
func (o object) get(key string) (value, error) {
	v := o.fields[key]
	if !v.exists() {
		return v, o.errorf("%q is missing", key)
	}
	return v, nil
}

// text returns a member that must be there and be a string.
func (o object) text(key string) (string, error) {
	v, err := o.get(key)
	if err != nil {
		return "", err
	}
	return v.text()
}

// flag returns a member that is true or false, or fallback if there is none.
func (o object) flag(key string, fallback bool) (bool, error) {
	v := o.fields[key]
	switch {
	case !v.exists():
		return fallback, nil
	case v.first() == 't', v.first() == 'f':
		return v.first() == 't', nil
	}
	return false, v.errorf("%s is not true or false", v.brief())
}

// mustFlag returns a member that must be there and be true or false.
func (o object) mustFlag(key string) (bool, error) {
	if _, err := o.get(key); err != nil {
		return false, err
	}
	return o.flag(key, false)
}

// allFalse returns an error if one of the flags is set.
func (o object) allFalse(keys ...string) error {
	for _, key := range keys {
		set, err := o.flag(key, false)
		if err != nil {
			return err
		}
		if set {
			return o.fields[key].errorf("true is not supported")
		}
	}
	return nil
}

// allNull returns an error if one of the members is there and is not null.
func (o object) allNull(keys ...string) error {
	for _, key := range keys {
		if v := o.fields[key]; !v.isNull() {
			return v.errorf("%s is not supported, only null is", v.brief())
		}
	}
	return nil
}

// oneOf returns an error unless the member is one of the strings.
func (o object) oneOf(key string, want ...string) error {
	got, err := o.text(key)
	if err != nil {
		return err
	}
	if !slices.Contains(want, got) {
		return o.fields[key].errorf("%q is not supported, only %s is", got, strings.Join(want, " or "))
	}
	return nil
}
