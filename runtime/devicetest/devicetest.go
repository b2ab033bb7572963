// Package devicetest holds what every device must do: one suite for the CPU and for
// cards. It has a bundle of its own, small enough to be computed by hand.
package devicetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
	"quill/runtime"
)

// Subject is a kind of device.
type Subject struct {
	// Prepare makes a bundle ready for the device, before it is written; nil if there
	// is nothing to do.
	Prepare func(t testing.TB, b *recipes.Bundle)
	// Open makes a device for the set of a bundle, which is at a path as well.
	Open func(t testing.TB, bundle, model string, b *recipes.Bundle, set *recipes.Set) runtime.Device
}

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

// law is what the bundle computes.
type law struct{ state [rows][cols]float32 }

// step is the sum over ranks of one plan's product; it updates the state.
func (l *law) step(ranks int, x []float32, order [rows]int32) (z [cells]float32) {
	old := l.state
	for r := range rows {
		for c := range cols {
			i := r*cols + c
			for k := range cols {
				z[i] += x[r*cols+k] * matrix[k*cols+c]
			}
			z[i] *= float32(ranks * (ranks + 1) / 2)
			l.state[order[r]][c] = old[r][c] + z[i]
		}
	}
	return z
}

// flat is the state as it lies in memory.
func (l *law) flat() []float32 {
	var x []float32
	for _, row := range l.state {
		x = append(x, row[:]...)
	}
	return x
}

// orders are some orders of rows.
var orders = [][rows]int32{{0, 1, 2}, {2, 0, 1}, {1, 0, 2}}

// device is a device under test with its plans bound.
type device struct {
	*fixture
	runtime.Device
	replays []runtime.Replay
	x       [2][]byte // inputs of the plans that compute
	order   [2][]byte
	out     [3][]byte // their outputs, and what was carried
}

// open makes the device, binds all plans and loads the weights.
func (f *fixture) open(t testing.TB, s *Subject) *device {
	d := &device{fixture: f, Device: s.Open(t, f.bundle, f.model, f.b, f.set)}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.NoError(t, d.bind())
	require.NoError(t, d.load(t.Context()))
	return d
}

// bind binds all plans.
func (d *device) bind() error {
	for i := range d.set.Plans {
		p := &d.set.Plans[i]
		r, err := d.Bind(p, d.recipe)
		if err != nil {
			return err
		}
		d.replays = append(d.replays, r)
		var in [2][]byte
		for j := range p.Inputs {
			if in[j], err = r.Stage(p.Inputs[j].Offset, p.Inputs[j].Bytes()); err != nil {
				return err
			}
		}
		if i != carried {
			d.x[i], d.order[i] = in[0], in[1]
		}
		if d.out[i], err = r.Fetch(p.Outputs[0].Offset, p.Outputs[0].Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// load loads the weights.
func (d *device) load(ctx context.Context) error {
	if self, ok := d.Device.(runtime.SelfLoading); ok {
		return self.LoadWeights(ctx, nil)
	}
	for rank := range d.ranks {
		err := runtime.LoadRank(ctx, d.b, d.set, d.model, rank, func(offset int64, data []byte) error {
			return d.Write(rank, recipes.Weights, offset, data)
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fixture) recipe(h recipes.Hash) *recipes.Recipe { return f.b.Recipes[h] }

// run feeds x to a plan and compares what it computes.
func (d *device) run(t testing.TB, plan int, l *law, n int, x []float32) {
	order := orders[n%len(orders)]
	d.put(plan, x, order)
	require.NoError(t, d.replays[plan].Run(t.Context()))
	z := l.step(d.ranks, x, order)
	got := floats(d.out[plan])
	for rank := range d.ranks {
		for i := range cells {
			require.Equal(t, z[i]*float32(rank+1), got[rank*cells+i], "element %d of what rank %d gave", i, rank)
		}
	}
}

// put stages the inputs of a plan.
func (d *device) put(plan int, x []float32, order [rows]int32) {
	for i, v := range x {
		binary.LittleEndian.PutUint32(d.x[plan][4*i:], math.Float32bits(v))
	}
	for i, v := range order {
		binary.LittleEndian.PutUint32(d.order[plan][4*i:], uint32(v))
	}
}

func floats(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// inputs are different small integers for each n.
func inputs(n int) []float32 {
	x := make([]float32, cells)
	for i := range x {
		x[i] = float32((i*7+n*5)%9 - 4)
	}
	return x
}

// Run runs the suite with 1, 2 and 3 ranks.
func Run(t *testing.T, s Subject) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s *Subject, ranks int)
	}{
		{"Memory", testMemory},
		{"Ranges", testRanges},
		{"Replay", testReplay},
		{"Repeat", testRepeat},
		{"Cancelled", testCancelled},
		{"Threads", testThreads},
		{"Refuses", testRefuses},
		{"Closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, ranks := range []int{1, 2, 3} {
				t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) { c.test(t, &s, ranks) })
			}
		})
	}
}

// Buffers begin zeroed, keep what is written, and are each cleared alone.
func testMemory(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	require.Equal(t, ranks, d.Ranks())
	buffers := []recipes.Buffer{recipes.KV, recipes.Conv, recipes.Arena, recipes.Carry}
	read := func(rank int, b recipes.Buffer) []byte {
		data := make([]byte, d.set.Info.Bytes[b])
		require.NoError(t, d.Read(rank, b, 0, data))
		return data
	}
	for rank := range ranks {
		for i, b := range buffers {
			size := int(d.set.Info.Bytes[b])
			require.Equal(t, make([]byte, size), read(rank, b), "buffer %s of rank %d at the start", b, rank)
			for j := range size {
				require.NoError(t, d.Write(rank, b, int64(j), []byte{byte(1 + rank + i + j)}))
				if j > 64 { // the rest at once
					rest := make([]byte, size-j)
					for k := range rest {
						rest[k] = byte(1 + rank + i + j + k)
					}
					require.NoError(t, d.Write(rank, b, int64(j), rest))
					break
				}
			}
		}
		weights := read(rank, recipes.Weights)
		require.Equal(t, matrix[:], floats(weights[:4*cols*cols]))
		require.Equal(t, []float32{float32(rank + 1)}, floats(weights[pad:pad+4]))
	}
	require.NoError(t, d.Clear(recipes.KV))
	for rank := range ranks {
		for i, b := range buffers {
			for j, v := range read(rank, b) {
				want := byte(1 + rank + i + j)
				if b == recipes.KV {
					want = 0
				}
				require.Equal(t, want, v, "byte %d of buffer %s of rank %d", j, b, rank)
			}
		}
	}
}

// What is not all in a buffer is refused, and nothing is written then.
func testRanges(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	size := d.set.Info.Bytes[recipes.Conv]
	for _, c := range []struct {
		rank   int
		b      recipes.Buffer
		offset int64
		n      int
	}{
		{0, recipes.Conv, size, 1},
		{0, recipes.Conv, size - 1, 2},
		{0, recipes.Conv, -1, 1},
		{0, recipes.Conv, math.MaxInt64, 1},
		{0, recipes.Conv, math.MinInt64, 1},
		{ranks, recipes.Conv, 0, 1},
		{-1, recipes.Conv, 0, 1},
		{0, "other", 0, 1},
	} {
		data := make([]byte, c.n)
		require.Error(t, d.Write(c.rank, c.b, c.offset, data), "write %+v", c)
		require.Error(t, d.Read(c.rank, c.b, c.offset, data), "read %+v", c)
	}
	require.NoError(t, d.Write(0, recipes.Conv, size, nil))
	data := make([]byte, size)
	require.NoError(t, d.Read(0, recipes.Conv, 0, data))
	require.Equal(t, make([]byte, size), data)
}

// Plans that share recipes at different addresses and a state compute what they
// should, in any order, and so does the plan that reads what they carried.
func testReplay(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	var l law
	for n, plan := range []int{near, far, far, near, near, far} {
		d.run(t, plan, &l, n, inputs(n))
		if n%2 == 1 {
			require.NoError(t, d.replays[carried].Run(t.Context()))
			for i, v := range floats(d.out[carried]) {
				require.Equal(t, 2*l.flat()[i], v, "element %d of what was carried", i)
			}
		}
	}
	// The state is every rank's.
	for rank := range ranks {
		data := make([]byte, cellBytes)
		require.NoError(t, d.Read(rank, recipes.KV, 2*pad, data))
		require.Equal(t, l.flat(), floats(data))
	}
	require.NoError(t, d.Clear(recipes.KV))
	l = law{}
	d.run(t, near, &l, 1, inputs(9))
}

// A thousand replays give what one does, and the serving process allocates nothing.
func testRepeat(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	var l law
	for n := range 1000 {
		x := inputs(n)
		for i := range x {
			x[i] *= float32(1 - 2*(n/2%2)) // so that the state stays small
		}
		d.run(t, n%2, &l, 0, x)
	}
	programs, allocations := d.Made()
	require.Positive(t, programs)
	require.Positive(t, allocations)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := d.replays[near].Run(context.Background()); err != nil {
			panic(err)
		}
	}))
	afterPrograms, after := d.Made()
	require.Equal(t, programs, afterPrograms)
	require.Equal(t, allocations, after)
}

// A step that was cancelled before it begins does nothing.
func testCancelled(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.put(near, inputs(1), orders[0])
	require.ErrorIs(t, d.replays[near].Run(ctx), context.Canceled)
	var l law
	d.run(t, near, &l, 2, inputs(2)) // the state was untouched
}

// Several goroutines may replay; their steps follow each other.
func testThreads(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	d.put(near, inputs(1), orders[0])
	d.put(far, inputs(1), orders[0])
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 25 {
				if err := d.replays[i%2].Run(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var l law
	for range 100 {
		l.step(ranks, inputs(1), orders[0])
	}
	data := make([]byte, cellBytes)
	require.NoError(t, d.Read(ranks-1, recipes.KV, 2*pad, data))
	require.Equal(t, l.flat(), floats(data))
}

// Ranges of the arena that are not there are refused when a plan is bound.
func testRefuses(t *testing.T, s *Subject, ranks int) {
	f := newFixture(t, s, ranks)
	d := f.open(t, s)
	r, err := d.Bind(&f.set.Plans[near], f.recipe)
	require.NoError(t, err)
	size := f.set.Info.Bytes[recipes.Arena]
	for _, c := range [][2]int64{{-1, 4}, {0, size + 1}, {size, 1}, {4, -1}, {math.MaxInt64, 8}} {
		_, err := r.Stage(c[0], c[1])
		require.Error(t, err, "stage %v", c)
		_, err = r.Fetch(c[0], c[1])
		require.Error(t, err, "fetch %v", c)
	}
}

// A closed device says so, and can be closed again.
func testClosed(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	for _, r := range d.replays {
		require.ErrorContains(t, r.Run(t.Context()), "closed")
	}
}

// Work is something for a device that may fail to do: its results are right, or there
// is an error.
type Work struct {
	Bundle, Model string // paths
	Compiled      *recipes.Bundle
	Set           *recipes.Set

	f *fixture
}

// ErrWrong says that results of Work are wrong.
var ErrWrong = errors.New("a result is wrong")

// workSteps are how many steps Work has.
const workSteps = 40

// NewWork makes work for a number of ranks.
func NewWork(t testing.TB, s Subject, ranks int) *Work {
	f := newFixture(t, &s, ranks)
	return &Work{f.bundle, f.model, f.b, f.set, f}
}

// Job is Work on one device.
type Job struct{ d *device }

// On gives the work to a device.
func (w *Work) On(dev runtime.Device) *Job { return &Job{&device{fixture: w.f, Device: dev}} }

// Do binds all plans, loads the weights and works. The first error ends it.
func (j *Job) Do(ctx context.Context) error {
	if err := j.d.bind(); err != nil {
		return err
	}
	if err := j.d.load(ctx); err != nil {
		return err
	}
	return j.d.work(ctx)
}

// Again works on a device that was started anew since Do, which has bound plans and
// loaded weights then.
func (j *Job) Again(ctx context.Context) error { return j.d.work(ctx) }

func (d *device) work(ctx context.Context) error {
	var l law
	for n := range workSteps {
		plan, x, order := n%2, inputs(n), orders[n%len(orders)]
		d.put(plan, x, order)
		if err := d.replays[plan].Run(ctx); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		z, got := l.step(d.ranks, x, order), floats(d.out[plan])
		for i := range got {
			if want := z[i%cells] * float32(i/cells+1); got[i] != want {
				return fmt.Errorf("step %d: %w: element %d is %v, want %v", n, ErrWrong, i, got[i], want)
			}
		}
	}
	return nil
}
