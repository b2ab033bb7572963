package target

import (
	"cmp"
	"fmt"
	"slices"

	"quill/recipes"
)

// CheckPlan reports the first launch of a plan that the target does not take, as an
// [IllegalError]. The plan's bindings are final; recipe gives recipes that CheckRecipe
// found legal.
func (p *Profile) CheckPlan(plan *recipes.Plan, recipe func(recipes.Hash) *recipes.Recipe) error {
	l := launchCheck{p: p, plan: plan, lone: map[recipes.Hash]bool{}}
	before := "" // the launch before, if its recipe is attention alone
	for i := range plan.Steps {
		launch := plan.Steps[i].Launch
		if launch == nil {
			before = ""
			continue
		}
		r := recipe(launch.Recipe)
		if r == nil || len(launch.Bindings) != len(r.Sections) {
			return fmt.Errorf("plan %s: launch %q: its recipe is not there, or has other sections", plan.Bucket, launch.Label)
		}
		if err := l.launch(r, launch); err != nil {
			return err
		}
		lone, known := l.lone[launch.Recipe]
		if !known {
			lone = p.attentionAlone(r)
			l.lone[launch.Recipe] = lone
		}
		if lone && before != "" {
			return l.illegal("attention-loop", r, launch, "recipe", "another launch between", fmt.Sprintf("launch %q before it, of attention alone too", before))
		}
		before = ""
		if lone {
			before = cmp.Or(launch.Label, "without a label")
		}
	}
	return nil
}

type launchCheck struct {
	p    *Profile
	plan *recipes.Plan
	lone map[recipes.Hash]bool // recipes of attention alone
	at   []boundSection        // of the launch
}

// boundSection is a section where a launch binds it.
type boundSection struct {
	recipes.Binding
	size    int64
	section int
}

func (l *launchCheck) illegal(name string, r *recipes.Recipe, launch *recipes.Launch, what, want, have string) error {
	return &IllegalError{
		Rule: name, Recipe: r.Name, Node: fmt.Sprintf("launch %q of plan %s", launch.Label, l.plan.Bucket), Operand: what, Want: want, Have: have,
		Help: rule(name).Help,
	}
}

// launch checks where sections are bound: at addresses of the device, apart from each
// other.
func (l *launchCheck) launch(r *recipes.Recipe, launch *recipes.Launch) error {
	l.at = l.at[:0]
	align := l.p.Limit("alignment")
	for i, b := range launch.Bindings {
		if b.Offset%align != 0 {
			return l.illegal("launch-address", r, launch, "section "+r.Sections[i].Name, fmt.Sprintf("a multiple of %d", align), fmt.Sprintf("byte %d of %s", b.Offset, b.Buffer))
		}
		if r.Sections[i].Size > 0 {
			l.at = append(l.at, boundSection{b, r.Sections[i].Size, i})
		}
	}
	slices.SortFunc(l.at, func(a, b boundSection) int {
		return cmp.Or(cmp.Compare(a.Buffer, b.Buffer), cmp.Compare(a.Offset, b.Offset))
	})
	for i := 1; i < len(l.at); i++ {
		a, b := &l.at[i-1], &l.at[i]
		if a.Buffer == b.Buffer && a.Offset+a.size > b.Offset {
			return l.illegal("launch-overlap", r, launch, "section "+r.Sections[b.section].Name,
				fmt.Sprintf("none of bytes %d to %d of %s, where section %s is", a.Offset, a.Offset+a.size-1, a.Buffer, r.Sections[a.section].Name), fmt.Sprintf("byte %d on", b.Offset))
		}
	}
	return nil
}

// attentionAlone reports whether all that a recipe computes is one node of attention.
func (p *Profile) attentionAlone(r *recipes.Recipe) bool {
	count := 0
	for i := range r.Nodes {
		entry, _, err := p.Node(r.Nodes[i].GUID)
		switch {
		case err != nil:
			return false
		case entry.Engine == Alias:
		case entry.GUID != attentionGUID:
			return false
		default:
			count++
		}
	}
	return count == 1
}

// attentionGUID is the node that must not run alone in a loop.
const attentionGUID = "sdpa_recomp_fwd"
