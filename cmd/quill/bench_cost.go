package main

import (
	"strings"

	"quill/ir/inkling"
)

// cost is what a model needs at least, whatever device runs it: bytes that a
// decode step must read and operations that a result must take. Only products
// count as operations, a multiplication and an addition each. What it leaves
// out is small: states of short convolutions, activations, writes.
//
// A token at position p sees p + 1 tokens, itself included, or window of them on
// local layers; below that is its context c. With H hidden size, D head size,
// V vocabulary and e bytes an element:
//
//	bytes of a step  = fixed + Σ layers(distinct experts · expert) + batch · (H·e + kv(c))
//	kv(c)            = Σ layers(2 · kv heads · D · min(c, window) · e)
//	flops of a token = 2 · active + Σ layers(2 · heads · (2·D·min(c, window) + d_rel·min(c, extent)))
//	flops of a row   = 2 · V · H
//
// A prefill projects one row, a decode step a row a sequence.
type cost struct {
	config *inkling.Config
	elem   int64 // bytes of an element of weights and cache

	// fixed are the bytes of weights that every step reads: all but the
	// embedding, of which it reads a row a token, and the routed experts.
	fixed int64
	// expert are the bytes of one routed expert of one layer.
	expert int64
	// active are the elements that every token is multiplied with: all but
	// embedding, unembedding and relative bias, top-k of the routed experts.
	active int64
}

// newCost adds up the tensors of the text part. A model with experts has the
// same number in each layer that has any.
func newCost(c *inkling.Config, elem int64) *cost {
	k := &cost{config: c, elem: elem}
	experts := int64(c.Experts)
	for _, t := range c.Tensors() {
		if t.Part != inkling.Text {
			continue
		}
		n, width := int64(1), elem
		for _, d := range t.Shape {
			n *= d
		}
		if t.DType == "F32" {
			width = 4
		}
		switch kindOf(t.Name) {
		case embedding:
		case unembedding, relativeBias:
			k.fixed += n * width
		case routedExperts:
			k.expert += n / experts * width
			k.active += n / experts * int64(c.TopK)
		default:
			k.fixed += n * width
			k.active += n
		}
	}
	k.expert /= int64(max(k.moeLayers(), 1))
	return k
}

// moeLayers is the number of layers with routed experts.
func (k *cost) moeLayers() int { return k.config.Layers - k.config.DenseLayers }

// decodeBytes is what a step of so many sequences must read: each token has the
// given context, and each layer with experts reads so many of them, on average.
func (k *cost) decodeBytes(seqs, context int, experts float64) float64 {
	each := int64(k.config.Hidden)*k.elem + k.kvBytes(context)
	return float64(k.fixed) + experts*float64(k.moeLayers())*float64(k.expert) + float64(seqs)*float64(each)
}

// kvBytes is what the attention of one token reads of the cache.
func (k *cost) kvBytes(context int) int64 {
	var n int64
	for l := range k.config.Layers {
		a := k.config.Attention(l)
		n += int64(2*a.KVHeads*a.HeadDim) * int64(k.visible(l, context)) * k.elem
	}
	return n
}

// visible is how many tokens of a context a layer sees.
func (k *cost) visible(layer, context int) int {
	if k.config.IsLocal[layer] {
		return min(context, k.config.Window)
	}
	return context
}

// tokenFlops are the operations of one token with a context, without its logits.
func (k *cost) tokenFlops(context int) float64 {
	n := 2 * k.active
	for l := range k.config.Layers {
		a, c := k.config.Attention(l), k.visible(l, context)
		n += int64(2*a.Heads) * int64(2*a.HeadDim*c+k.config.DRel*min(c, a.Extent))
	}
	return float64(n)
}

// rowFlops are the operations of the logits of one token.
func (k *cost) rowFlops() float64 { return 2 * float64(k.config.Vocab) * float64(k.config.Hidden) }

// prefillFlops are the operations of a prompt and the logits that follow it.
func (k *cost) prefillFlops(tokens int) float64 {
	n := k.rowFlops()
	for context := 1; context <= tokens; context++ {
		n += k.tokenFlops(context)
	}
	return n
}

// decodeFlops are the operations of a step.
func (k *cost) decodeFlops(seqs, context int) float64 {
	return float64(seqs) * (k.tokenFlops(context) + k.rowFlops())
}

// weightKind is how a step uses a tensor.
type weightKind int

const (
	everyToken weightKind = iota
	embedding
	unembedding
	relativeBias
	routedExperts
)

func kindOf(tensor string) weightKind {
	switch {
	case tensor == "model.llm.embed.weight":
		return embedding
	case tensor == "model.llm.unembed.weight":
		return unembedding
	case strings.HasSuffix(tensor, ".rel_logits_proj.proj"):
		return relativeBias
	case strings.Contains(tensor, ".mlp.experts."):
		return routedExperts
	}
	return everyToken
}
