package main

import (
	"fmt"
	"strings"

	"quill/recipes"
)

// need is how many tokens each sequence gets.
func (o *benchOptions) need() int {
	if o.decode == 0 {
		return o.prefill
	}
	return o.prefill + o.warmup + o.decode + o.traced()
}

// traced is the number of decode steps of the second, traced run.
func (o *benchOptions) traced() int { return min(o.decode, maxTraced) }

// fitsBundle refuses a run that the bundle's deployment has no room for.
func (o *benchOptions) fitsBundle(b *recipes.Bundle) error {
	o.bank = largestBank(b)
	return o.fits(b.Manifest.Deployment)
}

// largestBank is the largest number of experts that a node has.
func largestBank(b *recipes.Bundle) (bank int) {
	for _, r := range b.Recipes {
		for i := range r.Nodes {
			if n := &r.Nodes[i]; strings.HasPrefix(n.GUID, "moe_") {
				bank = max(bank, (len(n.In)-3)/2) // rows, choices and weights, and two matrices an expert
			}
		}
	}
	return bank
}

// fits refuses a run that the deployment has no room for.
func (o *benchOptions) fits(d recipes.Deployment) error {
	if o.batch > d.MaxNumSeqs {
		return fmt.Errorf("--batch %d is more than max_num_seqs %d: choose a smaller batch, or compile the deployment with a larger max_num_seqs", o.batch, d.MaxNumSeqs)
	}
	if n := o.need(); n > d.MaxModelLen {
		return fmt.Errorf("a sequence of %s has %d tokens, max_model_len is %d: choose less, or compile the deployment with a larger max_model_len",
			o.lengths(), n, d.MaxModelLen)
	}
	each := (o.need() + d.BlockSize - 1) / d.BlockSize
	if all := each * o.batch; all > d.KVBlocks {
		return fmt.Errorf("%s of %s need %d cache blocks of %d tokens, kv_blocks is %d: choose less, or compile the deployment with more kv_blocks",
			count(o.batch, "sequence"), o.lengths(), all, d.BlockSize, d.KVBlocks)
	}
	return nil
}

// lengths says what a sequence's tokens are for.
func (o *benchOptions) lengths() string {
	if o.decode == 0 {
		return fmt.Sprintf("--prefill %d", o.prefill)
	}
	return fmt.Sprintf("--prefill %d, --warmup %d, --decode %d and %s", o.prefill, o.warmup, o.decode, count(o.traced(), "traced step"))
}
