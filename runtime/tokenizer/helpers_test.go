package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const nanoChat = "../../testdata/nano-chat"

// inkling loads the built-in tokenizer the way a checkpoint without a
// tokenizer file gets it.
func inkling(t testing.TB) *Tokenizer {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "config.json", `{"model_type": "inkling_mm_model", "text_config": {"vocab_size": 201024}}`)
	tok, err := Load(dir)
	require.NoError(t, err)
	return tok
}

func nano(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Load(nanoChat)
	require.NoError(t, err)
	return tok
}

func write(t testing.TB, dir, name, content string) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o644))
}

// hfFile is a tokenizer.json under construction. Tests change single parts of
// a good one.
type hfFile map[string]any

// smallHF is a tokenizer of the 256 bytes, whose ids are their values, and of
// more tokens with the ids from 256 on. It neither splits nor merges.
func smallHF(more ...string) hfFile {
	vocab := map[string]any{}
	for b, r := range byteRunes() {
		vocab[string(r)] = b
	}
	for i, token := range more {
		vocab[token] = 256 + i
	}
	return hfFile{
		"version":        "1.0",
		"truncation":     nil,
		"padding":        nil,
		"added_tokens":   []any{},
		"normalizer":     nil,
		"pre_tokenizer":  byteLevelJSON(false, false),
		"post_processor": byteLevelJSON(true, true),
		"decoder":        byteLevelJSON(true, true),
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil,
			"continuing_subword_prefix": "", "end_of_word_suffix": "",
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
			"vocab": vocab, "merges": []any{},
		},
	}
}

func byteLevelJSON(prefixSpace, useRegex bool) map[string]any {
	return map[string]any{
		"type": "ByteLevel", "add_prefix_space": prefixSpace, "trim_offsets": true, "use_regex": useRegex,
	}
}

func splitJSON(pattern string) map[string]any {
	return map[string]any{"type": "Sequence", "pretokenizers": []any{
		map[string]any{
			"type": "Split", "pattern": map[string]any{"Regex": pattern}, "behavior": "Isolated", "invert": false,
		},
		byteLevelJSON(false, false),
	}}
}

func addedJSON(id int, content string, special bool) map[string]any {
	return map[string]any{
		"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
		"normalized": false, "special": special,
	}
}

// set changes the value at a path such as "model.merges".
func (f hfFile) set(path string, v any) hfFile {
	keys := strings.Split(path, ".")
	at := map[string]any(f)
	for _, key := range keys[:len(keys)-1] {
		at = at[key].(map[string]any)
	}
	at[keys[len(keys)-1]] = v
	return f
}

func (f hfFile) merges(merges ...any) hfFile { return f.set("model.merges", merges) }

func (f hfFile) json(t testing.TB) []byte {
	t.Helper()
	data, err := json.MarshalIndent(f, "", " ")
	require.NoError(t, err)
	return data
}

func (f hfFile) load(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := parseHF("tokenizer.json", f.json(t))
	require.NoError(t, err)
	return tok
}

// rankFile writes ranks as tiktoken does. The 256 bytes come first.
func rankFile(more ...string) string {
	var b strings.Builder
	for c := range 256 {
		fmt.Fprintln(&b, rankLine(string([]byte{byte(c)}), c))
	}
	for i, token := range more {
		fmt.Fprintln(&b, rankLine(token, 256+i))
	}
	return b.String()
}

func rankLine(token string, rank int) string {
	return fmt.Sprintf("%s %d", base64.StdEncoding.EncodeToString([]byte(token)), rank)
}

// anyText generates text that touches all alternatives of the split patterns,
// and control tokens.
func anyText() *rapid.Generator[string] {
	words := rapid.SampledFrom([]string{
		"the", "The", "THE", "don't", "DON'T", "it'ſ", "we're", "ll", "'ll", "'LL", "123", "4", "12345678",
		" ", "  ", "   ", "\n", "\r\n", "\t", " \n ", "\u00a0", "\u2003", "\u0085", "\u3000", "!", "...", "//", "/\n", "'", "_",
		"中文", "日本語", "ʰ", "ª", "ǅ", "\u0301", "e\u0301", "E\u0301", "नमस्ते", "ที่", "½", "٣", "😀", "👩‍👩‍👧", "\u200d",
		"<|end_message|>", "<|message_user|>", "<|", "|>", "<|nothing|>", "\x00", "\u007f",
	})
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.OneOf(words, words, rapid.String()), 0, 12).Draw(t, "parts")
		return strings.Join(parts, "")
	})
}

// anyBytes generates text that may be broken.
func anyBytes() *rapid.Generator[string] {
	part := rapid.OneOf(anyText(), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) string { return string(b) }))
	return rapid.Map(rapid.SliceOfN(part, 0, 4), func(parts []string) string { return strings.Join(parts, "") })
}

// decodeAll pushes ids through a stream one by one.
func decodeAll(tok *Tokenizer, ids []int32) []string {
	s := tok.NewStream()
	var texts []string
	for _, id := range ids {
		texts = append(texts, s.Push(id))
	}
	return append(texts, s.Flush())
}

func ids(values ...int32) []int32 { return slices.Clone(values) }
