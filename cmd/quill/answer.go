package main

import (
	"fmt"
	"io"
	"strconv"

	"quill/runtime/tokenizer"
)

// answer collects generated tokens and shows them as they come.
type answer struct {
	out    io.Writer // nil if nothing is to be shown
	tok    *tokenizer.Tokenizer
	stream *tokenizer.Stream // nil without tokenizer
	eos    int32
	tokens []int32
}

func newAnswer(out io.Writer, tok *tokenizer.Tokenizer, eos int, show bool) *answer {
	a := &answer{tok: tok, eos: int32(eos), tokens: []int32{}}
	if show {
		a.out = out
	}
	if tok != nil {
		a.stream = tok.NewStream()
	}
	return a
}

// push takes the next token and reports whether the answer goes on.
func (a *answer) push(token int32) (bool, error) {
	a.tokens = append(a.tokens, token)
	switch {
	case a.stream != nil && token == a.eos:
		return false, nil
	case a.stream != nil:
		return true, a.show(a.stream.Push(token))
	}
	text := strconv.Itoa(int(token))
	if len(a.tokens) > 1 {
		text = "," + text
	}
	return token != a.eos, a.show(text)
}

// end completes what is shown. Nothing is shown of an answer without tokens.
func (a *answer) end() error {
	if len(a.tokens) == 0 {
		return nil
	}
	text := "\n"
	if a.stream != nil {
		text = a.stream.Flush() + text
	}
	return a.show(text)
}

func (a *answer) show(text string) error {
	if a.out == nil || text == "" {
		return nil
	}
	if _, err := io.WriteString(a.out, text); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// answerJSON is what machines get.
type answerJSON struct {
	Tokens   []int32 `json:"tokens"`
	Text     *string `json:"text"` // null without tokenizer
	Counters served  `json:"counters"`
}

func (a *answer) json(c served) answerJSON {
	j := answerJSON{Tokens: a.tokens, Counters: c}
	if a.tok != nil {
		shown := a.tokens
		if n := len(shown); n > 0 && shown[n-1] == a.eos {
			shown = shown[:n-1]
		}
		text := a.tok.Decode(shown)
		j.Text = &text
	}
	return j
}
