// Package dump writes what a bundle executes, for people and for other tools:
//
//	json  graphs as the target's own tools record and play back, parameters as bytes
//	text  a line a node: what it reads and writes, where that lies and how long
//	dot   a picture for Graphviz
//
// A listing is a plan with the recipes that it launches, or recipes alone. Equal
// listings have equal bytes.
package dump

import (
	"fmt"
	"slices"

	"quill/recipes"
)

// Listing is what is written.
type Listing struct {
	// Name says what it is: "bf16 decode/b=1,n=16".
	Name string
	// Plan is whose launches are shown, nil to show recipes alone.
	Plan *recipes.Plan
	// Entries are the recipes, each once, in the order of their first launch.
	Entries []Entry
}

// Entry is a recipe and where it is launched.
type Entry struct {
	Hash   recipes.Hash
	Recipe *recipes.Recipe
	Uses   []Use
}

// ID is what an entry is called: the name of its segment, which other buckets have too,
// and the beginning of its hash.
func (e *Entry) ID() string { return fmt.Sprintf("%s-%.12s", e.Recipe.Name, e.Hash) }

// Use is one launch of a recipe.
type Use struct {
	Plan   string // precision and bucket
	Step   int    // of the plan
	Launch *recipes.Launch
}

// OfPlan lists a plan of a bundle's set.
func OfPlan(b *recipes.Bundle, precision string, p *recipes.Plan) *Listing {
	l := &Listing{Name: precision + " " + p.Bucket.String(), Plan: p}
	for i := range p.Steps {
		launch := p.Steps[i].Launch
		if launch == nil {
			continue
		}
		at := slices.IndexFunc(l.Entries, func(e Entry) bool { return e.Hash == launch.Recipe })
		if at < 0 {
			at = len(l.Entries)
			l.Entries = append(l.Entries, Entry{Hash: launch.Recipe, Recipe: b.Recipes[launch.Recipe]})
		}
		e := &l.Entries[at]
		e.Uses = append(e.Uses, Use{l.Name, i, launch})
	}
	return l
}

// OfRecipe lists one recipe of a bundle, with its launches in all plans.
func OfRecipe(b *recipes.Bundle, h recipes.Hash) *Listing {
	e := Entry{Hash: h, Recipe: b.Recipes[h]}
	for i := range b.Sets {
		s := &b.Sets[i]
		for j := range s.Plans {
			if one := OfPlan(b, s.Info.Precision, &s.Plans[j]).entry(h); one != nil {
				e.Uses = append(e.Uses, one.Uses...)
			}
		}
	}
	return &Listing{Name: e.ID(), Entries: []Entry{e}}
}

// Only is the listing of one of its recipes, nil if it has no such recipe.
func (l *Listing) Only(h recipes.Hash) *Listing {
	e := l.entry(h)
	if e == nil {
		return nil
	}
	return &Listing{Name: l.Name + " " + e.ID(), Entries: []Entry{*e}}
}

func (l *Listing) entry(h recipes.Hash) *Entry {
	for i := range l.Entries {
		if l.Entries[i].Hash == h {
			return &l.Entries[i]
		}
	}
	return nil
}
