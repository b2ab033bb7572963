package tokenizer

import (
	"maps"
	"slices"
)

// An addedToken is found in text by its spelling, before any splitting.
type addedToken struct {
	id   int32
	text string
	// control tokens are not found in plain text.
	control bool
	// late tokens are looked for only between the others.
	late bool
}

// markerSets groups tokens into sets to be searched one after the other.
func markerSets(added []addedToken) []*markerSet {
	early, late := map[string]int32{}, map[string]int32{}
	for _, a := range added {
		if a.late {
			late[a.text] = a.id
		} else {
			early[a.text] = a.id
		}
	}
	var sets []*markerSet
	for _, ids := range []map[string]int32{early, late} {
		if len(ids) > 0 {
			sets = append(sets, newMarkerSet(ids))
		}
	}
	return sets
}

// A markerSet finds tokens by their spelling.
type markerSet struct {
	ids     map[string]int32
	first   [256]bool // bytes a token starts with
	lengths []int     // lengths of the tokens, longest first
}

func newMarkerSet(ids map[string]int32) *markerSet {
	m := &markerSet{ids: ids}
	lengths := map[int]bool{}
	for s := range ids {
		m.first[s[0]] = true
		lengths[len(s)] = true
	}
	m.lengths = slices.Sorted(maps.Keys(lengths))
	slices.Reverse(m.lengths)
	return m
}

// find returns the place and the id of the first token in text, the longest
// one where several start. Without a token, start and end are len(text).
func (m *markerSet) find(text string) (start, end int, id int32) {
	for start = range len(text) {
		if !m.first[text[start]] {
			continue
		}
		for _, n := range m.lengths {
			if n > len(text)-start {
				continue
			}
			if id, ok := m.ids[text[start:start+n]]; ok {
				return start, start + n, id
			}
		}
	}
	return len(text), len(text), 0
}
