package passes

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"quill/ir"
	"quill/ir/filetest"
	"quill/ir/interp"
	"quill/recipes/dtype"
)

// same interprets a case before and after the passes on random inputs, once a
// seed, and compares all results. Symbols take a value in the middle of their
// range; integer inputs are 0 or 1, which every index allows.
func same(ctx context.Context, args []string, c filetest.Case) filetest.Result {
	fail := func(err error) filetest.Result { return filetest.Result{Errors: fileErrors(err)} }
	fs := flag.NewFlagSet("same", flag.ContinueOnError)
	names := fs.String("passes", "", "")
	seeds := fs.Int("seeds", 4, "")
	atol := fs.Float64("atol", 0, "")
	if err := fs.Parse(args); err != nil {
		return fail(err)
	}
	before, err := ir.VerifyText(c.File, []byte(c.Src))
	if err != nil {
		return fail(err)
	}
	after, err := ir.VerifyText(c.File, []byte(c.Src))
	if err != nil {
		return fail(err)
	}
	for _, n := range strings.Split(*names, ",") {
		p, ok := find(n)
		if !ok {
			return fail(fmt.Errorf("there is no pass %s", n))
		}
		if _, err := p.Run(ctx, after); err != nil {
			return fail(err)
		}
	}
	for seed := range *seeds {
		if err := sameOnce(ctx, before, after, uint64(seed), *atol); err != nil {
			return fail(fmt.Errorf("seed %d: %w", seed, err))
		}
	}
	return filetest.Result{SelfChecked: true}
}

func sameOnce(ctx context.Context, before, after *ir.Module, seed uint64, atol float64) error {
	env := map[string]int64{}
	for _, s := range before.Syms {
		if s.Def == nil {
			env[s.Name] = min(s.Max, s.Min+3)
		}
	}
	env, err := before.Env(env)
	if err != nil {
		return err
	}
	args, err := randomArgs(before, after.Entry(), env, seed)
	if err != nil {
		return err
	}
	want, err := interp.Run(ctx, before, before.Entry(), env, args, interp.Options{})
	if err != nil {
		return err
	}
	got, err := interp.Run(ctx, after, after.Entry(), env, args, interp.Options{})
	if err != nil {
		return err
	}
	for rank := range want {
		for name, w := range want[rank] {
			if err := interp.Close(got[rank][name], w, atol, 0); err != nil {
				return fmt.Errorf("rank %d result %s: %w", rank, name, err)
			}
		}
	}
	return nil
}

// randomArgs makes parameters for the function after the passes, which has
// those of the one before and perhaps constants.
func randomArgs(m *ir.Module, f *ir.Func, env map[string]int64, seed uint64) ([]map[string]*interp.Tensor, error) {
	args := make([]map[string]*interp.Tensor, m.TP)
	for r := range args {
		args[r] = map[string]*interp.Tensor{}
	}
	for i, p := range f.Params {
		parts, err := randomParam(m, p, env, seed*1000+uint64(i))
		if err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
		for r := range args {
			args[r][p.Name] = parts[r]
		}
	}
	return args, nil
}

func randomParam(m *ir.Module, p *ir.Param, env map[string]int64, seed uint64) ([]*interp.Tensor, error) {
	if p.Source.PerRank {
		return interp.Weight(m, p, env, nil)
	}
	t := p.Value.Type
	shape := make([]int64, t.Rank())
	for i, d := range t.Shape {
		n, err := d.Eval(env)
		if err != nil {
			return nil, err
		}
		shape[i] = n
	}
	if t.Dist.Kind == ir.Sharded {
		shape[t.Dist.Axis] *= int64(t.Dist.Ways)
	}
	whole := interp.RandomInts(seed, t.DType, 0, 2, shape...)
	if t.DType == dtype.F32 || t.DType == dtype.BF16 {
		whole = interp.Random(seed, t.DType, shape...)
	}
	return interp.Shard(whole, t.Dist, m.TP)
}
