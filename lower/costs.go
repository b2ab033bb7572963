package lower

import (
	"quill/ir/inkling"
	"quill/recipes"
)

// readCost is how many multiply-adds count as much as reading one element of
// weights or cache. A Gaudi 2 does some 180 at its peak in bf16 (432 TFLOP/s
// beside 2.45 TB/s), less in a step of few rows; the processors on which the
// host device was measured do some 20. It only weighs rows against what padding
// reads; where covers differ much, any value between gives the same choice.
const readCost = 64

// costs are what the sizes of a bucket cost on one rank.
func (d *Deployment) costs(c *inkling.Config) recipes.Costs {
	var k recipes.Costs
	tp, hidden := d.TensorParallel, c.Hidden
	expert := 3 * hidden * c.ExpertWidth / tp
	for l := range c.Layers {
		a := c.Attention(l)
		heads, kvHeads := a.Heads/tp, ceilDiv(a.KVHeads, tp)
		projections := hidden * (2*heads*a.HeadDim + 2*kvHeads*a.HeadDim + heads*c.DRel)
		mlp := 3 * hidden * c.DenseWidth / tp
		if !c.IsDense(l) {
			mlp = hidden*(c.Experts+c.Shared) + (c.TopK+c.Shared)*expert
			k.Pad += readCost * int64(c.TopK*expert)
		}
		k.Row += int64(projections + mlp)
		k.Block += readCost * int64(2*kvHeads*a.HeadDim*d.BlockSize)
		k.Key += int64(2 * heads * a.HeadDim) // scores and values
	}
	return k
}
