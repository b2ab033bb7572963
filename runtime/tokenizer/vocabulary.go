package tokenizer

import "fmt"

// maxTokens bounds ids, so that a damaged file cannot ask for a huge table.
// The largest vocabularies in use have a quarter of it.
const maxTokens = 1 << 20

// A vocabulary collects the bytes of the tokens, by id.
type vocabulary struct{ pieces []string }

// add enters a token. An id can be given out once.
func (v *vocabulary) add(id int, piece string) error {
	switch {
	case id < 0 || id >= maxTokens:
		return fmt.Errorf("id %d is not in the range 0 to %d", id, maxTokens-1)
	case piece == "":
		return fmt.Errorf("the token with id %d is empty", id)
	case v.has(id):
		return fmt.Errorf("id %d is given to %q and to %q", id, v.pieces[id], piece)
	}
	if grow := id + 1 - len(v.pieces); grow > 0 {
		v.pieces = append(v.pieces, make([]string, grow)...)
	}
	v.pieces[id] = piece
	return nil
}

func (v *vocabulary) has(id int) bool {
	return 0 <= id && id < len(v.pieces) && v.pieces[id] != ""
}
