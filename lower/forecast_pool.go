package lower

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"quill/ir"
	"quill/ir/inkling"
	"quill/recipes"
)

// extraBlocks are those of the pool that hold no tokens: the zero block and the pad block.
const extraBlocks = 2

// PoolForecast is how many bytes the cache of a rank has, and why.
type PoolForecast struct {
	// Blocks are kv_blocks and two that hold no tokens.
	Blocks int64 `json:"blocks"`
	// Kinds are layers of which a block takes as much: Bytes is the sum of Blocks ·
	// layers · bytes a block, and PaddingBytes.
	Kinds        []PoolKind `json:"kinds"`
	PaddingBytes int64      `json:"padding_bytes"`
	Bytes        int64      `json:"bytes"`
}

// PoolKind is what a block takes in each of some layers.
type PoolKind struct {
	Layers    int   `json:"layers"`
	KVBytes   int64 `json:"kv_bytes"`   // keys and values
	ConvBytes int64 `json:"conv_bytes"` // rows of short convolutions
}

// String is the sum: 2,562 blocks × 42 × 116,224 B = 12,506,167,296 B.
func (p *PoolForecast) String() string {
	var terms []string
	for _, k := range p.Kinds {
		terms = append(terms, fmt.Sprintf("%d × %s B", k.Layers, thousands(k.KVBytes+k.ConvBytes)))
	}
	sum := strings.Join(terms, " + ")
	if len(terms) > 1 {
		sum = "(" + sum + ")"
	}
	if p.PaddingBytes > 0 {
		sum += fmt.Sprintf(" + %s B of padding", thousands(p.PaddingBytes))
	}
	return fmt.Sprintf("%s blocks × %s = %s B", thousands(p.Blocks), sum, thousands(p.Bytes))
}

// thousands spells a number with a comma after every three digits.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// cacheState is a state of one layer.
type cacheState struct {
	layer string
	conv  bool
	block int64 // bytes of a block, of one rank
}

// states lists the states of a rank. All families have the same.
func (s *forecaster) states(d *Deployment, precision string) ([]cacheState, error) {
	m, err := inkling.Capture(s.cfg, d.options(precision), inkling.Prefill)
	if err != nil {
		return nil, err
	}
	var list []cacheState
	for _, p := range m.Entry().Params {
		if p.Kind != ir.State {
			continue
		}
		b, err := bufferOf(p)
		if err != nil {
			return nil, err
		}
		n, err := typeBytes(p.Value.Type)
		if err != nil {
			return nil, err
		}
		list = append(list, cacheState{strings.Split(p.Name, ".")[1], b == recipes.Conv, n / int64(d.KVBlocks+extraBlocks)})
	}
	return list, nil
}

// poolBytes is the size of states of so many blocks, each laid out by itself.
func poolBytes(states []cacheState, kvBlocks int) (n int64) {
	for _, x := range states {
		n += recipes.Align(x.block * int64(kvBlocks+extraBlocks))
	}
	return n
}

func newPool(states []cacheState, kvBlocks int) PoolForecast {
	p := PoolForecast{Blocks: int64(kvBlocks + extraBlocks), Bytes: poolBytes(states, kvBlocks)}
	layers := map[string]PoolKind{}
	var order []string
	for _, x := range states {
		k, ok := layers[x.layer]
		if !ok {
			order = append(order, x.layer)
		}
		if x.conv {
			k.ConvBytes += x.block
		} else {
			k.KVBytes += x.block
		}
		layers[x.layer] = k
	}
	p.PaddingBytes = p.Bytes
	for _, name := range order {
		k := layers[name]
		p.PaddingBytes -= p.Blocks * (k.KVBytes + k.ConvBytes)
		i := slices.IndexFunc(p.Kinds, func(o PoolKind) bool { return o.KVBytes == k.KVBytes && o.ConvBytes == k.ConvBytes })
		if i < 0 {
			i = len(p.Kinds)
			p.Kinds = append(p.Kinds, k)
		}
		p.Kinds[i].Layers++
	}
	return p
}
