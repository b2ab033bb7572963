package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep values nest that nobody asked for and that are skipped.
const maxDepth = 64

// reader decodes one JSON document, token by token: json.Unmarshal would take
// the last of several equal keys, ignore case and round numbers.
type reader struct {
	src []byte
	dec *json.Decoder
}

// newReader checks the text of src: encoding/json would replace what is not
// Unicode, and two names could become one.
func newReader(src []byte) (*reader, error) {
	if !utf8.Valid(src) {
		return nil, fmt.Errorf("byte %d is not valid UTF-8", invalidUTF8(src))
	}
	if i := loneSurrogate(src); i >= 0 {
		return nil, fmt.Errorf("malformed JSON at byte %d: half of a surrogate pair, expected both", i)
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	return &reader{src, dec}, nil
}

// invalidUTF8 is the offset of the first byte that is not UTF-8.
func invalidUTF8(src []byte) int {
	for i := 0; i < len(src); {
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(src)
}

// loneSurrogate is the offset of the first \u escape that is one half of a
// surrogate pair without the other, or -1. Backslashes outside strings are left
// for the decoder to reject.
func loneSurrogate(src []byte) int {
	for i := 0; i < len(src); i++ {
		if src[i] != '\\' {
			continue
		}
		switch v := escape(src[i:]); {
		case v < 0xd800 || v > 0xdfff:
			i++ // the escaped character, which may be a backslash
		case v < 0xdc00 && isLow(escape(src[i+6:])):
			i += 11
		default:
			return i
		}
	}
	return -1
}

func isLow(v int) bool { return v >= 0xdc00 && v <= 0xdfff }

// escape is the value of the \uXXXX that b begins with, -1 if it does not.
func escape(b []byte) int {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int(v)
}

// token is the next token.
func (r *reader) token() (json.Token, error) {
	tok, err := r.dec.Token()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("malformed JSON: it ends in the middle, after %d bytes", len(r.src))
	}
	if err != nil {
		return nil, fmt.Errorf("malformed JSON after byte %d: %w", r.dec.InputOffset(), err)
	}
	return tok, nil
}

// object reads an object. It calls field with each key; field reads the value.
// A key that appears twice is an error.
func (r *reader) object(field func(key string) error) error {
	tok, err := r.token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("expected an object, got %s", describe(tok))
	}
	return r.fields(field)
}

// fields reads an object after its opening brace.
func (r *reader) fields(field func(key string) error) error {
	seen := make(map[string]struct{})
	for {
		tok, err := r.token()
		if err != nil {
			return err
		}
		key, ok := tok.(string)
		if !ok {
			return nil // the closing brace: the decoder lets nothing else pass here
		}
		if _, dup := seen[key]; dup {
			return fmt.Errorf("duplicate key %s, expected each key once", quote(key))
		}
		seen[key] = struct{}{}
		if err := field(key); err != nil {
			return err
		}
	}
}

// str reads a string.
func (r *reader) str() (string, error) {
	tok, err := r.token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("expected a string, got %s", describe(tok))
	}
	return s, nil
}

// strings reads an object whose values are strings.
func (r *reader) strings() (map[string]string, error) {
	m := make(map[string]string)
	err := r.object(func(key string) error {
		s, err := r.str()
		if err != nil {
			return fmt.Errorf("%s: %w", quote(key), err)
		}
		m[key] = s
		return nil
	})
	return m, err
}

// natural reads an integer from 0 to 2^63-1.
func (r *reader) natural() (int64, error) {
	tok, err := r.token()
	if err != nil {
		return 0, err
	}
	return toNatural(tok)
}

func toNatural(tok json.Token) (int64, error) {
	num, ok := tok.(json.Number)
	if !ok || strings.Trim(string(num), "0123456789") != "" {
		return 0, fmt.Errorf("expected a non-negative integer, got %s", describe(tok))
	}
	n, err := strconv.ParseInt(string(num), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("expected an integer below 2^63, got %s", describe(tok))
	}
	return n, nil
}

// naturals reads a list of integers from 0 to 2^63-1. The list is never nil
// when there is no error.
func (r *reader) naturals() ([]int64, error) {
	tok, err := r.token()
	if err != nil {
		return nil, err
	}
	if tok != json.Delim('[') {
		return nil, fmt.Errorf("expected a list of integers, got %s", describe(tok))
	}
	list := []int64{}
	for {
		tok, err := r.token()
		if err != nil {
			return nil, err
		}
		if tok == json.Delim(']') {
			return list, nil
		}
		n, err := toNatural(tok)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", len(list), err)
		}
		list = append(list, n)
	}
}

// skip reads any value. Duplicate keys are errors in it too.
func (r *reader) skip(depth int) error {
	tok, err := r.token()
	if err != nil {
		return err
	}
	return r.skipRest(tok, depth)
}

// skipRest reads what is left of the value that tok began.
func (r *reader) skipRest(tok json.Token, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("values nest deeper than %d levels", maxDepth)
	}
	switch tok {
	case json.Delim('{'):
		return r.fields(func(string) error { return r.skip(depth + 1) })
	case json.Delim('['):
		for {
			tok, err := r.token()
			if err != nil || tok == json.Delim(']') {
				return err
			}
			if err := r.skipRest(tok, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// end checks that only characters of pad follow the document.
func (r *reader) end(pad string) error {
	at := int(r.dec.InputOffset())
	rest := bytes.TrimLeft(r.src[at:], pad)
	if len(rest) == 0 {
		return nil
	}
	next, _ := utf8.DecodeRune(rest)
	return fmt.Errorf("malformed JSON at byte %d: %q after the object, expected the end", len(r.src)-len(rest), next)
}

// describe is a token in words.
func describe(tok json.Token) string {
	switch v := tok.(type) {
	case string:
		return "the string " + quote(v)
	case json.Number:
		return "the number " + strings.Trim(quote(string(v)), `"`)
	case bool:
		return strconv.FormatBool(v)
	case json.Delim:
		if v == '{' {
			return "an object"
		}
		return "a list"
	}
	return "null"
}
