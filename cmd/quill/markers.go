package main

import (
	"io"
	"regexp"
	"strings"

	"quill/ir"
	"quill/runtime/tokenizer"
)

// marker is what control tokens look like in a text.
var marker = regexp.MustCompile(`<\|[^<>|\s]{1,60}\|>`)

// modelMarker begins what the model says.
const modelMarker = "<|message_model|>"

// noteMarkers tells of text that looks like a control token and is none: models
// see it as so many letters, which is seldom meant. So is a prompt that is no
// conversation, and gets no answer.
func noteMarkers(stderr io.Writer, tok *tokenizer.Tokenizer, text string) {
	told := map[string]bool{}
	for _, m := range marker.FindAllString(text, -1) {
		if _, ok := tok.Special(m); ok || told[m] {
			continue
		}
		told[m] = true
		near := ir.DidYouMean(m, specials(tok))
		if near != "" {
			near = "; " + near
		}
		note(stderr, "--prompt: %s is no control token of this tokenizer and stays text%s", m, near)
	}
	if _, ok := tok.Special(modelMarker); ok && !strings.Contains(text, modelMarker) {
		note(stderr, "--prompt has no %s, behind which the model answers: it goes on with the text", modelMarker)
	}
}

// specials are the spellings of all control tokens.
func specials(tok *tokenizer.Tokenizer) []string {
	var names []string
	for id := range tok.VocabSize() {
		if text := tok.Decode([]int32{int32(id)}); marker.MatchString(text) {
			if _, ok := tok.Special(text); ok {
				names = append(names, text)
			}
		}
	}
	return names
}
