package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"quill/lower"
	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/runtime"
)

// The sequence of these tests, in three chunks and three decode steps.
const divergeTokens = "3,1,4,1,5,9,2,6,5,3,5,8,9"

var divergeFeed = runtime.ScoreOptions{Chunk: 4, DecodeFrom: 10}

func divergeArgs(bundle, model, precision string, more ...string) []string {
	return append([]string{
		"diverge", bundle, "--model", model, "--precision", precision, "--tokens", divergeTokens,
		"--chunk", strconv.Itoa(divergeFeed.Chunk), "--decode-from", strconv.Itoa(divergeFeed.DecodeFrom), "--json",
	}, more...)
}

// diverge runs the command and reads its report.
func diverge(t *testing.T, want int, args []string) *divergeReport {
	t.Helper()
	var r struct {
		divergeReport
		Divergence *struct {
			divergence
			difference
		} `json:"divergence"`
	}
	out := run(t, want, t.Context(), args...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.Diverges != (want == exitError) || r.Diverges != (r.Divergence != nil) {
		t.Fatalf("exit code %d, report %s", want, out)
	}
	if r.Divergence != nil {
		r.divergeReport.Divergence = &r.Divergence.divergence
		if r.Divergence.Of > 0 {
			r.Divergence.divergence.difference = &r.Divergence.difference
		}
	}
	return &r.divergeReport
}

func divergeModel(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../../testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// divergeBundle compiles a small model for buckets of all families.
func divergeBundle(t *testing.T, model string, tp int, more string) *recipes.Bundle {
	t.Helper()
	list := filepath.Join(t.TempDir(), "buckets")
	if err := os.WriteFile(list, []byte("prefill q=4 c=0,2,8\ndecode b=1 n=2,8\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("model: MODEL\ntensor_parallel: %d\nmax_model_len: 32\nmax_num_seqs: 1\nblock_size: 4\nmax_batched_tokens: 4\nbuckets: {strategy: file, path: %s}\n%s", tp, list, more)
	d, err := lower.ReadDeployment(writeDeployment(t, model, text))
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := lower.Compile(t.Context(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeTestBundle(t *testing.T, b *recipes.Bundle) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.quill")
	if err := recipes.WriteBundle(t.Context(), path, b); err != nil {
		t.Fatal(err)
	}
	return path
}

// Bundles as they were compiled do not diverge.
func TestDivergeNothing(t *testing.T) {
	for _, model := range []string{"nano-small", "nano-big", "nano-dense", "nano-chat"} {
		for _, tp := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/tp%d", model, tp), func(t *testing.T) {
				t.Parallel()
				bundle := writeTestBundle(t, divergeBundle(t, model, tp, "precision: both\n"))
				for _, precision := range []string{"f32", "bf16"} {
					r := diverge(t, exitOK, divergeArgs(bundle, divergeModel(t, model), precision))
					if len(r.Differing) > 0 || r.Launches == 0 || r.Nodes < 1000 || r.Ranks != tp || r.Precision != precision || len(r.Largest) == 0 {
						t.Errorf("%+v", r)
					}
				}
			})
		}
	}
}

// The other forms of attention are compared as well.
func TestDivergeNothingInOtherForms(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"attention: plain\n", "attention: masked\n", "far: tiled\nsub_block_rows: 3\n", "embedding: sharded\n"} {
		bundle := writeTestBundle(t, divergeBundle(t, "nano-small", 2, "precision: f32\n"+form))
		if r := diverge(t, exitOK, divergeArgs(bundle, divergeModel(t, "nano-small"), "f32")); len(r.Differing) > 0 {
			t.Errorf("%s: %+v", form, r.Differing)
		}
	}
}

// tampering changes one node; it says whether it could.
type tampering struct {
	name, guid string // the GUID begins so
	change     func(r *recipes.Recipe, n *recipes.Node) bool
	kind       string // of the divergence; "" is any that names the node
	first      bool   // nodes of the first layers too
	decode     bool   // only decoding has such a node
}

// makerOf is the node that makes a tensor, nil if none does.
func makerOf(r *recipes.Recipe, t int) *recipes.Node {
	for i := range r.Nodes {
		if slices.Contains(r.Nodes[i].Out, t) {
			return &r.Nodes[i]
		}
	}
	return nil
}

// joins reports whether a node multiplies by several weights at once.
func joins(r *recipes.Recipe, n *recipes.Node) bool {
	return n != nil && n.GUID == "gemm" && isSpan(r, n.In[1])
}

// isSpan reports whether a tensor lies where several parameters do.
func isSpan(r *recipes.Recipe, t int) bool { return strings.Contains(r.Tensors[t].Name, ".span") }

// field changes a field of a node's parameters.
func field(name string, change func(*recipes.Field) bool) func(*recipes.Recipe, *recipes.Node) bool {
	return func(_ *recipes.Recipe, n *recipes.Node) bool {
		for i := range n.Params.Fields {
			if f := &n.Params.Fields[i]; f.Name == name {
				return change(f)
			}
		}
		return false
	}
}

var tamperings = []tampering{
	{name: "another eps", guid: "rms_norm_fwd_", change: field("eps", func(f *recipes.Field) bool { f.Float *= 100; return true })},
	{name: "a slice begins one early", guid: "slice_axis", change: func(_ *recipes.Recipe, n *recipes.Node) bool {
		begin, end := n.Params.IntsOf("begin"), n.Params.IntsOf("end")
		begin[0], end[0] = begin[0]-1, end[0]-1
		return begin[0] >= 0
	}},
	{name: "a part of a joined product begins one late", guid: "slice_axis", change: func(r *recipes.Recipe, n *recipes.Node) bool {
		begin, end := n.Params.IntsOf("begin"), n.Params.IntsOf("end")
		begin[0], end[0] = begin[0]+1, end[0]+1
		return joins(r, makerOf(r, n.In[0])) && end[0] <= r.Tensors[n.In[0]].Dims[0]
	}},
	{name: "a joined product of weights one row before", guid: "gemm", change: func(r *recipes.Recipe, n *recipes.Node) bool {
		w := &r.Tensors[n.In[1]]
		w.Offset -= w.Dims[0] * int64(w.DType.Size())
		return joins(r, n)
	}},
	{name: "rows of another block of all states", guid: "gather_fwd_", first: true, decode: true, change: func(r *recipes.Recipe, n *recipes.Node) bool {
		// The row that is read is that of the token before, which differs where a
		// block begins from the one that is written.
		read := r.Tensors[n.In[1]]
		n.In[1] = slices.IndexFunc(r.Tensors, func(t recipes.Tensor) bool { return t.Section == read.Section && t.Name == "in2" })
		return len(r.Tensors[n.In[0]].Dims) == 4 && isSpan(r, n.In[0]) && n.In[1] >= 0
	}},
	{name: "rows of states one less apart", guid: "range_i32", first: true, decode: true, change: func(r *recipes.Recipe, n *recipes.Node) bool {
		limit, delta := n.Params.IntsOf("limit"), n.Params.IntsOf("delta")
		apart := delta[0] > 1
		limit[0], delta[0] = limit[0]/delta[0]*(delta[0]-1), delta[0]-1
		return apart
	}},
	{name: "another axis of a reduction", guid: "reduce_", change: field("reductionDimension", func(f *recipes.Field) bool { f.Ints[0]++; return true })},
	{name: "another axis of a gather", guid: "gather_fwd_", change: field("axis", func(f *recipes.Field) bool { f.Ints[0] = max(0, f.Ints[0]-1); return true })},
	{name: "another order of axes", guid: "transpose", change: func(r *recipes.Recipe, n *recipes.Node) bool {
		order, x := n.Params.IntsOf("permutation"), r.Tensors[n.In[0]].Dims
		for i := range order {
			for j := range i {
				if x[order[i]] == x[order[j]] && x[order[i]] > 1 { // so that it still fits
					order[i], order[j] = order[j], order[i]
					return true
				}
			}
		}
		return false
	}},
	{name: "a product of what is not transposed", guid: "gemm", change: func(r *recipes.Recipe, n *recipes.Node) bool {
		b := r.Tensors[n.In[1]].Dims
		return b[0] == b[1] && field("transpose_b", func(f *recipes.Field) bool { f.Ints[0] ^= 1; return true })(r, n)
	}},
	{name: "another scale", guid: "sdpa_", change: field("scale", func(f *recipes.Field) bool { f.Float *= 1.001; return true })},
	{name: "a difference for a sum", guid: "add_fwd_", change: func(_ *recipes.Recipe, n *recipes.Node) bool {
		n.GUID = strings.Replace(n.GUID, "add", "sub", 1)
		return !strings.HasSuffix(n.GUID, "i32")
	}},
	{name: "the other choice", guid: "where_fwd_", change: func(r *recipes.Recipe, n *recipes.Node) bool {
		n.In[1], n.In[2] = n.In[2], n.In[1]
		return true
	}},
	{name: "an operand twice", guid: "mult_fwd_", change: func(r *recipes.Recipe, n *recipes.Node) bool {
		same := slices.Equal(r.Tensors[n.In[0]].Dims, r.Tensors[n.In[1]].Dims)
		n.In[1] = n.In[0]
		return same
	}},
	{name: "experts in another order", guid: "moe_", change: func(_ *recipes.Recipe, n *recipes.Node) bool { n.In[3], n.In[4] = n.In[4], n.In[3]; return true }},
	{name: "an index out of range", guid: "add_fwd_i32", kind: "failed", first: true, change: func(r *recipes.Recipe, n *recipes.Node) bool {
		n.GUID = "sub_fwd_i32"
		return strings.Contains(n.Origin, "sconv")
	}},
	{name: "another kind of index", guid: "reduce_max_", kind: "refused", change: field("reductionDimension", func(f *recipes.Field) bool { f.Ints[0] = 7; return true })},
}

// A node that a bundle has otherwise than it should is named, with its place in the
// model.
func TestDivergeNamesTheNode(t *testing.T) {
	b := divergeBundle(t, "nano-small", 2, "precision: both\n")
	model := divergeModel(t, "nano-small")
	used := usedBuckets(t, writeTestBundle(t, b), model)
	for _, precision := range []string{"f32", "bf16"} {
		for i, c := range tamperings {
			if precision == "bf16" && i%3 > 0 {
				continue // a sample
			}
			t.Run(precision+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				phases := []recipes.Phase{recipes.Prefill, recipes.Decode}
				for _, phase := range []recipes.Phase{phases[i%2], phases[1-i%2]} {
					if c.decode && phase != recipes.Decode {
						continue
					}
					broken, at := tamper(t, b, precision, phase, used, c)
					if broken == nil {
						continue // the phase has no such node
					}
					if precision == "bf16" && (c.name == "another eps" || c.name == "another scale") {
						// Less than rounding: only the recipe tells.
						r := diverge(t, exitOK, divergeArgs(writeTestBundle(t, broken), model, precision))
						if len(r.Differing) != 1 || r.Differing[0].Index != at.Node || r.Differing[0].Layer != at.Layer {
							t.Errorf("differing recipes %+v, want one at %+v", r.Differing, at)
						}
						return
					}
					r := diverge(t, exitError, divergeArgs(writeTestBundle(t, broken), model, precision))
					d := r.Divergence
					if d.Bucket != at.Bucket || d.PlanStep != at.PlanStep || d.Node != at.Node || d.GUID != at.GUID || d.Layer != at.Layer || d.Source != at.Source || d.Recipe == "" {
						t.Errorf("found %+v, want %+v", d, at)
					}
					if c.kind != "" && d.Kind != c.kind || (d.Kind == "failed" || d.Kind == "refused") != (d.Failure != "") {
						t.Errorf("found %s with failure %q, want %s", d.Kind, d.Failure, c.kind)
					}
					if !strings.Contains(d.Tensor, at.Tensor) {
						t.Errorf("tensor %q, want %q", d.Tensor, at.Tensor)
					}
					t.Logf("%s: %s of layer %d %s, %s: %s %s", d.Kind, d.GUID, d.Layer, d.Source, d.Tensor, d.Recipe, d.Failure)
					return
				}
				t.Error("no node to change")
			})
		}
	}
}

// usedBuckets are those that the sequence of these tests uses.
func usedBuckets(t *testing.T, bundle, model string) map[recipes.Bucket]int64 {
	t.Helper()
	s, err := runtime.Open(t.Context(), bundle, runtime.Options{Model: model})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := parseTokens(divergeTokens)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Score(t.Context(), tokens, divergeFeed, func(int, []float32) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s.Info().Counters.Used
}

// clone copies a bundle, all but its recipes' content.
func cloneBundle(t *testing.T, b *recipes.Bundle) *recipes.Bundle {
	t.Helper()
	data, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	c := new(recipes.Bundle)
	if err := json.Unmarshal(data, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// tamper changes the last launch of a used bucket that has a node to change, and
// only that one.
func tamper(t *testing.T, b *recipes.Bundle, precision string, phase recipes.Phase, used map[recipes.Bucket]int64, c tampering) (*recipes.Bundle, divergence) {
	t.Helper()
	b = cloneBundle(t, b)
	set := &b.Sets[slices.IndexFunc(b.Sets, func(s recipes.Set) bool { return s.Info.Precision == precision })]
	for i := range set.Plans {
		p := &set.Plans[i]
		if p.Bucket.Phase != phase || used[p.Bucket] == 0 {
			continue
		}
		for j, step := range slices.Backward(p.Steps) {
			if step.Launch == nil {
				continue
			}
			for k := range b.Recipes[step.Launch.Recipe].Nodes {
				if !strings.HasPrefix(b.Recipes[step.Launch.Recipe].Nodes[k].GUID, c.guid) {
					continue
				}
				r := cloneRecipe(t, b.Recipes[step.Launch.Recipe])
				n := &r.Nodes[k]
				at := place(step.Launch.Label, n.Origin)
				if at.Source == "" || at.Layer < 2 && !c.first || !c.change(r, n) || r.Check() != nil {
					continue
				}
				h := r.Hash()
				b.Recipes[h] = r
				step.Launch.Recipe = h
				dropUnused(b)
				at.Bucket, at.PlanStep, at.Node, at.GUID = p.Bucket.String(), j, k, n.GUID
				return b, at
			}
		}
	}
	return nil, divergence{}
}

func cloneRecipe(t *testing.T, r *recipes.Recipe) *recipes.Recipe {
	t.Helper()
	c, err := recipes.DecodeRecipe(r.Encode(), r.Hash())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dropUnused removes recipes that no launch uses.
func dropUnused(b *recipes.Bundle) {
	used := hashSet{}
	for i := range b.Sets {
		for j := range b.Sets[i].Plans {
			used.add(&b.Sets[i].Plans[j])
		}
	}
	for h := range b.Recipes {
		if !used[h] {
			delete(b.Recipes, h)
		}
	}
}

// place is where a node comes from: layers of origins count from that of the launch.
func place(label, origin string) divergence {
	layer := regexp.MustCompile(`^layer (\d+) (\S+) ?(\S*)$`)
	launch, node := layer.FindStringSubmatch(label), layer.FindStringSubmatch(origin)
	if launch != nil && node == nil && origin != "" && !strings.HasPrefix(origin, "layer ") { // of no layer
		return divergence{Layer: -1, Source: origin}
	}
	if launch == nil || node == nil {
		return divergence{}
	}
	base, _ := strconv.Atoi(launch[1])
	by, _ := strconv.Atoi(node[1])
	return divergence{
		Layer: base + by, Source: node[2],
		Tensor: strings.Replace(node[3], fmt.Sprintf(".+%d.", by), fmt.Sprintf(".%d.", base+by), 1),
	}
}

// A recipe of another form cannot be paired node by node: its results are compared, and
// the first node that is another one is named.
func TestDivergeInAnotherForm(t *testing.T) {
	t.Parallel()
	b := divergeBundle(t, "nano-small", 2, "precision: f32\n")
	model := divergeModel(t, "nano-small")
	used := usedBuckets(t, writeTestBundle(t, b), model)
	for _, eps := range []float32{1, 1e4} {
		broken, at := tamper(t, b, "f32", recipes.Decode, used, tampering{guid: "rms_norm_fwd_", change: func(r *recipes.Recipe, n *recipes.Node) bool {
			for i := range n.Params.Fields {
				if n.Params.Fields[i].Name == "eps" {
					n.Params.Fields[i].Float *= eps
				}
			}
			r.Tensors = append(r.Tensors, r.Tensors[n.Out[1]]) // that nothing needs
			r.Nodes = append(r.Nodes, recipes.Node{Name: "extra", GUID: "identity", In: []int{n.Out[1]}, Out: []int{len(r.Tensors) - 1}})
			return true
		}})
		if eps == 1 {
			if r := diverge(t, exitOK, divergeArgs(writeTestBundle(t, broken), model, "f32")); len(r.Differing) != 1 {
				t.Errorf("differing recipes %+v", r.Differing)
			}
			continue
		}
		d := diverge(t, exitError, divergeArgs(writeTestBundle(t, broken), model, "f32")).Divergence
		if d.Kind != "segment" || d.Bucket != at.Bucket || d.PlanStep != at.PlanStep || d.Node != at.Node || d.GUID != at.GUID || d.Recipe == "" {
			t.Errorf("found %+v, want %+v", d, at)
		}
	}
}

// What a launch leaves as it serves must be what its nodes leave one by one.
func TestDivergeNamesFusion(t *testing.T) {
	t.Parallel()
	model := divergeModel(t, "nano-small")
	o := divergeOptions{bundle: writeTestBundle(t, divergeBundle(t, "nano-small", 2, "precision: f32\n")), reference: model}
	o.model = model
	b, err := recipes.ReadBundle(o.bundle)
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := o.lockstep(t.Context(), b, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if l.ref, err = safetensors.OpenDir(model); err != nil {
		t.Fatal(err)
	}
	defer l.ref.Close() // only read from
	var want recipes.Binding
	s, err := runtime.Open(t.Context(), o.bundle, runtime.Options{Model: model, Watch: func(w runtime.Watched) runtime.Launch {
		if w.Plan.Bucket.Phase == recipes.Prefill && w.Step == 4 {
			s := l.step(w)
			want = s.place(s.segment.Results[0])
			w.Run = spoiling{w, want}
		}
		return l.watch(w)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // only read from
	err = s.Score(t.Context(), []int32{1, 2, 3}, runtime.ScoreOptions{DecodeFrom: 3}, func(int, []float32) error { return nil })
	if d := l.found; !errors.Is(err, errDiverged) || d == nil || d.Kind != "fusion" || d.PlanStep != 4 || d.Rank != 1 || d.Node < 0 || d.Differ != 1 {
		t.Errorf("error %v, found %+v", err, d)
	}
}

// spoiling is a launch that changes one bit of what it leaves on rank 1.
type spoiling struct {
	runtime.Watched
	at recipes.Binding
}

func (s spoiling) Run(ctx context.Context) error {
	if err := s.Watched.Run.Run(ctx); err != nil {
		return err
	}
	s.Device.Bytes(1, s.at.Buffer)[s.at.Offset] ^= 1
	return nil
}

// A launch that gets another layer's weights is found, and a collective that leaves
// something out.
func TestDivergeNamesPlans(t *testing.T) {
	t.Parallel()
	b := divergeBundle(t, "nano-small", 2, "precision: f32\n")
	model := divergeModel(t, "nano-small")
	used := usedBuckets(t, writeTestBundle(t, b), model)
	at := slices.IndexFunc(b.Sets[0].Plans, func(p recipes.Plan) bool { return p.Bucket.Phase == recipes.Decode && used[p.Bucket] > 0 })

	c := cloneBundle(t, b)
	steps := c.Sets[0].Plans[at].Steps
	var launches []*recipes.Launch
	for i := range steps {
		if l := steps[i].Launch; l != nil {
			launches = append(launches, l)
		}
	}
	var swapped *recipes.Launch
	for i, l := range launches[4:] {
		if other := launches[4+i-2]; l.Recipe == other.Recipe {
			for j := range l.Bindings {
				if l.Bindings[j].Buffer == recipes.Weights && other.Bindings[j].Buffer == recipes.Weights {
					l.Bindings[j] = other.Bindings[j]
					swapped = l
				}
			}
			break
		}
	}
	r := diverge(t, exitError, divergeArgs(writeTestBundle(t, c), model, "f32"))
	if d := r.Divergence; swapped == nil || d.Kind != "node" || d.Launch != swapped.Label || !strings.Contains(d.Tensor, fmt.Sprintf(".layers.%d.", d.Layer)) || len(r.Differing) != 1 {
		t.Errorf("found %+v in %+v", d, r.Differing)
	}

	c = cloneBundle(t, b)
	steps = c.Sets[0].Plans[at].Steps
	last := 0
	for i := range steps {
		if steps[i].Collective != nil {
			last = i
		}
	}
	steps[last].Collective.Count /= 2
	r = diverge(t, exitError, divergeArgs(writeTestBundle(t, c), model, "f32"))
	if d := r.Divergence; d.Kind != "collective" || d.PlanStep != last || d.Bucket != c.Sets[0].Plans[at].Bucket.String() || len(r.Differing) != 1 {
		t.Errorf("found %+v in %+v", d, r.Differing)
	}
}

// A weight that is not what the checkpoint gives is named, whether a copy of the
// checkpoint has it otherwise or a packed file.
func TestDivergeNamesTheWeight(t *testing.T) {
	t.Parallel()
	b := divergeBundle(t, "nano-small", 2, "precision: both\n")
	bundle, model := writeTestBundle(t, b), divergeModel(t, "nano-small")
	ckpt, err := safetensors.OpenDir(model)
	if err != nil {
		t.Fatal(err)
	}
	defer ckpt.Close() // only read from
	var victims []string
	for _, c := range b.Checkpoint {
		if strings.Contains(c.Name, ".layers.5.") && (c.Part == "" || c.Part == recipes.TextPart) {
			victims = append(victims, c.Name)
		}
	}
	if len(victims) < 8 {
		t.Fatalf("%q of layer 5", victims)
	}
	for i, victim := range victims {
		if i%3 > 0 {
			continue // a sample
		}
		precision := []string{"f32", "bf16"}[i%2]
		copied := t.TempDir()
		copyAltered(t, model, copied, victim)
		r := diverge(t, exitError, divergeArgs(bundle, copied, precision, "--reference", model))
		if d := r.Divergence; d.Kind != "weight" || d.Tensor != victim || d.Layer != 5 || len(r.Differing) > 0 {
			t.Errorf("%s: found %+v", victim, d)
		}
	}

	packed := filepath.Join(t.TempDir(), "packed")
	run(t, exitOK, t.Context(), "pack", bundle, "--model", model, "--precision", "bf16", "-o", packed)
	data, err := os.ReadFile(packed)
	if err != nil {
		t.Fatal(err)
	}
	p, err := recipes.OpenPacked(packed)
	if err != nil {
		t.Fatal(err)
	}
	pieces, start := p.Header.Packing().Pieces(b.Sets[slices.IndexFunc(b.Sets, func(s recipes.Set) bool { return s.Info.Precision == "bf16" })].Weights, 2), p.Start
	if err := p.File.Close(); err != nil {
		t.Fatal(err)
	}
	inRuns := map[string]bool{}
	for _, q := range pieces {
		if q.Weight.Part == 0 || !strings.Contains(q.Weight.Tensor, ".layers.5.") || inRuns[q.Weight.Tensor] {
			continue
		}
		inRuns[q.Weight.Tensor] = true
		if len(inRuns)%2 > 0 {
			continue // a sample
		}
		broken := bytes.Clone(data)
		broken[start+q.At+q.Weight.Bytes()/2&^3] ^= 1
		if err := os.WriteFile(packed, broken, 0o666); err != nil {
			t.Fatal(err)
		}
		d := diverge(t, exitError, divergeArgs(bundle, model, "bf16", "--weights", packed)).Divergence
		if d.Kind != "weight" || d.Tensor != q.Weight.Tensor || d.difference == nil || d.Rank != q.Rank || d.Op == "reshape" || d.Op == "concat" {
			t.Errorf("slot %d of a run, %s of rank %d: found %+v", q.Weight.Part, q.Weight.Tensor, q.Rank, d)
		}
		t.Logf("slot %d of a run, %s: layer %d %s (%s)", q.Weight.Part, d.Tensor, d.Layer, d.Source, d.Op)
	}
	if len(inRuns) < 4 {
		t.Errorf("only %v of layer 5 lie in runs", inRuns)
	}
	found := false
	for _, victim := range victims {
		x, _ := ckpt.Tensor(victim)
		n := min(64, len(x.Data))
		if at := bytes.Index(data, x.Data[:n]); !found && n == 64 && bytes.Count(data, x.Data[:n]) == 1 {
			data[at+9] ^= 1
			if err := os.WriteFile(packed, data, 0o666); err != nil {
				t.Fatal(err)
			}
			if d := diverge(t, exitError, divergeArgs(bundle, model, "bf16", "--weights", packed)).Divergence; d.Kind != "weight" || d.Tensor != victim || d.Layer != 5 {
				t.Errorf("packed %s: found %+v", victim, d)
			}
			found = true
		}
	}
	if !found {
		t.Error("no tensor was found in the packed file")
	}
}

// copyAltered copies a checkpoint with one element of one tensor changed by a bit.
func copyAltered(t *testing.T, from, to, tensor string) {
	t.Helper()
	ckpt, err := safetensors.OpenDir(from)
	if err != nil {
		t.Fatal(err)
	}
	defer ckpt.Close() // only read from
	all := ckpt.Tensors()
	for i := range all {
		if x := &all[i]; x.Name == tensor {
			x.Data = bytes.Clone(x.Data)
			x.Data[len(x.Data)/2&^3] ^= 2
		}
	}
	if err := safetensors.Write(filepath.Join(to, "model.safetensors"), all, nil); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "config.json"), config, 0o666); err != nil {
		t.Fatal(err)
	}
}
