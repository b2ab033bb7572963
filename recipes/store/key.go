package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"quill/recipes"
)

// Field is one thing that a result depends on.
type Field struct {
	Name string `json:"name"` // of lower-case letters, digits, dots, - and _
	Text string `json:"text"`
}

// Key names an action by everything that its result depends on, in an order that the
// kind of action fixes. Keys are equal if all their fields are.
type Key []Field

// keyKind begins the text that a key's hash is of.
const keyKind = "quill key 1\n"

// Hash is the SHA-256 of the key's fields, each with its length before it: keys that
// are not equal never have the same text.
func (k Key) Hash() recipes.Hash { return recipes.Sum(k.append([]byte(keyKind))) }

func (k Key) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(k)))
	for _, f := range k {
		b = appendText(b, f.Name)
		b = appendText(b, f.Text)
	}
	return b
}

// Text is the text of a field, "" if there is none of that name.
func (k Key) Text(name string) string {
	for _, f := range k {
		if f.Name == name {
			return f.Text
		}
	}
	return ""
}

func (k Key) check() error {
	if len(k) == 0 {
		return errors.New("a key without fields")
	}
	seen := map[string]bool{}
	for _, f := range k {
		if f.Name == "" || strings.Trim(f.Name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			return fmt.Errorf("a key with a field named %q: want lower-case letters, digits, dots, - and _", f.Name)
		}
		if seen[f.Name] {
			return fmt.Errorf("a key with two fields named %s", f.Name)
		}
		seen[f.Name] = true
	}
	return nil
}

func appendText[T ~string | ~[]byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}
