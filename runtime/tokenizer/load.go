package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrNone is what Load's error wraps if a directory holds no tokenizer, as
// opposed to one that cannot be read.
var ErrNone = errors.New("no tokenizer")

// inklingModel is the model_type of the Inkling models whose vocabulary is
// o200k_base.
const inklingModel = "inkling_mm_model"

// Load finds the tokenizer of a checkpoint directory. The package comment has
// the order in which it looks. A file that is there but cannot be used is an
// error, even if another one could be.
func Load(modelDir string) (*Tokenizer, error) {
	sources := []struct {
		name  string
		parse func(file string, data []byte) (*Tokenizer, error)
	}{
		{"tokenizer.json", parseHF},
		{"tiktoken/tokenizer.model", parseRanks},
		{"tokenizer.model", parseRanks},
		{"config.json", parseConfig},
	}
	var missed strings.Builder
	for _, s := range sources {
		file := filepath.Join(modelDir, filepath.FromSlash(s.name))
		t, err := loadFile(file, s.parse)
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, ErrNone) {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		fmt.Fprintf(&missed, "\n  %v", err)
	}
	return nil, fmt.Errorf("%w in %s; looked at%s\n"+
		"put the checkpoint's tokenizer.json beside the weights, or pass token ids with --tokens",
		ErrNone, modelDir, missed.String())
}

// loadFile parses a file. Its error is ErrNone if the file does not exist.
func loadFile(file string, parse func(string, []byte) (*Tokenizer, error)) (*Tokenizer, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing{file, "no such file"}
	}
	if err != nil {
		return nil, err
	}
	return parse(file, data)
}

// missing says why a file yields no tokenizer.
type missing struct{ file, reason string }

func (m missing) Error() string        { return m.file + ": " + m.reason }
func (m missing) Is(target error) bool { return target == ErrNone }

// parseConfig returns the built-in tokenizer if the configuration of a model
// asks for it.
func parseConfig(file string, data []byte) (*Tokenizer, error) {
	var config struct {
		ModelType  string `json:"model_type"`
		TextConfig struct {
			VocabSize int `json:"vocab_size"`
		} `json:"text_config"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if config.ModelType != inklingModel {
		return nil, missing{file, fmt.Sprintf("model_type is %q, and a tokenizer is built in for %q only", config.ModelType, inklingModel)}
	}
	if size := config.TextConfig.VocabSize; size < inklingVocab {
		return nil, missing{file, fmt.Sprintf("text_config.vocab_size is %d, and the built-in tokenizer needs %d", size, inklingVocab)}
	}
	return builtIn("o200k_base, built in, for " + file)
}
