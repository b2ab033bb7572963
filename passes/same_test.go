package passes

import (
	"context"
	"flag"
	"fmt"

	"quill/ir"
	"quill/ir/filetest"
	"quill/ir/inkling"
	"quill/ir/interp"
)

// same interprets a case before and after a pipeline on random inputs, once a
// seed, and compares all results: bit by bit unless -atol= says otherwise. Lists of
// blocks and positions are as a host makes them.
// Symbols take a small value of their range. With -specials floats are among
// others −0, NaN and infinite.
func same(ctx context.Context, args []string, c filetest.Case) filetest.Result {
	fail := func(err error) filetest.Result { return filetest.Result{Errors: fileErrors(err)} }
	fs := flag.NewFlagSet("same", flag.ContinueOnError)
	pipeline := fs.String("passes", "", "")
	seeds := fs.Int("seeds", 4, "")
	atol := fs.Float64("atol", 0, "")
	specials := fs.Bool("specials", false, "")
	var params Params
	fs.Func("param", "", params.Set)
	if err := fs.Parse(args); err != nil {
		return fail(err)
	}
	p, err := Parse(*pipeline)
	if err != nil {
		return fail(err)
	}
	before, err := ir.VerifyText(c.File, []byte(c.Src))
	if err != nil {
		return fail(err)
	}
	after := before.Clone()
	if err := NewManager(Config{Pipeline: p, Params: params}).Run(ctx, "", after); err != nil {
		return fail(err)
	}
	for seed := range *seeds {
		if err := sameOnce(ctx, before, after, uint64(seed), *atol, *specials); err != nil {
			return fail(fmt.Errorf("seed %d: %w", seed, err))
		}
	}
	return filetest.Result{SelfChecked: true}
}

// smallSizes are values of a module's base symbols near the low end.
func smallSizes(m *ir.Module) map[string]int64 {
	env := map[string]int64{}
	for _, s := range m.Syms {
		if s.Def == nil {
			env[s.Name] = min(s.Max, s.Min+3)
		}
	}
	return env
}

func sameOnce(ctx context.Context, before, after *ir.Module, seed uint64, atol float64, specials bool) error {
	env := smallSizes(before)
	// The module after the passes has the parameters of the one before and
	// perhaps constants; what an index may be shows in either.
	args, err := interp.RandomArgs(before, before.Entry(), env, seed, interp.RandomOptions{Specials: specials})
	if err != nil {
		return err
	}
	step, err := inkling.RandomStep(after, env, seed)
	if err != nil {
		return err
	}
	for name, v := range step {
		for r := range args {
			args[r][name] = interp.FromI32([]int64{int64(len(v))}, v...)
		}
	}
	want, err := interp.Run(ctx, before, before.Entry(), env, args, interp.Options{})
	if err != nil {
		return err
	}
	if err := interp.Complete(after, env, before.Entry(), args); err != nil {
		return err
	}
	got, err := interp.Run(ctx, after, after.Entry(), env, args, interp.Options{})
	if err != nil {
		return err
	}
	return interp.Same(got, want, atol)
}
