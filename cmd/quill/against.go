package main

import (
	"fmt"
	"math"

	"quill/recipes/safetensors"
	"quill/runtime"
)

// compared is how far logits are from those of a file.
type compared struct {
	Against  string  `json:"against"`
	Largest  float64 `json:"largest_difference"`
	Position int     `json:"position"` // of the largest difference, and its token
	Token    int     `json:"token"`
	SameTop  int     `json:"same_likeliest"` // positions at which both think the same token the likeliest
	Tokens   int     `json:"tokens"`
}

func (c *compared) String() string {
	return fmt.Sprintf("against %s: largest difference %.2g, of token %d at position %d; the likeliest token is the same at %d of %s",
		c.Against, c.Largest, c.Token, c.Position, c.SameTop, count(c.Tokens, "position"))
}

// reference are logits to compare with.
type reference struct {
	name   string
	shape  []int64
	values []float32
}

// readReference reads the tensor that --against names.
func readReference(from string) (r *reference, err error) {
	err = readTensor("--against", from, func(t *safetensors.Tensor) error {
		if t.DType != "F32" && t.DType != "BF16" {
			return fmt.Errorf("it is %s, want F32 or BF16", t.DType)
		}
		values, err := t.F32()
		r = &reference{from, t.Shape, values}
		return err
	})
	return r, err
}

// fits checks that the logits will have the reference's shape.
func (r *reference) fits(tokens, vocab int) error {
	if len(r.shape) != 2 || r.shape[0] != int64(tokens) || r.shape[1] != int64(vocab) {
		return fmt.Errorf("--against %s: it is F32 %s, the logits will be %s", r.name, shapeText(r.shape), shapeText([]int64{int64(tokens), int64(vocab)}))
	}
	return nil
}

// compare compares logits, of as many tokens a row, with the reference.
func (r *reference) compare(logits []float32, vocab int) (*compared, error) {
	c := &compared{Against: r.name, Tokens: len(logits) / vocab}
	for i, v := range logits {
		diff := math.Abs(float64(v) - float64(r.values[i]))
		if v == r.values[i] {
			diff = 0 // of infinities too
		}
		if math.IsNaN(diff) || math.IsInf(diff, 0) {
			return nil, fmt.Errorf("--against %s: the logit of token %d at position %d is %v, there it is %v", r.name, i%vocab, i/vocab, v, r.values[i])
		}
		if diff > c.Largest {
			c.Largest, c.Position, c.Token = diff, i/vocab, i%vocab
		}
	}
	for at := 0; at < len(logits); at += vocab {
		if runtime.Argmax(logits[at:at+vocab]) == runtime.Argmax(r.values[at:at+vocab]) {
			c.SameTop++
		}
	}
	return c, nil
}
