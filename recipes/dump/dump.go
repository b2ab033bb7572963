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
	Set  *recipes.Set
	Plan *recipes.Plan // of the set
	Step int           // of the plan
}

// Launch is the launch itself.
func (u *Use) Launch() *recipes.Launch { return u.Plan.Steps[u.Step].Launch }

// where is the plan of a use: "bf16 decode/b=1,n=16".
func (u *Use) where() string { return u.Set.Info.Precision + " " + u.Plan.Bucket.String() }

// OfPlan lists a plan of a bundle's set.
func OfPlan(b *recipes.Bundle, s *recipes.Set, p *recipes.Plan) *Listing {
	l := &Listing{Name: (&Use{Set: s, Plan: p}).where(), Plan: p}
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
		e.Uses = append(e.Uses, Use{s, p, i})
	}
	return l
}

// OfRecipe lists one recipe of a bundle, with its launches in all plans of some sets.
func OfRecipe(b *recipes.Bundle, sets []*recipes.Set, h recipes.Hash) *Listing {
	e := Entry{Hash: h, Recipe: b.Recipes[h]}
	for _, s := range sets {
		for j := range s.Plans {
			if one := OfPlan(b, s, &s.Plans[j]).entry(h); one != nil {
				e.Uses = append(e.Uses, one.Uses...)
			}
		}
	}
	return &Listing{Name: e.ID(), Entries: []Entry{e}}
}

// Only is the listing of one of a listing's recipes, without the plan.
func (l *Listing) Only(h recipes.Hash) *Listing {
	e := l.entry(h)
	return &Listing{Name: l.Name + " " + e.ID(), Entries: []Entry{*e}}
}

// entry is that of a recipe, nil if the listing has it not.
func (l *Listing) entry(h recipes.Hash) *Entry {
	for i := range l.Entries {
		if l.Entries[i].Hash == h {
			return &l.Entries[i]
		}
	}
	return nil
}
