package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func pieces(split splitter, text string) []string {
	var all []string
	for text != "" {
		n := split(text)
		all = append(all, text[:n])
		text = text[n:]
	}
	return all
}

func TestO200kPieces(t *testing.T) {
	for text, want := range map[string][]string{
		"The capital":          {"The", " capital"},
		"HTTPServer":           {"HTTPServer"},
		"helloWorld":           {"hello", "World"},
		"ABC":                  {"ABC"},
		"don't DON'T":          {"don't", " DON'T"},
		"it'ſ":                 {"it'ſ"},
		"it'x":                 {"it", "'x"},
		"1234567":              {"123", "456", "7"},
		" 12":                  {" ", "12"},
		"a  b":                 {"a", " ", " b"},
		"a  ":                  {"a", "  "},
		"a \n\n b":             {"a", " \n\n", " b"},
		" \n  \n ":             {" \n  \n", " "},
		" \r\n \t x":           {" \r\n", " \t", " x"},
		"a!?\n/x":              {"a", "!?\n/", "x"},
		" !x":                  {" !", "x"},
		"_x":                   {"_x"},
		"<|end_message|>":      {"<|", "end", "_message", "|>"},
		"e\u0301a":             {"e\u0301a"},
		"\u0301":               {"\u0301"},
		"\u0301A":              {"\u0301", "A"},
		"中文Ab":                 {"中文Ab"},
		"a\xffb":               {"a", "\xffb"},
		"\u007f":               {"\u007f"},
		"A\u00a0B":             {"A", "\u00a0B"},
		"\u3000\u3000x":        {"\u3000", "\u3000x"},
		"3\u00bd\u0663":        {"3\u00bd\u0663"},
		"tool_declare":         {"tool", "_declare"},
		"😀😀 ok":                {"😀😀", " ok"},
		"x = [1,\n  2]":        {"x", " =", " [", "1", ",\n", " ", " ", "2", "]"},
		"'s":                   {"'s"},
		"ǅa":                   {"ǅa"},
		"aǅ":                   {"a", "ǅ"},
		strings.Repeat(" ", 5): {"     "},
	} {
		require.Equal(t, want, pieces(o200kPiece, text), "%q", text)
	}
}

func TestGPT2Pieces(t *testing.T) {
	for text, want := range map[string][]string{
		"Hello world":     {"Hello", " world"},
		"don't DON'T":     {"don", "'t", " DON", "'", "T"},
		"we're 'llama":    {"we", "'re", " '", "llama"},
		"'llama":          {"'ll", "ama"},
		"12345 67":        {"12345", " 67"},
		"a  b":            {"a", " ", " b"},
		"a\n\nb":          {"a", "\n", "\n", "b"},
		"  ":              {"  "},
		" ":               {" "},
		" !?x":            {" !?", "x"},
		"e\u0301a":        {"e", "\u0301", "a"},
		"<|endoftext|>":   {"<|", "endoftext", "|>"},
		"\u00a0x":         {"\u00a0", "x"},
		"a\xff\xfeb \xff": {"a", "\xff\xfe", "b", " \xff"},
	} {
		require.Equal(t, want, pieces(gpt2Piece, text), "%q", text)
	}
}

// TestScannersMatchTheirPatterns runs the patterns themselves.
func TestScannersMatchTheirPatterns(t *testing.T) {
	for _, pattern := range []string{o200kPattern, gpt2Pattern} {
		split, ok := splitterFor(pattern)
		require.True(t, ok)
		// The limit makes this the interpreter and not a matcher that some
		// package may have registered for the pattern.
		re, err := regexp2.Compile(pattern, regexp2.OptionMaxBacktrackingStackSize(-1))
		require.NoError(t, err)
		check := func(t require.TestingT, text string) {
			var want []string
			places, err := re.FindAllStringIndex(text, -1)
			require.NoError(t, err)
			for _, p := range places {
				want = append(want, text[p[0]:p[1]])
			}
			require.Equal(t, want, pieces(split, text), "%q", text)
		}
		for r := rune(0); r <= utf8.MaxRune; r++ {
			if r >= 0x3000 && r%61 != 0 { // all of the small blocks, some of the large
				continue
			}
			c := string(r)
			check(t, c)
			check(t, "aA"+c+"Bb '"+c+" "+c)
		}
		rapid.Check(t, func(t *rapid.T) { check(t, anyBytes().Draw(t, "text")) })
	}
}

func TestOtherPatternsAreUnknown(t *testing.T) {
	_, ok := splitterFor(o200kPattern + "|x")
	require.False(t, ok)
}
