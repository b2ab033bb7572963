package ir

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDiag(t *testing.T) {
	for _, c := range []struct {
		d    Diag
		want string
	}{
		{Diag{Code: "V01", Msg: "text"}, "error[V01]: text"},
		{Diag{Code: "V01", Msg: "text", Where: "module @m"}, "module @m: error[V01]: text"},
		{Diag{Code: "V01", Msg: "text", File: "f.qir", Pos: Pos{3, 4}, Where: "module @m"}, "f.qir:3:4: error[V01]: text"},
		{
			Diag{Code: "V01", Msg: "text", File: "f.qir", Pos: Pos{3, 4}, line: "abcdef", Notes: []string{"one", "two"}, Help: "do this"},
			"f.qir:3:4: error[V01]: text\n    3 | abcdef\n      |    ^\nnote: one\nnote: two\nhelp: do this",
		},
		{Diag{Code: "V01", Msg: "text", File: "f", Pos: Pos{123456, 1}, line: "abc"}, "f:123456:1: error[V01]: text\n123456 | abc\n       | ^"},
	} {
		require.Equal(t, c.want, c.d.Error())
	}
}

// The caret stands under the character at the column, which counts bytes.
func TestCaret(t *testing.T) {
	for _, c := range []struct {
		line string
		at   string // the first place of this text
		want string
	}{
		{"abc", "a", ""},
		{"abc", "c", "  "},
		{"\tx\ty", "y", "\t \t"},
		{"äöü x", "x", "    "},
		{"三 x", "x", "   "},
		{"e\u0301 x", "x", "  "}, // a combining accent takes no column
		{"\xff\xfe x", "x", "   "},
	} {
		require.Equal(t, c.want, caretPad(c.line, strings.Index(c.line, c.at)+1), "%q", c.line)
	}
	require.Equal(t, "   ", caretPad("abc", 4), "behind the line")
	require.Equal(t, "   ", caretPad("abc", 40))
	require.Empty(t, caretPad("abc", 0))
}

func TestDiagsAreCapped(t *testing.T) {
	problems := func(n int) error {
		var params []string
		for i := range n {
			params = append(params, fmt.Sprintf("input %%x%d: f32[0]", i))
		}
		_, err := VerifyText("t.qir", []byte("module @m\nfunc @f("+strings.Join(params, ",\n")+") -> () {\n return\n}\n"))
		return err
	}
	require.Equal(t, 20, strings.Count(problems(20).Error(), "error[V15]"))
	require.NotContains(t, problems(20).Error(), "more")
	require.Equal(t, 20, strings.Count(problems(23).Error(), "error[V15]"))
	require.True(t, strings.HasSuffix(problems(23).Error(), "\nand 3 more"))
	require.Contains(t, problems(23).Error(), "t.qir:2:15: error[V15]: %x0: axis 0 is 0, which can be 0\n    2 | func @f(input %x0: f32[0],\n      |               ^")
}

// The source line of a text with carriage returns has none.
func TestDiagLineEnds(t *testing.T) {
	_, err := Parse("t.qir", []byte("module @m\r\nfunc @f() -> () {\r\n  nop\r\n  return\r\n}\r\n"))
	require.EqualError(t, err, "t.qir:3:3: error[V04]: there is no op nop\n    3 |   nop\n      |   ^")
	_, err = Parse("t.qir", nil)
	require.EqualError(t, err, "t.qir:1:1: error[syntax]: expected module @name, found the end of the text\nhelp: a text begins with module @name {level = model, tp = 1}")
	_, err = Parse("t.qir", []byte("; only a comment\n"))
	require.ErrorContains(t, err, "found the end of the text")
	_, err = Parse("big.qir", make([]byte, maxText+1))
	require.EqualError(t, err, fmt.Sprintf("big.qir: %d bytes of IR text, more than %d", maxText+1, maxText))
}
