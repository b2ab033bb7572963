package tokenizer

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tiktoken-go/tokenizer/codec"
)

// o200kSize is the number of ranks of o200k_base.
const o200kSize = 199998

// o200k is what all tokenizers with the ranks of o200k_base share.
type o200k struct {
	pieces []string
	model  *bpe
}

// loadO200k takes the ranks out of the encoder that carries them, and nothing
// else. Its control tokens are not Inkling's, and its matcher for the pattern
// (v0.10.0) cuts "\n \n" in two, drops U+007F and takes quadratic time on runs
// of such blank lines.
var loadO200k = sync.OnceValues(func() (*o200k, error) {
	encoder := codec.NewO200kBase()
	vocab := &vocabulary{}
	ranks := make(map[string]int32, o200kSize)
	for id := range o200kSize {
		piece, err := encoder.Decode([]uint{uint(id)})
		if err != nil {
			return nil, fmt.Errorf("o200k_base: %w", err)
		}
		if err := vocab.add(id, piece); err != nil {
			return nil, fmt.Errorf("o200k_base: %w", err)
		}
		ranks[piece] = int32(id)
	}
	model, err := newBPE(ranks, true, rankMerges(ranks))
	if err != nil {
		return nil, fmt.Errorf("o200k_base: %w", err)
	}
	return &o200k{pieces: vocab.pieces, model: model}, nil
})

// builtIn returns o200k_base with Inkling's control tokens.
func builtIn(source string) (*Tokenizer, error) {
	base, err := loadO200k()
	if err != nil {
		return nil, err
	}
	vocab := &vocabulary{pieces: slices.Clone(base.pieces)}
	added, err := completeInkling(vocab, nil)
	if err != nil {
		return nil, err
	}
	return newTokenizer(source, vocab.pieces, base.model, o200kPiece, false, added), nil
}

// parseRanks makes a tokenizer of a tiktoken rank file. Such a file says
// nothing of how to split; the pattern is that of o200k_base.
func parseRanks(file string, data []byte) (*Tokenizer, error) {
	vocab, ranks, added, err := readRanks(file, data)
	if err != nil {
		return nil, err
	}
	model, known, err := rankModel(ranks)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if added, err = completeInkling(vocab, added); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	source := file
	if known {
		source += " (o200k_base)"
	}
	return newTokenizer(source, vocab.pieces, model, o200kPiece, false, added), nil
}

// readRanks reads the lines of a rank file. Entries spelled like control
// tokens are control tokens, and not among the ranks it returns.
func readRanks(file string, data []byte) (vocab *vocabulary, ranks map[string]int32, added []addedToken, err error) {
	vocab, ranks = &vocabulary{}, map[string]int32{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		piece, id, err := parseRank(fields)
		if err == nil {
			err = vocab.add(id, piece)
		}
		if _, twice := ranks[piece]; err == nil && twice {
			err = fmt.Errorf("%q has two ranks", piece)
		}
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s:%d: %w", file, number, err)
		}
		ranks[piece] = int32(id)
		if isMarker(piece) {
			added = append(added, addedToken{id: int32(id), text: piece, control: true})
		}
	}
	for _, a := range added {
		delete(ranks, a.text)
	}
	return vocab, ranks, added, nil
}

// parseRank reads the fields of one line: the bytes in base64, and the rank.
func parseRank(fields []string) (piece string, id int, err error) {
	if len(fields) != 2 {
		return "", 0, fmt.Errorf("a line of a tiktoken rank file has a token in base64 and a rank, this one has %d fields", len(fields))
	}
	raw, err := base64.StdEncoding.DecodeString(fields[0])
	if err != nil {
		return "", 0, fmt.Errorf("%.60q is not base64: %w", fields[0], err)
	}
	id, err = strconv.Atoi(fields[1])
	if err != nil {
		return "", 0, fmt.Errorf("the rank %.60q is not an integer", fields[1])
	}
	return string(raw), id, nil
}

// rankModel makes a model of ranks. Those of o200k_base are shared and not
// held twice.
func rankModel(ranks map[string]int32) (model *bpe, known bool, err error) {
	if len(ranks) == o200kSize {
		base, err := loadO200k()
		if err != nil {
			return nil, false, err
		}
		if maps.Equal(ranks, base.model.whole) {
			return base.model, true, nil
		}
	}
	model, err = newBPE(ranks, true, rankMerges(ranks))
	return model, false, err
}
