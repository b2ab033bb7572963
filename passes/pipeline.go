package passes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"quill/ir"
)

// outline is the pass that ends the family stage.
const outline = "outline-segments"

// Table is a list of passes, in the order in which they are described.
type Table []Pass

// Passes lists all passes.
func Passes() Table {
	return Table{
		canonicalizePass,
		foldPass,
		fuseQKVRPass,
		fuseRelBiasPass,
		bandSplitPass,
		hoistConvPass,
		foldWeightsPass,
		fuseElementwisePass,
		hoistPass,
		csePass,
		dcePass,
		collapsePass,
		joinExpertsPass,
		splitExpertsPass,
		localWindowPass,
		outlinePass,
		subBlockPass,
		expandMoEPass,
	}
}

// pipeline is what compiling runs. What changes the graph as a whole comes first,
// on what was captured. Folding precedes canonicalize since it leaves constants
// for canonicalize to find; what is equal is merged only once it looks equal; and
// dce removes what all of them have left unused, so that no segment computes it.
// Sizes that are known only in a bucket make more reshapes and slices do nothing,
// and more ops equal.
const pipeline = "collapse-reduces,join-experts,split-experts,fuse-qkvr,local-window,fold,fuse-rel-bias,band-split,hoist-conv-history,fold-weights,fuse-elementwise,canonicalize,hoist-step-invariant,cse,dce," +
	outline + ",sub-block,expand-moe,canonicalize,cse,dce"

// Default is the pipeline that compiling runs unless told otherwise.
func Default() Pipeline {
	p, err := Parse(pipeline)
	if err != nil {
		panic(err) // a test reads it
	}
	return p
}

// Parse reads a pipeline of the passes of [Passes].
func Parse(text string) (Pipeline, error) { return Passes().Parse(text) }

// Find finds a pass by name, nil when there is none.
func (t Table) Find(name string) *Pass {
	for i := range t {
		if t[i].Name == name {
			return &t[i]
		}
	}
	return nil
}

// unknown is the message about a name that no pass has.
func (t Table) unknown(name string) string {
	var names []string
	for i := range t {
		names = append(names, t[i].Name)
	}
	if help := ir.DidYouMean(name, names); help != "" {
		return fmt.Sprintf("there is no pass %q; %s", name, help)
	}
	return fmt.Sprintf("there is no pass %q; there are %s", name, strings.Join(names, ", "))
}

// Step is a pass of a pipeline with the options that are set there.
type Step struct {
	Pass    *Pass
	options map[string]value // by name, those that are not the default
	texts   map[string]string
}

func (s *Step) value(o *Option) value {
	if v, ok := s.options[o.Name]; ok {
		return v
	}
	v, err := o.parse(o.Default)
	if err != nil {
		panic(fmt.Sprintf("pass %s: default of %v", s.Pass.Name, err)) // a test reads all
	}
	return v
}

// String spells the step as a pipeline does: options that were set, in the
// table's order.
func (s Step) String() string {
	var set []string
	for _, o := range s.Pass.Options {
		if text, ok := s.texts[o.Name]; ok {
			set = append(set, o.Name+"="+text)
		}
	}
	if len(set) == 0 {
		return s.Pass.Name
	}
	return s.Pass.Name + "{" + strings.Join(set, ",") + "}"
}

// Pipeline is a list of passes to run, some perhaps more than once.
type Pipeline []Step

// String spells the pipeline as [Table.Parse] reads it.
func (p Pipeline) String() string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = s.String()
	}
	return strings.Join(parts, ",")
}

// Stage is the part of the pipeline that runs in one stage: all up to
// outline-segments, or all behind it.
func (p Pipeline) Stage(s Stages) Pipeline {
	n := p.border()
	if s == Bucket {
		return p[n:]
	}
	return p[:n]
}

// border is the number of steps of the family stage.
func (p Pipeline) border() int {
	i := slices.IndexFunc(p, func(s Step) bool { return s.Pass.Name == outline })
	if i < 0 {
		return len(p)
	}
	return i + 1
}

// Without leaves out passes, which must be optional. Names that the pipeline does
// not have are fine, those that no pass has are not.
func (p Pipeline) Without(t Table, names ...string) (Pipeline, error) {
	for _, n := range names {
		switch pass := t.Find(n); {
		case pass == nil:
			return nil, fmt.Errorf("%s", t.unknown(n))
		case !pass.Optional:
			return nil, fmt.Errorf("pass %s cannot be left out: lowering needs what it makes", n)
		}
	}
	return slices.DeleteFunc(slices.Clone(p), func(s Step) bool { return slices.Contains(names, s.Pass.Name) }), nil
}

// CheckComplete reports which pass that lowering cannot do without is missing.
func (p Pipeline) CheckComplete(t Table) error {
	for i := range t {
		has := slices.ContainsFunc(p, func(s Step) bool { return s.Pass.Name == t[i].Name })
		if !t[i].Optional && !has {
			return fmt.Errorf("the pipeline lacks %s, which lowering needs: %s", t[i].Name, t[i].Summary)
		}
	}
	return nil
}

// problem says what is wrong with the order of the pipeline and in which step;
// "" if nothing is.
func (p Pipeline) problem() (step int, msg string) {
	border := p.border()
	first := map[string]int{}
	for i, s := range slices.Backward(p) {
		first[s.Pass.Name] = i
	}
	for i, s := range p {
		stage := Family
		if i >= border {
			stage = Bucket
		}
		switch {
		case s.Pass.Name == outline && stage == Bucket:
			return i, outline + " comes twice; it ends the family stage"
		case s.Pass.Stages&stage == 0 && stage == Bucket:
			return i, fmt.Sprintf("%s runs in the family stage only; put it before %s", s.Pass.Name, outline)
		case s.Pass.Stages&stage == 0:
			return i, fmt.Sprintf("%s runs in the bucket stage only; put it behind %s", s.Pass.Name, outline)
		}
		for _, o := range s.Pass.After {
			if at, ok := first[o.Pass]; ok && at > i {
				return i, fmt.Sprintf("%s must follow %s: %s", s.Pass.Name, o.Pass, o.Why)
			}
		}
	}
	return 0, ""
}

// Random is a pipeline of all optional passes of the family stage, each once, in
// a random order that the table allows and that depends on the seed alone; then
// outline-segments.
func (t Table) Random(seed uint64) Pipeline {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var left, p Pipeline
	for i := range t {
		if t[i].Optional && t[i].Stages&Family != 0 {
			left = append(left, Step{Pass: &t[i]})
		}
	}
	for len(left) > 0 {
		var ready []int
		for i, s := range left {
			blocked := slices.ContainsFunc(s.Pass.After, func(o Order) bool {
				return slices.ContainsFunc(left, func(s Step) bool { return s.Pass.Name == o.Pass })
			})
			if !blocked {
				ready = append(ready, i)
			}
		}
		if len(ready) == 0 {
			panic("the table's order has a cycle") // a test would see it
		}
		i := ready[rnd.IntN(len(ready))]
		p = append(p, left[i])
		left = slices.Delete(left, i, i+1)
	}
	if o := t.Find(outline); o != nil {
		p = append(p, Step{Pass: o})
	}
	return p
}
