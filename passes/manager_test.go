package passes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
)

const sample = `module @m {level = model, tp = 1}

func @f(input %x: f32[4]) -> (output y: f32[4]) {
  %0 = exp %x
  %1 = exp %x
  %2 = neg %0
  %3 = neg %2
  %4 = add %1, %3
  %5 = silu %x
  return %4
}
`

func parse(t *testing.T, text string) *ir.Module {
	t.Helper()
	m, err := ir.VerifyText("test.qir", []byte(text))
	require.NoError(t, err)
	return m
}

func pipelineOf(t *testing.T, text string) Pipeline {
	t.Helper()
	p, err := Parse(text)
	require.NoError(t, err)
	return p
}

// only is a pipeline of a pass that is in no table.
func only(name string, run func(*Context, *ir.Module) (bool, error)) Pipeline {
	return Pipeline{{Pass: &Pass{Name: name, Stages: Family, Optional: true, Run: run}}}
}

func TestStatsCountWhatPassesDo(t *testing.T) {
	mgr := NewManager(Config{Pipeline: pipelineOf(t, "canonicalize,cse,dce,outline-segments,dce"), Honest: true})
	require.NoError(t, mgr.Run(t.Context(), "", parse(t, sample)))
	require.NoError(t, mgr.Run(t.Context(), "", parse(t, sample)))
	s := mgr.Stats()
	require.Len(t, s, 5)
	require.Equal(t, map[string]int{"neg": -4}, s[0].Ops)
	require.Equal(t, map[string]int{"exp": -2}, s[1].Ops)
	require.Equal(t, map[string]int{"silu": -2}, s[2].Ops)
	require.Equal(t, map[string]int{"call": 2}, s[3].Ops)
	require.Empty(t, s[4].Ops)
	for i, want := range []Stats{{Runs: 2, Changed: 2, Rewrites: 2}, {Runs: 2, Changed: 2, Rewrites: 2}, {Runs: 2, Changed: 2, Rewrites: 2}, {Runs: 2, Changed: 2, Rewrites: 2}, {Runs: 2}} {
		require.Equal(t, []int{want.Runs, want.Changed, want.Rewrites}, []int{s[i].Runs, s[i].Changed, s[i].Rewrites}, "step %d", i)
	}
	require.Equal(t, []Stages{Family, Family, Family, Family, Bucket}, []Stages{s[0].Stage, s[1].Stage, s[2].Stage, s[3].Stage, s[4].Stage})
	var b bytes.Buffer
	require.NoError(t, WriteTimings(&b, s))
	require.Regexp(t, `(?m)^canonicalize +family +[0-9.]+ ms +2 +2 +2 +-4 \(neg -4\)$`, b.String())
	require.Regexp(t, `(?m)^dce +bucket +[0-9.]+ ms +2 +0 +0 +-$`, b.String())
	require.Regexp(t, `(?m)^total +[0-9.]+ ms$`, b.String())
}

// Every limit from none to all gives a module that verifies, and one more rewrite
// than the limit before.
func TestRewriteLimitCountsDown(t *testing.T) {
	for limit := range 5 {
		mgr := NewManager(Config{Pipeline: pipelineOf(t, "canonicalize,cse,dce,outline-segments"), RewriteLimit: &limit, Honest: true})
		require.NoError(t, mgr.Run(t.Context(), "", parse(t, sample)))
		done := 0
		for _, s := range mgr.Stats()[:3] {
			done += s.Rewrites
		}
		require.Equal(t, min(limit, 3), done)
		require.Equal(t, 1, mgr.Stats()[3].Rewrites, "what lowering needs has no limit")
	}
}

func TestPrintAfter(t *testing.T) {
	run := func(list ...string) string {
		var b bytes.Buffer
		cfg := Config{Pipeline: pipelineOf(t, "fold,canonicalize,cse"), PrintAfter: list, Out: &b}
		require.NoError(t, cfg.Check())
		require.NoError(t, NewManager(cfg).Run(t.Context(), "bf16/decode", parse(t, sample)))
		return b.String()
	}
	titles := regexp.MustCompile(`(?m)^; after .*$`)
	require.Equal(t, []string{"; after canonicalize, @m of bf16/decode", "; after cse, @m of bf16/decode"}, titles.FindAllString(run("all"), -1))
	require.Empty(t, run("fold"), "it changed nothing")
	text := run("cse", "fold")
	require.Len(t, titles.FindAllString(text, -1), 1)
	require.Contains(t, text, "module @m {level = model, tp = 1}")
	_, module, _ := strings.Cut(text, "\n")
	parse(t, module)
	// What is left keeps its number, so that only what changed shows.
	require.Contains(t, run("diff"), `
   %0 = exp %x : f32[4]
   %1 = exp %x : f32[4]
-  %2 = neg %0 : f32[4]
-  %3 = neg %2 : f32[4]
-  %4 = add %1, %3 : f32[4]
+  %4 = add %1, %0 : f32[4]
   %5 = silu %x : f32[4]
   return %4
`)
	require.Len(t, titles.FindAllString(run("diff"), -1), 2)
	require.Len(t, titles.FindAllString(run("diff", "cse"), -1), 1)
	require.ErrorContains(t, (&Config{PrintAfter: []string{"cze"}}).Check(), "or the words all and diff")
	require.EqualError(t, (&Config{Pipeline: pipelineOf(t, "dce"), PrintAfter: []string{"diff", "cse"}}).Check(), "cse is not among the passes to run")
}

func TestDumps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dumps")
	mgr := NewManager(Config{Pipeline: pipelineOf(t, "fold,canonicalize,cse,outline-segments,dce"), DumpDir: dir})
	m := parse(t, sample)
	require.NoError(t, mgr.RunStage(t.Context(), Family, "bf16/few", m))
	require.NoError(t, mgr.RunStage(t.Context(), Bucket, "bf16/few/n=3", m))
	var names []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, filepath.ToSlash(name))
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			parse(t, string(text))
		}
		return err
	}))
	require.Equal(t, []string{
		"bf16/few/00-input.qir", "bf16/few/02-canonicalize.qir", "bf16/few/03-cse.qir", "bf16/few/04-outline-segments.qir",
		"bf16/few/n=3/04-input.qir", "bf16/few/n=3/05-dce.qir",
	}, names)
}

// A pass that fails, panics or breaks the module leaves a file that holds the
// module as it was and the line to run.
func TestReproducers(t *testing.T) {
	dir := t.TempDir()
	limit := 5
	for name, c := range map[string]struct {
		run  func(*Context, *ir.Module) (bool, error)
		want string
	}{
		"fails":   {func(*Context, *ir.Module) (bool, error) { return false, errors.New("no such thing") }, "pass fails on bf16: no such thing"},
		"panics":  {func(_ *Context, m *ir.Module) (bool, error) { m.Funcs[1].Ops = nil; return true, nil }, "pass panics on bf16: panicked: runtime error: index out of range"},
		"breaks":  {func(_ *Context, m *ir.Module) (bool, error) { m.Funcs[0].Ops = nil; return true, nil }, "pass breaks on bf16: made an invalid module: module @m func @f: error[V02]"},
		"lies":    {func(_ *Context, m *ir.Module) (bool, error) { return true, nil }, "pass lies on bf16: says changed = true and that is not true"},
		"hides":   {func(_ *Context, m *ir.Module) (bool, error) { m.Name = "n"; return false, nil }, "pass hides on bf16: says changed = false and that is not true"},
		"alters":  {func(_ *Context, m *ir.Module) (bool, error) { m.Name = "n"; return true, nil }, "pass alters on bf16: changed what the module computes: it is another"},
		"unknown": {func(c *Context, _ *ir.Module) (bool, error) { return c.Bool("x"), nil }, "pass unknown on bf16: panicked: pass unknown asks for an option x"},
	} {
		cfg := Config{Pipeline: only(name, c.run), Honest: true, DumpDir: dir, RewriteLimit: &limit, Params: Params{BlockSize: 16}}
		cfg.Validate = func(_ context.Context, c Change) error {
			require.Equal(t, []string{name, "bf16", "m", "n"}, []string{c.Pass.Name, c.Label, c.Before.Name, c.After.Name})
			return errors.New("it is another")
		}
		err := NewManager(cfg).Run(t.Context(), "bf16", parse(t, sample))
		require.ErrorContains(t, err, c.want)
		help := regexp.MustCompile(`help: (quill opt --passes='` + name + `' --param block_size=16 --rewrite-limit=5 (\S+))`).FindStringSubmatch(err.Error())
		require.NotNil(t, help, err)
		require.NotContains(t, err.Error(), "goroutine")
		text, err := os.ReadFile(help[2])
		require.NoError(t, err)
		require.Equal(t, parse(t, sample).String(), parse(t, string(text)).String())
		lines := strings.Split(string(text), "\n")
		require.Contains(t, lines[0], "; pass "+name+" on bf16: ")
		require.Equal(t, "; "+help[1], lines[1])
		require.Equal(t, strings.Contains(c.want, "panicked"), strings.Contains(string(text), "; goroutine "))
	}
}

// The line for a pass of the bucket stage opens that stage.
func TestReproducersOfTheBucketStage(t *testing.T) {
	p := only("late", func(*Context, *ir.Module) (bool, error) { return false, errors.New("no") })
	p[0].Pass.Stages = Bucket
	err := NewManager(Config{Pipeline: p, DumpDir: t.TempDir()}).Run(t.Context(), "", parse(t, sample))
	require.ErrorContains(t, err, "quill opt --passes='outline-segments,late' ")
}

// A module that is too large for validation is not the pass's fault.
func TestTooLargeToBeValidated(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Pipeline: pipelineOf(t, "canonicalize"), DumpDir: dir}
	cfg.Validate = func(context.Context, Change) error { return fmt.Errorf("%w: 7 elements", ErrTooLarge) }
	err := NewManager(cfg).Run(t.Context(), "", parse(t, sample))
	require.EqualError(t, err, "pass canonicalize on @m: too large to be validated: 7 elements")
	left, err := filepath.Glob(filepath.Join(dir, "quill-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestInterruptedRunsLeaveNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	stop := only("stop", func(*Context, *ir.Module) (bool, error) { cancel(); return false, errors.New("in the middle") })
	require.ErrorIs(t, NewManager(Config{Pipeline: stop}).Run(ctx, "", parse(t, sample)), context.Canceled)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestRemarks(t *testing.T) {
	var got []string
	say := only("say", func(c *Context, m *ir.Module) (bool, error) {
		c.Remark(ir.Loc{Layer: 3, Op: "attn.bias"}, "not fused: %d rows", 7)
		c.Remark(ir.NoLoc, "all the same")
		return false, nil
	})
	cfg := Config{Pipeline: say, Remark: func(r Remark) { got = append(got, r.String()) }}
	require.NoError(t, NewManager(cfg).Run(t.Context(), "f32/decode", parse(t, sample)))
	require.NoError(t, NewManager(cfg).Run(t.Context(), "", parse(t, sample)))
	require.Equal(t, []string{
		"say: not fused: 7 rows (f32/decode, layer 3 attn.bias)", "say: all the same (f32/decode)",
		"say: not fused: 7 rows (layer 3 attn.bias)", "say: all the same",
	}, got)
}

// A watcher sees each step, with the module before and after, be it changed or not.
func TestWatch(t *testing.T) {
	var got []string
	cfg := Config{Pipeline: pipelineOf(t, "canonicalize,fold,cse,outline-segments,dce"), Watch: func(w Watched) error {
		got = append(got, fmt.Sprintf("%d %s of %s in %s: %v, %d rewrites, %d to %d ops", w.Index, w.Step, w.Label, w.Stage, w.Changed, w.Rewrites,
			len(w.Before.Funcs[0].Ops), len(w.After.Funcs[0].Ops)))
		return nil
	}}
	require.NoError(t, NewManager(cfg).Run(t.Context(), "label", parse(t, sample)))
	require.Equal(t, []string{
		"0 canonicalize of label in family: true, 1 rewrites, 6 to 4 ops", "1 fold of label in family: false, 0 rewrites, 4 to 4 ops",
		"2 cse of label in family: true, 1 rewrites, 4 to 3 ops", "3 outline-segments of label in family: true, 1 rewrites, 3 to 3 ops",
		"4 dce of label in bucket: true, 1 rewrites, 3 to 2 ops",
	}, got)

	cfg.Watch = func(Watched) error { return errors.New("seen enough") }
	require.EqualError(t, NewManager(cfg).Run(t.Context(), "label", parse(t, sample)), "pass canonicalize on label: seen enough")
}
