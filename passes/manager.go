package passes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"quill/ir"
)

// Config says what a [Manager] runs and what it tells about it. The zero value
// runs nothing and is silent.
type Config struct {
	Pipeline Pipeline
	Params   Params
	// RewriteLimit is the number of rewrites that all runs of a manager may do
	// together; nil is any number.
	RewriteLimit *int
	// PrintAfter lists passes after which a module that they changed is printed
	// to Out; the word all stands for every pass. With the word diff in the list
	// what changed is printed instead, after all passes if the list has no other.
	PrintAfter []string
	Out        io.Writer
	// DumpDir is a directory for modules: as they came, and after each pass that
	// changed them, numbered by the pass's place in the pipeline. A module of a
	// label has a directory of its own. Empty is none.
	DumpDir string
	// Remark is told what passes remark; nil leaves it out.
	Remark func(Remark)
	// Validate compares modules before and after a pass that changed one; nil
	// leaves it out. Its error is the pass's fault unless it wraps ErrTooLarge.
	Validate func(ctx context.Context, c Change) error
	// Watch is shown what each step made of a module, be it nothing; nil leaves it
	// out.
	Watch func(Watched) error
	// Honest checks that passes say truly whether they changed a module.
	Honest bool
}

// ErrTooLarge is that a change cannot be validated.
var ErrTooLarge = errors.New("too large to be validated")

// Change is what a pass made of a module.
type Change struct {
	Pass          *Pass
	Label         string // of the module, as given to [Manager.Run]
	Before, After *ir.Module
}

// Watched is what a step of the pipeline made of a module.
type Watched struct {
	Step          Step
	Index         int // of the step
	Stage         Stages
	Label         string
	Before, After *ir.Module
	Changed       bool
	Rewrites      int
}

// Check reports what cannot be meant.
func (c *Config) Check() error {
	for _, name := range c.PrintAfter {
		switch {
		case name == printAll || name == printDiff:
		case Passes().Find(name) == nil:
			return fmt.Errorf("%s; or the words %s and %s", Passes().unknown(name), printAll, printDiff)
		case !slices.ContainsFunc(c.Pipeline, func(s Step) bool { return s.Pass.Name == name }):
			return fmt.Errorf("%s is not among the passes to run", name)
		}
	}
	if c.RewriteLimit != nil && *c.RewriteLimit < 0 {
		return fmt.Errorf("rewrite limit %d is negative", *c.RewriteLimit)
	}
	return nil
}

// Words of Config.PrintAfter that are no passes.
const (
	printAll  = "all"
	printDiff = "diff"
)

// Manager runs a pipeline over modules that verify, one after the other. A module
// is verified after every pass that changed it; one that a pass breaks is saved as
// it was before, in a file that says how to run the pass on it.
type Manager struct {
	cfg   Config
	left  *int
	stats []Stats // one for each step
}

// NewManager makes a manager; a nil error of [Config.Check] is required.
func NewManager(cfg Config) *Manager {
	m := &Manager{cfg: cfg, stats: make([]Stats, len(cfg.Pipeline))}
	for i, s := range cfg.Pipeline {
		m.stats[i] = Stats{Step: s, Stage: Family, Ops: map[string]int{}}
		if i >= cfg.Pipeline.border() {
			m.stats[i].Stage = Bucket
		}
	}
	if cfg.RewriteLimit != nil {
		left := *cfg.RewriteLimit
		m.left = &left
	}
	return m
}

// Worker is a manager that does the same to other modules at the same time. ok is false
// where what is told of passes, or how much they may do, depends on the order of modules.
func (m *Manager) Worker() (w *Manager, ok bool) {
	c := &m.cfg
	if c.RewriteLimit != nil || len(c.PrintAfter) > 0 || c.DumpDir != "" || c.Remark != nil || c.Validate != nil || c.Watch != nil {
		return nil, false
	}
	return NewManager(m.cfg), true
}

// Join adds what a worker did to the manager's stats.
func (m *Manager) Join(w *Manager) {
	for i, s := range w.stats {
		to := &m.stats[i]
		to.Runs, to.Changed, to.Rewrites, to.Time = to.Runs+s.Runs, to.Changed+s.Changed, to.Rewrites+s.Rewrites, to.Time+s.Time
		for name, n := range s.Ops {
			if to.Ops[name] += n; to.Ops[name] == 0 {
				delete(to.Ops, name)
			}
		}
	}
}

// Pipeline is what the manager runs.
func (m *Manager) Pipeline() Pipeline { return m.cfg.Pipeline }

// Stats is what a step of the pipeline did in all runs.
type Stats struct {
	Step     Step
	Stage    Stages
	Runs     int
	Changed  int // runs that changed the module
	Rewrites int
	Time     time.Duration
	// Ops is how many ops of each name there are more afterwards; none has 0.
	Ops map[string]int
}

// Stats are those of all steps so far.
func (m *Manager) Stats() []Stats { return m.stats }

// Run runs both stages. The label names the module beside its own name where a
// manager runs over several: in errors, in remarks and as a folder of dumps.
func (m *Manager) Run(ctx context.Context, label string, mod *ir.Module) error {
	return m.run(ctx, label, mod, 0, len(m.cfg.Pipeline))
}

// RunStage runs one stage.
func (m *Manager) RunStage(ctx context.Context, stage Stages, label string, mod *ir.Module) error {
	n := m.cfg.Pipeline.border()
	if stage == Bucket {
		return m.run(ctx, label, mod, n, len(m.cfg.Pipeline))
	}
	return m.run(ctx, label, mod, 0, n)
}

// Run runs a pipeline over one module in the plainest way.
func Run(ctx context.Context, m *ir.Module, p Pipeline) error {
	return NewManager(Config{Pipeline: p}).Run(ctx, "", m)
}

// run runs the steps from one up to another.
func (m *Manager) run(ctx context.Context, label string, mod *ir.Module, from, to int) error {
	if from == to {
		return nil
	}
	if err := m.dump(label, from, "input", mod); err != nil {
		return err
	}
	before := mod.Clone()
	for i := from; i < to; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := run{m: m, label: label, index: i, step: m.cfg.Pipeline[i], mod: mod, before: before}
		changed, err := r.do(ctx)
		if err != nil {
			return err
		}
		if changed && i+1 < to {
			before = mod.Clone()
		}
	}
	return nil
}

// run is one step on one module.
type run struct {
	m     *Manager
	label string
	index int
	step  Step
	mod   *ir.Module

	before  *ir.Module // a copy of the module before
	numbers ir.Numbers // of the module before, for diffs
	text    string     // of the module before, if it is needed
	left    int        // rewrites that were allowed before, if there is a limit
}

// where names step and module in errors.
func (r *run) where() string {
	at := "@" + r.mod.Name
	if r.label != "" {
		at = r.label
	}
	return fmt.Sprintf("pass %s on %s", r.step.Pass.Name, at)
}

func (r *run) do(ctx context.Context) (changed bool, err error) {
	if r.m.left != nil {
		r.left = *r.m.left
	}
	diff := r.prints(printDiff)
	if diff {
		r.numbers = r.mod.Number(nil)
	}
	if diff || r.m.cfg.Honest {
		r.text = r.mod.String()
	}
	ops := countOps(r.mod)
	c := &Context{Context: ctx, Params: r.m.cfg.Params, step: r.step, label: r.label, left: r.m.left, remark: r.m.cfg.Remark}
	start := time.Now()
	changed, err = r.call(c)
	took := time.Since(start)
	switch {
	case err != nil && ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil:
		return false, r.failed(err)
	case r.m.cfg.Honest && changed != (r.mod.String() != r.text):
		return false, r.failed(fmt.Errorf("says changed = %v and that is not true", changed))
	}
	s := &r.m.stats[r.index]
	s.Runs++
	s.Rewrites += c.rewrites
	s.Time += took
	if !changed {
		return false, r.watch(c, false) // it was verified before
	}
	if err := ir.Verify(r.mod); err != nil {
		return false, r.failed(fmt.Errorf("made an invalid module: %w", err))
	}
	s.Changed++
	for name, n := range countOps(r.mod) {
		ops[name] -= n
	}
	for name, n := range ops {
		if s.Ops[name] -= n; s.Ops[name] == 0 {
			delete(s.Ops, name)
		}
	}
	if err := r.watch(c, true); err != nil {
		return true, err
	}
	return true, r.show(ctx)
}

// watch shows what the step did.
func (r *run) watch(c *Context, changed bool) error {
	if r.m.cfg.Watch == nil {
		return nil
	}
	err := r.m.cfg.Watch(Watched{
		Step: r.step, Index: r.index, Stage: r.m.stats[r.index].Stage, Label: r.label,
		Before: r.before, After: r.mod, Changed: changed, Rewrites: c.rewrites,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", r.where(), err)
	}
	return nil
}

// call runs the pass; a panic becomes an error.
func (r *run) call(c *Context) (changed bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
	}()
	return r.step.Pass.Run(c, r.mod)
}

// panicError is a panic of a pass; where it was goes into the reproducer only.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panicked: %v", e.value) }

func countOps(m *ir.Module) map[string]int {
	n := map[string]int{}
	for _, f := range m.Funcs {
		for _, o := range f.Ops {
			n[o.Name()]++
		}
	}
	return n
}

// prints reports whether a word of PrintAfter holds for the step: diff, or the
// pass's name.
func (r *run) prints(word string) bool {
	list := r.m.cfg.PrintAfter
	diff := slices.Contains(list, printDiff)
	all := slices.Contains(list, printAll) || len(list) == 1 && diff
	return (all || slices.Contains(list, r.step.Pass.Name)) && diff == (word == printDiff)
}

// show prints, dumps and validates a module that has changed.
func (r *run) show(ctx context.Context) error {
	name := r.step.Pass.Name
	title := fmt.Sprintf("; after %s, @%s", r.step, r.mod.Name)
	if r.label != "" {
		title += " of " + r.label
	}
	var text string
	switch {
	case r.prints(printDiff):
		text = unified(r.text, r.numbers, r.mod)
	case r.prints(name):
		text = r.mod.String()
	}
	if text != "" {
		if _, err := fmt.Fprintf(r.m.cfg.Out, "%s\n%s\n", title, strings.TrimRight(text, "\n")); err != nil {
			return fmt.Errorf("printing after %s: %w", name, err)
		}
	}
	if err := r.m.dump(r.label, r.index+1, name, r.mod); err != nil {
		return err
	}
	if v := r.m.cfg.Validate; v != nil {
		if err := v(ctx, Change{r.step.Pass, r.label, r.before, r.mod}); err != nil {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, ErrTooLarge):
				return fmt.Errorf("%s: %w", r.where(), err)
			}
			return r.failed(fmt.Errorf("changed what the module computes: %w", err))
		}
	}
	return nil
}
