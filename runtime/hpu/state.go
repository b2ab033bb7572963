//go:build linux

package hpu

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"quill/runtime"
)

// LostError says that the ranks of a group are gone, with what their cards held.
// It wraps runtime.ErrDeviceLost and the cause.
type LostError struct {
	What  string // what was asked of the ranks
	Cause error
	Ranks []State // what each was at
}

// State is what a rank was at.
type State struct {
	Rank int `json:"rank"`
	// Runs are the plans that it was asked to run, with the present one.
	Runs int64 `json:"runs"`
	// Plan is the newest plan, by its bucket, "" if there was none; Index is its number.
	Plan  string `json:"plan,omitempty"`
	Index int    `json:"index"`
	// Enqueued are the steps of it that the card was given, of Steps. Done are those
	// that the card is known to have done, −1 if the rank did not say.
	Enqueued int `json:"enqueued"`
	Done     int `json:"done"`
	Steps    int `json:"steps"`
	// Next is the step behind those.
	Next string `json:"next,omitempty"`
	// Waits says that the rank has given the card all steps, and waits for it.
	Waits bool `json:"waits"`
	// Moved are the sections whose address was changed in a launch table since the rank
	// was started, −1 if it did not say.
	Moved int64 `json:"moved"`
}

// String is the state in words.
func (s *State) String() string {
	if s.Runs == 0 {
		return fmt.Sprintf("rank %d has run nothing", s.Rank)
	}
	text := fmt.Sprintf("rank %d: plan %s, run %d: %d of %d steps enqueued", s.Rank, s.Plan, s.Runs, s.Enqueued, s.Steps)
	if s.Done >= 0 {
		text += fmt.Sprintf(", at least %d done", s.Done)
		if s.Next != "" {
			text += ", next " + s.Next
		}
	} else {
		text += ", it does not answer"
	}
	if s.Waits {
		text += ", waits for its card"
	}
	return text
}

func (e *LostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v: %v", e.What, runtime.ErrDeviceLost, e.Cause)
	if !slices.ContainsFunc(e.Ranks, func(s State) bool { return s.Runs > 0 }) {
		return b.String() // they were still being started
	}
	for i := range e.Ranks {
		b.WriteString("\n  ")
		b.WriteString(e.Ranks[i].String())
	}
	return b.String()
}

func (e *LostError) Unwrap() []error { return []error{runtime.ErrDeviceLost, e.Cause} }

// States asks all ranks what they are at. It waits for a step that runs.
func (g *Group) States() ([]State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("states"); err != nil {
		return nil, err
	}
	return g.states(), nil
}

// placeOf is what a rank left in shared memory.
func (g *Group) placeOf(rank int) State {
	p := g.shared.place(rank)
	s := State{Rank: rank, Runs: p.runs.Load(), Index: int(p.plan.Load()), Enqueued: int(p.step.Load()), Done: -1, Waits: p.waits.Load() != 0, Moved: -1}
	g.nameState(&s)
	return s
}

// nameState adds what only the plan tells.
func (g *Group) nameState(s *State) {
	if s.Runs == 0 || s.Index < 0 || s.Index >= len(g.set.Plans) {
		return
	}
	p := &g.set.Plans[s.Index]
	s.Plan, s.Steps = p.Bucket.String(), len(p.Steps)
	if s.Done >= 0 && s.Done < len(p.Steps) {
		s.Next = p.Steps[s.Done].What()
	}
}

// errNative says that a bundle was compiled without native recipes.
var errNative = errors.New("the bundle has no native recipes: compile it with quill compile --native, on a machine with the target's software")
