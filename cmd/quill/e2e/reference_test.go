package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/passes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// reference runs captured graphs in the interpreter, one step at a time. It is
// what a runtime would be if it had no compiler: it makes the inputs as the
// comments in ir/inkling say and keeps states and the carried rows as tensors.
type reference struct {
	t    testing.TB
	cfg  *inkling.Config
	opt  inkling.Options
	ckpt *safetensors.Checkpoint
	// passes are what is run on the graphs.
	passes passes.Pipeline

	mods    map[inkling.Family]*ir.Module
	weights map[string][]*interp.Tensor
	states  []map[string]*interp.Tensor // of each rank, by name
	carry   []*interp.Tensor            // of each rank
	rows    int                         // real ones of them
	used    map[inkling.Family]int      // steps
	free    []int32                     // blocks
	rng     *rand.Rand

	// tap sees the results of ops on the first rank, with the step's real rows.
	tap func(op *ir.Op, result int, x *interp.Tensor, rows int)
}

// text is a sequence of a reference.
type text struct {
	table []int32
	n     int // tokens so far
}

// options are the capture options of a deployment.
func (d deployment) options() inkling.Options {
	precision, _ := dtype.Parse(d.precision)
	return inkling.Options{
		TP: d.tp, BlockSize: d.block, Blocks: d.maxSeqs * ((d.maxLen + d.block - 1) / d.block), MaxModelLen: d.maxLen,
		MaxNumSeqs: d.maxSeqs, MaxBatchedTokens: d.maxBatched, Precision: precision, ShardedEmbedding: d.sharded,
	}
}

// reference opens the checkpoint of a deployment. States begin zeroed.
func (d deployment) reference(t testing.TB) *reference {
	t.Helper()
	cfg, err := inkling.ReadConfig(filepath.Join(d.model, "config.json"))
	require.NoError(t, err)
	ckpt, err := safetensors.OpenDir(d.model)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ckpt.Close()) })
	r := &reference{
		t: t, cfg: cfg, opt: d.options(), ckpt: ckpt,
		mods: map[inkling.Family]*ir.Module{}, weights: map[string][]*interp.Tensor{}, used: map[inkling.Family]int{},
		rng: rand.New(rand.NewPCG(1, 0)),
	}
	r.release()
	for range d.tp {
		r.states = append(r.states, map[string]*interp.Tensor{})
	}
	return r
}

// module captures a family once.
func (r *reference) module(fam inkling.Family) *ir.Module {
	if m := r.mods[fam]; m != nil {
		return m
	}
	m, err := inkling.Capture(r.cfg, r.opt, fam)
	require.NoError(r.t, err)
	require.NoError(r.t, ir.Verify(m))
	require.NoError(r.t, passes.Run(r.t.Context(), m, r.passes))
	r.mods[fam] = m
	return m
}

// tensorOf reads a checkpoint tensor.
func tensorOf(t testing.TB, x safetensors.Tensor) *interp.Tensor {
	t.Helper()
	if dt, _ := x.Type(); dt == dtype.I32 {
		v, err := x.I32()
		require.NoError(t, err)
		return interp.FromI32(x.Shape, v...)
	}
	v, err := x.F32()
	require.NoError(t, err)
	if x.DType == "BF16" {
		return interp.FromBF16(x.Shape, v...)
	}
	return interp.FromF32(x.Shape, v...)
}

// weight is each rank's part of a weight.
func (r *reference) weight(m *ir.Module, p *ir.Param, env map[string]int64) []*interp.Tensor {
	key := fmt.Sprint(p.Source, p.Value.Type)
	if w := r.weights[key]; w != nil {
		return w
	}
	var whole *interp.Tensor
	if !p.Source.PerRank {
		x, ok := r.ckpt.Tensor(p.Source.Tensor)
		require.True(r.t, ok, "no tensor %s", p.Source.Tensor)
		whole = tensorOf(r.t, x)
	}
	w, err := interp.Weight(m, p, env, whole)
	require.NoError(r.t, err)
	r.weights[key] = w
	return w
}

// state is a rank's newest version of a state.
func (r *reference) state(rank int, p *ir.Param) *interp.Tensor {
	x := r.states[rank][p.Name]
	if x == nil {
		shape := make([]int64, p.Value.Type.Rank())
		for i, d := range p.Value.Type.Shape {
			shape[i], _ = d.Const()
		}
		x = interp.Zeros(p.Value.Type.DType, shape...)
		r.states[rank][p.Name] = x
	}
	return x
}

// run evaluates a family's graph, of which rows are real, and keeps the new
// states.
func (r *reference) run(fam inkling.Family, env map[string]int64, inputs map[string][]int32, rows int) []map[string]*interp.Tensor {
	m := r.module(fam)
	r.used[fam]++
	if fam != inkling.Logits {
		r.rows = rows
	}
	args := make([]map[string]*interp.Tensor, m.TP)
	for rank := range args {
		args[rank] = map[string]*interp.Tensor{}
		for _, p := range m.Entry().Params {
			switch p.Kind {
			case ir.Host:
				v, ok := inputs[p.Name]
				require.True(r.t, ok, "%s has input %s", fam, p.Name)
				args[rank][p.Name] = interp.FromI32([]int64{int64(len(v))}, v...)
			case ir.Weight:
				args[rank][p.Name] = r.weight(m, p, env)[rank]
			case ir.State:
				args[rank][p.Name] = r.state(rank, p)
			case ir.Carry:
				args[rank][p.Name] = r.carry[rank]
			}
		}
	}
	opt := interp.Options{}
	if r.tap != nil {
		opt.Tap = func(rank int, op *ir.Op, result int, x *interp.Tensor) {
			if rank == 0 {
				r.tap(op, result, x, rows)
			}
		}
	}
	out, err := interp.Run(context.Background(), m, m.Entry(), env, args, opt)
	require.NoError(r.t, err)
	for rank := range out {
		for _, res := range m.Entry().Results {
			if res.Kind == ir.State {
				r.states[rank][res.Name] = out[rank][res.Name]
			}
		}
	}
	return out
}

// keep carries the hidden rows of a step; what no step wrote is NaN.
func (r *reference) keep(out []map[string]*interp.Tensor) {
	r.carry = nil
	for rank := range out {
		h := out[rank]["hidden"]
		x := interp.Zeros(h.DType, int64(inkling.CarryRows(r.opt)), int64(r.cfg.Hidden))
		for i := range x.F {
			x.F[i] = float32(math.NaN())
		}
		copy(x.F, h.F)
		r.carry = append(r.carry, x)
	}
}

// logits projects the first n carried rows.
func (r *reference) logits(n int) [][]float32 {
	var rows [][]float32
	for first := 0; first < n; first += r.opt.MaxNumSeqs {
		size := min(r.opt.MaxNumSeqs, n-first)
		list := make([]int32, r.opt.MaxNumSeqs) // the rest is padding
		for i := range size {
			list[i] = int32(first + i)
		}
		env := map[string]int64{"r": int64(len(list))}
		out := r.run(inkling.Logits, env, map[string][]int32{"rows": list}, size)
		rows = append(rows, inRows(out[0]["logits"].F, len(list))[:size]...)
	}
	return rows
}
