package tokenizer

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestMergesByHand has merges in both spellings. Ids: he 256, ll 257, hell 258,
// lo 259, hello 260, Ġh 261, Ġhello 262. Ranks are the order of the list.
func TestMergesByHand(t *testing.T) {
	tokens := []string{"he", "ll", "hell", "lo", "hello", "Ġh", "Ġhello"}
	asStrings := []any{"l o", "h e", "l l", "he ll", "hell o", "Ġ h"}
	asPairs := []any{
		[]string{"l", "o"}, []string{"h", "e"}, []string{"l", "l"}, []string{"he", "ll"}, []string{"hell", "o"}, []string{"Ġ", "h"},
	}
	for name, merges := range map[string][]any{"strings": asStrings, "pairs": asPairs} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct {
				text         string
				ignoreMerges bool
				want         []int32
			}{
				// l+o goes first and leaves the other l alone: he l lo.
				{"hello", false, ids(256, 'l', 259)},
				// As a whole the piece is a token.
				{"hello", true, ids(260)},
				{" hello", true, ids(262)},
				// h+e (rank 1) goes before Ġ+h (rank 5).
				{" hello", false, ids(' ', 256, 'l', 259)},
				{" h", false, ids(261)},
				// he+ll (rank 3) after h+e and l+l.
				{"hell", false, ids(258)},
				// hell+o (rank 4) needs an o that no l took before it.
				{"hellxo", false, ids(258, 'x', 'o')},
				// The left pair of two of the same rank goes first.
				{"lll", false, ids(257, 'l')},
				{"llll", false, ids(257, 257)},
				{"é", false, ids(0xc3, 0xa9)},
				{"\x00\n", false, ids(0, 10)},
			} {
				tok := smallHF(tokens...).merges(merges...).set("model.ignore_merges", c.ignoreMerges).load(t)
				require.Equal(t, c.want, tok.Encode(c.text), "%q", c.text)
				require.Equal(t, c.text, tok.Decode(c.want))
			}
		})
	}
}

func TestPreTokenizers(t *testing.T) {
	// The merge across the space happens only if nothing splits there.
	f := func() hfFile { return smallHF("aĠ", "Ġb").merges("a Ġ", "Ġ b") }
	for _, c := range []struct {
		name string
		pre  any
		text string
		want []int32
	}{
		{"no split", byteLevelJSON(false, false), "a b", ids(256, 'b')},
		{"gpt-2 split", byteLevelJSON(false, true), "a b", ids('a', 257)},
		{"gpt-2 split by default", map[string]any{"type": "ByteLevel", "add_prefix_space": false}, "a b", ids('a', 257)},
		{"o200k split", splitJSON(o200kPattern), "a b", ids('a', 257)},
		{"gpt-2 pattern", splitJSON(gpt2Pattern), "a b", ids('a', 257)},
		{"prefix space", byteLevelJSON(true, true), "b", ids(257)},
		{"prefix space there already", byteLevelJSON(true, true), " b", ids(257)},
		{"prefix space, nothing to encode", byteLevelJSON(true, true), "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok := f().set("pre_tokenizer", c.pre).load(t)
			require.Equal(t, c.want, tok.Encode(c.text))
		})
	}
}

func TestAddedTokens(t *testing.T) {
	late := addedJSON(305, "Xab", false)
	late["normalized"] = true
	tok := smallHF("ab").merges("a b").set("added_tokens", []any{
		addedJSON(300, "<|stop|>", true),
		addedJSON(301, "<|call|>", false), // spelled like a control token
		addedJSON(302, "<s>", true),
		addedJSON(303, "foo", false),
		addedJSON(304, "foobar", false),
		late,
		addedJSON(306, "YX", false),
	}).load(t)
	require.Equal(t, 307, tok.VocabSize())

	// Control tokens are found in wire text only, other tokens everywhere, the
	// longest first.
	require.Equal(t, ids(300, 302, 'x', 301), tok.EncodeWithSpecials("<|stop|><s>x<|call|>"))
	plain := tok.Encode("<|stop|><s>x<|call|>")
	require.Len(t, plain, len("<|stop|><s>x<|call|>"))
	require.Equal(t, ids(303, 256, 304, 303, 'b'), tok.Encode("fooabfoobarfoob"))
	require.Equal(t, ids(303, 256, 304), tok.EncodeWithSpecials("fooabfoobar"))

	// Tokens to be matched in normalized text come after the others: YX takes
	// the X although Xab would start earlier than what is left of it.
	require.Equal(t, ids(305), tok.Encode("Xab"))
	require.Equal(t, ids(306, 256), tok.Encode("YXab"))
	require.Equal(t, "<|stop|>foobar\ufffd", tok.Decode(ids(300, 304, 299)))

	for name, want := range map[string]int32{"<|stop|>": 300, "<|call|>": 301, "<s>": 302, "foo": 303} {
		id, ok := tok.Special(name)
		require.True(t, ok)
		require.Equal(t, want, id)
	}
}

// TestControlTokenInVocabulary: files list control tokens in the vocabulary
// too. No text must become one, neither as a whole piece nor by a merge.
func TestControlTokenInVocabulary(t *testing.T) {
	for _, ignoreMerges := range []bool{false, true} {
		tok := smallHF("<|", "a|>", "<|a|>").merges("< |", "| >", "a |>", "<| a|>").
			set("model.vocab.|>", 300).
			set("added_tokens", []any{addedJSON(258, "<|a|>", true)}).
			set("model.ignore_merges", ignoreMerges).load(t)
		require.Equal(t, ids(256, 257), tok.Encode("<|a|>"))
		require.Equal(t, ids(258), tok.EncodeWithSpecials("<|a|>"))
		require.Equal(t, "<|a|>", tok.Decode(ids(258)))
	}
}

// TestInklingAliases: a file spells a token one way, a renderer asks for it by
// the other.
func TestInklingAliases(t *testing.T) {
	for _, spelling := range []string{"<|unused_200024|>", "<|content_xml|>"} {
		tok := smallHF().set("added_tokens", []any{addedJSON(200024, spelling, true)}).load(t)
		for _, name := range []string{"<|unused_200024|>", "<|content_xml|>"} {
			id, ok := tok.Special(name)
			require.True(t, ok)
			require.EqualValues(t, 200024, id)
			require.Equal(t, ids(200024), tok.EncodeWithSpecials(name))
		}
		require.Equal(t, spelling, tok.Decode(ids(200024)))
		_, ok := tok.Special("<|content_text|>")
		require.False(t, ok, "a tokenizer.json is complete")
	}
	other := smallHF().set("added_tokens", []any{addedJSON(300, "<|content_xml|>", true), addedJSON(200024, "<|tools|>", true)}).load(t)
	_, ok := other.Special("<|unused_200024|>")
	require.False(t, ok, "another tokenizer's id has another meaning")
}

func TestHFErrors(t *testing.T) {
	vocabWithout := func(f hfFile, token string) hfFile {
		delete(f["model"].(map[string]any)["vocab"].(map[string]any), token)
		return f
	}
	without := func(f hfFile, key string) hfFile {
		delete(f, key)
		return f
	}
	modelWithout := func(f hfFile, key string) hfFile {
		delete(f["model"].(map[string]any), key)
		return f
	}
	added := func(tokens ...any) hfFile { return smallHF().set("added_tokens", tokens) }
	change := func(m map[string]any, key string, v any) map[string]any {
		if m[key] = v; v == "delete" {
			delete(m, key)
		}
		return m
	}
	sequence := func(steps ...any) hfFile {
		return smallHF().set("pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": steps})
	}
	split := func(key string, v any) hfFile {
		f := splitJSON(o200kPattern)
		change(f["pretokenizers"].([]any)[0].(map[string]any), key, v)
		return smallHF().set("pre_tokenizer", f)
	}
	lastStep := func(key string, v any) hfFile {
		f := splitJSON(o200kPattern)
		change(f["pretokenizers"].([]any)[1].(map[string]any), key, v)
		return smallHF().set("pre_tokenizer", f)
	}

	for name, c := range map[string]struct {
		file hfFile
		want string
	}{
		"version":           {smallHF().set("version", "2.0"), `version: "2.0" is not supported, only 1.0 is`},
		"version type":      {smallHF().set("version", 1), `version: 1 is not a string`},
		"unknown key":       {smallHF().set("extra", []int{1, 2}), `extra: the key is not known; its value is [ 1, 2 ]`},
		"truncation":        {smallHF().set("truncation", map[string]any{"max_length": 5}), `truncation: { "max_length": 5 } is not supported, only null is`},
		"padding":           {smallHF().set("padding", map[string]any{"pad_id": 0}), `padding: { "pad_id": 0 } is not supported`},
		"normalizer":        {smallHF().set("normalizer", map[string]any{"type": "NFC"}), `normalizer: { "type": "NFC" } is not supported, only null is`},
		"post_processor":    {smallHF().set("post_processor", map[string]any{"type": "TemplateProcessing"}), `post_processor.type: "TemplateProcessing" is not supported, only ByteLevel is`},
		"decoder":           {smallHF().set("decoder", map[string]any{"type": "Metaspace"}), `decoder.type: "Metaspace" is not supported, only ByteLevel is`},
		"no decoder":        {smallHF().set("decoder", nil), `decoder: null is not supported, only an object of type ByteLevel is`},
		"decoder missing":   {without(smallHF(), "decoder"), `"decoder" is missing`},
		"decoder key":       {smallHF().set("decoder.trim", true), `decoder.trim: the key is not known; its value is true`},
		"no pre_tokenizer":  {smallHF().set("pre_tokenizer", nil), `pre_tokenizer: null is not supported`},
		"pre_tokenizer":     {smallHF().set("pre_tokenizer", map[string]any{"type": "Metaspace"}), `pre_tokenizer.type: "Metaspace" is not supported, only ByteLevel or Sequence is`},
		"pre missing":       {without(smallHF(), "pre_tokenizer"), `"pre_tokenizer" is missing`},
		"untyped":           {smallHF().set("pre_tokenizer", map[string]any{"kind": "x"}), `only an object of type ByteLevel or Sequence is`},
		"prefix missing":    {smallHF().set("pre_tokenizer", map[string]any{"type": "ByteLevel"}), `pre_tokenizer: "add_prefix_space" is missing`},
		"prefix type":       {smallHF().set("pre_tokenizer.add_prefix_space", "no"), `pre_tokenizer.add_prefix_space: "no" is not true or false`},
		"use_regex type":    {smallHF().set("pre_tokenizer.use_regex", 0), `pre_tokenizer.use_regex: 0 is not true or false`},
		"sequence list":     {smallHF().set("pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": "x"}), `pre_tokenizer.pretokenizers: "x" is not an array`},
		"sequence missing":  {smallHF().set("pre_tokenizer", map[string]any{"type": "Sequence"}), `pre_tokenizer: "pretokenizers" is missing`},
		"sequence key":      {smallHF().set("pre_tokenizer", map[string]any{"type": "Sequence", "x": 1}), `pre_tokenizer.x: the key is not known`},
		"sequence length":   {sequence(byteLevelJSON(false, false)), `pre_tokenizer.pretokenizers: 1 steps are not supported`},
		"first step":        {sequence(map[string]any{"type": "Digits"}, byteLevelJSON(false, false)), `pre_tokenizer.pretokenizers[0].type: "Digits" is not supported, only Split is`},
		"last step":         {sequence(splitJSON(o200kPattern)["pretokenizers"].([]any)[0], map[string]any{"type": "Digits"}), `pre_tokenizer.pretokenizers[1].type: "Digits" is not supported`},
		"split twice":       {lastStep("use_regex", true), `pre_tokenizer.pretokenizers[1].use_regex: true is not supported`},
		"split default":     {lastStep("use_regex", "delete"), `pre_tokenizer.pretokenizers[1]: "use_regex" is missing`},
		"prefix in split":   {lastStep("add_prefix_space", true), `pre_tokenizer.pretokenizers[1].add_prefix_space: true is not supported`},
		"pattern":           {split("pattern", map[string]any{"Regex": `\w+`}), `pre_tokenizer.pretokenizers[0].pattern["Regex"]: the pattern "\\w+" is not supported`},
		"string pattern":    {split("pattern", map[string]any{"String": " "}), `pattern["String"]: the key is not known; its value is " "`},
		"pattern kind":      {split("pattern", "x"), `pattern: "x" is not an object`},
		"no pattern":        {split("pattern", "delete"), `"pattern" is missing`},
		"regex type":        {split("pattern", map[string]any{"Regex": 1}), `pattern["Regex"]: 1 is not a string`},
		"behavior":          {split("behavior", "Removed"), `behavior: "Removed" is not supported, only Isolated is`},
		"no behavior":       {split("behavior", "delete"), `"behavior" is missing`},
		"invert":            {split("invert", true), `invert: true is not supported`},
		"split key":         {split("more", 1), `more: the key is not known`},
		"added list":        {smallHF().set("added_tokens", 3), `added_tokens: 3 is not an array`},
		"added kind":        {added("x"), `added_tokens[0]: "x" is not an object`},
		"added key":         {added(change(addedJSON(256, "x", true), "score", 1)), `added_tokens[0].score: the key is not known`},
		"added id":          {added(change(addedJSON(256, "x", true), "id", "delete")), `added_tokens[0]: "id" is missing`},
		"added id type":     {added(change(addedJSON(256, "x", true), "id", 1.5)), `added_tokens[0].id: 1.5 is not an integer`},
		"added id range":    {added(addedJSON(maxTokens, "x", true)), `added_tokens[0].id: id 1048576 is not in the range 0 to 1048575`},
		"added id negative": {added(addedJSON(-1, "x", true)), `added_tokens[0].id: id -1 is not in the range`},
		"added id twice":    {added(addedJSON(256, "x", true), addedJSON(256, "y", true)), `added_tokens[1]: id 256 is given to "x" and to "y"`},
		"added twice":       {added(addedJSON(256, "x", true), addedJSON(257, "x", true)), `added_tokens[1]: the token "x" is added twice`},
		"added empty":       {added(addedJSON(256, "", true)), `added_tokens[0]: the token with id 256 is empty`},
		"added content":     {added(change(addedJSON(256, "", true), "content", 1)), `added_tokens[0].content: 1 is not a string`},
		"added no special":  {added(change(addedJSON(256, "x", true), "special", "delete")), `added_tokens[0]: "special" is missing`},
		"added special":     {added(change(addedJSON(256, "x", true), "special", 1)), `added_tokens[0].special: 1 is not true or false`},
		"added normalized":  {added(change(addedJSON(256, "x", true), "normalized", 1)), `added_tokens[0].normalized: 1 is not true or false`},
		"added lstrip":      {added(change(addedJSON(256, "x", true), "lstrip", true)), `added_tokens[0].lstrip: true is not supported`},
		"added rstrip":      {added(change(addedJSON(256, "x", true), "rstrip", true)), `added_tokens[0].rstrip: true is not supported`},
		"added single_word": {added(change(addedJSON(256, "x", true), "single_word", true)), `added_tokens[0].single_word: true is not supported`},
		"added broken":      {added(addedJSON(256, "\ufffd", true)), `added_tokens[0].content: "` + "\ufffd" + `" has characters that are none`},
		"added a byte":      {added(addedJSON('a', "a", true)), `model.vocab: the vocabulary has no token for byte 0x61`},
		"added other id":    {added(addedJSON(256, "a", true)), `model.vocab.a: the id is 97, but in added_tokens it is 256`},
		"added over byte":   {added(addedJSON('a', "x y", true)), `model.vocab.a: id 97 is given to "x y" and to "a"`},
		"added as byte":     {added(addedJSON(' ', "Ġ", false)), `model.vocab["Ġ"]: an added token must be spelled in printable ASCII`},
		"model":             {smallHF().set("model.type", "Unigram"), `model.type: "Unigram" is not supported, only BPE is`},
		"model missing":     {without(smallHF(), "model"), `"model" is missing`},
		"model kind":        {smallHF().set("model", 1), `model: 1 is not supported, only an object of type BPE is`},
		"model key":         {smallHF().set("model.unk_id", 1), `model.unk_id: the key is not known; its value is 1`},
		"dropout":           {smallHF().set("model.dropout", 0.1), `model.dropout: 0.1 is not supported, only null is`},
		"subword prefix":    {smallHF().set("model.continuing_subword_prefix", "##"), `model.continuing_subword_prefix: "##" is not supported`},
		"word suffix":       {smallHF().set("model.end_of_word_suffix", "##"), `model.end_of_word_suffix: "##" is not supported`},
		"byte_fallback":     {smallHF().set("model.byte_fallback", true), `model.byte_fallback: true is not supported`},
		"ignore_merges":     {smallHF().set("model.ignore_merges", "yes"), `model.ignore_merges: "yes" is not true or false`},
		"vocab missing":     {modelWithout(smallHF(), "vocab"), `model: "vocab" is missing`},
		"vocab kind":        {smallHF().set("model.vocab", []int{}), `model.vocab: [] is not an object`},
		"id type":           {smallHF().set("model.vocab.ab", "256"), `model.vocab.ab: "256" is not an integer`},
		"id range":          {smallHF().set("model.vocab.ab", maxTokens), `model.vocab.ab: id 1048576 is not in the range 0 to 1048575`},
		"id huge":           {smallHF().set("model.vocab.ab", json.Number("99999999999999999999")), `model.vocab.ab: 99999999999999999999 is not an integer`},
		"id negative":       {smallHF().set("model.vocab.ab", -1), `model.vocab.ab: id -1 is not in the range`},
		"id twice":          {smallHF().set("model.vocab.ab", 'b'), `id 98 is given to "`},
		"token empty":       {smallHF().set("model.vocab", map[string]any{"": 0}), `model.vocab[""]: the token with id 0 is empty`},
		"token foreign":     {smallHF("▁a"), `model.vocab["▁a"]: '▁' stands for no byte, so this is no byte-level vocabulary`},
		"byte missing":      {vocabWithout(smallHF(), "Ġ"), `model.vocab: the vocabulary has no token for byte 0x20`},
		"merges missing":    {modelWithout(smallHF(), "merges"), `model: "merges" is missing`},
		"merges kind":       {smallHF().set("model.merges", map[string]any{}), `model.merges: {} is not an array`},
		"merge kind":        {smallHF().merges(7), `model.merges[0]: 7 is not a string`},
		"merge of one":      {smallHF("ab").merges("a b", "ab"), `model.merges[1]: "ab" does not have two tokens`},
		"merge of three":    {smallHF().merges("a b c"), `model.merges[0]: "a b c" does not have two tokens`},
		"merge pair of one": {smallHF().merges([]string{"a"}), `model.merges[0]: [ "a" ] does not have two tokens`},
		"merge pair types":  {smallHF().merges([]any{"a", 1}), `model.merges[0][1]: 1 is not a string`},
		"merge left":        {smallHF().merges("xx b"), `model.merges[0]: "xx" is not in the vocabulary`},
		"merge right":       {smallHF().merges("a xx"), `model.merges[0]: "xx" is not in the vocabulary`},
		"merge result":      {smallHF().merges("a b"), `model.merges[0]: "ab" is not in the vocabulary`},
		"merge twice":       {smallHF("ab").merges("a b", []string{"a", "b"}), `model.merges[1]: "a" and "b" are merged twice`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseHF("dir/tokenizer.json", c.file.json(t))
			require.ErrorContains(t, err, c.want)
			require.Regexp(t, `^dir/tokenizer\.json:\d+:\d+: `, err.Error())
		})
	}
}

func TestHFBrokenJSON(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"empty":      {"", "t.json:1:1: unexpected end of JSON input"},
		"cut off":    {"{\n \"version\":", "t.json:2:11: unexpected end of JSON input"},
		"comma":      {"{\n \"a\": 1,\n}", "t.json:3:1: invalid character '}'"},
		"more":       {"{} {}", "t.json:1:4: invalid character '{'"},
		"not UTF-8":  {"{\n\"\xff\": 1}", "t.json:2:2: byte 0xff is not UTF-8"},
		"no object":  {"[1]", "t.json:1:1: [1] is not an object"},
		"number":     {"  7 ", "t.json:1:3: 7 is not an object"},
		"key twice":  {"{\"version\": \"1.0\",\n\"version\": \"1.0\"}", "t.json:2:12: version: the key is given twice"},
		"escape key": {"{\"versio\\u006e\": 2}", "t.json:1:18: version: 2 is not a string"},
		"case":       {"{\"Version\": \"1.0\"}", "t.json:1:13: [\"Version\"]: the key is not known"},
		"depth":      {strings.Repeat("[", 1<<20), "exceeded max depth"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseHF("t.json", []byte(c.data))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestVocabKeyTwice(t *testing.T) {
	data := smallHF("ab").json(t)
	data = bytes.Replace(data, []byte(`"ab": 256`), []byte(`"ab": 256, "\u0061b": 257`), 1)
	_, err := parseHF("t.json", data)
	require.ErrorContains(t, err, "model.vocab.ab: the key is given twice")
}

func TestHFToleratesWhatMakesNoDifference(t *testing.T) {
	f := smallHF("ab").merges("a b").set("model.unk_token", "<unk>").set("model.fuse_unk", true).
		set("model.dropout", 0).set("model.continuing_subword_prefix", nil).
		set("post_processor", nil).set("added_tokens", nil).set("decoder.add_prefix_space", false)
	delete(f, "version")
	delete(f, "truncation")
	require.Equal(t, ids(256), f.load(t).Encode("ab"))
}

// o200kJSON is a tokenizer.json with the ranks of o200k_base, made the way
// such files are converted from rank files: the merges are all ways to put a
// token together from two others.
func o200kJSON(t testing.TB, tok *Tokenizer) []byte {
	t.Helper()
	spell := func(raw string) string {
		var b strings.Builder
		for _, c := range []byte(raw) {
			b.WriteRune(byteRunes()[c])
		}
		return b.String()
	}
	vocab := map[string]int{}
	var merges [][2]string
	for id := range int32(o200kSize) {
		piece := tok.pieces[id]
		vocab[spell(piece)] = int(id)
		var ways [][2]int32
		for i := 1; i < len(piece); i++ {
			left, ok := tok.model.whole[piece[:i]]
			right, also := tok.model.whole[piece[i:]]
			if ok && also {
				ways = append(ways, [2]int32{left, right})
			}
		}
		slices.SortFunc(ways, func(a, b [2]int32) int { return slices.Compare(a[:], b[:]) })
		for _, w := range ways {
			merges = append(merges, [2]string{spell(tok.pieces[w[0]]), spell(tok.pieces[w[1]])})
		}
	}
	var added []any
	for id := firstSpecial; id < inklingVocab; id++ {
		added = append(added, addedJSON(id, tok.pieces[id], true))
	}
	return smallHF().set("model.vocab", vocab).set("model.merges", merges).set("model.ignore_merges", true).
		set("pre_tokenizer", splitJSON(o200kPattern)).set("added_tokens", added).json(t)
}

// TestPublishedForm reads Inkling's vocabulary in the form of a tokenizer.json
// of full size, and compares it with the built-in one.
func TestPublishedForm(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	want := inkling(t)
	got, err := parseHF("tokenizer.json", o200kJSON(t, want))
	require.NoError(t, err)
	require.Equal(t, want.VocabSize(), got.VocabSize())
	require.Equal(t, want.pieces, got.pieces)
	require.Equal(t, want.specials, got.specials)
	rapid.Check(t, func(t *rapid.T) {
		text := anyText().Draw(t, "text")
		require.Equal(t, want.Encode(text), got.Encode(text))
		require.Equal(t, want.EncodeWithSpecials(text), got.EncodeWithSpecials(text))
	})
}

func BenchmarkParsePublishedForm(b *testing.B) {
	data := o200kJSON(b, inkling(b))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, err := parseHF("tokenizer.json", data)
		require.NoError(b, err)
	}
}

// FuzzTokenizerJSON: any bytes either make a tokenizer that gives back the
// text it encodes or an error.
func FuzzTokenizerJSON(f *testing.F) {
	for _, file := range []hfFile{
		smallHF(),
		smallHF("ab", "abc").merges("a b", []string{"ab", "c"}).set("model.ignore_merges", true),
		smallHF().set("added_tokens", []any{addedJSON(300, "<|a|>", true), addedJSON(301, "foo", false)}),
		smallHF().set("pre_tokenizer", splitJSON(o200kPattern)),
		smallHF().set("pre_tokenizer", byteLevelJSON(true, true)),
	} {
		f.Add(file.json(f), "a foo <|a|> abc é\xff")
	}
	f.Add([]byte(`{"model": {"type": "BPE", "vocab": {"\ud800": 1}, "merges": [[]]}}`), "")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		tok, err := parseHF("t.json", data)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "t.json:"), err)
			return
		}
		for _, encoded := range [][]int32{tok.Encode(text), tok.EncodeWithSpecials(text)} {
			for _, id := range encoded {
				require.Less(t, int(id), tok.VocabSize())
			}
			require.Equal(t, tok.Decode(encoded), strings.Join(decodeAll(tok, encoded), ""))
		}
		if utf8.ValidString(text) && !tok.prefixSpace {
			require.Equal(t, text, tok.Decode(tok.Encode(text)))
		}
	})
}
