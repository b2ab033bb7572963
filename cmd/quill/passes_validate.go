package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/passes"
	"quill/recipes/dtype"
)

// Bounds on what is interpreted to validate a change: some seconds, and memory
// for the parameters. Buckets beyond them are left out; a family is refused.
const (
	validateOperations = 2_000_000_000
	validateElements   = 200_000_000
)

// validateSeeds is the number of random inputs a change is tried on.
const validateSeeds = 2

// validator interprets modules before and after passes, on random inputs that
// depend on the module's label alone, with small values of symbols. Positions and
// lists of blocks are as a host makes them, without padding in a prefill chunk.
type validator struct {
	compared int
	left     map[string]bool // labels of modules that were too large

	// original is the module as the first change of the label found it: it tells
	// the inputs of all of them, since its uses show best what an index may be.
	label    string
	original *ir.Module
	// text and results, by seed, are of the module as the last change left it,
	// since the next one begins with it.
	text    string
	results [][]map[string]*interp.Tensor
}

func newValidator() *validator { return &validator{left: map[string]bool{}} }

// String says what was done.
func (v *validator) String() string {
	s := fmt.Sprintf("%s of passes validated on %d random inputs each", count(v.compared, "change"), validateSeeds)
	if len(v.left) > 0 {
		s += fmt.Sprintf("; %s too large to be interpreted in seconds, and left out", count(len(v.left), "bucket"))
	}
	return s
}

// change compares a module before and after a pass.
func (v *validator) change(ctx context.Context, c passes.Change) error {
	env := smallSizes(c.Before)
	operations, elements, err := interp.Cost(c.Before, c.Before.Entry(), env)
	if err != nil {
		return err
	}
	if operations > validateOperations || elements > validateElements {
		if len(c.Before.Syms) == 0 {
			v.left[c.Label] = true
			return nil
		}
		return fmt.Errorf("%w: to interpret @%s at %s takes %.1e operations on parameters of %.1e elements, some seconds are %.0e and %.0e; validate a deployment of a smaller model with layers of the same kinds",
			passes.ErrTooLarge, c.Before.Name, sizesText(c.Before, env), float64(operations), float64(elements), float64(validateOperations), float64(validateElements))
	}
	if v.label != c.Label || v.original == nil {
		v.label, v.original, v.text = c.Label, c.Before, ""
	}
	if v.text != c.Before.String() {
		if v.results, err = interpret(ctx, v.original, c.Before, env); err != nil {
			return fmt.Errorf("interpreting the module before: %w", err)
		}
	}
	results, err := interpret(ctx, v.original, c.After, env)
	if err != nil {
		return fmt.Errorf("interpreting the module after: %w", err)
	}
	for seed := range results {
		if err := same(c.Pass, results[seed], v.results[seed]); err != nil {
			return fmt.Errorf("at %s, seed %d: %w", sizesText(c.Before, env), seed, err)
		}
	}
	v.compared++
	v.text, v.results = c.After.String(), results
	return nil
}

// interpret interprets a module that was made of another one on random inputs of
// that, validateSeeds times.
func interpret(ctx context.Context, original, m *ir.Module, env map[string]int64) ([][]map[string]*interp.Tensor, error) {
	var all [][]map[string]*interp.Tensor
	for seed := range uint64(validateSeeds) {
		args, err := interp.RandomArgs(original, original.Entry(), env, seed, interp.RandomOptions{})
		if err != nil {
			return nil, err
		}
		step, err := inkling.RandomStep(m, env, seed)
		if err != nil {
			return nil, err
		}
		for name, ints := range step {
			for rank := range args {
				args[rank][name] = interp.FromI32([]int64{int64(len(ints))}, ints...)
			}
		}
		if err := interp.Complete(m, env, original.Entry(), args); err != nil {
			return nil, err
		}
		out, err := interp.Run(ctx, m, m.Entry(), env, args, interp.Options{})
		if err != nil {
			return nil, err
		}
		all = append(all, out)
	}
	return all, nil
}

// Bounds on what an inexact pass may change, relative to the largest element: what
// becomes of some last bits in a whole model. In BF16 they also turn near ties of
// routers: some tokens then have another expert, so it is the median element that
// is held.
const (
	validateF32  = 1e-4
	validateBF16 = 1.0 / 16
)

// same compares results after a pass with those before: bit by bit, unless the pass
// says that it is not exact.
func same(p *passes.Pass, got, want []map[string]*interp.Tensor) error {
	if !p.Inexact {
		return interp.Same(got, want, 0)
	}
	for rank := range want {
		for _, name := range slices.Sorted(maps.Keys(want[rank])) {
			w := want[rank][name]
			atol := validateF32
			if w.DType == dtype.BF16 {
				atol = validateBF16
			}
			most := 1.0
			for _, v := range w.F {
				most = max(most, math.Abs(float64(v)))
			}
			g := got[rank][name]
			if w.DType == dtype.BF16 && g.Len() == w.Len() && 2*far(g.F, w.F, atol*most) <= w.Len() {
				continue
			}
			if err := interp.Close(g, w, atol*most, 0); err != nil {
				return fmt.Errorf("rank %d result %s: %w", rank, name, err)
			}
		}
	}
	return nil
}

// far counts the elements that differ by more than atol.
func far(got, want []float32, atol float64) int {
	n := 0
	for i := range want {
		if by := math.Abs(float64(got[i]) - float64(want[i])); !(by <= atol) && got[i] != want[i] {
			n++
		}
	}
	return n
}

// smallSizes gives base symbols values near the low end of their range.
func smallSizes(m *ir.Module) map[string]int64 {
	env := map[string]int64{}
	for _, s := range m.Syms {
		if s.Def == nil {
			env[s.Name] = min(s.Max, s.Min+2)
		}
	}
	return env
}

func sizesText(m *ir.Module, env map[string]int64) string {
	text := ""
	for _, s := range m.Syms {
		if s.Def == nil {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("%s = %d", s.Name, env[s.Name])
		}
	}
	if text == "" {
		return "its sizes"
	}
	return text
}
