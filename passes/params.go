package passes

import (
	"fmt"
	"strconv"
	"strings"
)

// number is a parameter that is a number, under the name that deployments use.
type number struct {
	key string
	at  *int
}

func (p *Params) numbers() []number {
	return []number{
		{"block_size", &p.BlockSize},
		{"kv_blocks", &p.Blocks},
		{"max_model_len", &p.MaxModelLen},
		{"max_num_seqs", &p.MaxNumSeqs},
		{"max_batched_tokens", &p.MaxBatchedTokens},
	}
}

// Texts spells the parameters that are known, each as [Params.Set] reads it.
func (p Params) Texts() []string {
	var list []string
	if p.Target != "" {
		list = append(list, "target="+p.Target)
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
	if key == "target" {
		p.Target = val
		return nil
	}
	keys := []string{"target"}
	for _, n := range p.numbers() {
		if n.key == key {
			v, err := strconv.Atoi(val)
			if err != nil || v < 1 {
				return fmt.Errorf("parameter %s is %q, want a number from 1", key, val)
			}
			*n.at = v
			return nil
		}
		keys = append(keys, n.key)
	}
	return fmt.Errorf("there is no parameter %q; there are %s", key, strings.Join(keys, ", "))
}
