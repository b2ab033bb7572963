package lower

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes"
	"quill/recipes/target"
)

// Lower makes the plan of a bucket, and its recipes, of an outlined module of concrete
// sizes, and checks both, as compiling does once all passes have run. Weights and states
// are laid out for this module alone: offsets are others than in a bundle.
func Lower(m *ir.Module, b recipes.Bucket) (*recipes.Plan, map[recipes.Hash]*recipes.Recipe, error) {
	if m.Level != ops.Plan || len(m.Syms) > 0 {
		return nil, nil, fmt.Errorf("@%s cannot be lowered: want an outlined module (level plan) whose sizes are numbers, such as compiling dumps of a bucket", m.Name)
	}
	tgt, err := target.Load(target.Default)
	if err != nil {
		return nil, nil, err
	}
	s := &setCompiler{compiler: &compiler{}, target: tgt, workspaces: map[recipes.Hash]int64{}}
	made, err := s.lower(m, b, func() (*layout, error) {
		lay := newLayout()
		if err := lay.reserve([]*ir.Module{m}); err != nil {
			return nil, err
		}
		lay.finish()
		return lay, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return made.plan, made.recipes, nil
}

// lower makes a bucket's plan of its module, and checks it. A panic becomes an error.
func (s *setCompiler) lower(m *ir.Module, b recipes.Bucket, lay func() (*layout, error)) (out *madePlan, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, &panicError{p, debug.Stack()}
		}
	}()
	l, err := lay()
	if err != nil {
		return nil, err
	}
	p, err := newPlan(m, b, l)
	if err != nil {
		return nil, err
	}
	plan := p.plan // a copy, or the plan would keep the planner and its module in memory
	out = &madePlan{plan: &plan, recipes: map[recipes.Hash]*recipes.Recipe{}}
	if err := s.emit(p, out); err != nil {
		if e, ok := errors.AsType[*target.IllegalError](err); ok && e.Types != "" {
			return nil, fmt.Errorf("%w\nnote: the node takes %s", err, e.Types)
		}
		return nil, err
	}
	if s.planned != nil {
		out.from = p
	}
	return out, nil
}

// panicError is a panic of lowering; where it was goes into the reproducer only.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("lowering panicked: %v", e.value) }

// reproducible is the error of lowering a module, with a file of the module in dir and the
// command that fails with it the same way.
func reproducible(dir string, m *ir.Module, b recipes.Bucket, cause error) error {
	f, err := os.CreateTemp(dir, fmt.Sprintf("quill-lower-%s-*.qir", m.Name))
	if err != nil {
		return fmt.Errorf("%w\nnote: there is no reproducer: %w", cause, err)
	}
	command := fmt.Sprintf("quill opt --lower=%s -o %s %s", b, os.DevNull, f.Name())
	text := fmt.Sprintf("bucket %s: %v\n%s\n", b, cause, command)
	if p, ok := errors.AsType[*panicError](cause); ok {
		text += string(p.stack)
	}
	_, err = fmt.Fprintf(f, "; %s\n%s", strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n; "), m)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%w\nnote: there is no reproducer: %w", cause, err)
	}
	return fmt.Errorf("%w\nhelp: %s lowers alone what passes made of the bucket", cause, command)
}
