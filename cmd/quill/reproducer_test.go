package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/ops"
	"quill/lower"
	"quill/passes"
)

// sixDims makes a value of six dims, which no node takes, in the first segment that has an
// op of one result.
func sixDims(m *ir.Module) {
	reshape, _ := ops.ByName("reshape")
	for _, f := range m.Funcs[:len(m.Funcs)-1] {
		for i, o := range f.Ops {
			if len(o.Results) != 1 || o.Results[0].State() != nil || o.Results[0].Type.Rank() == 0 || slices.Contains(f.Return, o.Results[0]) {
				continue
			}
			x := o.Results[0]
			many := x.Type
			many.Shape = slices.Concat(slices.Repeat([]ir.Dim{ir.D(1)}, 6-x.Type.Rank()), x.Type.Shape)
			many.Dist.Axis = 0
			there := &ir.Op{Def: reshape, Args: []*ir.Value{x}, Attrs: []ir.Attr{{Name: "shape", Dims: many.Shape}}, Loc: o.Loc}
			there.Results = []*ir.Value{{Type: many, Def: there}}
			back := &ir.Op{Def: reshape, Args: there.Results, Attrs: []ir.Attr{{Name: "shape", Dims: x.Type.Shape}}, Loc: o.Loc}
			back.Results = []*ir.Value{{Type: x.Type, Def: back}}
			for _, later := range f.Ops[i+1:] {
				for j, a := range later.Args {
					if a == x {
						later.Args[j] = back.Results[0]
					}
				}
			}
			f.Ops = slices.Insert(f.Ops, i+1, there, back)
			return
		}
	}
}

// printedCommand is the command of the first reproducer that an error names, as arguments.
func printedCommand(t *testing.T, text string) []string {
	t.Helper()
	m := regexp.MustCompile(`help: quill (opt .*\.qir) `).FindStringSubmatch(text)
	require.NotNil(t, m, text)
	args := strings.Fields(strings.ReplaceAll(m[1], "'", ""))
	t.Cleanup(func() { _ = os.Remove(args[len(args)-1]) })
	return args
}

// A bucket whose lowering fails is named first, with the op, its types and a command that
// fails the same way; all are, when compiling goes on.
func TestFailedLoweringIsReproduced(t *testing.T) {
	t.Parallel()
	d, err := lower.ReadDeployment(writeDeployment(t, "nano-dense", "model: MODEL\nmax_model_len: 64\nmax_num_seqs: 2\nblock_size: 16\nprecision: f32\n"))
	require.NoError(t, err)
	trap := &passes.Pass{Name: "trap", Stages: passes.Bucket, Run: func(_ *passes.Context, m *ir.Module) (bool, error) {
		if !strings.HasPrefix(m.Name, "decode") {
			return false, nil
		}
		sixDims(m)
		return true, nil
	}}
	for _, keepGoing := range []bool{false, true} {
		dir := t.TempDir()
		_, _, err = lower.CompileWith(t.Context(), d, lower.Options{Jobs: 2, KeepGoing: keepGoing, Passes: func(p passes.Params) *passes.Manager {
			return passes.NewManager(passes.Config{Pipeline: append(slices.Clone(passes.Default()), passes.Step{Pass: trap}), Params: p, DumpDir: dir})
		}})
		require.Error(t, err)
		text := err.Error()
		require.Regexp(t, `bucket decode/b=1,n=1: .*: @seg\d+: reshape of f32\[[\d, ]+\]\S* to f32\[1, [\d, ]+\]\S* \(.*\): result has rank 6, engines take at most 5\n`, text)
		files, err := filepath.Glob(filepath.Join(dir, "quill-lower-decode_*.qir"))
		require.NoError(t, err)
		require.Len(t, files, strings.Count(text, "help: quill opt --lower=decode/"))
		if keepGoing {
			require.Greater(t, len(files), 2)
		}
		args := printedCommand(t, text)
		require.Equal(t, dir, filepath.Dir(args[len(args)-1]))
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitError, execute(t.Context(), args, &stdout, &stderr))
		want := regexp.MustCompile(`@seg\d+: reshape of .*`).FindString(text)
		require.Contains(t, stderr.String(), want)
		require.Contains(t, stderr.String(), "bucket decode/b=1,n=1: ")
	}
}

// What the target does not take is reproduced, too: here a node of more experts than a
// program has room for.
func TestIllegalRecipeIsReproduced(t *testing.T) {
	t.Parallel()
	deployment := writeDeployment(t, "configs/inkling-small", "model: MODEL\nmax_model_len: 128\nmax_num_seqs: 1\nmax_batched_tokens: 128\n")
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitError, execute(t.Context(), []string{"compile", deployment, "-o", filepath.Join(t.TempDir(), "x.quill"), "--no-cache"}, &stdout, &stderr))
	text := stderr.String()
	require.Regexp(t, `bucket \S+: recipe seg\d+: .*want at most .*\[program-data\]`, text)
	args := printedCommand(t, text)
	var again bytes.Buffer
	require.Equal(t, exitError, execute(t.Context(), args, &stdout, &again))
	require.Contains(t, again.String(), regexp.MustCompile(`recipe seg\d+: .*\[program-data\]`).FindString(text))
}

// A module of a bucket lowers alone, whatever forms the deployment has; others do not.
func TestModulesLowerAlone(t *testing.T) {
	t.Parallel()
	for _, more := range []string{"", "moe: gather\nattention: masked\nsub_block_rows: 5\n", "far: exact\nsub_block_rows: 7\nembedding: sharded\n"} {
		d, err := lower.ReadDeployment(writeDeployment(t, "nano-small", "model: MODEL\ntensor_parallel: 2\nmax_model_len: 32\nmax_num_seqs: 1\nblock_size: 16\nprecision: f32\n"+more))
		require.NoError(t, err)
		plans := 0
		b, _, err := lower.CompileWith(t.Context(), d, lower.Options{
			Passes: func(p passes.Params) *passes.Manager {
				return passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: p})
			},
			Planned: func(_ string, p *lower.Planned) {
				m, err := ir.VerifyText("m.qir", []byte(p.Module.String()))
				require.NoError(t, err, p.Plan.Bucket)
				alone, recipes, err := lower.Lower(m, p.Plan.Bucket)
				require.NoError(t, err, p.Plan.Bucket)
				require.Len(t, alone.Steps, len(p.Plan.Steps))
				require.NotEmpty(t, recipes)
				plans++
			},
		})
		require.NoError(t, err)
		require.Len(t, b.Sets[0].Plans, plans)
	}
	file := filepath.Join(t.TempDir(), "m.qir")
	require.NoError(t, os.WriteFile(file, []byte("module @m {level = model, tp = 1}\nfunc @m(input %x: f32[4]) -> (output y: f32[4]) {\n  %0 = neg %x\n  return %0\n}\n"), 0o644))
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitError, execute(t.Context(), []string{"opt", file, "--lower=logits/r=1"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "@m cannot be lowered: want an outlined module (level plan)")
	require.Equal(t, exitUsage, execute(t.Context(), []string{"opt", file, "--lower=logits/r=x"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), `--lower: "logits/r=x" is no bucket: want prefill/q=Q,c=C`)
}
