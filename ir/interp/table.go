package interp

import (
	"math"

	"quill/ir"
	"quill/recipes/dtype"
)

// rule computes an op on all ranks.
type rule func(s *step) ([]value, error)

// value is a value on all ranks.
type value []*Tensor

// step is an op that is about to run.
type step struct {
	attrs
	run *runner
	in  []value
}

// rules has the meaning of every op.
var rules = map[string]rule{
	"const": local(constOp),
	"iota":  local(iota32),

	"add": local(arithmetic(
		func(x, y float64) float64 { return x + y },
		func(x, y int64) int64 { return x + y })),
	"sub": local(arithmetic(
		func(x, y float64) float64 { return x - y },
		func(x, y int64) int64 { return x - y })),
	"mul": local(arithmetic(
		func(x, y float64) float64 { return x * y },
		func(x, y int64) int64 { return x * y })),
	"div": local(arithmetic(
		func(x, y float64) float64 { return x / y }, nil)),
	"max": local(arithmetic( // NaN when either is
		func(x, y float64) float64 { return max(x, y) },
		func(x, y int64) int64 { return max(x, y) })),
	"min": local(arithmetic(
		func(x, y float64) float64 { return min(x, y) },
		func(x, y int64) int64 { return min(x, y) })),
	"lt": local(compare(
		func(x, y float64) bool { return x < y },
		func(x, y int64) bool { return x < y })),
	"le": local(compare(
		func(x, y float64) bool { return x <= y },
		func(x, y int64) bool { return x <= y })),
	"eq": local(compare(
		func(x, y float64) bool { return x == y },
		func(x, y int64) bool { return x == y })),
	"and": local(compare(nil,
		func(x, y int64) bool { return x != 0 && y != 0 })),
	"select": local(selectOp),

	"neg": local(unary(
		func(x float64) float64 { return -x },
		func(x int64) int64 { return -x })),
	"exp":        local(unary(math.Exp, nil)),
	"log":        local(unary(math.Log, nil)),
	"sigmoid":    local(unary(sigmoid, nil)),
	"logsigmoid": local(unary(logsigmoid, nil)),
	"silu":       local(unary(silu, nil)),
	"cast":       local(castOp),

	"reshape":   local(reshape),
	"transpose": local(transpose),
	"broadcast": local(broadcast),
	"slice":     local(sliceOp),
	"concat":    local(concat),

	"reduce_sum":      local(reduceSum),
	"reduce_max":      local(reduceMax),
	"softmax":         local(softmax),
	"topk":            local(topk),
	"gather":          local(gather),
	"gather_elements": local(gatherElements),

	"matmul":        local(matmul),
	"matmul_joined": local(matmulJoined),
	"rms_norm":      local(rmsNorm),
	"short_conv":    local(shortConv),
	"moe":           local(moe),
	"embedding":     local(embedding),
	"sdpa":          local(sdpa),
	"sdpa_stats":    local(sdpa),

	"kv_read":    local(kvRead),
	"kv_write":   local(stateWrite("slot")),
	"conv_read":  local(convRead),
	"conv_write": local(stateWrite("row")),

	"conv_reads":  local(convReads),
	"conv_writes": local(convWrites),

	"all_reduce": allReduce,
	"all_gather": allGather,

	"graph_break": func(*step) ([]value, error) { return nil, nil },
}

func init() { rules["call"] = call } // here, since call runs functions by this table

// local lifts what one rank does, without looking at others, to all ranks.
func local(f func(a attrs, in []*Tensor) ([]*Tensor, error)) rule {
	return func(s *step) ([]value, error) {
		outs := make([]value, len(s.op.Results))
		for r := range s.run.mod.TP {
			if err := s.run.ctx.Err(); err != nil {
				return nil, err
			}
			in := make([]*Tensor, len(s.in))
			for i := range in {
				in[i] = s.in[i][r]
			}
			out, err := f(s.attrs, in)
			if err != nil {
				return nil, &rankError{r, err}
			}
			for i := range outs {
				outs[i] = append(outs[i], out[i])
			}
		}
		return outs, nil
	}
}

// attrs reads attributes; ir.Op.Check has made sure that they are there.
type attrs struct {
	op  *ir.Op
	env map[string]int64 // symbol values
}

func (a attrs) axis() int { return int(a.op.Int("axis")) }

func (a attrs) dtype() dtype.Type { return a.op.Attr("dtype").DType }

// size is a size attribute.
func (a attrs) size(name string) (int64, error) { return a.op.Attr(name).Dim.Eval(a.env) }

// shape is an attribute that lists sizes.
func (a attrs) shape() ([]int64, error) { return evalShape(a.op.Attr("shape").Dims, a.env) }

func evalShape(dims []ir.Dim, env map[string]int64) ([]int64, error) {
	shape := make([]int64, len(dims))
	for i, d := range dims {
		var err error
		if shape[i], err = d.Eval(env); err != nil {
			return nil, err
		}
	}
	return shape, nil
}

// one is the result list of most ops.
func one(t *Tensor) ([]*Tensor, error) { return []*Tensor{t}, nil }
