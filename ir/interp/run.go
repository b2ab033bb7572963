package interp

import (
	"context"
	"fmt"
	"slices"

	"quill/ir"
)

// Options changes how Run works; the zero value is the usual way.
type Options struct {
	// Tap is called with every op result of every rank, in order of ops, results
	// and ranks; those of a called function come before those of the call. It
	// must not change the tensor.
	Tap func(rank int, op *ir.Op, result int, t *Tensor)
	// Replace, if it is not nil, may give an op other results on a rank than those that
	// are computed of its operands, such as a choice that somebody else made: of the same
	// types and shapes. It returns out to change nothing, and must change no tensor. An
	// error ends the evaluation.
	Replace func(rank int, op *ir.Op, in, out []*Tensor) ([]*Tensor, error)
	// MaxElems bounds the elements a rank holds of a value; 0 is 1<<28.
	MaxElems int64
	// Unchecked leaves out the comparison of ranks that should hold the same.
	Unchecked bool
}

// Run evaluates a function of m on all ranks in lock step. env has the values
// of the base symbols, args the parameters of each rank by name; what names no
// parameter is ignored. It returns the results of each rank by name.
//
// Errors of the evaluation are *Error; those about ranks that should hold the
// same value and do not wrap ErrDiverged.
func Run(ctx context.Context, m *ir.Module, f *ir.Func, env map[string]int64, args []map[string]*Tensor, opt Options) ([]map[string]*Tensor, error) {
	if f == nil {
		return nil, fmt.Errorf("module @%s: no function to run", m.Name)
	}
	if m.TP < 1 || len(args) != m.TP {
		return nil, fmt.Errorf("@%s: arguments of %d ranks, want %d", f.Name, len(args), m.TP)
	}
	full, err := m.Env(env)
	if err != nil {
		return nil, err
	}
	if opt.MaxElems == 0 {
		opt.MaxElems = 1 << 28
	}
	r := &runner{ctx: ctx, mod: m, env: full, opt: opt}
	params, err := r.params(f, args)
	if err != nil {
		return nil, failure(f, nil, err)
	}
	values, err := r.function(f, params)
	if err != nil {
		return nil, err
	}
	results := make([]map[string]*Tensor, m.TP)
	for rank := range results {
		results[rank] = make(map[string]*Tensor, len(values))
		for i, v := range values {
			results[rank][f.Results[i].Name] = v[rank]
		}
	}
	return results, nil
}

// runner is the state of one Run.
type runner struct {
	ctx context.Context
	mod *ir.Module
	env map[string]int64 // of all symbols
	opt Options
}

// params picks and checks the arguments for a function's parameters.
func (r *runner) params(f *ir.Func, args []map[string]*Tensor) ([]value, error) {
	params := make([]value, len(f.Params))
	for i, p := range f.Params {
		v := make(value, r.mod.TP)
		for rank := range v {
			v[rank] = args[rank][p.Name]
			if v[rank] == nil {
				return nil, fmt.Errorf("parameter %%%s has no argument on rank %d", p.Name, rank)
			}
			if err := v[rank].Check(); err != nil {
				return nil, fmt.Errorf("parameter %%%s on rank %d: %w", p.Name, rank, err)
			}
		}
		if err := r.check("parameter %"+p.Name, p.Value.Type, v); err != nil {
			return nil, err
		}
		params[i] = v
	}
	return params, nil
}

// function evaluates a function whose parameters have been checked.
func (r *runner) function(f *ir.Func, params []value) ([]value, error) {
	values := make(map[*ir.Value]value, len(params)+len(f.Ops))
	for i, p := range f.Params {
		values[p.Value] = params[i]
	}
	last := lastUses(f)
	for i, o := range f.Ops {
		if err := r.op(f, o, values); err != nil {
			return nil, failure(f, o, err)
		}
		for _, v := range slices.Concat(o.Args, o.Results) {
			if last[v] <= i {
				delete(values, v)
			}
		}
	}
	if len(f.Return) != len(f.Results) {
		return nil, failure(f, nil, fmt.Errorf("%d returned values for %d declared results", len(f.Return), len(f.Results)))
	}
	results := make([]value, len(f.Return))
	for i, v := range f.Return {
		var ok bool
		if results[i], ok = values[v]; !ok {
			return nil, failure(f, nil, fmt.Errorf("result %s is not defined", f.Results[i].Name))
		}
		if err := r.check("result "+f.Results[i].Name, f.Results[i].Type, results[i]); err != nil {
			return nil, failure(f, nil, err)
		}
	}
	return results, nil
}

// lastUses numbers the last op that uses a value; returned ones outlive all.
func lastUses(f *ir.Func) map[*ir.Value]int {
	last := make(map[*ir.Value]int, len(f.Ops))
	for i, o := range f.Ops {
		for _, a := range o.Args {
			last[a] = i
		}
	}
	for _, v := range f.Return {
		last[v] = len(f.Ops)
	}
	return last
}

// op evaluates one op, checks its results and adds them to values.
func (r *runner) op(f *ir.Func, o *ir.Op, values map[*ir.Value]value) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if o.Def == nil {
		return fmt.Errorf("the op is not in the table")
	}
	in := make([]value, len(o.Args))
	for i, a := range o.Args {
		var ok bool
		if in[i], ok = values[a]; !ok {
			return fmt.Errorf("operand %d is not defined above the op", i)
		}
	}
	if err := o.Check(); err != nil {
		return err
	}
	if at := o.Attr("callee"); at != nil && !r.above(f, at.Func) {
		return fmt.Errorf("@%s is not above @%s", at.Func.Name, f.Name)
	}
	for _, v := range o.Results {
		if _, err := r.shape(v.Type); err != nil {
			return err
		}
	}
	out, err := rules[o.Name()](&step{attrs: attrs{o, r.env}, run: r, in: in})
	if err == nil && r.opt.Replace != nil {
		out, err = r.replace(o, in, out)
	}
	if err != nil {
		return err
	}
	for i, v := range o.Results {
		if err := r.check(fmt.Sprintf("result %d", i), v.Type, out[i]); err != nil {
			return err
		}
		values[v] = out[i]
		for rank, t := range out[i] {
			if r.opt.Tap != nil {
				r.opt.Tap(rank, o, i, t)
			}
		}
	}
	return nil
}

// replace asks for other results of an op.
func (r *runner) replace(o *ir.Op, in, out []value) ([]value, error) {
	all := make([]value, len(out))
	for rank := range r.mod.TP {
		got, err := r.opt.Replace(rank, o, ofRank(in, rank), ofRank(out, rank))
		if err == nil && len(got) != len(out) {
			err = fmt.Errorf("%d results replace %d", len(got), len(out))
		}
		if err != nil {
			return nil, &rankError{rank, err}
		}
		for i, x := range got {
			if x == nil {
				return nil, &rankError{rank, fmt.Errorf("nothing replaces result %d", i)}
			}
			if err := x.Check(); err != nil {
				return nil, &rankError{rank, fmt.Errorf("what replaces result %d: %w", i, err)}
			}
			all[i] = append(all[i], x)
		}
	}
	return all, nil
}

// ofRank are the tensors of values that one rank holds.
func ofRank(values []value, rank int) []*Tensor {
	list := make([]*Tensor, len(values))
	for i, v := range values {
		list[i] = v[rank]
	}
	return list
}

// above reports whether a function may be called from f: so calls end.
func (r *runner) above(f, callee *ir.Func) bool {
	at, from := slices.Index(r.mod.Funcs, callee), slices.Index(r.mod.Funcs, f)
	return at >= 0 && (from < 0 || at < from)
}

// call runs a function on the operands by position.
func call(s *step) ([]value, error) { return s.run.function(s.op.Attr("callee").Func, s.in) }
