package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"quill/recipes"
)

// Result is what an action gives. What a store hands out may be shared: it is not to be
// changed.
type Result struct {
	// Data is the action's own, such as a plan that refers to blobs by their hashes.
	Data []byte
	// Blobs are the contents of the blobs that it needs, by their hashes.
	Blobs map[recipes.Hash][]byte
}

func (r *Result) check() error {
	if r == nil {
		return errors.New("there is no result")
	}
	for _, h := range sortedHashes(r.Blobs) {
		if sum := recipes.Sum(r.Blobs[h]); sum != h {
			return fmt.Errorf("a blob named %v has content of hash %v", h, sum)
		}
		if len(r.Blobs[h]) > maxContent {
			return fmt.Errorf("blob %v has %d bytes, a store takes %d", h, len(r.Blobs[h]), maxContent)
		}
	}
	if len(r.Data) > maxContent/2 {
		return fmt.Errorf("the data of a result has %d bytes, a store takes %d", len(r.Data), maxContent/2)
	}
	return nil
}

// action is the content of an action's file:
//
//	fields   their number, then name and text of each
//	blobs    their number, then the hashes, sorted
//	data
//
// Numbers are unsigned ones, 7 bits a byte; texts and data have their length before them.
type action struct {
	key   Key
	blobs []recipes.Hash
	data  []byte
}

func (a *action) encode() []byte {
	b := a.key.append(nil)
	b = binary.AppendUvarint(b, uint64(len(a.blobs)))
	for _, h := range a.blobs {
		b = append(b, h[:]...)
	}
	return appendText(b, a.data)
}

// decodeAction reads what encode wrote, and nothing else.
func decodeAction(content []byte) (*action, error) {
	a, d := new(action), decoder{rest: content}
	for range d.number() {
		if d.short {
			break
		}
		a.key = append(a.key, Field{Name: string(d.text()), Text: string(d.text())})
	}
	for range d.number() {
		if d.short {
			break
		}
		var h recipes.Hash
		copy(h[:], d.take(uint64(len(h))))
		a.blobs = append(a.blobs, h)
	}
	a.data = bytes.Clone(d.text())
	if d.short || !bytes.Equal(a.encode(), content) {
		return nil, damaged("this is no action")
	}
	if err := a.key.check(); err != nil {
		return nil, damaged("%w", err)
	}
	return a, nil
}

// decoder takes parts off bytes; once they are too few it gives zeros.
type decoder struct {
	rest  []byte
	short bool
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 {
		d.rest, d.short = nil, true
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.rest)) {
		d.rest, d.short = nil, true
		return nil
	}
	part := d.rest[:n]
	d.rest = d.rest[n:]
	return part
}

func (d *decoder) text() []byte { return d.take(d.number()) }
