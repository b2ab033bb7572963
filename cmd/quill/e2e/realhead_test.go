package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/lower/synapse"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// realHead has a hidden state, the final norm and some rows of the projection
// of the released Inkling-Small, and what the published implementation makes of
// them in BF16.
type realHead struct {
	dir    string // of a checkpoint with that head
	hidden *interp.Tensor
	// norm and scaled are the normed hidden state, before and after the muP
	// division.
	norm, scaled, logits *interp.Tensor
}

func openRealHead(t *testing.T) realHead {
	f, err := safetensors.Open(filepath.Join(modelDir("real-head"), "real-head.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	get := func(name string) safetensors.Tensor {
		x, ok := f.Tensor(name)
		require.True(t, ok, name)
		return x
	}
	norm, rows := get("norm.weight"), get("unembed.rows")
	norm.Name, rows.Name = "model.llm.norm.weight", "model.llm.unembed.weight"
	vocab := rows.Shape[0]
	dir := checkpointLike(t, "configs/inkling-small", 0, map[string]any{
		"vocab_size": vocab, "unpadded_vocab_size": vocab,
		// The head needs no layers; one of little width is the fewest there can be.
		"num_hidden_layers": 1, "local_layer_ids": []int{0}, "dense_mlp_idx": 1, "dense_intermediate_size": 8,
	}, []safetensors.Tensor{norm, rows})
	return realHead{
		dir: dir, hidden: tensorOf(t, get("hidden")),
		norm: tensorOf(t, get("expected.norm")), scaled: tensorOf(t, get("expected.scaled")), logits: tensorOf(t, get("expected.logits")),
	}
}

func (h realHead) deployment(tp int) deployment {
	return deployment{model: h.dir, tp: tp, block: 16, precision: "bf16", maxLen: 16, maxSeqs: 1, maxBatched: 1}
}

// check compares what a head computed. Norm and division are the published
// implementation's to the bit; the projection's sums may be in another order.
func (h realHead) check(t *testing.T, suite string, norm, scaled *interp.Tensor, logits []float32) {
	t.Helper()
	require.True(t, interp.Equal(h.norm, norm), "%s: norm", suite)
	require.True(t, interp.Equal(h.scaled, scaled), "%s: scaled", suite)
	h.checkLogits(t, suite, logits)
}

func (h realHead) checkLogits(t *testing.T, suite string, logits []float32) {
	t.Helper()
	require.Len(t, logits, len(h.logits.F))
	worst := 0.0
	for i, v := range logits {
		a, b := int(dtype.ToBF16(v)), int(dtype.ToBF16(h.logits.F[i]))
		require.Equal(t, a>>15, b>>15, "sign of logit %d", i)
		worst = max(worst, math.Abs(float64(a-b)))
	}
	record(t, "real head, logits (BF16 units of the last place)", worst, 1)
}

// The interpreter computes the head of the released model.
func TestRealHeadInTheInterpreter(t *testing.T) {
	t.Parallel()
	h := openRealHead(t)
	for _, tp := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprintf("tp%d", tp), func(t *testing.T) {
			r := h.deployment(tp).reference(t)
			for range tp {
				r.carry = append(r.carry, h.hidden)
			}
			seen := map[string]*interp.Tensor{}
			r.tap = func(op *ir.Op, _ int, x *interp.Tensor, _ int) { seen[op.Loc.Op] = x }
			logits := r.logits(1)
			h.check(t, "interpreter", seen["head.norm"], seen["head.mup"], logits[0])
		})
	}
}

// The host device computes it too, intermediate values included.
func TestRealHeadOnTheHost(t *testing.T) {
	t.Parallel()
	h := openRealHead(t)
	r := h.deployment(1).reference(t)
	m, err := inkling.Capture(r.cfg, r.opt, inkling.Logits)
	require.NoError(t, err)
	f := m.Entry()
	for _, at := range []string{"head.norm", "head.mup"} {
		last := lastAt(f, at)
		f.Results = append(f.Results, ir.Result{Name: at, Kind: ir.Host, Type: last.Type})
		f.Return = append(f.Return, last)
	}
	f.Results[1].Name, f.Results[2].Name = "norm", "scaled"
	require.NoError(t, passes.Run(t.Context(), m, passes.Default().Stage(passes.Family)))
	m, err = ir.Specialise(m, map[string]int64{"r": 1})
	require.NoError(t, err)
	require.Len(t, m.Entry().Ops, 1, "one rank has one segment")
	call := m.Entry().Ops[0]
	e := experiment{t: t, mod: m, call: call}
	e.recipe, e.lowered = emitAlone(t, call.Attr("callee").Func)
	e.place()
	defer func() { require.NoError(t, e.device.Close()) }()
	for i, a := range call.Args {
		var x *interp.Tensor
		switch a.Param.Kind {
		case ir.Host:
			x = interp.FromI32([]int64{1}, 0)
		case ir.Carry:
			x = h.hidden
		default:
			x = r.weight(m, a.Param, nil)[0]
		}
		e.write(0, &e.recipe.Tensors[i], x)
	}
	e.launch()
	got := map[string]*interp.Tensor{}
	for i, v := range m.Entry().Return {
		res := m.Entry().Results[i]
		like := interp.Zeros(res.Type.DType, h.norm.Shape...)
		if res.Name == "logits" {
			like = interp.Zeros(dtype.F32, 1, int64(len(h.logits.F)))
		}
		got[res.Name] = e.read(0, e.result(v.Index), like)
	}
	h.check(t, "host", got["norm"], got["scaled"], got["logits"].F)
}

// lastAt is the last value that is computed at a location.
func lastAt(f *ir.Func, at string) *ir.Value {
	var last *ir.Value
	for _, op := range f.Ops {
		if op.Loc.Op == at {
			last = op.Results[0]
		}
	}
	return last
}

// emitAlone makes a recipe of a segment with a section for each parameter and
// result.
func emitAlone(t *testing.T, fn *ir.Func) (*recipes.Recipe, *synapse.Segment) {
	s := synapse.Segment{Name: fn.Name, Fn: fn}
	buffers := map[ir.Kind]recipes.Buffer{ir.Host: recipes.Arena, ir.Carry: recipes.Carry, ir.Weight: recipes.Weights}
	for _, p := range fn.Params {
		s.Params = append(s.Params, synapse.Slot{Section: len(s.Sections)})
		s.Sections = append(s.Sections, recipes.Section{Name: p.Name, Buffer: buffers[p.Kind]})
	}
	for i := range fn.Results {
		s.Results = append(s.Results, synapse.Slot{Section: len(s.Sections)})
		s.Sections = append(s.Sections, recipes.Section{Name: fmt.Sprintf("out%d", i), Buffer: recipes.Arena})
	}
	r, err := synapse.Emit(s)
	require.NoError(t, err)
	return r, &s
}

// A compiled bundle's logits plan computes the head of the released model on
// any number of ranks.
func TestRealHeadInABundle(t *testing.T) {
	t.Parallel()
	h := openRealHead(t)
	for _, tp := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprintf("tp%d", tp), func(t *testing.T) {
			d := h.deployment(tp)
			b, err := d.compile(t.Context())
			require.NoError(t, err)
			set := &b.Sets[0]
			r := newReplay(t, b, set)
			r.loadOnly(d.model)
			for rank := range tp {
				require.NoError(t, r.device.Write(rank, recipes.Carry, 0, bytesOf(h.hidden)))
			}
			p := &set.Plans[len(set.Plans)-1]
			require.Equal(t, recipes.Bucket{Phase: recipes.Logits, Seqs: 1}, p.Bucket)
			r.run(p)
			for rank := range tp { // rows is the only input, and 0
				out := p.Outputs[0]
				data := make([]byte, out.Bytes())
				require.NoError(t, r.device.Read(rank, recipes.Arena, out.Offset, data))
				h.checkLogits(t, "bundle", tensorFrom(data, interp.Zeros(dtype.F32, out.Elems())).F)
			}
		})
	}
}
