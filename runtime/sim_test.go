package runtime

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// The simulated model knows nothing but texts: its cache keeps a token in every
// slot, its convolution rows keep the three newest tokens of a block, and the
// hidden state of a row is the whole text up to it. So its logits tell whether
// the inputs of every step meant exactly the text that the caller fed.

const (
	simVocab = 12 // 11 of them valid
	simValid = 11
	simPad   = 10
)

// simLimits is the deployment of a simulated bundle.
type simLimits struct {
	block, blocks, maxLen, maxSeqs, maxTokens, ranks int
	window                                           int // 0 is none
	buckets                                          []recipes.Bucket
}

// simBundle writes a bundle whose plans have one launch of an empty recipe
// each, and the directory of a model for it.
func simBundle(t testing.TB, l simLimits) (bundle, model string) {
	model = modelDir(t, safetensors.FromF32("w", []int64{2, 3}, []float32{1, 2, 3, 4, 5, 6}))
	config, err := os.ReadFile(filepath.Join(model, "config.json"))
	require.NoError(t, err)
	fingerprint, err := recipes.Fingerprint(config)
	require.NoError(t, err)
	arch, err := recipes.Architecture(config)
	require.NoError(t, err)
	b := &recipes.Bundle{
		Architecture: arch,
		Manifest: recipes.Manifest{
			Quill: "test",
			Model: recipes.Model{Fingerprint: fingerprint, Vocab: simVocab, ValidVocab: simValid, Window: l.window},
			Deployment: recipes.Deployment{
				TensorParallel: l.ranks, MaxModelLen: l.maxLen, MaxNumSeqs: l.maxSeqs,
				BlockSize: l.block, KVBlocks: l.blocks, MaxBatchedTokens: l.maxTokens,
			},
			Costs: recipes.Costs{Row: 1, Block: 1, Key: 1},
		},
		Checkpoint: []recipes.CheckpointTensor{{Name: "w", DType: "F32", Shape: []int64{2, 3}}},
		Recipes:    make(map[recipes.Hash]*recipes.Recipe),
	}
	set := recipes.Set{
		Info: recipes.SetInfo{Precision: "f32", Bytes: map[recipes.Buffer]int64{recipes.Weights: 24, recipes.KV: 64, recipes.Conv: 64}},
		Weights: []recipes.Weight{
			{Tensor: "w", Ways: 1, DType: dtype.F32, Shape: []int64{2, 3}},
			{Tensor: "w", Ways: 1, DType: dtype.F32, Shape: []int64{2, 3}}, // tied
		},
	}
	for _, bucket := range l.buckets {
		p := simPlan(bucket, &layout{block: l.block, window: l.window})
		r, l := simLaunch(&p)
		b.Recipes[r.Hash()] = r
		p.Steps = []recipes.Step{{Launch: l}}
		set.Plans = append(set.Plans, p)
		set.Info.Plans = append(set.Info.Plans, bucket)
		set.Info.Bytes[recipes.Arena] = max(set.Info.Bytes[recipes.Arena], p.ArenaBytes)
	}
	b.Sets = []recipes.Set{set}
	bundle = filepath.Join(t.TempDir(), "sim.quill")
	require.NoError(t, recipes.WriteBundle(t.Context(), bundle, b))
	return bundle, model
}

// modelDir is a model directory with a config.json and the given tensors.
func modelDir(t testing.TB, tensors ...safetensors.Tensor) string {
	dir := t.TempDir()
	config := `{"model_type": "m", "eos_token_id": 1, "text_config": {}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666))
	require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil))
	return dir
}

// simPlan lays the inputs of a bucket out, some of them far from each other.
// simLaunch is a launch that puts a plan's outputs where they are, and does nothing else.
func simLaunch(p *recipes.Plan) (*recipes.Recipe, *recipes.Launch) {
	r := &recipes.Recipe{Name: p.Bucket.String()}
	l := &recipes.Launch{Label: "all"}
	for i, o := range p.Outputs {
		r.Sections = append(r.Sections, recipes.Section{Name: o.Name, Buffer: recipes.Arena, Size: o.Bytes()})
		r.Tensors = append(r.Tensors, recipes.Tensor{Name: o.Name, DType: o.DType, Dims: o.Dims, Section: i})
		r.Nodes = append(r.Nodes, recipes.Node{Name: o.Name, GUID: "constant_f32", Out: []int{i}})
		l.Bindings = append(l.Bindings, recipes.Binding{Buffer: recipes.Arena, Offset: o.Offset})
	}
	l.Recipe = r.Hash()
	return r, l
}

func simPlan(b recipes.Bucket, l *layout) recipes.Plan {
	p := recipes.Plan{Bucket: b, Family: string(b.Phase), ArenaBytes: 8}
	for i := range inputTable {
		_, size, ok := inputOf(inputTable[i].name, b, l)
		if !ok {
			continue
		}
		p.Inputs = append(p.Inputs, recipes.IO{Name: inputTable[i].name, DType: dtype.I32, Dims: []int64{int64(size)}, Offset: p.ArenaBytes})
		p.ArenaBytes += int64(4*size) + int64(i%3)*200
	}
	slices.Reverse(p.Inputs) // their order means nothing
	if b.Phase == recipes.Logits {
		out := recipes.IO{Name: "logits", DType: dtype.F32, Dims: []int64{simValid, int64(b.Seqs)}, Offset: p.ArenaBytes}
		p.Outputs = append(p.Outputs, out)
		p.ArenaBytes += out.Bytes()
	}
	return p
}

// simDevice is the device of the simulated model.
type simDevice struct {
	ranks   int
	mem     []map[recipes.Buffer][]byte
	closed  int
	binds   int
	late    int // allocations that steps make
	block   int
	window  int // 0 is none
	blocks  int // usable
	tokens  []int32
	conv    [][3]int32
	carry   [][]int32
	poison  int32 // a text that ends in this token has logits that are not finite
	failing error // what the next launch returns

	beforeRun func() // called by every launch
}

func (l simLimits) device(made **simDevice) func(*recipes.Bundle, *recipes.Set) (Device, error) {
	return func(b *recipes.Bundle, set *recipes.Set) (Device, error) {
		d := &simDevice{ranks: b.Manifest.Deployment.TensorParallel, block: l.block, window: l.window, blocks: l.blocks, poison: -1}
		for range d.ranks {
			mem := make(map[recipes.Buffer][]byte)
			for b, n := range set.Info.Bytes {
				mem[b] = make([]byte, n)
			}
			d.mem = append(d.mem, mem)
		}
		d.tokens = make([]int32, (l.blocks+2)*l.block)
		for i := range d.tokens {
			d.tokens[i] = -1
		}
		d.conv = make([][3]int32, l.blocks+2)
		*made = d
		return d, nil
	}
}

func (d *simDevice) Ranks() int { return d.ranks }

func (d *simDevice) Clear(b recipes.Buffer) error {
	for rank := range d.mem {
		clear(d.mem[rank][b])
	}
	return nil
}

func (d *simDevice) Write(rank int, b recipes.Buffer, offset int64, data []byte) error {
	if copy(d.mem[rank][b][offset:], data) < len(data) {
		return errors.New("write beyond a buffer")
	}
	return nil
}

func (d *simDevice) Read(rank int, b recipes.Buffer, offset int64, data []byte) error {
	if copy(data, d.mem[rank][b][offset:]) < len(data) {
		return errors.New("read beyond a buffer")
	}
	return nil
}

func (d *simDevice) Made() (programs, allocations int64) { return int64(d.binds), int64(d.late) }

func (d *simDevice) Close() error { d.closed++; return nil }

func (d *simDevice) Bind(p *recipes.Plan, recipe func(recipes.Hash) *recipes.Recipe) (Replay, error) {
	d.binds++
	for i := range p.Steps {
		if name := recipe(p.Steps[i].Launch.Recipe).Name; name != p.Bucket.String() {
			return nil, fmt.Errorf("step %d: no such recipe %s", i, name)
		}
	}
	// What the plan says is compared with what the simulation knows of it.
	known := simPlan(p.Bucket, &layout{block: d.block, window: d.window})
	return &simProgram{d: d, plan: &known}, nil
}

type simProgram struct {
	d      *simDevice
	plan   *recipes.Plan
	staged []staged
}

func (p *simProgram) Stage(offset, n int64) ([]byte, error) {
	p.staged = append(p.staged, staged{offset, make([]byte, n)})
	return p.staged[len(p.staged)-1].data, nil
}

func (p *simProgram) Fetch(offset, n int64) ([]byte, error) {
	return p.d.mem[0][recipes.Arena][offset : offset+n], nil
}

func (p *simProgram) Run(ctx context.Context) error {
	if p.d.beforeRun != nil {
		p.d.beforeRun()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.d.failing != nil {
		return p.d.failing
	}
	for rank := range p.d.mem {
		for _, x := range p.staged {
			copy(p.d.mem[rank][recipes.Arena][x.offset:], x.data)
		}
	}
	switch p.plan.Bucket.Phase {
	case recipes.Prefill:
		return p.prefill()
	case recipes.Decode:
		return p.decode()
	default:
		return p.logits()
	}
}

// in reads an input, the same on every rank.
func (p *simProgram) in(name string) []int32 {
	for i := range p.plan.Inputs {
		io := &p.plan.Inputs[i]
		if io.Name != name {
			continue
		}
		raw := p.d.mem[0][recipes.Arena][io.Offset:][:io.Bytes()]
		for rank := range p.d.mem {
			if !bytes.Equal(raw, p.d.mem[rank][recipes.Arena][io.Offset:][:io.Bytes()]) {
				panic(fmt.Sprintf("input %s of rank %d is not that of rank 0", name, rank))
			}
		}
		out := make([]int32, len(raw)/4)
		for j := range out {
			out[j] = int32(binary.LittleEndian.Uint32(raw[4*j:]))
		}
		return out
	}
	panic("no input " + name)
}

func (d *simDevice) zero() int32  { return int32(d.blocks) }
func (d *simDevice) trash() int32 { return int32(d.blocks + 1) }

// newest is the convolution row of a text.
func newest(text []int32) (row [3]int32) {
	for i := range row {
		if at := len(text) - 3 + i; at >= 0 {
			row[i] = text[at] + 1
		}
	}
	return row
}

func (p *simProgram) prefill() error {
	d, b := p.d, p.plan.Bucket
	n := int(p.in("q_len")[0])
	if n < 1 || n > b.Query {
		return fmt.Errorf("q_len is %d", n)
	}
	history, err := p.history()
	if err != nil {
		return err
	}
	if err := p.windowHistory(history); err != nil {
		return err
	}
	start := len(history)
	if got, want := d.conv[p.in("conv_read")[0]], newest(history); got != want {
		return fmt.Errorf("conv_read row is %v, want %v", got, want)
	}
	tokens, positions, slots := p.in("tokens"), p.in("positions"), p.in("slots")
	text := slices.Clone(history)
	d.carry = nil
	for i := range b.Query {
		if i >= n {
			if tokens[i] != simPad || positions[i] != 0 || slots[i] != d.trash()*int32(d.block)+int32(i%d.block) {
				return fmt.Errorf("pad row %d is token %d, position %d, slot %d", i, tokens[i], positions[i], slots[i])
			}
			d.carry = append(d.carry, nil)
			continue
		}
		if positions[i] != int32(start+i) || slots[i] < 0 || int(slots[i])/d.block >= d.blocks || int(slots[i])%d.block != (start+i)%d.block {
			return fmt.Errorf("row %d is position %d, slot %d", i, positions[i], slots[i])
		}
		text = append(text, tokens[i])
		d.tokens[slots[i]] = tokens[i]
		d.carry = append(d.carry, slices.Clone(text))
	}
	return p.convWrite(history, text)
}

// convWrite updates the rows of the blocks that the chunk touches.
func (p *simProgram) convWrite(history, text []int32) error {
	d := p.d
	rows, take := p.in("conv_rows"), p.in("conv_take")
	if len(rows) != (p.plan.Bucket.Query+d.block-2)/d.block+1 {
		return fmt.Errorf("%d conv rows", len(rows))
	}
	written := make(map[int32]bool)
	newestTake := int32(0)
	for i, row := range rows {
		if row == d.trash() {
			if take[i] != 0 {
				return fmt.Errorf("pad conv row takes %d", take[i])
			}
			continue
		}
		if written[row] || row >= d.zero() || take[i] < 1 {
			return fmt.Errorf("conv rows %v, take %v", rows, take)
		}
		if end := len(history) + int(take[i]); end%d.block != 0 && end != len(text) {
			return fmt.Errorf("conv row %d ends at position %d, inside a block", row, end)
		}
		written[row] = true
		newestTake = max(newestTake, take[i])
		d.conv[row] = newest(text[:len(history)+int(take[i])])
	}
	if int(newestTake) != len(text)-len(history) {
		return fmt.Errorf("conv rows take %v of a chunk of %d", take, len(text)-len(history))
	}
	return nil
}

// history is the text that the context inputs describe.
func (p *simProgram) history() ([]int32, error) {
	if p.plan.Bucket.Blocks == 0 {
		return nil, nil
	}
	d := p.d
	n, start, list := int(p.in("ctx_len")[0]), int(p.in("ctx_start")[0]), p.in("ctx_blocks")
	if start%d.block != 0 || start+len(list)*d.block < n || start+len(list)*d.block-n >= d.block {
		return nil, fmt.Errorf("%d tokens in %d blocks from %d on", n, len(list), start)
	}
	var text []int32
	for i, block := range list {
		for j := range d.block {
			pos := start + i*d.block + j
			switch {
			case pos < 0 && block != d.zero():
				return nil, fmt.Errorf("padding reads block %d", block)
			case pos >= 0 && block >= d.zero():
				return nil, fmt.Errorf("history reads block %d", block)
			case pos >= 0 && pos < n:
				text = append(text, d.tokens[int(block)*d.block+j])
			}
		}
	}
	return text, nil
}

func (p *simProgram) decode() error {
	d, b := p.d, p.plan.Bucket
	tokens, positions, slots := p.in("tokens"), p.in("positions"), p.in("slots")
	read, write := p.in("conv_read"), p.in("conv_write")
	for i := range b.Seqs {
		d.tokens[slots[i]] = tokens[i]
	}
	texts, err := p.owned(positions)
	if err != nil {
		return err
	}
	if err := p.windowRows(texts, positions); err != nil {
		return err
	}
	d.carry = nil
	fresh := make([][3]int32, b.Seqs)
	for i := range b.Seqs {
		if slots[i]/int32(d.block) == d.trash() { // a pad row
			if tokens[i] != simPad || positions[i] != 0 || read[i] != d.zero() || write[i] != d.trash() || int(slots[i])%d.block != i%d.block {
				return fmt.Errorf("pad row %d is token %d, position %d, slot %d, conv %d to %d", i, tokens[i], positions[i], slots[i], read[i], write[i])
			}
			d.carry = append(d.carry, nil)
			continue
		}
		text := texts[i]
		if len(text) != int(positions[i])+1 || write[i] != slots[i]/int32(d.block) {
			return fmt.Errorf("row %d at position %d: %d tokens referenced, conv row %d", i, positions[i], len(text), write[i])
		}
		if got, want := d.conv[read[i]], newest(text[:len(text)-1]); got != want {
			return fmt.Errorf("row %d: conv row is %v, want %v", i, got, want)
		}
		fresh[i] = newest(text)
		d.carry = append(d.carry, text)
	}
	for i, row := range write {
		d.conv[row] = fresh[i]
	}
	return nil
}

// owned are the texts that the block references give each row.
func (p *simProgram) owned(positions []int32) ([][]int32, error) {
	d := p.d
	texts := make([][]int32, len(positions))
	blocks, owners, starts := p.in("blocks"), p.in("owners"), p.in("ref_start")
	for i, block := range blocks {
		if starts[i] == 1<<30 {
			if block != d.zero() || owners[i] != 0 {
				return nil, fmt.Errorf("pad reference is block %d of row %d", block, owners[i])
			}
			continue
		}
		row := owners[i]
		if int(starts[i]) != len(texts[row]) || block >= d.zero() {
			return nil, fmt.Errorf("reference %d is block %d at %d of row %d", i, block, starts[i], row)
		}
		for j := range d.block {
			if starts[i]+int32(j) <= positions[row] {
				texts[row] = append(texts[row], d.tokens[int(block)*d.block+j])
			}
		}
	}
	return texts, nil
}

// windowHistory checks that what windows see of the history is listed.
func (p *simProgram) windowHistory(history []int32) error {
	d := p.d
	if d.window == 0 || p.plan.Bucket.Blocks == 0 {
		return nil
	}
	start, list := int(p.in("window_start")[0]), p.in("window_blocks")
	seen := map[int]int32{}
	for i, block := range list {
		for j := range d.block {
			pos := start + i*d.block + j
			if (pos < 0) != (block == d.zero()) {
				return fmt.Errorf("block %d of a window is at position %d", block, pos)
			}
			seen[pos] = d.tokens[int(block)*d.block+j]
		}
	}
	return windowText(seen, history, len(history), d.window)
}

// windowText checks the tokens that a row at a position sees before it.
func windowText(seen map[int]int32, text []int32, pos, window int) error {
	for at := max(pos-window+1, 0); at < pos; at++ {
		if token, ok := seen[at]; !ok || token != text[at] {
			return fmt.Errorf("the window of position %d has token %d at %d (%t), want %d", pos, token, at, ok, text[at])
		}
	}
	return nil
}

// windowRows checks that what each row's window sees is listed, in order, and nothing
// of another row.
func (p *simProgram) windowRows(texts [][]int32, positions []int32) error {
	d := p.d
	if d.window == 0 {
		return nil
	}
	blocks, starts := p.in("window_blocks"), p.in("window_start")
	each := len(blocks) / len(texts)
	for row, text := range texts {
		seen, last := map[int]int32{}, int32(-1)
		for i := row * each; i < (row+1)*each; i++ {
			if starts[i] == 1<<30 {
				if blocks[i] != d.zero() {
					return fmt.Errorf("padding of the window of row %d is block %d", row, blocks[i])
				}
				last = starts[i]
				continue
			}
			if starts[i] <= last || int(starts[i]) >= len(text) {
				return fmt.Errorf("the window of row %d, of %d tokens, has a block at %d after one at %d", row, len(text), starts[i], last)
			}
			last = starts[i]
			for j := range d.block {
				seen[int(starts[i])+j] = d.tokens[int(blocks[i])*d.block+j]
			}
		}
		if len(text) == 0 {
			continue
		}
		if err := windowText(seen, text, int(positions[row])+1, d.window+1); err != nil {
			return err
		}
	}
	return nil
}

func (p *simProgram) logits() error {
	out := p.plan.Outputs[0]
	for i, row := range p.in("rows") {
		if int(row) >= len(p.d.carry) {
			return fmt.Errorf("row %d of %d", row, len(p.d.carry))
		}
		text := p.d.carry[row]
		logits := simLogits(text)
		if len(text) > 0 && text[len(text)-1] == p.d.poison {
			logits[3] = float32(math.NaN())
		}
		for rank := range p.d.mem {
			for j, v := range logits {
				at := out.Offset + int64(4*(i*simValid+j))
				binary.LittleEndian.PutUint32(p.d.mem[rank][recipes.Arena][at:], math.Float32bits(v))
			}
		}
	}
	return nil
}

// simLogits are the logits of the simulated model after a text.
func simLogits(text []int32) []float32 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, text)
	sum := h.Sum64()
	out := make([]float32, simValid)
	for i := range out {
		sum = sum*6364136223846793005 + 1442695040888963407
		out[i] = float32(sum>>40) / 1000
	}
	return out
}
