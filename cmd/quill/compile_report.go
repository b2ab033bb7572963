package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"quill/ir"
	"quill/lower"
	"quill/passes"
	"quill/recipes"
)

// compileReport is what quill compile --report writes. As JSON it is for machines:
// fields are only ever added.
type compileReport struct {
	Bundle     string             `json:"bundle"`
	Target     string             `json:"target"`
	Model      recipes.Model      `json:"model"`
	Deployment recipes.Deployment `json:"deployment"`
	Compiled   recipes.Compiled   `json:"compiled"`
	Sets       []compileSet       `json:"sets"`
	Remarks    []remarkReport     `json:"remarks"`
}

// compileSet is one precision.
type compileSet struct {
	Precision string          `json:"precision"`
	Recipes   int             `json:"recipes"`
	Families  []compileFamily `json:"families"`
	Buckets   []compileBucket `json:"buckets"`
}

// compileFamily is one graph shape, with what the passes of the family stage did to
// it. Sizes are those at the top of the symbols' ranges.
type compileFamily struct {
	familyReport
	At      map[string]int64 `json:"at"` // values of symbols
	Passes  []passReport     `json:"passes"`
	Hoisted []lower.Hoisted  `json:"hoisted"`
}

// compileBucket is one plan, with what the passes of the bucket stage did to it.
type compileBucket struct {
	bucketReport
	IR     lower.Measures `json:"ir"` // what nodes are made of
	Passes []passReport   `json:"passes"`
}

// passReport is what one step of the pipeline did to one module.
type passReport struct {
	Pass     string         `json:"pass"`
	Stage    string         `json:"stage"`
	Changed  bool           `json:"changed"`
	Rewrites int            `json:"rewrites"`
	Before   lower.Measures `json:"before"`
	After    lower.Measures `json:"after"`
}

// remarkReport is what a pass has to say, in all layers and buckets where it says so.
type remarkReport struct {
	Pass     string `json:"pass"`
	Family   string `json:"family"` // precision and family
	Source   string `json:"source_op,omitempty"`
	Message  string `json:"message"`
	Layers   []int  `json:"layers,omitempty"`
	Modules  int    `json:"modules"` // how many say so: the family, or its buckets
	lastSaid string // label of the last
}

// hoistPass is the pass whose work the report lists.
const hoistPass = "hoist-step-invariant"

// reporter collects a compile report while passes run.
type reporter struct {
	ctx      context.Context
	passes   map[string][]passReport   // by label
	planned  map[string]lower.Measures // of plans, by label
	err      error
	at       map[string]map[string]int64
	hoisted  map[string][]lower.Hoisted
	remarks  []remarkReport
	remarkAt map[string]int
}

func newReporter(ctx context.Context) *reporter {
	return &reporter{
		ctx: ctx, passes: map[string][]passReport{}, planned: map[string]lower.Measures{}, at: map[string]map[string]int64{}, hoisted: map[string][]lower.Hoisted{},
		remarkAt: map[string]int{},
	}
}

// listen adds the reporter to what a manager tells.
func (r *reporter) listen(cfg *passes.Config) {
	cfg.Watch = r.watch
	other := cfg.Remark
	cfg.Remark = func(m passes.Remark) {
		r.remark(m)
		if other != nil {
			other(m)
		}
	}
}

// watch measures a module before and after a step.
func (r *reporter) watch(w passes.Watched) error {
	at := largest(w.After)
	p := passReport{Pass: w.Step.String(), Stage: w.Stage.String(), Changed: w.Changed, Rewrites: w.Rewrites}
	list := r.passes[w.Label]
	var err error
	if n := len(list); n > 0 {
		p.Before = list[n-1].After
	} else if p.Before, err = lower.Measure(r.ctx, w.Before, at); err != nil {
		return err
	}
	p.After = p.Before
	if w.Changed {
		if p.After, err = lower.Measure(r.ctx, w.After, at); err != nil {
			return err
		}
	}
	r.passes[w.Label], r.at[w.Label] = append(list, p), at
	if w.Changed && w.Step.Pass.Name == hoistPass {
		if r.hoisted[w.Label], err = lower.FindHoisted(w.Before, w.After, at); err != nil {
			return err
		}
	}
	return nil
}

// plan measures what became a plan, where no pass of the bucket stage has been
// watched: its numbers are those that the last one left.
func (r *reporter) plan(precision string, p *lower.Planned) {
	label := path.Join(precision, p.Plan.Family, path.Base(p.Plan.Bucket.String()))
	if list := r.passes[label]; len(list) > 0 {
		r.planned[label] = list[len(list)-1].After
		return
	}
	m, err := lower.Measure(r.ctx, p.Module, nil)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("--report: %s: %w", label, err)
	}
	r.planned[label] = m
}

// largest are the tops of the ranges of a module's base symbols.
func largest(m *ir.Module) map[string]int64 {
	at := map[string]int64{}
	for _, s := range m.Syms {
		if s.Def == nil {
			at[s.Name] = s.Max
		}
	}
	return at
}

// remark adds a remark to those that say the same of other layers and buckets.
func (r *reporter) remark(m passes.Remark) {
	family := m.Label
	if parts := strings.Split(m.Label, "/"); len(parts) > 2 {
		family = path.Join(parts[:2]...)
	}
	key := strings.Join([]string{m.Pass, family, m.Loc.Op, m.Msg}, "\x00")
	i, ok := r.remarkAt[key]
	if !ok {
		i = len(r.remarks)
		r.remarkAt[key] = i
		r.remarks = append(r.remarks, remarkReport{Pass: m.Pass, Family: family, Source: m.Loc.Op, Message: m.Msg})
	}
	said := &r.remarks[i]
	if m.Loc.Layer >= 0 && !slices.Contains(said.Layers, m.Loc.Layer) {
		said.Layers = append(said.Layers, m.Loc.Layer)
	}
	if said.Modules == 0 || said.lastSaid != m.Label {
		said.Modules++
	}
	said.lastSaid = m.Label
}

// report is all that was collected, beside what the bundle holds.
func (r *reporter) report(bundle string, b *recipes.Bundle) *compileReport {
	m := &b.Manifest
	out := &compileReport{Bundle: bundle, Target: m.Target, Model: m.Model, Deployment: m.Deployment, Compiled: m.Compiled, Remarks: r.remarks}
	for i := range b.Sets {
		s := newSetReport(b, &b.Sets[i])
		set := compileSet{Precision: s.Precision, Recipes: s.Recipes}
		for _, f := range s.Families {
			label := path.Join(s.Precision, f.Name)
			set.Families = append(set.Families, compileFamily{familyReport: f, At: r.at[label], Passes: r.passes[label], Hoisted: r.hoisted[label]})
		}
		for _, k := range s.Buckets {
			label := path.Join(s.Precision, k.Family, path.Base(k.Name))
			set.Buckets = append(set.Buckets, compileBucket{bucketReport: k, IR: r.planned[label], Passes: r.passes[label]})
		}
		out.Sets = append(out.Sets, set)
	}
	return out
}

// stdoutFile is a file name that stands for the standard output.
const stdoutFile = "-"

// write writes the report: as JSON to a file with that extension, else as text.
func (r *compileReport) write(file string, stdout io.Writer) error {
	if file == stdoutFile {
		return r.print(stdout)
	}
	var b bytes.Buffer
	if filepath.Ext(file) == ".json" {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else if err := r.print(&b); err != nil {
		return err
	}
	if err := os.WriteFile(file, b.Bytes(), 0o666); err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}
