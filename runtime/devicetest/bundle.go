package devicetest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// The suite's bundle: the inputs x of a plan are multiplied by a matrix, scaled by the
// number of the rank from 1 on, and summed over ranks. The sum is added to a state,
// whose rows are written in place in an order that is an input too, and gathered from
// all ranks, scaled again. Another plan reads what was carried.
//
//	z     = Σ over ranks r of (x · w) · (r+1)
//	state = state + z, rows in another order
//	out   = z · 1, z · 2, … (all_gather)
//	carry = state · 2       carried = carry · (r+1)
//
// All values are small integers, so sums are exact in any order.
const (
	rows, cols = 3, 4
	cells      = rows * cols
	cellBytes  = 4 * cells
	pad        = 128 // what begins at an address begins at a multiple of it
)

// plans of the bundle: two that compute the same at other addresses, and the one that
// reads what they carried.
const (
	near = iota
	far
	carried
)

// matrix is w, [cols, cols], row-major.
var matrix = [cols * cols]float32{1, 2, 0, 1, 0, 1, 3, 0, 2, 0, 1, 1, 1, 1, 0, 2}

// fixture is a bundle in memory and in files.
type fixture struct {
	ranks         int
	b             *recipes.Bundle
	set           *recipes.Set
	bundle, model string
}

// newFixture writes the bundle for a number of ranks.
func newFixture(t testing.TB, s *Subject, ranks int) *fixture {
	dir := t.TempDir()
	f := &fixture{ranks: ranks, bundle: filepath.Join(dir, "device.quill"), model: filepath.Join(dir, "model")}
	require.NoError(t, os.Mkdir(f.model, 0o777))
	config := []byte(`{"model_type": "m", "eos_token_id": 1, "text_config": {}}`)
	require.NoError(t, os.WriteFile(filepath.Join(f.model, "config.json"), config, 0o666))
	shape := []int64{cols, cols}
	require.NoError(t, safetensors.Write(filepath.Join(f.model, "model.safetensors"), []safetensors.Tensor{safetensors.FromF32("w", shape, matrix[:])}, nil))
	fingerprint, err := recipes.Fingerprint(config)
	require.NoError(t, err)
	arch, err := recipes.Architecture(config)
	require.NoError(t, err)
	b := &recipes.Bundle{
		Architecture: arch,
		Manifest: recipes.Manifest{
			Quill: "test", Target: "any", Model: recipes.Model{Fingerprint: fingerprint, Vocab: cells, ValidVocab: cells},
			Deployment: recipes.Deployment{
				TensorParallel: ranks, MaxModelLen: 8, MaxNumSeqs: 1, BlockSize: 4, KVBlocks: 2, MaxBatchedTokens: 8,
			},
			Costs: recipes.Costs{Row: 1, Block: 1, Key: 1},
		},
		Checkpoint: []recipes.CheckpointTensor{{Name: "w", DType: "F32", Shape: shape, Part: recipes.TextPart}},
		Recipes:    make(map[recipes.Hash]*recipes.Recipe),
	}
	set := recipes.Set{
		Info: recipes.SetInfo{Precision: "f32", Bytes: map[recipes.Buffer]int64{
			recipes.Weights: 2 * pad, recipes.KV: 5 * pad, recipes.Conv: pad, recipes.Carry: 2 * pad,
		}},
		Weights: []recipes.Weight{
			{Tensor: "w", Ways: 1, DType: dtype.F32, Shape: shape},
			{Fill: 1, Step: 1, Ways: 1, DType: dtype.F32, Shape: []int64{1, 1}, Offset: pad},
		},
	}
	for _, p := range []recipes.Plan{
		f.step(b, recipes.Bucket{Phase: recipes.Prefill, Query: 4}, 0),
		f.step(b, recipes.Bucket{Phase: recipes.Prefill, Query: 8}, 3*pad),
		f.read(b, recipes.Bucket{Phase: recipes.Logits, Seqs: 1}),
	} {
		set.Plans = append(set.Plans, p)
		set.Info.Plans = append(set.Info.Plans, p.Bucket)
		set.Info.Bytes[recipes.Arena] = max(set.Info.Bytes[recipes.Arena], p.ArenaBytes)
	}
	b.Sets = []recipes.Set{set}
	if s.Prepare != nil {
		s.Prepare(t, b)
	}
	require.NoError(t, recipes.WriteBundle(t.Context(), f.bundle, b))
	f.b, err = recipes.ReadBundle(f.bundle)
	require.NoError(t, err)
	f.set = &f.b.Sets[0]
	return f
}

// draft is a recipe and its launch, built together.
type draft struct {
	r recipes.Recipe
	l recipes.Launch
}

// bind adds a section with one tensor, or another tensor of the same dims at the same place,
// and returns the tensor's index.
func (d *draft) bind(name string, t dtype.Type, b recipes.Buffer, offset int64, dims ...int64) int {
	for i, have := range d.l.Bindings {
		if have == (recipes.Binding{Buffer: b, Offset: offset}) {
			return d.tensor(name, t, i, dims)
		}
	}
	d.l.Bindings = append(d.l.Bindings, recipes.Binding{Buffer: b, Offset: offset})
	d.r.Sections = append(d.r.Sections, recipes.Section{Name: name, Buffer: b})
	return d.tensor(name, t, len(d.r.Sections)-1, dims)
}

func (d *draft) tensor(name string, t dtype.Type, section int, dims []int64) int {
	x := recipes.Tensor{Name: name, DType: t, Dims: dims, Section: section}
	if section != recipes.Workspace {
		d.r.Sections[section].Size = x.Bytes()
	}
	d.r.Tensors = append(d.r.Tensors, x)
	return len(d.r.Tensors) - 1
}

func (d *draft) node(guid string, out int, in ...int) {
	n := recipes.Node{Name: d.r.Tensors[out].Name + "_node", GUID: guid, In: in, Out: []int{out}}
	field := func(name string, t recipes.FieldType) recipes.Field {
		return recipes.Field{Name: name, Type: t, Ints: []int64{0}}
	}
	switch guid {
	case "gemm":
		n.Params = &recipes.Params{Struct: "synGEMMParams", Fields: []recipes.Field{field("transpose_a", recipes.U8), field("transpose_b", recipes.U8)}}
	case "index_copy_fwd_f32":
		n.Params = &recipes.Params{Struct: "ns_IndexCopy::Params", Fields: []recipes.Field{field("axis", recipes.I32)}}
	}
	d.r.Nodes = append(d.r.Nodes, n)
}

// end adds the recipe to a bundle and the launch to a plan.
func (d *draft) end(b *recipes.Bundle, p *recipes.Plan, name string) {
	d.r.Name, d.l.Label = name, name
	d.l.Recipe = d.r.Hash()
	b.Recipes[d.l.Recipe] = &d.r
	p.Steps = append(p.Steps, recipes.Step{Launch: &d.l})
}

// step is a plan that computes, with all it has in the arena from a byte on.
func (f *fixture) step(b *recipes.Bundle, bucket recipes.Bucket, from int64) recipes.Plan {
	x, z, g, order := from, from+pad, from+2*pad, from+3*pad
	out := from + 4*pad
	size := int64(f.ranks) * cellBytes
	p := recipes.Plan{
		Bucket: bucket, Family: "step", ArenaBytes: out + size, CarryBytes: cellBytes,
		Inputs: []recipes.IO{
			{Name: "x", DType: dtype.F32, Dims: []int64{cols, rows}, Offset: x},
			{Name: "order", DType: dtype.I32, Dims: []int64{rows}, Offset: order},
		},
		Outputs: []recipes.IO{{Name: "out", DType: dtype.F32, Dims: []int64{cols, rows * int64(f.ranks)}, Offset: out}},
	}
	var first, second draft
	weight := func(d *draft) int { return d.bind("s", dtype.F32, recipes.Weights, pad, 1, 1) }
	table := func(d *draft, name string, b recipes.Buffer, at int64) int {
		return d.bind(name, dtype.F32, b, at, cols, rows)
	}
	product := first.tensor("product", dtype.F32, recipes.Workspace, []int64{cols, rows})
	first.node("gemm", product, table(&first, "x", recipes.Arena, x), first.bind("w", dtype.F32, recipes.Weights, 0, cols, cols))
	first.node("mult_fwd_f32", table(&first, "z", recipes.Arena, z), product, weight(&first))
	first.end(b, &p, "multiply")
	p.Steps = append(p.Steps, recipes.Step{Collective: &recipes.Collective{Kind: recipes.AllReduce, DType: dtype.F32, Count: cells, In: z, Out: z, Label: "z"}})

	state, sum := table(&second, "state", recipes.KV, 2*pad), table(&second, "z", recipes.Arena, z)
	after := table(&second, "state2", recipes.KV, 2*pad)
	more := second.tensor("more", dtype.F32, recipes.Workspace, []int64{cols, rows})
	second.node("add_fwd_f32", more, state, sum)
	second.node("index_copy_fwd_f32", after, state, second.bind("order", dtype.I32, recipes.Arena, order, rows), more)
	second.node("mult_fwd_f32", table(&second, "g", recipes.Arena, g), sum, weight(&second))
	second.node("add_fwd_f32", table(&second, "carry", recipes.Carry, 0), after, after)
	second.end(b, &p, "accumulate")
	p.Steps = append(p.Steps, recipes.Step{Collective: &recipes.Collective{Kind: recipes.AllGather, DType: dtype.F32, Count: cells, In: g, Out: out, Label: "g"}})
	return p
}

// read is the plan that reads what was carried.
func (f *fixture) read(b *recipes.Bundle, bucket recipes.Bucket) recipes.Plan {
	p := recipes.Plan{
		Bucket: bucket, Family: "read", ArenaBytes: pad, CarryBytes: cellBytes,
		Outputs: []recipes.IO{{Name: "carried", DType: dtype.F32, Dims: []int64{cols, rows}}},
	}
	d := draft{}
	d.node("mult_fwd_f32", d.bind("carried", dtype.F32, recipes.Arena, 0, cols, rows),
		d.bind("carry", dtype.F32, recipes.Carry, 0, cols, rows), d.bind("s", dtype.F32, recipes.Weights, pad, 1, 1))
	d.end(b, &p, "read")
	return p
}

func (f *fixture) recipe(h recipes.Hash) *recipes.Recipe { return f.b.Recipes[h] }
