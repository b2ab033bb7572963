package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"quill/ir/interp"
	"quill/lower"
	"quill/lower/synapse"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
	"quill/runtime"
)

type divergeOptions struct {
	modelFlags
	bundle     string
	reference  string
	tokens     string
	from       string
	pipeline   string
	feed       runtime.ScoreOptions
	atol, rtol *float64
	json       bool
}

func newDiverge() *cobra.Command {
	var o divergeOptions
	var atol, rtol float64
	cmd := &cobra.Command{
		Use:   "diverge BUNDLE.quill --model DIR (--tokens IDS | --tokens-from FILE.safetensors:TENSOR)",
		Short: "Find the first node where a bundle and the reference interpreter differ",
		Long: `Feed a known sequence through the serving path on the CPU device and compute every
op of every launch in the reference interpreter too, on what the device has for its
operands, so that errors do not add up. The first result that differs is shown: the
layer, the source op, the checkpoint tensor, the launch and its segment, the node,
the largest error, its element and both values. The exit code is 1 then, 0 if
nothing differs.

What a bundle should compute is found by compiling it again: its buckets, for the
config.json of --model, with the passes that it says it was compiled with or those
of --passes. Recipes that are not what is recomputed are listed, and what is
recomputed holds. So faults of recipes, weights, kernels, fusing and collectives are
found; those of passes are found by quill compile --validate and quill bisect.

Weights must have the bits that the checkpoint of --reference gives. Ops that only
move, compare or compute each element by itself must have the same bits; others may
differ by --atol and --rtol times the largest magnitude of the row, or of what was
summed, which is more where it cancels out. Each launch is
then executed as it serves, which must give the bits of its nodes one by one. Rows of
routers that choose by less than rounding are counted as near ties: with other sums
such a token may have another expert, which is no fault.

The first tokens are prefilled in chunks, those from --decode-from on are decoded
one at a time. Interpreting takes seconds for small models, such as those under
testdata, and far longer for large ones.`,
		Example: examples(
			"quill diverge chat.quill --model models/chat --tokens 34,105,288",
			"quill diverge both.quill --model models/chat --precision f32 --tokens-from ref.safetensors:tokens --chunk 16 --decode-from 32 --json",
			"quill diverge chat.quill --model models/copy --reference models/chat --tokens 34,105,288",
		),
		Args: oneArg("BUNDLE.quill"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.bundle = args[0]
			if cmd.Flags().Changed("atol") {
				o.atol = &atol
			}
			if cmd.Flags().Changed("rtol") {
				o.rtol = &rtol
			}
			if err := o.check(cmd); err != nil {
				return err
			}
			r, err := o.run(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.json {
				err = writeJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.print(cmd.OutOrStdout())
			}
			if err == nil && r.Diverges {
				return errDiverged
			}
			return err
		},
	}
	f := cmd.Flags()
	o.modelFlags.add(cmd)
	f.StringVar(&o.reference, "reference", "", "directory of the checkpoint whose weights are right (default: --model)")
	f.StringVar(&o.tokens, "tokens", "", "the sequence as token ids: 1,2,3")
	f.StringVar(&o.from, "tokens-from", "", "the sequence: a tensor of ids (I32 or I64, one dimension) in a file")
	f.IntVar(&o.feed.Chunk, "chunk", 0, "most tokens of a prefill step (default: what the deployment allows)")
	f.IntVar(&o.feed.DecodeFrom, "decode-from", 0, "first position that is decoded instead of prefilled (default: the last)")
	f.StringVar(&o.pipeline, "passes", "", "passes to compile again with (default: those that the bundle says)")
	f.Float64Var(&atol, "atol", 0, fmt.Sprintf("difference that an element may have (default: %s)", defaultsText(func(t tolerance) float64 { return t.atol })))
	f.Float64Var(&rtol, "rtol", 0, fmt.Sprintf("the same, as a share of the largest magnitude of its row (default: %s)", defaultsText(func(t tolerance) float64 { return t.rtol })))
	f.BoolVar(&o.json, "json", false, "print as JSON")
	return cmd
}

func defaultsText(of func(tolerance) float64) string {
	return fmt.Sprintf("%.2g of F32, %.2g of BF16", of(defaultTolerance[dtype.F32]), of(defaultTolerance[dtype.BF16]))
}

func (o *divergeOptions) check(cmd *cobra.Command) error {
	if err := o.modelFlags.check(cmd); err != nil {
		return err
	}
	isTokens, isFrom := cmd.Flags().Changed("tokens"), cmd.Flags().Changed("tokens-from")
	switch {
	case isTokens && isFrom:
		return usagef("--tokens and --tokens-from are both given: choose one")
	case !isTokens && !isFrom:
		return usagef("the sequence is missing: give --tokens or --tokens-from")
	case o.feed.Chunk < 0 || o.feed.Chunk == 0 && cmd.Flags().Changed("chunk"):
		return usagef("--chunk %d: want at least 1 token", o.feed.Chunk)
	case o.feed.DecodeFrom < 0:
		return usagef("--decode-from %d is negative", o.feed.DecodeFrom)
	}
	if !cmd.Flags().Changed("decode-from") {
		o.feed.DecodeFrom = -1
	}
	for _, t := range []struct {
		name string
		v    *float64
	}{{"atol", o.atol}, {"rtol", o.rtol}} {
		if t.v != nil && !(*t.v >= 0 && *t.v <= math.MaxFloat64) {
			return usagef("--%s %v is no distance", t.name, *t.v)
		}
	}
	if o.pipeline != "" {
		p, err := passes.Parse(o.pipeline)
		if err == nil {
			err = p.CheckComplete(passes.Passes())
		}
		if err != nil {
			return usagef("--passes: %v", err)
		}
	}
	if o.reference == "" {
		o.reference = o.model
	}
	return nil
}

// sequence is what is fed.
func (o *divergeOptions) sequence() (tokens []int32, err error) {
	if o.from != "" {
		tokens, err = readTokens(o.from)
	} else {
		tokens, err = parseTokens(o.tokens)
	}
	if err != nil {
		return nil, err
	}
	if o.feed.DecodeFrom > len(tokens) {
		return nil, usagef("--decode-from %d is beyond the sequence, which has %d tokens", o.feed.DecodeFrom, len(tokens))
	}
	if o.feed.DecodeFrom < 0 {
		o.feed.DecodeFrom = max(1, len(tokens)-1)
	}
	return tokens, nil
}

// divergeReport is what diverge found.
type divergeReport struct {
	Diverges  bool   `json:"diverges"`
	Precision string `json:"precision"`
	Ranks     int    `json:"ranks"`
	Passes    string `json:"passes"`
	// Differing are the recipes that are not what is recomputed, of Recipes.
	Differing  []recipeDifference `json:"differing_recipes"`
	Recipes    int                `json:"recipes"`
	Tokens     int                `json:"tokens"`
	Steps      int                `json:"steps"` // executed plans
	Launches   int                `json:"launches"`
	Nodes      int                `json:"nodes"` // that were compared
	Divergence *divergence        `json:"divergence,omitempty"`
	// Largest is the largest error that was no fault, as a share of what it might
	// have been, by op and type.
	Largest  map[string]float64 `json:"largest_errors"`
	NearTies []tie              `json:"near_ties"`
}

func (o *divergeOptions) run(ctx context.Context, stderr io.Writer) (r *divergeReport, err error) {
	tokens, err := o.sequence()
	if err != nil {
		return nil, err
	}
	b, err := recipes.ReadBundle(o.bundle)
	if err != nil {
		return nil, err
	}
	if err := checkTokens(tokens, b.Manifest.Model.ValidVocab); err != nil {
		return nil, err
	}
	if longest := b.Manifest.Deployment.MaxModelLen; len(tokens) > longest {
		return nil, fmt.Errorf("the sequence has %d tokens, max_model_len is %d", len(tokens), longest)
	}
	if err := b.CheckModel(o.model); err != nil {
		return nil, err
	}
	l, r, err := o.lockstep(ctx, b, stderr)
	if err != nil {
		return nil, err
	}
	if l.ref, err = safetensors.OpenDir(o.reference); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.ref.Close()) }()
	if _, err := recipes.CheckCheckpoint(l.bundle.Checkpoint, l.ref); err != nil {
		return nil, err
	}
	opt := o.options()
	opt.Watch = l.watch
	s, err := openSession(ctx, o.bundle, opt, stderr)
	if err != nil {
		if r.Divergence = refused(r.Differing, err); r.Divergence == nil || ctx.Err() != nil {
			return nil, err
		}
		r.Diverges = true
		return r, nil
	}
	defer s.Close() // everything was read from it
	m := newMeter(stderr, "comparing positions", func(n int64) string { return fmt.Sprint(n) })
	err = s.Score(ctx, tokens, o.feed, func(pos int, _ []float32) error {
		m.update(int64(pos+1), int64(len(tokens)), "")
		return nil
	})
	m.close()
	if err != nil && l.found == nil {
		return nil, err
	}
	r.Diverges, r.Divergence = l.found != nil, l.found
	r.Tokens, r.Steps, r.Launches, r.Nodes, r.Largest, r.NearTies = len(tokens), l.steps, l.launches, l.nodes, l.largest, l.ties
	return r, nil
}

// precisions are those of a bundle's sets.
func precisions(b *recipes.Bundle) []string {
	list := make([]string, len(b.Sets))
	for i := range b.Sets {
		list[i] = b.Sets[i].Info.Precision
	}
	return list
}

// lockstep compiles the bundle again.
func (o *divergeOptions) lockstep(ctx context.Context, b *recipes.Bundle, stderr io.Writer) (*lockstep, *divergeReport, error) {
	set, err := setOf(b, o.bundle, o.precision)
	if err != nil {
		return nil, nil, err
	}
	l := &lockstep{
		bundle: b, planned: map[recipes.Bucket]*lower.Planned{}, atol: o.atol, rtol: o.rtol,
		weights: map[string][]*interp.Tensor{}, compared: map[string]bool{}, traced: map[*synapse.Segment]*synapse.Traced{}, forms: map[[2]*recipes.Recipe]bool{},
		largest: map[string]float64{},
	}
	l.main, _ = dtype.Parse(set.Info.Precision)
	m := newMeter(stderr, "compiling", func(n int64) string { return fmt.Sprint(n) })
	defer m.close()
	opt := lower.Options{
		Progress: func(s lower.Step) { m.update(int64(s.Done), int64(s.Total), s.What) },
		Planned:  func(_ string, p *lower.Planned) { l.planned[p.Plan.Bucket] = p },
	}
	l.ties = []tie{}
	r := &divergeReport{Precision: set.Info.Precision, Ranks: b.Manifest.Deployment.TensorParallel, Passes: b.Manifest.Compiled.Passes}
	if o.pipeline != "" {
		p, _ := passes.Parse(o.pipeline) // was checked
		r.Passes = p.String()
		opt.Passes = func(params passes.Params) *passes.Manager {
			return passes.NewManager(passes.Config{Pipeline: p, Params: params})
		}
	}
	law, err := lower.Recompile(ctx, b, set, opt)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.bundle, err)
	}
	if err := samePlans(set, &law.Sets[0]); err != nil {
		return nil, nil, fmt.Errorf("%s: the plans of the bundle are not those that this compiler makes with the passes %s, so they cannot be executed side by side: %w; name the passes that it was compiled with, or compile it again",
			o.bundle, r.Passes, err)
	}
	if r.Differing, err = l.differences(law, set); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.bundle, err)
	}
	r.Recipes = len(law.Recipes)
	return l, r, nil
}

// maxShown is how many near ties are shown to people, and differing recipes.
const maxShown = 5

func (r *divergeReport) print(w io.Writer) error {
	var b bytes.Buffer
	if n := len(r.Differing); n > 0 {
		fmt.Fprintf(&b, "%s or bindings are not what this compiler makes of the model with the same passes; what it makes is the law\n", count(n, "recipe"))
		for i, d := range r.Differing {
			if i == maxShown {
				fmt.Fprintf(&b, "  %d more\n", n-maxShown)
				break
			}
			fmt.Fprintf(&b, "  %s\n", &d)
		}
	}
	if d := r.Divergence; d != nil {
		d.print(&b)
	} else {
		fmt.Fprintf(&b, "no divergence: %s, %s on %s, %s, %s, %s compared\n", r.Precision, count(r.Tokens, "token"), count(r.Ranks, "rank"),
			count(r.Steps, "step"), plural(r.Launches, "launch", "launches"), count(r.Nodes, "node"))
	}
	if len(r.Largest) > 0 {
		var parts []string
		for _, op := range slices.SortedFunc(maps.Keys(r.Largest), func(a, b string) int {
			return cmp.Or(cmp.Compare(r.Largest[b], r.Largest[a]), strings.Compare(a, b))
		}) {
			parts = append(parts, fmt.Sprintf("%s %.2f", op, r.Largest[op]))
		}
		fmt.Fprintf(&b, "largest errors, as a share of what they may be: %s\n", strings.Join(parts, ", "))
	}
	if n := len(r.NearTies); n > 0 {
		fmt.Fprintf(&b, "near ties of routers, which are no fault: %d rows choose an expert by less than rounding\n", n)
		for i, t := range r.NearTies {
			if i == maxShown {
				fmt.Fprintf(&b, "  %d more\n", n-maxShown)
				break
			}
			fmt.Fprintf(&b, "  step %d, layer %d %s, row %d: expert %d before %d by %.3g, rounding is %.3g\n", t.Step, t.Layer, t.Op, t.Row, t.Chosen, t.Other, float64(t.Margin), float64(t.Bound))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// divergenceKinds says in words what a divergence of each kind is.
var divergenceKinds = map[string]string{
	"weight":     "a weight on the device is not what the checkpoint gives",
	"node":       "a node computes something else than its op",
	"segment":    "a segment computes something else, and its recipe has another form than the recomputed one",
	"fusion":     "nodes give other bits when they are fused",
	"collective": "ranks exchange something else",
	"refused":    "the device refuses a recipe that is not the recomputed one",
	"failed":     "a launch fails whose recipe is not the recomputed one",
}

func (d *divergence) print(w io.Writer) {
	at := fmt.Sprintf("in step %d, %s (bucket %s)", d.Step, d.Feeds, d.Bucket)
	if d.Kind == "refused" {
		at = "when it is loaded, bucket " + d.Bucket
	}
	fmt.Fprintf(w, "diverges %s: %s\n", at, divergenceKinds[d.Kind])
	t := table(w)
	row := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(t, "  %s\t%s\n", name, text)
		}
	}
	if d.Layer >= 0 {
		row("layer", "%d", d.Layer)
	}
	if d.Op != "" {
		row("source op", "%s (%s)", d.Source, d.Op)
	}
	row("checkpoint tensor", "%s", d.Tensor)
	row("launch", "%q, step %d of the plan", d.Launch, d.PlanStep)
	row("segment", "%s", d.Segment)
	if d.Name != "" {
		of := ""
		if d.Nodes != "" {
			of = fmt.Sprintf(", of nodes %s", d.Nodes)
		}
		row("node", "%s %s%s", d.Name, d.GUID, of)
	}
	row("recipe", "%s", d.Recipe)
	row("failure", "%s", d.Failure)
	if d.difference == nil {
		_ = t.Flush() // a Buffer takes everything
		return
	}
	row("largest error", "%.4g, tolerance %.4g; %d of %d elements are beyond it", float64(d.Error), float64(d.Tolerance), d.Differ, d.Of)
	row("element", "%v of rank %d: device %v, interpreter %v", d.Element, d.Rank, float64(d.Got), float64(d.Want))
	_ = t.Flush() // a Buffer takes everything
}
