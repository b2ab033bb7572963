package runtime

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// The bigram model is the smallest one that uses everything a bundle has:
//
//	x[i]      = embed[token[i]]
//	hidden[i] = x[i] + x[i-1]              the convolution rows keep x of a block's newest token
//	logits[i] = hidden[i] · headᵀ          sharded by vocabulary: all_gather
//
// with an all_reduce that adds the ranks' hidden[i]/2 up again. All values are
// small integers, so sums are exact in any order.
const (
	hidden     = 4
	vocabulary = 8
	valid      = 7
	ranks      = 2
	blockSize  = 4
	kvBlocks   = 8
)

// bigram writes the bundle and the model directory.
func bigram(t testing.TB) (bundle, model string, embed, head [][]float32) {
	rng := rand.New(rand.NewPCG(1, 2))
	table := func() ([]float32, [][]float32) {
		flat, rows := make([]float32, vocabulary*hidden), make([][]float32, vocabulary)
		for i := range flat {
			flat[i] = float32(rng.IntN(9) - 4)
		}
		for i := range rows {
			rows[i] = flat[i*hidden : (i+1)*hidden]
		}
		return flat, rows
	}
	flatEmbed, embed := table()
	flatHead, head := table()
	shape := []int64{vocabulary, hidden}
	model = modelDir(t, safetensors.FromF32("embed", shape, flatEmbed), safetensors.FromF32("head", shape, flatHead))
	config, err := os.ReadFile(filepath.Join(model, "config.json"))
	require.NoError(t, err)
	fingerprint, err := recipes.Fingerprint(config)
	require.NoError(t, err)

	arch, err := recipes.Architecture(config)
	require.NoError(t, err)
	b := &recipes.Bundle{
		Architecture: arch,
		Manifest: recipes.Manifest{
			Quill: "test", Target: "host",
			Model: recipes.Model{Fingerprint: fingerprint, Hidden: hidden, Vocab: vocabulary, ValidVocab: valid},
			Deployment: recipes.Deployment{
				TensorParallel: ranks, MaxModelLen: 20, MaxNumSeqs: 3,
				BlockSize: blockSize, KVBlocks: kvBlocks, MaxBatchedTokens: 8,
			},
			Costs: recipes.Costs{Row: 1, Block: 1, Key: 1},
		},
		Checkpoint: []recipes.CheckpointTensor{
			{Name: "embed", DType: "F32", Shape: shape, Part: recipes.TextPart},
			{Name: "head", DType: "F32", Shape: shape, Part: recipes.TextPart},
		},
		Recipes: make(map[recipes.Hash]*recipes.Recipe),
	}
	set := recipes.Set{
		Info: recipes.SetInfo{Precision: "f32", Bytes: map[recipes.Buffer]int64{
			recipes.Weights: 1024, recipes.Conv: 4 * hidden * (kvBlocks + 2), recipes.Carry: 4 * hidden * 8,
		}},
		Weights: []recipes.Weight{
			{Tensor: "embed", Ways: 1, DType: dtype.F32, Shape: shape},
			{Tensor: "head", Ways: ranks, DType: dtype.F32, Shape: []int64{vocabulary / ranks, hidden}, Offset: 512},
			{Fill: 0.5, Ways: 1, DType: dtype.F32, Shape: []int64{1, 1}, Offset: 768},
		},
	}
	add := func(p recipes.Plan, err error) {
		require.NoError(t, err)
		set.Plans = append(set.Plans, p)
		set.Info.Plans = append(set.Info.Plans, p.Bucket)
		set.Info.Bytes[recipes.Arena] = max(set.Info.Bytes[recipes.Arena], p.ArenaBytes)
	}
	for _, q := range []int{4, 8} {
		for _, c := range []int{0, 5} {
			add(chunkPlan(b, recipes.Bucket{Phase: recipes.Prefill, Query: q, Blocks: c}))
		}
	}
	for _, s := range []int{1, 3} {
		add(batchPlan(b, recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: 5 * s}))
	}
	for _, r := range []int{1, 4} {
		add(logitsPlan(b, recipes.Bucket{Phase: recipes.Logits, Seqs: r}))
	}
	b.Sets = []recipes.Set{set}
	bundle = filepath.Join(t.TempDir(), "bigram.quill")
	require.NoError(t, recipes.WriteBundle(t.Context(), bundle, b))
	return bundle, model, embed, head
}

// draft builds a plan and the recipes of its launches.
type draft struct {
	b    *recipes.Bundle
	plan recipes.Plan
	r    *recipes.Recipe
}

// inputs places all inputs of the bucket.
func (d *draft) inputs() {
	for i := range inputTable {
		if _, size, ok := inputOf(inputTable[i].name, d.plan.Bucket, &layout{block: blockSize}); ok {
			d.plan.Inputs = append(d.plan.Inputs, recipes.IO{
				Name: inputTable[i].name, DType: dtype.I32, Dims: []int64{int64(size)}, Offset: d.arena(int64(4 * size)),
			})
		}
	}
}

// arena takes bytes of the arena.
func (d *draft) arena(n int64) int64 {
	at := d.plan.ArenaBytes
	d.plan.ArenaBytes += (n + 63) / 64 * 64
	return at
}

// begin begins a recipe whose sections are whole buffers.
func (d *draft) begin(name string) {
	d.r = &recipes.Recipe{Name: name}
	for _, b := range []recipes.Buffer{recipes.Weights, recipes.Arena, recipes.Carry, recipes.Conv} {
		d.r.Sections = append(d.r.Sections, recipes.Section{Name: string(b), Buffer: b})
	}
}

// at is a tensor at a place of a section.
func (d *draft) at(section int, offset int64, t dtype.Type, dims ...int64) int {
	x := recipes.Tensor{Name: fmt.Sprint("t", len(d.r.Tensors)), DType: t, Dims: dims, Section: section, Offset: offset}
	if section >= 0 {
		s := &d.r.Sections[section]
		s.Size = max(s.Size, offset+x.Bytes())
	}
	d.r.Tensors = append(d.r.Tensors, x)
	return len(d.r.Tensors) - 1
}

const (
	inWeights = iota
	inArena
	inCarry
	inConv
	inWorkspace = recipes.Workspace
)

// input is an input of the plan.
func (d *draft) input(name string) int {
	for _, io := range d.plan.Inputs {
		if io.Name == name {
			return d.at(inArena, io.Offset, dtype.I32, io.Dims...)
		}
	}
	panic("no input " + name)
}

func (d *draft) node(guid string, params *recipes.Params, out int, in ...int) int {
	d.r.Nodes = append(d.r.Nodes, recipes.Node{Name: fmt.Sprint("n", len(d.r.Nodes)), GUID: guid, In: in, Out: []int{out}, Params: params})
	return out
}

func axis(structure string, t recipes.FieldType, name string, v int64) *recipes.Params {
	return &recipes.Params{Struct: structure, Fields: []recipes.Field{{Name: name, Type: t, Ints: []int64{v}}}}
}

// gather picks rows.
func (d *draft) gather(out, table, rows int) int {
	return d.node("gather_fwd_f32", axis("ns_GatherKernel::Params", recipes.I32, "axis", 1), out, table, rows)
}

func (d *draft) concat(out int, in ...int) int {
	return d.node("concat", axis("synConcatenateParams", recipes.U32, "axis", 1), out, in...)
}

func (d *draft) slice(out, in int, axis, begin, end int64) int {
	return d.node("slice_axis", &recipes.Params{Struct: "synSliceAxisParamsV2", Fields: []recipes.Field{
		{Name: "axis", Type: recipes.U32, Ints: []int64{axis}},
		{Name: "begin", Type: recipes.U64, Ints: []int64{begin}},
		{Name: "end", Type: recipes.U64, Ints: []int64{end}},
	}}, out, in)
}

// launch ends a recipe and adds a launch of it.
func (d *draft) launch() error {
	h := d.r.Hash()
	d.b.Recipes[h] = d.r
	l := &recipes.Launch{Recipe: h, Label: d.r.Name}
	for _, s := range d.r.Sections {
		l.Bindings = append(l.Bindings, recipes.Binding{Buffer: s.Buffer})
	}
	d.plan.Steps = append(d.plan.Steps, recipes.Step{Launch: l})
	return nil
}

func (d *draft) collective(kind recipes.CollectiveKind, count, in, out int64) {
	d.plan.Steps = append(d.plan.Steps, recipes.Step{Collective: &recipes.Collective{
		Kind: kind, DType: dtype.F32, Count: count, In: in, Out: out, Label: string(kind),
	}})
}

// finish halves what is in the arena, adds it up over the ranks and carries it.
func (d *draft) finish(sum int, n int64) (recipes.Plan, error) {
	half := d.arena(4 * hidden * n)
	d.node("mult_fwd_f32", nil, d.at(inArena, half, dtype.F32, hidden, n), sum, d.at(inWeights, 768, dtype.F32, 1, 1))
	if err := d.launch(); err != nil {
		return d.plan, err
	}
	d.collective(recipes.AllReduce, hidden*n, half, half)
	d.begin("carry")
	d.node("reshape", nil, d.at(inCarry, 0, dtype.F32, hidden, n), d.at(inArena, half, dtype.F32, hidden, n))
	return d.plan, d.launch()
}

func (d *draft) convTable() int { return d.at(inConv, 0, dtype.F32, hidden, kvBlocks+2) }

func (d *draft) copyRows(rows, src int) {
	d.node("index_copy_fwd_f32", axis("ns_IndexCopy::Params", recipes.I32, "axis", 0), d.convTable(), d.convTable(), rows, src)
}

func chunkPlan(b *recipes.Bundle, bucket recipes.Bucket) (recipes.Plan, error) {
	d := &draft{b: b, plan: recipes.Plan{Bucket: bucket, Family: "prefill"}}
	d.inputs()
	d.begin("chunk")
	q, w := int64(bucket.Query), int64(touched(bucket, &layout{block: blockSize}))
	embed := d.at(inWeights, 0, dtype.F32, hidden, vocabulary)
	x := d.gather(d.at(inWorkspace, 0, dtype.F32, hidden, q), embed, d.input("tokens"))
	old := d.gather(d.at(inWorkspace, 0, dtype.F32, hidden, 1), d.convTable(), d.input("conv_read"))
	line := d.concat(d.at(inWorkspace, 0, dtype.F32, hidden, q+1), old, x)
	shifted := d.slice(d.at(inWorkspace, 0, dtype.F32, hidden, q), line, 1, 0, q)
	rows := d.gather(d.at(inWorkspace, 0, dtype.F32, hidden, w), line, d.input("conv_take"))
	d.copyRows(d.input("conv_rows"), rows)
	sum := d.node("add_fwd_f32", nil, d.at(inWorkspace, 0, dtype.F32, hidden, q), x, shifted)
	return d.finish(sum, q)
}

func batchPlan(b *recipes.Bundle, bucket recipes.Bucket) (recipes.Plan, error) {
	d := &draft{b: b, plan: recipes.Plan{Bucket: bucket, Family: "decode"}}
	d.inputs()
	d.begin("batch")
	n := int64(bucket.Seqs)
	embed := d.at(inWeights, 0, dtype.F32, hidden, vocabulary)
	x := d.gather(d.at(inWorkspace, 0, dtype.F32, hidden, n), embed, d.input("tokens"))
	old := d.gather(d.at(inWorkspace, 0, dtype.F32, hidden, n), d.convTable(), d.input("conv_read"))
	sum := d.node("add_fwd_f32", nil, d.at(inWorkspace, 0, dtype.F32, hidden, n), x, old)
	d.copyRows(d.input("conv_write"), x)
	d.r.Nodes[len(d.r.Nodes)-1].After = []int{1}
	return d.finish(sum, n)
}

func logitsPlan(b *recipes.Bundle, bucket recipes.Bucket) (recipes.Plan, error) {
	d := &draft{b: b, plan: recipes.Plan{Bucket: bucket, Family: "logits"}}
	d.inputs()
	n := int64(bucket.Seqs)
	part := int64(vocabulary / ranks)
	shard, whole, out := d.arena(4*part*n), d.arena(4*vocabulary*n), d.arena(4*valid*n)
	d.plan.Outputs = []recipes.IO{{Name: "logits", DType: dtype.F32, Dims: []int64{valid, n}, Offset: out}}

	d.begin("head")
	rows := d.gather(d.at(inWorkspace, 0, dtype.F32, hidden, n), d.at(inCarry, 0, dtype.F32, hidden, 8), d.input("rows"))
	d.node("gemm", &recipes.Params{Struct: "synGEMMParams", Fields: []recipes.Field{
		{Name: "transpose_a", Type: recipes.U8, Ints: []int64{0}}, {Name: "transpose_b", Type: recipes.U8, Ints: []int64{1}},
	}}, d.at(inArena, shard, dtype.F32, part, n), rows, d.at(inWeights, 512, dtype.F32, hidden, part))
	if err := d.launch(); err != nil {
		return d.plan, err
	}
	d.collective(recipes.AllGather, part*n, shard, whole)

	d.begin("join")
	t := d.node("transpose", &recipes.Params{Struct: "synTransposeParamsNDims", Fields: []recipes.Field{
		{Name: "tensorDim", Type: recipes.U32, Ints: []int64{3}}, {Name: "permutation", Type: recipes.U32, Ints: []int64{0, 2, 1}},
	}}, d.at(inWorkspace, 0, dtype.F32, part, ranks, n), d.at(inArena, whole, dtype.F32, part, n, ranks))
	flat := d.node("reshape", nil, d.at(inWorkspace, 0, dtype.F32, vocabulary, n), t)
	d.slice(d.at(inArena, out, dtype.F32, valid, n), flat, 0, 0, valid)
	return d.plan, d.launch()
}
