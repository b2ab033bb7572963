package interp

import (
	"math"

	"quill/ir"
)

// Cost is about how many scalar operations Run performs, and how many elements
// the parameters have, of all ranks together. What is beyond 63 bits is their
// largest number.
func Cost(m *ir.Module, f *ir.Func, base map[string]int64) (operations, elements int64, err error) {
	env, err := m.Env(base)
	if err != nil {
		return 0, 0, err
	}
	c := coster{env: env}
	ops := c.function(f)
	var params float64
	for _, p := range f.Params {
		params += c.elems(p.Value.Type)
	}
	tp := float64(m.TP)
	return clamp(ops * tp), clamp(params * tp), c.err
}

func clamp(x float64) int64 {
	if x >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(x)
}

type coster struct {
	env map[string]int64
	err error
}

func (c *coster) dim(d ir.Dim) float64 {
	n, err := d.Eval(c.env)
	if err != nil && c.err == nil {
		c.err = err
	}
	return float64(n)
}

func (c *coster) elems(t ir.Type) float64 {
	n := 1.0
	for _, d := range t.Shape {
		n *= c.dim(d)
	}
	return n
}

func (c *coster) function(f *ir.Func) float64 {
	sum := 0.0
	for _, o := range f.Ops {
		for _, r := range o.Results {
			sum += c.elems(r.Type)
		}
		switch o.Name() {
		case "call":
			sum += c.function(o.Attr("callee").Func)
		case "matmul":
			x := o.Args[0].Type
			sum += c.elems(o.Results[0].Type) * c.dim(x.Shape[x.Rank()-1])
		case "matmul_joined":
			for _, r := range o.Results {
				sum += c.elems(r.Type) * c.dim(o.Args[0].Type.Shape[1])
			}
		case "moe":
			w13 := o.Args[3].Type
			sum += c.elems(o.Args[1].Type) * 3 * c.dim(w13.Shape[2]) * c.dim(w13.Shape[3])
		case "reduce_sum", "reduce_max", "topk":
			sum += c.elems(o.Args[0].Type)
		}
	}
	return sum
}
