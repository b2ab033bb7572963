package passes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/recipes/dtype"
)

// A model of a local and a global layer, whose window and extents are close to its
// blocks.
const (
	testBlock  = 4
	testWindow = 5
	testExtent = 6
	testQuery  = 12
)

func attentionModel(t *testing.T, fam inkling.Family) *ir.Module {
	t.Helper()
	cfg, err := inkling.ReadConfig("../testdata/nano-dense/config.json")
	require.NoError(t, err)
	cfg.Layers, cfg.IsLocal = 2, []bool{true, false}
	cfg.Local.Extent, cfg.Window, cfg.Global.Extent = testWindow, testWindow, testExtent
	m, err := inkling.Capture(cfg, inkling.Options{
		TP: 1, BlockSize: testBlock, Blocks: 14, MaxModelLen: 48, MaxNumSeqs: 2, MaxBatchedTokens: testQuery, Precision: dtype.F32,
	}, fam)
	require.NoError(t, err)
	require.NoError(t, ir.Verify(m))
	return m
}

// coverage counts what cases meet.
type coverage map[string]int

var covered = []string{
	"distance extent − 1", "distance extent", "distance window − 1", "distance window", "chunk start mid-block", "last block partial", "history 0",
	"fully padded far part", "shared prefix",
}

func (c coverage) count(past, rows, listed int64, shared bool) {
	hit := func(what string, ok bool) {
		if ok {
			c[what]++
		}
	}
	within := func(d int64) bool { return d < past+rows }
	hit("distance extent − 1", within(testExtent-1))
	hit("distance extent", within(testExtent))
	hit("distance window − 1", within(testWindow-1))
	hit("distance window", within(testWindow))
	hit("chunk start mid-block", past%testBlock != 0)
	hit("last block partial", (past+rows)%testBlock != 0)
	hit("history 0", past == 0)
	blocks := (past + testBlock - 1) / testBlock
	far := listed*testBlock - (testExtent - 1 + testBlock - 1)
	hit("fully padded far part", far > 0 && (listed-blocks)*testBlock >= far)
	hit("shared prefix", shared)
}

// attentionPaths are the forms of attention, and pipelines that make them.
var attentionPaths = map[string]struct {
	params   Params
	pipeline string
}{
	"masked":                {Params{Attention: Masked}, "fuse-rel-bias"},
	"banded, far by mask":   {Params{Attention: Banded, Far: FarMask}, "fuse-rel-bias,band-split"},
	"banded, far exact":     {Params{Attention: Banded, Far: FarExact}, "fuse-rel-bias,band-split"},
	"exact, sub-blocks":     {Params{Attention: Banded, Far: FarExact, SubBlockRows: 3}, "fuse-rel-bias,band-split,canonicalize,hoist-step-invariant,cse,dce,outline-segments,sub-block,canonicalize,cse,dce"},
	"exact, a mask budget":  {Params{Attention: Banded, Far: FarExact, MaskBudget: 2500}, "fuse-rel-bias,band-split,outline-segments,sub-block"},
	"exact, without split":  {Params{Attention: Banded, Far: FarExact, SubBlockRows: 4}, "fuse-rel-bias,outline-segments,sub-block"},
	"banded, far tiled":     {Params{Attention: Banded, Far: FarTiled}, "fuse-rel-bias,band-split,canonicalize,cse,dce"},
	"masked, sub-blocks":    {Params{Attention: Masked, SubBlockRows: 3}, "fuse-rel-bias,canonicalize,cse,outline-segments,sub-block,cse,dce"},
	"banded, sub-blocks":    {Params{Attention: Banded, Far: FarMask, SubBlockRows: 5}, "fuse-rel-bias,band-split,dce,outline-segments,sub-block"},
	"tiled, a mask budget":  {Params{Attention: Banded, Far: FarTiled, MaskBudget: 900}, "fuse-rel-bias,band-split,outline-segments,sub-block,canonicalize,dce"},
	"without a band, by -3": {Params{Attention: Banded, SubBlockRows: 4}, "fuse-rel-bias,outline-segments,sub-block"},
}

// All forms of attention compute what the plain one does, on what a host can ask
// for: chunks of any length behind histories of any length in longer lists of
// blocks, some of which two sequences share.
func TestAttentionPathsAgree(t *testing.T) {
	const cases = 210
	families := []inkling.Family{inkling.Prefill, inkling.PrefillNear, inkling.PrefillFar}
	plain := map[inkling.Family]*ir.Module{}
	for _, fam := range families {
		plain[fam] = attentionModel(t, fam)
	}
	seen, compared := coverage{}, map[string]int{}
	worst, previous := 0.0, int64(0)
	for i := range cases {
		rnd := rand.New(rand.NewPCG(uint64(i/2), 77)) // pairs share cache and blocks
		fam := families[0]
		if i%8 > 1 {
			fam = families[1+rnd.IntN(2)]
		}
		before := plain[fam]
		env := map[string]int64{"q": 1 + rnd.Int64N(testQuery)}
		listed := int64(0)
		for _, s := range before.Syms {
			if s.Name == "c" {
				listed = s.Min + rnd.Int64N(min(s.Max, 8)-s.Min+1)
				env["c"] = listed
			}
		}
		args, err := interp.RandomArgs(before, before.Entry(), env, uint64(i/2), interp.RandomOptions{})
		require.NoError(t, err)
		for _, p := range before.Entry().Params { // weights that neither blow up nor vanish
			if x := args[0][p.Name]; p.Kind == ir.Weight && len(x.Shape) > 1 {
				for j := range x.F {
					x.F[j] /= 8
				}
			}
		}
		own := rand.New(rand.NewPCG(uint64(i), 78))
		past, rows := chunk(args[0], own, listed)
		shared := i%2 == 1 && min(past, previous) >= testBlock
		previous = past
		seen.count(past, rows, listed, shared)
		want, err := interp.Run(t.Context(), before, before.Entry(), env, args, interp.Options{})
		require.NoError(t, err)
		for name, path := range attentionPaths {
			after := transformed(t, before, env, path.params, path.pipeline)
			got, err := interp.Run(t.Context(), after, after.Entry(), envOf(after, env), withConstants(t, after, args), interp.Options{})
			require.NoError(t, err)
			diff, err := interp.MaxAbsDiff(got[0]["hidden"], want[0]["hidden"])
			require.NoError(t, err)
			worst = max(worst, diff)
			require.NoError(t, interp.Same(got, want, 1e-5), "%s, case %d: %s, %v, %d tokens before, %d rows", name, i, fam, env, past, rows)
			compared[name]++
		}
	}
	for _, what := range covered {
		t.Logf("%-24s %4d cases", what, seen[what])
		require.GreaterOrEqual(t, seen[what], 5, what)
	}
	t.Logf("compared: %v; largest difference %.2g", compared, worst)
	for name := range attentionPaths {
		require.GreaterOrEqual(t, compared[name], 200, name)
	}
}

// chunk lays out a step of its own.
func chunk(args map[string]*interp.Tensor, rnd *rand.Rand, listed int64) (past, rows int64) {
	q := int64(args["positions"].Len())
	if rows = 1 + rnd.Int64N(q); rnd.IntN(3) == 0 {
		rows = q
	}
	if listed > 0 {
		blocks := rnd.Int64N(listed + 1)
		if rnd.IntN(4) == 0 {
			blocks = rnd.Int64N(2)
		}
		if blocks > 0 {
			past = (blocks-1)*testBlock + 1 + rnd.Int64N(testBlock)
		}
		args["ctx_len"].I[0], args["ctx_start"].I[0] = past, (blocks-listed)*testBlock
		// History is right-aligned: sequences that share a prefix have it at
		// different places.
		list := rand.New(rand.NewPCG(uint64(listed), 79)).Perm(14)
		for i := range args["ctx_blocks"].I {
			args["ctx_blocks"].I[i] = 14 // the zero block
			if at := int64(i) - (listed - blocks); at >= 0 {
				args["ctx_blocks"].I[i] = int64(list[at])
			}
		}
		// Finite garbage of any size in slots that hold no token: of keys and of
		// values of the last block.
		for name, s := range args {
			if past%testBlock == 0 || blocks == 0 || len(name) < 3 || name[:3] != "kv." {
				continue
			}
			slot := int64(list[blocks-1])*testBlock + testBlock - 1
			row := int64(s.Len()) / s.Shape[0]
			for j := slot * row; j < (slot+1)*row; j++ {
				s.F[j] = float32(1e6 * (1 + float64(j%7)))
			}
		}
	}
	args["q_len"].I[0] = rows
	for i := range args["positions"].I {
		if args["positions"].I[i] = 0; int64(i) < rows {
			args["positions"].I[i] = past + int64(i)
		}
	}
	return past, rows
}

var transformedModules = map[string]*ir.Module{}

// transformed runs a pipeline on a copy, with the sizes of env from the bucket
// stage on.
func transformed(t *testing.T, m *ir.Module, env map[string]int64, params Params, text string) *ir.Module {
	t.Helper()
	params.BlockSize = testBlock
	p := pipelineOf(t, text)
	key := fmt.Sprint(m.Name, params, text)
	family := transformedModules[key]
	if family == nil {
		family = m.Clone()
		require.NoError(t, NewManager(Config{Pipeline: p.Stage(Family), Params: params, Honest: true}).Run(t.Context(), "", family))
		transformedModules[key] = family
	}
	if len(p.Stage(Bucket)) == 0 {
		return family
	}
	key += fmt.Sprint(env)
	bucket := transformedModules[key]
	if bucket == nil {
		var err error
		bucket, err = ir.Specialise(family, env)
		require.NoError(t, err)
		mgr := NewManager(Config{Pipeline: p, Params: params, Honest: true})
		require.NoError(t, mgr.RunStage(t.Context(), Bucket, "", bucket))
		transformedModules[key] = bucket
	}
	return bucket
}

func envOf(m *ir.Module, env map[string]int64) map[string]int64 {
	if len(m.Syms) == 0 {
		return nil
	}
	return env
}

// withConstants adds the weights that passes have made of constants.
func withConstants(t *testing.T, m *ir.Module, args []map[string]*interp.Tensor) []map[string]*interp.Tensor {
	t.Helper()
	require.NoError(t, interp.Complete(m, nil, m.Entry(), args))
	return args
}

// What does not fit a budget is an error that names layer and bytes.
func TestMaskOfOneRowMustFit(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // for reproducers
	m := attentionModel(t, inkling.PrefillFar)
	params := Params{BlockSize: testBlock, MaskBudget: 100}
	p := pipelineOf(t, "fuse-rel-bias,outline-segments,sub-block")
	mgr := NewManager(Config{Pipeline: p, Params: params})
	require.NoError(t, mgr.RunStage(t.Context(), Family, "", m))
	bucket, err := ir.Specialise(m, map[string]int64{"q": 12, "c": 8})
	require.NoError(t, err)
	err = mgr.RunStage(t.Context(), Bucket, "", bucket)
	require.ErrorContains(t, err, "layer 0 attn.values: the mask of one row is ")
	require.ErrorContains(t, err, " bytes, more than mask_budget = 100: raise it to that or more")
}

// Inner sub-blocks of local layers are one segment, of all layers; masks that are
// alive at once do not grow with the rows.
func TestInnerSubBlocksAreOneSegment(t *testing.T) {
	cfg, err := inkling.ReadConfig("../testdata/configs/inkling-small/config.json")
	require.NoError(t, err)
	cfg.Layers = 6
	o := inkling.Options{
		TP: 8, BlockSize: 128, Blocks: 2560, MaxModelLen: 262144, MaxNumSeqs: 16, MaxBatchedTokens: 8192, Precision: dtype.BF16,
	}
	m, err := inkling.Capture(cfg, o, inkling.PrefillFar)
	require.NoError(t, err)
	params := Params{BlockSize: 128, Attention: Banded}
	mgr := NewManager(Config{Pipeline: Default(), Params: params})
	require.NoError(t, mgr.RunStage(t.Context(), Family, "", m))
	bucket, err := ir.Specialise(m, map[string]int64{"q": 8192, "c": 2048})
	require.NoError(t, err)
	require.NoError(t, mgr.RunStage(t.Context(), Bucket, "", bucket))
	require.NoError(t, ir.Verify(bucket))
	var written, alive int64
	layer, locals := 0, map[string][]*ir.Func{}
	for l := range cfg.Layers {
		if !cfg.IsLocal[l] {
			layer = l
		}
	}
	for _, op := range bucket.Entry().Ops {
		a := op.Attr("callee")
		if a == nil {
			continue
		}
		here := int64(0)
		for _, f := range a.Func.Ops {
			if mask, ok := denseMask(f); ok && op.Loc.Layer == layer {
				here += mask
			}
			if isAttention(f) && op.Loc.Layer >= 0 && op.Loc.Layer < len(cfg.IsLocal) && cfg.IsLocal[op.Loc.Layer] {
				key := fmt.Sprint(op.Loc.Layer)
				locals[key] = append(locals[key], a.Func)
			}
		}
		written, alive = written+here, max(alive, here)
	}
	plain := int64(8192) * 262144 * 4 * 2
	t.Logf("masks of global layer %d: %d bytes written, %.2f %% of %d; %.1f MiB alive at once", layer, written, 100*float64(written)/float64(plain), plain, float64(alive)/(1<<20))
	require.Positive(t, written)
	require.LessOrEqual(t, 100*written, plain)
	require.LessOrEqual(t, alive, int64(24<<20))
	for key, list := range locals {
		require.Len(t, list, 8, "layer %s", key)
		inner := slices.Compact(slices.Clone(list[1:7]))
		require.Len(t, inner, 1, "layer %s", key)
		require.Same(t, locals["0"][3], inner[0])
	}
}

// denseMask is the size of a mask that differs by row.
func denseMask(o *ir.Op) (bytes int64, ok bool) {
	if !isAttention(o) || len(o.Args) < 4 || o.Args[3].Type.Shape[2].Is(1) {
		return 0, false
	}
	n, ok := o.Args[3].Type.Elems().Const()
	return n * int64(o.Args[3].Type.DType.Size()), ok
}

// Rows of a chunk that are padding give zeros, whatever form attention has.
func TestRowsOfPaddingGiveZeros(t *testing.T) {
	before := attentionModel(t, inkling.PrefillFar)
	env := map[string]int64{"q": 8, "c": 5}
	args, err := interp.RandomArgs(before, before.Entry(), env, 1, interp.RandomOptions{})
	require.NoError(t, err)
	_, rows := chunk(args[0], rand.New(rand.NewPCG(4, 0)), 5)
	require.Less(t, rows, int64(8))
	for _, name := range []string{"", "masked", "banded, far by mask", "banded, far exact", "banded, far tiled"} {
		path := attentionPaths[name]
		m, checked := transformed(t, before, env, path.params, path.pipeline), 0
		_, err := interp.Run(t.Context(), m, m.Entry(), env, withConstants(t, m, args), interp.Options{Tap: func(_ int, o *ir.Op, _ int, x *interp.Tensor) {
			if o.Loc.Op != "attn.rows" || o.Name() != "select" {
				return
			}
			checked++
			d := int(x.Shape[3])
			for i, v := range x.F {
				if row := int64(i / d % 8); row >= rows {
					require.Zero(t, v, "%s: row %d of %d", name, row, rows)
				}
			}
		}})
		require.NoError(t, err)
		require.Equal(t, 2, checked, name)
	}
}

// Layers with a window decode as one op, with the sequences as its batch, whatever the
// limits of masks; it computes what the chain does.
func TestWindowsDecodeAsOneOp(t *testing.T) {
	for _, run := range []struct {
		model     string
		tp, block int
		env       map[string]int64
	}{
		{"nano-dense", 1, 4, map[string]int64{"s": 3, "n": 14}},
		{"nano-small", 2, 8, map[string]int64{"s": 4, "n": 5}},
		{"nano-big", 4, 8, map[string]int64{"s": 1, "n": 3}}, // groups of ranks share heads
		{"nano-big", 2, 16, map[string]int64{"s": 2, "n": 1}},
	} {
		o := inkling.Options{TP: run.tp, BlockSize: run.block, Blocks: 60, MaxModelLen: 256, MaxNumSeqs: 4, MaxBatchedTokens: 64, Precision: dtype.F32}
		cfg, before := capture(t, run.model, o, inkling.DecodeFew)
		local := 0
		for _, is := range cfg.IsLocal {
			if is {
				local++
			}
		}
		params := Params{Attention: Banded, BlockSize: run.block, MaskBudget: 8, SubBlockRows: 1}
		family := before.Clone()
		p := pipelineOf(t, "fuse-rel-bias,band-split,outline-segments,sub-block")
		mgr := NewManager(Config{Pipeline: p, Params: params, Honest: true})
		require.NoError(t, mgr.RunStage(t.Context(), Family, "", family))
		require.Equal(t, local, mgr.Stats()[0].Rewrites)
		require.Zero(t, mgr.Stats()[1].Rewrites)
		after, err := ir.Specialise(family, run.env)
		require.NoError(t, err)
		text := after.String()
		require.NoError(t, mgr.RunStage(t.Context(), Bucket, "", after))
		require.Equal(t, text, after.String())

		args, err := interp.RandomArgs(before, before.Entry(), run.env, 7, interp.RandomOptions{})
		require.NoError(t, err)
		step, err := inkling.RandomStep(before, run.env, 7)
		require.NoError(t, err)
		for r := range args {
			for name, v := range step {
				args[r][name] = interp.FromI32([]int64{int64(len(v))}, v...)
			}
			for _, p := range before.Entry().Params { // weights that neither blow up nor vanish
				if x := args[r][p.Name]; p.Kind == ir.Weight && len(x.Shape) > 1 {
					for j := range x.F {
						x.F[j] /= 8
					}
				}
			}
		}
		want, err := interp.Run(t.Context(), before, before.Entry(), run.env, args, interp.Options{})
		require.NoError(t, err)
		got, err := interp.Run(t.Context(), after, after.Entry(), nil, withConstants(t, after, args), interp.Options{})
		require.NoError(t, err)
		require.NoError(t, interp.Same(got, want, 1e-4), "%+v", run)
	}
}
