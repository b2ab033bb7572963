package tokenizer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// o200kRanks is the rank file of o200k_base.
func o200kRanks(t testing.TB) string {
	base, err := loadO200k()
	require.NoError(t, err)
	var b strings.Builder
	for id, piece := range base.pieces {
		fmt.Fprintln(&b, rankLine(piece, id))
	}
	return b.String()
}

func TestRankFileOfO200kBase(t *testing.T) {
	want := inkling(t)
	base, err := loadO200k()
	require.NoError(t, err)
	plain := o200kRanks(t)
	marked := plain
	for id := int32(firstSpecial); id < inklingVocab; id++ {
		marked += rankLine(want.pieces[id], int(id)) + "\n"
	}
	renamed := plain + rankLine("<|unused_200024|>", 200024) + "\n"

	for name, c := range map[string]struct{ data, xml string }{
		"ranks only":                  {plain, "<|content_xml|>"},
		"with all control tokens":     {marked, "<|content_xml|>"},
		"with another name for a few": {renamed, "<|unused_200024|>"},
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := parseRanks("dir/tokenizer.model", []byte(c.data))
			require.NoError(t, err)
			require.Same(t, base.model, tok.model)
			require.Equal(t, "dir/tokenizer.model (o200k_base)", tok.Source())
			require.Equal(t, want.VocabSize(), tok.VocabSize())
			require.Equal(t, want.specials, tok.specials)
			require.Equal(t, c.xml, tok.Decode(ids(200024)))
			require.Equal(t, ids(976, 9029, 328, 10128, 382, 200010), tok.EncodeWithSpecials("The capital of France is<|end_message|>"))
			require.NotContains(t, tok.Encode("<|end_message|>"), int32(200010))
		})
	}
}

// TestOtherRankFile has ab 256, bc 257, abc 258, Ġab is " ab" 259, xyz 260.
func TestOtherRankFile(t *testing.T) {
	tok, err := parseRanks("tokenizer.model", []byte(rankFile("ab", "bc", "abc", " ab", "xyz")))
	require.NoError(t, err)
	require.Equal(t, "tokenizer.model", tok.Source())
	require.Equal(t, inklingVocab, tok.VocabSize())
	for text, want := range map[string][]int32{
		"abc":   ids(258),
		"abcb":  ids(258, 'b'), // ab, then abc
		"abbc":  ids(256, 257), // no token for the middle
		"bcab":  ids(257, 256), // ab goes before bc
		" abc":  ids(' ', 258), // abc (258) goes before " ab" (259)
		" ab":   ids(259),      // a whole piece
		"xyz":   ids(260),      // a whole piece, though no merge makes it
		"xyzz":  ids('x', 'y', 'z', 'z'),
		"ab ab": ids(256, 259),
	} {
		require.Equal(t, want, tok.Encode(text), text)
	}
	require.Equal(t, ids(256, 200010), tok.EncodeWithSpecials("ab<|end_message|>"))
	require.Equal(t, "ab\ufffd", tok.Decode(ids(256, 261)))
}

func TestRankFileSaysItsOwnMarkers(t *testing.T) {
	// The file's end_message is elsewhere, and 200000 has another name.
	data := rankFile("ab", "<|end_message|>") + rankLine("<|speaker|>", 200000)
	tok, err := parseRanks("tokenizer.model", []byte(data))
	require.NoError(t, err)
	require.Equal(t, ids(257, 200000, 256, 200004), tok.EncodeWithSpecials("<|end_message|><|speaker|>ab<|content_text|>"))
	_, ok := tok.Special("<|message_user|>")
	require.False(t, ok)
	require.Equal(t, "\ufffd", tok.Decode(ids(200010)))
}

func TestRankFileErrors(t *testing.T) {
	base := rankFile()
	for name, c := range map[string]struct{ data, want string }{
		"empty":      {"", "m: the vocabulary has no token for byte 0x00"},
		"one field":  {base + "YWI=\n", "m:257: a line of a tiktoken rank file has a token in base64 and a rank, this one has 1 fields"},
		"three":      {"YQ== 1 2\n", "m:1: a line of a tiktoken rank file has a token in base64 and a rank, this one has 3 fields"},
		"base64":     {base + "\n\nY!I= 300\n", `m:259: "Y!I=" is not base64: illegal base64 data at input byte 1`},
		"rank":       {base + "YWI= 1.5", `m:257: the rank "1.5" is not an integer`},
		"negative":   {base + "YWI= -1", "m:257: id -1 is not in the range 0 to 1048575"},
		"too large":  {base + "YWI= 1048576", "m:257: id 1048576 is not in the range 0 to 1048575"},
		"rank twice": {base + rankLine("ab", 97), `m:257: id 97 is given to "a" and to "ab"`},
		"twice":      {base + rankLine("a", 300), `m:257: "a" has two ranks`},
		"marker":     {base + rankLine("<|a|>", 300) + "\n" + rankLine("<|a|>", 301), `m:258: "<|a|>" has two ranks`},
		"protobuf":   {"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00", "m:2: a line of a tiktoken rank file has"},
		"no byte":    {strings.ReplaceAll(base, rankLine("a", 'a')+"\n", ""), "m: the vocabulary has no token for byte 0x61"},
		"collision":  {base + rankLine("ab", 200006), `m: the ranks reach into Inkling's control tokens: id 200006 is given to "ab" and to "<|content_model_end_sampling|>"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseRanks("m", []byte(c.data))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestRankFileLineEnds(t *testing.T) {
	tok, err := parseRanks("m", []byte(strings.ReplaceAll(rankFile("ab"), "\n", "\r\n")))
	require.NoError(t, err)
	require.Equal(t, ids(256), tok.Encode("ab"))
}
