package target

import (
	"bytes"
	"encoding/json"
	"strings"
)

// width is how long a line of a profile may be before it is broken.
const width = 150

// Format writes a profile as a file: what fits a line is on one, so a field that
// changes is a line that changes.
func (p *Profile) Format() ([]byte, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	tree, err := readTree(dec)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	tree.write(&b, 0, 0)
	b.WriteByte('\n')
	return []byte(b.String()), nil
}

// jsonTree is a JSON value with its keys in order.
type jsonTree struct {
	open byte // '{', '[', or 0 for a leaf
	text string
	keys []string
	kids []jsonTree
}

func readTree(dec *json.Decoder) (jsonTree, error) {
	tok, err := dec.Token()
	if err != nil {
		return jsonTree{}, err
	}
	d, ok := tok.(json.Delim)
	if !ok {
		return jsonTree{text: leaf(tok)}, nil
	}
	t := jsonTree{open: byte(d)}
	for dec.More() {
		if t.open == '{' {
			key, err := dec.Token()
			if err != nil {
				return t, err
			}
			t.keys = append(t.keys, leaf(key)+": ")
		}
		kid, err := readTree(dec)
		if err != nil {
			return t, err
		}
		t.kids = append(t.kids, kid)
	}
	_, err = dec.Token()
	return t, err
}

func leaf(tok json.Token) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(tok) // a number, string, bool or null
	return strings.TrimSuffix(b.String(), "\n")
}

// line is the value on one line.
func (t *jsonTree) line() string {
	if t.open == 0 {
		return t.text
	}
	parts := make([]string, len(t.kids))
	for i := range t.kids {
		parts[i] = t.key(i) + t.kids[i].line()
	}
	return string(t.open) + strings.Join(parts, ", ") + t.close()
}

func (t *jsonTree) key(i int) string {
	if t.open == '{' {
		return t.keys[i]
	}
	return ""
}

func (t *jsonTree) close() string { return string(t.open + 2) } // ASCII

// write writes the value at a depth, behind so many characters of its line.
func (t *jsonTree) write(b *strings.Builder, depth, before int) {
	if s := t.line(); t.open == 0 || depth > 1 && before+len(s) < width {
		b.WriteString(s)
		return
	}
	b.WriteByte(t.open)
	for i := range t.kids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n" + strings.Repeat("  ", depth+1) + t.key(i))
		t.kids[i].write(b, depth+1, 2*depth+2+len(t.key(i)))
	}
	b.WriteString("\n" + strings.Repeat("  ", depth) + t.close())
}
