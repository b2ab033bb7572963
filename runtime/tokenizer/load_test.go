package tokenizer

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const inklingConfig = `{"model_type": "inkling_mm_model", "text_config": {"vocab_size": 201024}}`

func TestLoadOrder(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []struct {
		name, content, source string
		id                    int32 // of "ab"
	}{
		{"config.json", inklingConfig, "o200k_base, built in, for " + filepath.Join(dir, "config.json"), 378},
		{"tokenizer.model", rankFile("qq", "ab"), filepath.Join(dir, "tokenizer.model"), 257},
		{"tiktoken/tokenizer.model", rankFile("ab"), filepath.Join(dir, "tiktoken", "tokenizer.model"), 256},
		{"tokenizer.json", string(smallHF("xy", "zz", "ab").merges("a b").json(t)), filepath.Join(dir, "tokenizer.json"), 258},
	} {
		write(t, dir, step.name, step.content)
		tok, err := Load(dir)
		require.NoError(t, err, step.name)
		require.Equal(t, step.source, tok.Source())
		require.Equal(t, ids(step.id), tok.Encode("ab"))
	}
}

func TestLoadNothing(t *testing.T) {
	for name, c := range map[string]struct{ config, want string }{
		"empty directory": {"", "config.json: no such file"},
		"another model": {
			`{"model_type": "llama"}`,
			`config.json: model_type is "llama", and a tokenizer is built in for "inkling_mm_model" only`,
		},
		"small vocabulary": {
			`{"model_type": "inkling_mm_model", "text_config": {"vocab_size": 320}}`,
			`config.json: text_config.vocab_size is 320, and the built-in tokenizer needs 200058`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.config != "" {
				write(t, dir, "config.json", c.config)
			}
			_, err := Load(dir)
			require.ErrorIs(t, err, ErrNone)
			for _, file := range []string{"tokenizer.json", "tiktoken/tokenizer.model", "tokenizer.model"} {
				require.ErrorContains(t, err, filepath.Join(dir, file)+": no such file\n")
			}
			require.ErrorContains(t, err, filepath.Join(dir, c.want)+"\n")
			require.ErrorContains(t, err, "put the checkpoint's tokenizer.json beside the weights, or pass token ids with --tokens")
		})
	}
}

func TestLoadSmallestVocabulary(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "config.json", `{"model_type": "inkling_mm_model", "text_config": {"vocab_size": 200058}}`)
	_, err := Load(dir)
	require.NoError(t, err)
}

// TestLoadBroken: a file that is there but unusable hides those after it.
func TestLoadBroken(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"tokenizer.json", "{", "tokenizer.json:1:1: unexpected end of JSON input"},
		{"tiktoken/tokenizer.model", "x", "tokenizer.model:1: a line of"},
		{"tokenizer.model", "x", "tokenizer.model:1: a line of"},
		{"config.json", "{]", "config.json: invalid character"},
		{"config.json", `{"text_config": []}`, "config.json: json: cannot unmarshal array"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "config.json", inklingConfig)
			write(t, dir, c.name, c.content)
			_, err := Load(dir)
			require.ErrorContains(t, err, c.want)
			require.False(t, errors.Is(err, ErrNone))
		})
	}
}

func TestLoadUnreadable(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tokenizer.json"), 0o755))
	_, err := Load(dir)
	require.ErrorContains(t, err, filepath.Join(dir, "tokenizer.json"))
	require.False(t, errors.Is(err, ErrNone))
}

func TestLoadPublishedConfigs(t *testing.T) {
	for _, name := range []string{"inkling", "inkling-small"} {
		tok, err := Load("../../testdata/configs/" + name)
		require.NoError(t, err)
		require.Equal(t, ids(976, 9029, 328, 10128, 382), tok.Encode("The capital of France is"))
	}
	require.Equal(t, filepath.Join(nanoChat, "tokenizer.json"), nano(t).Source())
}

func TestConcurrentUse(t *testing.T) {
	tok := inkling(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if tok.Decode(tok.EncodeWithSpecials("Hello<|end_message|> world")) != "Hello<|end_message|> world" {
					t.Error("wrong text")
				}
			}
		})
	}
	wg.Wait()
}
