package tokenizer

import (
	"fmt"
	"slices"
)

// Inkling's control tokens follow the ranks of o200k_base.
const (
	firstSpecial = 199998
	inklingVocab = 200058 // the first id that is no token
)

// inklingNames are the control tokens that have a name.
var inklingNames = map[int32]string{
	199999: "endoftext",
	200000: "message_user",
	200001: "message_model",
	200002: "message_system",
	200003: "message_tool",
	200004: "content_text",
	200005: "content_image",
	200006: "content_model_end_sampling",
	200008: "content_thinking",
	200010: "end_message",
	200020: "content_audio_input",
	200022: "content_tool_error",
	200024: "content_xml",
	200043: "audio_end",
	200049: "content_invoke_tool_json",
	200057: "content_invoke_tool_text",
}

// inklingSpellings returns the spellings of a control token, the usual one
// first. Most ids have no name of their own and are spelled by number; so are,
// in published files, the placeholders for audio (200053) and images (200054).
// Those files also spell content_xml by number, so it has two spellings.
func inklingSpellings(id int32) []string {
	numbered := fmt.Sprintf("<|unused_%d|>", id)
	name, ok := inklingNames[id]
	switch {
	case !ok:
		return []string{numbered}
	case name == "content_xml":
		return []string{"<|content_xml|>", numbered}
	}
	return []string{"<|" + name + "|>"}
}

// completeInkling adds to the control tokens of a file those of Inkling that it
// lacks. What the file says goes first: an id or a spelling it uses is left
// alone.
func completeInkling(vocab *vocabulary, added []addedToken) ([]addedToken, error) {
	ids, names := used(added)
	for id := int32(firstSpecial); id < inklingVocab; id++ {
		name := inklingSpellings(id)[0]
		if ids[id] || names[name] {
			continue
		}
		if err := vocab.add(int(id), name); err != nil {
			return nil, fmt.Errorf("the ranks reach into Inkling's control tokens: %w", err)
		}
		added = append(added, addedToken{id: id, text: name, control: true})
	}
	return aliasInkling(added), nil
}

// aliasInkling adds the other spelling of control tokens that have two. A
// renderer then need not know which of them a file uses.
func aliasInkling(added []addedToken) []addedToken {
	_, names := used(added)
	all := slices.Clone(added)
	for _, a := range added {
		spellings := inklingSpellings(a.id)
		if !a.control || !slices.Contains(spellings, a.text) {
			continue
		}
		for _, s := range spellings {
			if !names[s] {
				all = append(all, addedToken{id: a.id, text: s, control: true, late: a.late})
			}
		}
	}
	return all
}

func used(added []addedToken) (ids map[int32]bool, names map[string]bool) {
	ids, names = map[int32]bool{}, map[string]bool{}
	for _, a := range added {
		ids[a.id], names[a.text] = true, true
	}
	return ids, names
}
