package passes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// number is a parameter that is a number, under the name that deployments use. One
// of bytes may have a unit.
type number struct {
	key   string
	at    *int
	bytes bool
}

func (p *Params) numbers() []number {
	return []number{
		{"block_size", &p.BlockSize, false},
		{"kv_blocks", &p.Blocks, false},
		{"max_model_len", &p.MaxModelLen, false},
		{"max_num_seqs", &p.MaxNumSeqs, false},
		{"max_batched_tokens", &p.MaxBatchedTokens, false},
		{"mask_budget", &p.MaskBudget, true},
		{"sub_block_rows", &p.SubBlockRows, false},
		{"moe_experts_per_node", &p.ExpertsPerNode, false},
	}
}

// word is a parameter that is a word, of any or of a list.
type word struct {
	key     string
	at      *string
	choices []string
}

func (p *Params) words() []word {
	return []word{
		{"target", &p.Target, nil},
		{"attention", &p.Attention, []string{Plain, Masked, Banded}},
		{"far", &p.Far, []string{FarMask, FarExact, FarTiled}},
		{"moe", &p.MoE, []string{FusedExperts, GatheredExperts}},
	}
}

// Texts spells the parameters that are known, each as [Params.Set] reads it.
func (p Params) Texts() []string {
	var list []string
	for _, w := range p.words() {
		if *w.at != "" {
			list = append(list, w.key+"="+*w.at)
		}
	}
	for _, n := range p.numbers() {
		if *n.at != 0 {
			list = append(list, n.key+"="+strconv.Itoa(*n.at))
		}
	}
	return list
}

// Set sets a parameter from key=value, with the keys of a deployment.
func (p *Params) Set(text string) error {
	key, val, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("parameter %q is not of the form key=value", text)
	}
	var keys []string
	for _, w := range p.words() {
		if w.key == key {
			if w.choices != nil && !slices.Contains(w.choices, val) {
				return fmt.Errorf("parameter %s is %q, want one of %s", key, val, strings.Join(w.choices, ", "))
			}
			*w.at = val
			return nil
		}
		keys = append(keys, w.key)
	}
	for _, n := range p.numbers() {
		if n.key == key {
			return n.set(val)
		}
		keys = append(keys, n.key)
	}
	return fmt.Errorf("there is no parameter %q; there are %s", key, strings.Join(keys, ", "))
}

func (n number) set(val string) error {
	want, read := "a number from 1", func(s string) (int64, error) { return strconv.ParseInt(s, 10, strconv.IntSize) }
	if n.bytes {
		want, read = "a number from 1, with KiB, MiB or GiB behind it or nothing for bytes", ParseBytes
	}
	v, err := read(val)
	if err != nil || v < 1 {
		return fmt.Errorf("parameter %s is %q, want %s", n.key, val, want)
	}
	*n.at = int(v)
	return nil
}
