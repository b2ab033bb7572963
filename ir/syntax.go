package ir

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"

	"quill/ir/ops"
)

// syntaxError says in the words of the language what the parser expected.
func syntaxError(err error, src []byte, ls places) *Diag {
	d := &Diag{Code: "syntax", Msg: err.Error()}
	pe, ok := errors.AsType[participle.Error](err)
	if !ok {
		return d
	}
	at := pe.Position().Offset
	d.Pos, d.Msg = ls.pos(at), pe.Message()
	if _, ok := errors.AsType[*lexer.Error](err); ok {
		d.Msg, d.Help = strayCharacter(src[at:])
		return d
	}
	ue, ok := errors.AsType[*participle.UnexpectedTokenError](err)
	if !ok {
		return d
	}
	last, before, returned := tokensBefore(src, at)
	found := quote(ue.Unexpected.Value)
	if ue.Unexpected.EOF() {
		found = "the end of the text"
		d.Pos = ls.pos(last.Pos.Offset + len(last.Value)) // not on an empty line
	}
	// The message ends in what is expected, as a rest of the grammar.
	_, rest, _ := strings.Cut(pe.Message(), fmt.Sprintf("unexpected token %q", ue.Unexpected))
	rest = strings.TrimSuffix(strings.TrimPrefix(rest, " (expected "), ")")
	if rest == `"="` && last.Type == valueToken && before.Type == valueToken && last.Pos.Line == before.Pos.Line {
		// Two values were taken for the operand of one op and the result of the next.
		d.Pos = ls.pos(last.Pos.Offset)
		d.Msg = fmt.Sprintf(`expected "," between %s and %s`, before.Value, last.Value)
		return d
	}
	if strings.HasPrefix(rest, "AstReturn") && strayWord(before, last) {
		d.Pos = ls.pos(last.Pos.Offset)
		d.Msg, d.Help = strayMessage(before.Value, last.Value)
		return d
	}
	want, help := expectation(rest, ue.Unexpected, last)
	if rest == `"}"` && returned && (ue.Unexpected.EOF() || ue.Unexpected.Value == "func") {
		want, help = `"}"`, endHelp
	}
	d.Msg, d.Help = fmt.Sprintf("expected %s, found %s", want, found), help
	return d
}

var valueToken, wordToken = qirLexer.Symbols()["Value"], qirLexer.Symbols()["Ident"]

// strayWord reports whether a word stands where an op may have operands.
func strayWord(op, word lexer.Token) bool {
	_, known := ops.ByName(op.Value)
	return known && op.Type == wordToken && word.Type == wordToken && op.Pos.Line == word.Pos.Line
}

func strayMessage(op, word string) (msg, help string) {
	return fmt.Sprintf("%q does not belong to %s", word, op), "operands begin with %, attributes stand in braces"
}

// tokensBefore are the last two tokens that begin before an offset, and whether
// the function that they are in has returned.
func tokensBefore(src []byte, at int) (last, before lexer.Token, returned bool) {
	lex, err := qirLexer.LexString("", string(src[:at]))
	if err != nil {
		return last, before, false
	}
	symbols := qirLexer.Symbols()
	for {
		t, err := lex.Next()
		if err != nil || t.EOF() {
			return last, before, returned
		}
		switch {
		case t.Type == symbols["Space"] || t.Type == symbols["Comment"]:
			continue
		case t.Value == "return":
			returned = true
		case t.Value == "func":
			returned = false
		}
		last, before = t, last
	}
}

// strayCharacter says what is wrong at the start of a text.
func strayCharacter(text []byte) (msg, help string) {
	r, _ := utf8.DecodeRune(text)
	msg = fmt.Sprintf("unexpected character %q", r)
	switch {
	case r == '"':
		return "the string is not closed on its line", `write a line break as \n`
	case r == '%':
		return "% is not followed by a name or number", "a value is written %x or %0"
	case r == '#', bytes.HasPrefix(text, []byte("//")):
		return msg, "a comment begins with ;"
	case r == '/':
		return msg, "a quotient is a symbol of its own: sym h = floor(q, 2)"
	case r == '^':
		return msg, "a power is written as a product: q*q"
	}
	return msg, ""
}

// wants translates the first symbol of a rest of the grammar.
var wants = []struct{ prefix, want, help string }{
	{`AstWord ((?!`, "an op", ""}, // as in astOp
	{`AstWord`, "a name", ""},
	{`AstGlobal`, "a name such as @main", ""},
	{`<global>`, "a name such as @main", ""},
	{`AstArg`, "a value such as %x", ""},
	{`AstParam`, "a parameter", paramHelp},
	{`AstResult`, "a result", resultHelp},
	{`AstType`, "a type such as f32[4, 8]", ""},
	{`AstSymDef`, "floor, ceil, min or max", "a derived symbol is written sym b = floor(q + 127, 128)"},
	{`AstSum`, "a number or symbol", ""},
	{`AstProd`, "a number or symbol", ""},
	{`(<number>`, "a number or symbol", ""},
	{`AstValue`, "the attribute's value", ""},
	{`AstAttr`, "an attribute such as axis = 1", ""},
	{`AstString`, "a string", ""},
	{`((":"`, `":" or "="`, "write sym q: 1..2048, or sym b = floor(q + 127, 128)"},
	{`((AstString ("{"`, "a tensor's name in quotes, or fill(value, step)", ""},
}

const (
	paramHelp  = "a parameter is written input %x: f32[4, 8]; other kinds are carry, weight, state and temp"
	endHelp    = "a function ends with return and a closing brace"
	resultHelp = "a result is written output y: f32[4, 8]; other kinds are carry, weight, state and temp"
)

// expectation says what is expected where the parser stopped, given the rest of
// the grammar there, the token found and the one before it.
func expectation(rest string, found, last lexer.Token) (want, help string) {
	for _, w := range wants {
		if strings.HasPrefix(rest, w.prefix) {
			return w.want, w.help
		}
	}
	switch {
	case strings.HasPrefix(rest, "AstReturn"):
		switch found.Value {
		case "(":
			help = "operands are written without parentheses: add %x, %y"
		case "}", "func", "":
			help = endHelp
		}
		return "an op or return", help
	case strings.HasPrefix(rest, `")" "->"`) && last.Value == "(":
		return `a parameter or ")"`, paramHelp
	case strings.HasPrefix(rest, `")" "{"`) && last.Value == "(":
		return `a result or ")"`, resultHelp
	case strings.HasPrefix(rest, `")" "->"`) && last.Value == ",":
		return "a parameter", paramHelp
	case strings.HasPrefix(rest, `")" "{"`) && last.Value == ",":
		return "a result", resultHelp
	case rest == `"}"` && last.Value == "return":
		return `a value such as %x or "}"`, ""
	case rest == `"}"` && last.Value == "{":
		return `an attribute or "}"`, "an attribute is written axis = 1"
	case strings.HasPrefix(rest, `"]"`) && last.Value == "[":
		return `a size or "]"`, ""
	}
	switch closing := strings.Trim(firstWord(rest), `"`); closing {
	case ")", "]", "}":
		return fmt.Sprintf(`"," or %q`, closing), ""
	case "..":
		return `".."`, "a range is written 1..2048"
	case "[":
		return `"["`, "a type is written f32[4, 8]"
	case "->":
		return `"->"`, "a function is written func @f(input %x: f32[4, 8]) -> (output y: f32[4, 8]) { … }"
	case "":
	default:
		return fmt.Sprintf("%q", closing), ""
	}
	// Nothing is left of the grammar: the text has ended as far as it goes.
	switch {
	case last.Value == "":
		return "module @name", "a text begins with module @name {level = model, tp = 1}"
	case found.Value == "sym":
		return "func", "symbols are declared above the functions"
	}
	return "sym or func", ""
}

// quote puts a token into quotes; a string has them already.
func quote(token string) string {
	const most = 40
	if len(token) > most {
		token = strings.ToValidUTF8(token[:most], "") + "…"
	}
	if token != "" && token[0] == '"' {
		return "the string " + token
	}
	return `"` + token + `"`
}

func firstWord(s string) string {
	w, _, _ := strings.Cut(s, " ")
	return w
}
