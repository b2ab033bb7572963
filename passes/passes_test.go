package passes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/filetest"
)

func fileErrors(err error) []filetest.Error {
	ds, ok := errors.AsType[ir.Diags](err)
	if !ok {
		return []filetest.Error{{Msg: err.Error()}}
	}
	var out []filetest.Error
	for _, d := range ds {
		out = append(out, filetest.Error{Line: d.Pos.Line, Col: d.Pos.Col, Msg: fmt.Sprintf("error[%s]: %s", d.Code, d.Msg)})
	}
	return out
}

// opt runs -passes=PIPELINE on a case, with -param=KEY=VALUE and
// -rewrite-limit=N if they are given. What fires are rewrites; a pass that runs
// twice fires the sum.
func opt(ctx context.Context, args []string, c filetest.Case) filetest.Result {
	fail := func(err error) filetest.Result { return filetest.Result{Errors: fileErrors(err)} }
	m, err := ir.VerifyText(c.File, []byte(c.Src))
	if err != nil {
		return fail(err)
	}
	res := filetest.Result{Fired: map[string]int{}}
	cfg := Config{Honest: true, Remark: func(r Remark) { res.Remarks = append(res.Remarks, r.String()) }}
	fs := flag.NewFlagSet("opt", flag.ContinueOnError)
	pipeline := fs.String("passes", "", "")
	limit := fs.Int("rewrite-limit", -1, "")
	fs.Func("param", "", cfg.Params.Set)
	if err := fs.Parse(args); err != nil {
		return fail(err)
	}
	if *limit >= 0 {
		cfg.RewriteLimit = limit
	}
	if cfg.Pipeline, err = Parse(*pipeline); err != nil {
		return fail(err)
	}
	mgr := NewManager(cfg)
	if err := mgr.Run(ctx, "", m); err != nil {
		return fail(err)
	}
	for _, s := range mgr.Stats() {
		res.Fired[s.Step.Pass.Name] += s.Rewrites
	}
	res.Output = m.String()
	return res
}

func roundTrip(src string) (string, []filetest.Error) {
	m, err := ir.Parse("case", []byte(src))
	if err != nil {
		return "", fileErrors(err)
	}
	return m.String(), nil
}

func TestFiles(t *testing.T) {
	r := filetest.Runner{Commands: map[string]filetest.Command{"opt": opt, "same": same}, RoundTrip: roundTrip}
	for _, p := range Passes() {
		r.RunDir(t, filepath.Join("testdata", p.Name))
	}
}

// The before and after of each pass's comment is what the pass does.
func TestDocumentedExamples(t *testing.T) {
	for _, p := range Passes() {
		file := strings.ReplaceAll(p.Name, "-", "_") + ".go"
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		before, after := example(f)
		require.NotEmpty(t, before, "%s has no Before/After", file)
		header := exampleHeaders[p.Name]
		m, err := ir.VerifyText(file, []byte(header[0]+before+header[1]))
		require.NoError(t, err)
		require.NoError(t, NewManager(Config{Pipeline: Pipeline{{Pass: &p}}, Params: exampleParams[p.Name]}).Run(t.Context(), "", m))
		require.Equal(t, lines(after), lines(opsOf(m.Entry(), m)))
	}
}

// exampleParams are what a deployment must say for an example.
var exampleParams = map[string]Params{
	"split-experts": {ExpertsPerNode: 2},
	"expand-moe":    {MoE: GatheredExperts},
}

// exampleHeaders complete the examples to modules.
var exampleHeaders = map[string][2]string{
	"outline-segments": {`module @example {level = model, tp = 2}
func @f(
  weight %x: f32[4, 16]@shard(1, 2) = "x",
  weight %w: f32[8, 16]@shard(1, 2) = "w"
) -> (output y: f32[4, 8]) {
`, `  return %2
}`},
	"join-experts": {`module @example {level = model, tp = 1}
func @f(
  input %x: f32[3, 8], input %z: f32[3, 5], weight %bias: f32[4] = "bias", weight %w13: f32[4, 2, 6, 8] = "w13", weight %w2: f32[4, 8, 6] = "w2",
  weight %s13: f32[1, 2, 6, 8] = "s13", weight %s2: f32[1, 8, 6] = "s2"
) -> (output y: f32[3, 8]) {
`, `  return %26
}`},
	"split-experts": {`module @example {level = model, tp = 1}
func @f(
  input %x: f32[3, 8], input %e: i32[3, 2], input %w: f32[3, 2], weight %w13: f32[3, 2, 6, 8] = "w13", weight %w2: f32[3, 8, 6] = "w2"
) -> () {
`, `  return
}`},
	"expand-moe": {`module @example {level = fused, tp = 1}
func @f(
  input %x: f32[1, 8], input %e: i32[1, 2], input %w: f32[1, 2], weight %w13: f32[6, 2, 4, 8] = "w13", weight %w2: f32[6, 8, 4] = "w2"
) -> () {
`, `  return
}`},
	"fuse-qkvr": {`module @example {level = model, tp = 2}
func @f(
  input %x: bf16[4, 8], weight %q: bf16[8, 8]@shard(0, 2) = "q", weight %k: bf16[6, 8]@shard(0, 2) = "k", weight %v: bf16[6, 8]@shard(0, 2) = "v"
) -> () {
`, `  return
}`},
	"hoist-conv-history": {`module @example {level = model, tp = 1}
func @f(
  input %x: bf16[1, 8], input %from: i32[1], input %to: i32[1], weight %w: f32[4, 8] = "w", weight %u: f32[4, 8] = "u",
  state %s: bf16[9, 3, 8], state %t: bf16[9, 3, 8]
) -> (state s: bf16[9, 3, 8], state t: bf16[9, 3, 8], output y: bf16[1, 1, 8]) {
`, `  return %5, %13, %11
}`},
	"fold-weights": {`module @example {level = model, tp = 1}
func @f(input %x: f32[2, 8], weight %w: f32[4, 8] = "w") -> (output y: f32[2, 8]) {
`, `  return %4
}`},
	"fuse-elementwise": {`module @example {level = model, tp = 1}
func @f(input %x: f32[4, 8], input %y: f32[4, 8], input %z: f32[4, 6], input %i: i32[4, 2]) -> (output a: f32[4, 8], output b: f32[4, 2]) {
`, `  return %2, %5
}`},
	"hoist-step-invariant": {`module @example {level = model, tp = 2}
func @f(
  input %positions: i32[4],
  weight %x: f32[4, 16]@shard(1, 2) = "x",
  weight %w: f32[8, 16]@shard(1, 2) = "w"
) -> (output y: f32[4, 8]) {
`, `  return %6
}`},
	"fuse-rel-bias": {`module @example {level = model, tp = 1}
func @f(
  input %q: f32[1, 2, 4, 8], input %k: f32[1, 1, 6, 8], input %v: f32[1, 1, 6, 8], input %bias: f32[1, 2, 4, 6],
  input %past: i8[1, 1, 4, 6], input %token: i8[1, 1, 1, 6]
) -> (output y: f32[1, 2, 4, 8]) {
`, `  return %7
}`},
	"band-split": {`module @example {level = fused, tp = 1}
func @f(
  input %q: f32[1, 2, 3, 8], input %k: f32[1, 1, 9, 8], input %v: f32[1, 1, 9, 8], input %mask: f32[1, 2, 3, 9], input %token: i8[1, 1, 9, 1]
) -> (output y: f32[1, 2, 3, 8]) {
`, `  return %3
}`},
	"sub-block": {`module @example {level = plan, tp = 1}
func @seg0(temp %q: f32[1, 2, 2048, 8], temp %k: f32[1, 1, 2048, 8], temp %v: f32[1, 1, 2048, 8], temp %mask: f32[1, 2, 2048, 2048]) -> (temp r0: f32[1, 2, 2048, 8]) {
  %0 = sdpa %q, %k, %v, %mask {last = 0, scale = 1}
  return %0
}
func @f(
  input %q: f32[1, 2, 2048, 8], input %k: f32[1, 1, 2048, 8], input %v: f32[1, 1, 2048, 8], input %mask: f32[1, 2, 2048, 2048]
) -> (output y: f32[1, 2, 2048, 8]) {
`, `  return %0
}`},
	"canonicalize": exampleOf("f32[8]", "f32[4, 2]", "%5"),
	"fold":         exampleOf("f32[4]", "f32[4]", "%3"),
	"cse":          exampleOf("f32[4]", "f32[4]", "%2"),
	"dce":          exampleOf("f32[4]", "f32[4]", "%2"),
	"collapse-reduces": {`module @example {level = model, tp = 2}
func @f(
  weight %x: f32[4, 3]@shard(1, 2) = "x",
  weight %u: f32[8, 3]@shard(1, 2) = "u",
  weight %v: f32[8, 3]@shard(1, 2) = "v"
) -> (output y: f32[4, 8]) {
`, `  return %4
}`},
	"local-window": {`module @example {level = model, tp = 1}
sym c: 1..64
func @f(
  input %positions: i32[1],
  input %ctx_blocks: i32[c],
  input %ctx_start: i32[1],
  input %q: f32[1, 2],
  state %cache: f32[400, 1, 2]
) -> (output y: f32[1, 2], state cache: f32[400, 1, 2]) {
`, `  return %13, %cache
}`},
}

// exampleOf completes an example that computes a value of %x.
func exampleOf(x, y, value string) [2]string {
	return [2]string{
		"module @example {level = model, tp = 1}\nfunc @f(input %x: " + x + ") -> (output y: " + y + ") {\n",
		"  return " + value + "\n}",
	}
}

// example is the indented text after Before: and After: in the comments.
func example(f *ast.File) (before, after string) {
	for _, g := range f.Comments {
		_, rest, ok := strings.Cut(g.Text(), "Before:\n")
		if !ok {
			continue
		}
		before, after, _ = strings.Cut(rest, "After:\n")
		return code(before), code(after)
	}
	return "", ""
}

// code keeps the indented lines of a comment up to the next prose.
func code(s string) string {
	var b strings.Builder
	for _, l := range strings.Split(s, "\n") {
		if strings.HasPrefix(l, "\t") {
			b.WriteString("  " + strings.TrimSpace(l) + "\n")
		} else if strings.TrimSpace(l) != "" {
			break
		}
	}
	return b.String()
}

func opsOf(f *ir.Func, m *ir.Module) string {
	text := m.String()
	text = text[strings.Index(text, "func @"+f.Name+"("):]
	_, body, _ := strings.Cut(text, ") {\n")
	body, _, _ = strings.Cut(body, "  return")
	return body
}

func lines(s string) []string {
	var out []string
	for _, l := range strings.Split(strings.TrimSpace(s), "\n") {
		out = append(out, strings.TrimSpace(l))
	}
	return out
}

// Every pass has tests, and no folder is left of one that is gone.
func TestFolders(t *testing.T) {
	dirs, err := os.ReadDir("testdata")
	require.NoError(t, err)
	var names []string
	for _, d := range dirs {
		if d.Name() != "rapid" {
			names = append(names, d.Name())
		}
	}
	var want []string
	for _, p := range Passes() {
		want = append(want, p.Name)
		require.NotEmpty(t, p.Summary)
	}
	require.ElementsMatch(t, want, names)
}
