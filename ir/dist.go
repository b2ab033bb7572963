package ir

import (
	"fmt"

	"quill/ir/ops"
)

// This file holds the distribution rules: what the ranks hold of a result,
// given what they hold of the operands. A value is replicated, sharded or
// partial (to be summed); a missing or a double reduction is a type error.

func distErr(help, format string, args ...any) error {
	return &ruleError{code: "V07", msg: fmt.Sprintf(format, args...), help: help}
}

const reduceHelp = "reduce the partial value first with all_reduce"

func nonLinear(o *Op) error {
	return &ruleError{code: "V09", msg: fmt.Sprintf("%s is not linear and cannot work on a partial value", o.Name()), help: reduceHelp}
}

// distProblem says what is wrong with a type's distribution by itself, "" if
// nothing. The rules below rely on that being so of their operands.
func distProblem(m *Module, t Type) string {
	d := t.Dist
	switch {
	case d.Kind == Sharded && (d.Axis < 0 || d.Axis >= t.Rank()):
		return fmt.Sprintf("sharded along axis %d of rank %d", d.Axis, t.Rank())
	case d.Kind == Sharded && (d.Ways < 2 || m.TP%d.Ways != 0):
		return fmt.Sprintf("sharded %d ways on %s; want a divisor of the ranks, at least 2", d.Ways, plural(m.TP, "rank"))
	case d.Kind == Partial && m.TP < 2:
		return "partial on a single rank"
	}
	return ""
}

// inferDist sets the distribution of the result types.
func inferDist(m *Module, o *Op, ts []Type) error {
	if o.Def.Dist == ops.DistCall || o.Def.Dist == ops.DistNone {
		return nil // call results carry their declared types
	}
	if rule, ok := eachDistRules[o.Def.Dist]; ok {
		return rule(o, ts)
	}
	rule := distRules[o.Def.Dist]
	d, err := rule(m, o, ts[0])
	if err != nil {
		return err
	}
	for i := range ts {
		ts[i].Dist = d
	}
	return nil
}

type distRule func(m *Module, o *Op, result Type) (Dist, error)

// eachDistRules are those of ops whose results differ.
var eachDistRules = map[ops.Dist]func(o *Op, ts []Type) error{
	ops.DistMatmulJoined: distMatmulJoined,
}

var distRules = map[ops.Dist]distRule{
	ops.DistElementwise:    distElementwise,
	ops.DistAdd:            distAdd,
	ops.DistMul:            distMul,
	ops.DistUnaryLinear:    distUnaryLinear,
	ops.DistConst:          func(*Module, *Op, Type) (Dist, error) { return Dist{}, nil },
	ops.DistBroadcast:      distBroadcast,
	ops.DistReshape:        distReshape,
	ops.DistTranspose:      distTranspose,
	ops.DistSlice:          distSlice,
	ops.DistConcat:         distConcat,
	ops.DistReduceLinear:   distReduceSum,
	ops.DistReduce:         distReduce,
	ops.DistLastAxis:       distLastAxis,
	ops.DistMatmul:         distMatmul,
	ops.DistGather:         distGather,
	ops.DistGatherElements: distGatherElements,
	ops.DistShortConv:      distShortConv,
	ops.DistRMSNorm:        distRMSNorm,
	ops.DistStateRead:      distStateRead,
	ops.DistStateWrite:     distStateWrite,
	ops.DistMoE:            distMoE,
	ops.DistSDPA:           distSDPA,
	ops.DistEmbedding:      distEmbedding,
	ops.DistAllReduce:      distAllReduce,
	ops.DistAllGather:      distAllGather,
}

// joinShards finds the common sharding of operands that work element by
// element. A replicated operand must have size 1 along the sharded axis,
// since its elements would otherwise stand for different global elements on
// each rank.
func joinShards(o *Op, result Type) (Dist, error) {
	var d Dist
	for i, a := range o.Args {
		if a.Type.Dist.Kind != Sharded {
			continue
		}
		if d.Kind == Sharded && d != a.Type.Dist {
			return d, distErr("", "%s: %s is %s but another operand is %s", o.Name(), operandName(o, i), a.Type.Dist.describe(), d.describe())
		}
		d = a.Type.Dist
	}
	if d.Kind != Sharded {
		return d, nil
	}
	for i, a := range o.Args {
		n := a.Type.Shape[d.Axis]
		switch {
		case a.Type.Dist.Kind == Sharded && !n.Equal(result.Shape[d.Axis]):
			return d, distErr("", "%s: %s is broadcast along its sharded axis %d", o.Name(), operandName(o, i), d.Axis)
		case a.Type.Dist.Kind == Replicated && !n.Is(1):
			return d, distErr("shard it the same way, or give it size 1 there",
				"%s: %s is replicated but has size %s along axis %d, along which another operand is sharded", o.Name(), operandName(o, i), n, d.Axis)
		}
	}
	return d, nil
}

func countPartial(o *Op) int {
	n := 0
	for _, a := range o.Args {
		if a.Type.Dist.Kind == Partial {
			n++
		}
	}
	return n
}

func distElementwise(_ *Module, o *Op, result Type) (Dist, error) {
	if countPartial(o) > 0 {
		return Dist{}, nonLinear(o)
	}
	return joinShards(o, result)
}

func distAdd(_ *Module, o *Op, result Type) (Dist, error) {
	switch countPartial(o) {
	case 0:
		return joinShards(o, result)
	case len(o.Args):
		return PartialSum, nil
	}
	whole := o.Args[0]
	if whole.Type.Dist.Kind == Partial {
		whole = o.Args[1]
	}
	return Dist{}, distErr(reduceHelp, "%s of a partial and a %s value: the %s one would be counted once per rank",
		o.Name(), whole.Type.Dist.describe(), whole.Type.Dist.describe())
}

func distMul(_ *Module, o *Op, result Type) (Dist, error) {
	switch countPartial(o) {
	case 0:
		return joinShards(o, result)
	case 1:
		for i, a := range o.Args {
			if a.Type.Dist.Kind == Sharded {
				return Dist{}, distErr(reduceHelp, "mul: %s is %s and the other operand partial", operandName(o, i), a.Type.Dist.describe())
			}
		}
		return PartialSum, nil
	}
	return Dist{}, distErr(reduceHelp, "mul of two partial values: a product of sums is not the sum of products")
}

func distUnaryLinear(_ *Module, o *Op, result Type) (Dist, error) {
	d := arg(o, 0).Dist
	if d.Kind == Partial && o.Name() == "cast" && !(arg(o, 0).DType.IsFloat() && result.DType.IsFloat()) {
		return d, nonLinear(o) // integers truncate, clamp and wrap
	}
	if d.Kind == Sharded && !result.Shape[d.Axis].Equal(arg(o, 0).Shape[d.Axis]) {
		return d, distErr("", "%s changes the sharded axis %d", o.Name(), d.Axis)
	}
	return d, nil
}

// distBroadcast lets each rank have a part of an axis that repeats one element.
func distBroadcast(m *Module, o *Op, result Type) (Dist, error) {
	shard, by := o.Attr("shard"), o.Attr("ways")
	switch {
	case shard == nil && by == nil:
		return distUnaryLinear(m, o, result)
	case shard == nil || by == nil:
		return Dist{}, distErr("", "broadcast: of shard and ways there is one; want both or none")
	}
	x := arg(o, 0)
	axis, ways := o.Int("shard"), o.Int("ways")
	switch {
	case x.Dist.Kind != Replicated:
		return Dist{}, distErr("", "broadcast: attribute shard on a %s value", x.Dist.describe())
	case axis < 0 || axis >= int64(x.Rank()) || !x.Shape[axis].Is(1):
		return Dist{}, distErr("", "broadcast: axis %d cannot be sharded: there is no such axis of size 1 in %s", axis, shapeString(x.Shape))
	case ways < 2 || int64(m.TP)%ways != 0:
		return Dist{}, distErr("", "broadcast: %d shards on %d ranks; want a divisor from 2", ways, m.TP)
	}
	return Shard(int(axis), int(ways)), nil
}

// distReshape finds the axis of the result that starts where the sharded axis
// started. Axes of size 1 around it leave a choice: the shard attribute makes
// it, else the first axis of the result that is not 1 takes it (or, when the
// rank's part has size 1 itself, the axis at the same place among the ones).
func distReshape(_ *Module, o *Op, result Type) (Dist, error) {
	x := arg(o, 0)
	shard := o.Attr("shard")
	if x.Dist.Kind != Sharded {
		if shard != nil {
			return x.Dist, distErr("", "reshape: attribute shard on a %s value", x.Dist.describe())
		}
		return x.Dist, nil
	}
	before := Type{Shape: x.Shape[:x.Dist.Axis]}.Elems()
	first, last := sameOuter(result.Shape, before)
	if first < 0 {
		return Dist{}, distErr("reshape so that the sharded axis stays the outermost of the axes it becomes",
			"reshape: the sharded axis %d of %s begins inside an axis of %s", x.Dist.Axis, shapeString(x.Shape), shapeString(result.Shape))
	}
	axis := last
	if x.Shape[x.Dist.Axis].Is(1) {
		inFirst, _ := sameOuter(x.Shape, before)
		axis = min(first+x.Dist.Axis-inFirst, last)
	}
	if shard != nil {
		n, _ := shard.Dim.Const()
		if n < int64(first) || n > int64(last) {
			return Dist{}, distErr("", "reshape: axis %d cannot be the sharded one, only %d to %d", n, first, last)
		}
		axis = int(n)
	}
	return Shard(axis, x.Dist.Ways), nil
}

// sameOuter returns the first and last axis before which a shape has exactly
// outer elements, −1 when there is none.
func sameOuter(shape []Dim, outer Dim) (first, last int) {
	first = -1
	p := D(1)
	for i, d := range shape {
		if p.Equal(outer) {
			if first < 0 {
				first = i
			}
			last = i
		}
		p = p.Mul(d)
	}
	return first, last
}

func distTranspose(_ *Module, o *Op, _ Type) (Dist, error) {
	d := arg(o, 0).Dist
	if d.Kind == Sharded {
		for i, p := range o.Ints("perm") {
			if int(p) == d.Axis {
				return Shard(i, d.Ways), nil
			}
		}
	}
	return d, nil
}

func distSlice(_ *Module, o *Op, _ Type) (Dist, error) {
	d := arg(o, 0).Dist
	if d.Kind == Sharded && d.Axis == int(o.Int("axis")) {
		return d, distErr("gather it first with all_gather", "slice along the sharded axis %d", d.Axis)
	}
	return d, nil
}

func distConcat(_ *Module, o *Op, _ Type) (Dist, error) {
	d := arg(o, 0).Dist
	for i, a := range o.Args {
		if a.Type.Dist != d {
			help := ""
			if countPartial(o) > 0 {
				help = reduceHelp
			}
			return d, distErr(help, "concat of a %s and a %s value (operand %d)", d.describe(), a.Type.Dist.describe(), i)
		}
	}
	if d.Kind == Sharded && d.Axis == int(o.Int("axis")) {
		return d, distErr("", "concat along the sharded axis %d", d.Axis)
	}
	return d, nil
}

func distReduceSum(m *Module, o *Op, _ Type) (Dist, error) {
	d := arg(o, 0).Dist
	if d.Kind == Sharded && d.Axis == int(o.Int("axis")) {
		return contracted(m, o, d.Ways)
	}
	return d, nil
}

// contracted is the distribution of a sum over an axis in ways shards.
func contracted(m *Module, o *Op, ways int) (Dist, error) {
	if ways != m.TP {
		return Dist{}, distErr("", "%s sums over an axis in %d shards on %d ranks: groups of ranks hold the same shard and would count it more than once",
			o.Name(), ways, m.TP)
	}
	return PartialSum, nil
}

func distReduce(_ *Module, o *Op, _ Type) (Dist, error) {
	d := arg(o, 0).Dist
	switch {
	case d.Kind == Partial:
		return d, nonLinear(o)
	case d.Kind == Sharded && d.Axis == int(o.Int("axis")):
		return d, distErr("gather it first with all_gather", "%s along the sharded axis %d", o.Name(), d.Axis)
	}
	return d, nil
}

func distLastAxis(_ *Module, o *Op, _ Type) (Dist, error) {
	x := arg(o, 0)
	switch {
	case x.Dist.Kind == Partial:
		return Dist{}, nonLinear(o)
	case x.Dist.Kind == Sharded && x.Dist.Axis == x.Rank()-1:
		return Dist{}, distErr("gather it first with all_gather", "%s along the sharded last axis", o.Name())
	}
	return x.Dist, nil
}

func distMatmul(m *Module, o *Op, result Type) (Dist, error) {
	x, y := arg(o, 0), arg(o, 1)
	r := x.Rank()
	if countPartial(o) > 0 {
		if x.Dist.Kind == Sharded || y.Dist.Kind == Sharded || countPartial(o) == 2 {
			return Dist{}, distErr(reduceHelp, "matmul of a %s and a %s value", x.Dist.describe(), y.Dist.describe())
		}
		return PartialSum, nil
	}
	k, n := r-2, r-1
	if o.Attr("trans_b").Bool {
		k, n = r-1, r-2
	}
	xk := x.Dist.Kind == Sharded && x.Dist.Axis == r-1
	yk := y.Dist.Kind == Sharded && y.Dist.Axis == k
	switch {
	case xk && yk && x.Dist.Ways == y.Dist.Ways:
		return contracted(m, o, x.Dist.Ways)
	case xk || yk:
		return Dist{}, distErr("shard both operands alike along the contracted axis", "matmul contracts an axis of which one operand is %s and the other %s", x.Dist.describe(), y.Dist.describe())
	}
	// What is left are the result's axes: batch, M of x, N of y.
	dx, dy := x.Dist, y.Dist
	if dy.Kind == Sharded && dy.Axis == n {
		dy.Axis = r - 1
	}
	return matmulFree(o, result, dx, dy)
}

// matmulFree joins shardings along axes that the result keeps, numbered as in
// the result.
func matmulFree(o *Op, result Type, dx, dy Dist) (Dist, error) {
	r := result.Rank()
	switch {
	case dx.Kind != Sharded && dy.Kind != Sharded:
		return Dist{}, nil
	case dx.Kind == Sharded && dy.Kind == Sharded:
		if dx.Axis != dy.Axis || dx.Axis >= r-2 {
			return Dist{}, distErr("", "matmul of a value %s and one %s", dx.describe(), dy.describe())
		}
		return matmulBatch(o, dx, dy)
	}
	d, other, name := dx, arg(o, 1), "y"
	if dy.Kind == Sharded {
		d, other, name = dy, arg(o, 0), "x"
	}
	if d.Axis < r-2 && !other.Shape[d.Axis].Is(1) {
		return d, distErr("shard it the same way, or give it size 1 there",
			"matmul: %s is replicated but has size %s along batch axis %d, along which the other operand is sharded", name, other.Shape[d.Axis], d.Axis)
	}
	return d, nil
}

// matmulBatch joins two shardings of one batch axis. Shards of equal number must
// be of equal size. Else one value is held by groups of ranks (key/value heads
// that query heads share): its shards are single elements, each of which goes
// with all elements that the ranks of the group hold of the other.
func matmulBatch(o *Op, dx, dy Dist) (Dist, error) {
	nx, ny := arg(o, 0).Shape[dx.Axis], arg(o, 1).Shape[dy.Axis]
	switch {
	case dx.Ways == dy.Ways && nx.Equal(ny):
		return dx, nil
	case dx.Ways > dy.Ways && dx.Ways%dy.Ways == 0 && ny.Is(1):
		return dx, nil
	case dy.Ways > dx.Ways && dy.Ways%dx.Ways == 0 && nx.Is(1):
		return dy, nil
	}
	return Dist{}, distErr("shards of equal number must have equal size; what groups of ranks share must have size 1",
		"matmul: batch axis %d is %s in %d shards on one side and %s in %d on the other", dx.Axis, nx, dx.Ways, ny, dy.Ways)
}

// distMatmulJoined gives each result the sharding of its weight, whose last axis is
// contracted. Weights may be sharded in different numbers of ways.
func distMatmulJoined(o *Op, ts []Type) error {
	if d := arg(o, 0).Dist; d.Kind != Replicated {
		return distErr("", "matmul_joined: x is %s; want it replicated", d.describe())
	}
	for i := range ts {
		w := arg(o, i+1)
		d := w.Dist
		switch {
		case d.Kind == Partial:
			return nonLinear(o)
		case d.Kind == Sharded && d.Axis == w.Rank()-1:
			return distErr("", "matmul_joined: %s is %s, which is contracted", operandName(o, i+1), d.describe())
		case d.Kind == Sharded && w.Rank() == 2:
			d.Axis = 1 // the result is [M, N]
		case d.Kind == Sharded:
			d.Axis++ // it is [M, P, N]
		}
		ts[i].Dist = d
	}
	return nil
}

func distGather(_ *Module, o *Op, _ Type) (Dist, error) {
	x, idx, a := arg(o, 0), arg(o, 1), int(o.Int("axis"))
	if idx.Dist.Kind != Replicated {
		return Dist{}, distErr("", "gather: the index is %s; want it replicated", idx.Dist.describe())
	}
	d := x.Dist
	if d.Kind != Sharded {
		return d, nil
	}
	switch {
	case d.Axis == a:
		return d, distErr("use embedding for a sharded table", "gather along the sharded axis %d", a)
	case d.Axis > a:
		d.Axis += idx.Rank() - 1
	}
	return d, nil
}

func distGatherElements(_ *Module, o *Op, result Type) (Dist, error) {
	a := int(o.Int("axis"))
	if countPartial(o) > 0 {
		return Dist{}, nonLinear(o)
	}
	for i, v := range o.Args {
		if v.Type.Dist.Kind == Sharded && v.Type.Dist.Axis == a {
			return Dist{}, distErr("gather it first with all_gather", "gather_elements: %s is sharded along the gathered axis %d", operandName(o, i), a)
		}
	}
	if x, index := arg(o, 0).Dist, arg(o, 1).Dist; x.Kind != Sharded && index.Kind == Sharded {
		return Dist{}, distErr("", "gather_elements: the index is %s and x is replicated", index.describe())
	}
	return joinShards(o, result)
}

func distShortConv(_ *Module, o *Op, result Type) (Dist, error) {
	x, w := arg(o, 0), arg(o, 1)
	r := x.Rank()
	switch {
	case countPartial(o) > 0:
		return Dist{}, nonLinear(o)
	case x.Dist.Kind == Sharded && x.Dist.Axis == r-2:
		return Dist{}, distErr("", "short_conv along the sharded time axis")
	case x.Dist.Kind == Sharded && x.Dist.Axis == r-1:
		if w.Dist != Shard(1, x.Dist.Ways) {
			return Dist{}, distErr("shard the taps by channel as the window", "short_conv: the window is %s and the taps are %s", x.Dist.describe(), w.Dist.describe())
		}
	case w.Dist.Kind != Replicated:
		return Dist{}, distErr("", "short_conv: the taps are %s and the window is %s", w.Dist.describe(), x.Dist.describe())
	}
	return x.Dist, nil
}

func distRMSNorm(_ *Module, o *Op, result Type) (Dist, error) {
	if w := arg(o, 1).Dist; w.Kind != Replicated {
		return Dist{}, distErr("", "rms_norm: the weight is %s; want it replicated", w.describe())
	}
	return distLastAxis(nil, o, result)
}

func distStateRead(_ *Module, o *Op, _ Type) (Dist, error) {
	s, idx := arg(o, 0), arg(o, 1)
	if o.Def.Variadic() {
		s, idx = arg(o, 1), arg(o, 0)
	}
	if idx.Dist.Kind != Replicated {
		return Dist{}, distErr("", "%s: the index is %s; want it replicated", o.Name(), idx.Dist.describe())
	}
	d := s.Dist
	if d.Kind == Sharded {
		if d.Axis == 0 {
			return d, distErr("", "%s: the state is sharded along the axis that is indexed", o.Name())
		}
		if o.Name() == "kv_read" || o.Name() == "conv_reads" {
			d.Axis++ // slots become blocks and slots of a block; states come before rows
		}
	}
	return d, nil
}

func distStateWrite(_ *Module, o *Op, _ Type) (Dist, error) {
	s, idx, rows := arg(o, 0), arg(o, 1), arg(o, 2)
	rowsDist := rows.Dist
	if o.Def.Variadic() {
		s, idx, rows = arg(o, 2), arg(o, 0), arg(o, 1)
		if rowsDist = rows.Dist; rowsDist.Kind == Sharded {
			rowsDist.Axis-- // rows of all states have an axis more
		}
	}
	switch {
	case idx.Dist.Kind != Replicated:
		return Dist{}, distErr("", "%s: the index is %s; want it replicated", o.Name(), idx.Dist.describe())
	case rowsDist != s.Dist:
		return Dist{}, distErr("", "%s: the state is %s and the rows are %s", o.Name(), s.Dist.describe(), rows.Dist.describe())
	case s.Dist.Kind == Sharded && s.Dist.Axis == 0:
		return Dist{}, distErr("", "%s: the state is sharded along the axis that is indexed", o.Name())
	}
	return s.Dist, nil
}

func distMoE(m *Module, o *Op, _ Type) (Dist, error) {
	for i := range 3 {
		if d := arg(o, i).Dist; d.Kind != Replicated {
			if d.Kind == Partial {
				return Dist{}, nonLinear(o)
			}
			return Dist{}, distErr("", "moe: %s is %s; want it replicated", operandName(o, i), d.describe())
		}
	}
	w13, w2 := arg(o, 3).Dist, arg(o, 4).Dist
	for i := 5; i < len(o.Args); i++ {
		if d, first := arg(o, i).Dist, arg(o, 4-i%2).Dist; d != first {
			return Dist{}, distErr("shard all banks alike", "moe: %s is %s and %s is %s", operandName(o, i), d.describe(), operandName(o, 4-i%2), first.describe())
		}
	}
	switch {
	case w13.Kind == Replicated && w2.Kind == Replicated:
		return Dist{}, nil
	case w13.Kind == Sharded && w13.Axis == 2 && w13 == w2:
		return contracted(m, o, w13.Ways)
	}
	return Dist{}, distErr("shard both along the expert width (axis 2)", "moe: w13 is %s and w2 is %s", w13.describe(), w2.describe())
}

// distSDPA joins q and k as a product does: heads may be sharded, of keys and
// values by groups of ranks. Rows may be sharded too, keys may not.
func distSDPA(_ *Module, o *Op, result Type) (Dist, error) {
	if countPartial(o) > 0 {
		return Dist{}, nonLinear(o)
	}
	q, k, v := arg(o, 0), arg(o, 1), arg(o, 2)
	r := q.Rank()
	switch {
	case q.Dist.Kind == Sharded && q.Dist.Axis == r-1:
		return Dist{}, distErr("gather it first with all_gather", "%s: q is sharded along the contracted axis", o.Name())
	case k.Dist.Kind == Sharded && k.Dist.Axis > r-3:
		return Dist{}, distErr("shard keys and values by heads", "%s: k is %s", o.Name(), k.Dist.describe())
	case k.Dist != v.Dist:
		return Dist{}, distErr("shard keys and values alike", "%s: k is %s and v is %s", o.Name(), k.Dist.describe(), v.Dist.describe())
	}
	d, err := matmulFree(o, result, q.Dist, k.Dist)
	if err != nil || len(o.Args) < 4 {
		return d, err
	}
	switch mask := arg(o, 3); {
	case mask.Dist.Kind == Sharded && mask.Dist != d:
		return d, distErr("", "%s: mask is %s and the scores are %s", o.Name(), mask.Dist.describe(), d.describe())
	case mask.Dist.Kind == Sharded && mask.Shape[d.Axis].Is(1) && !result.Shape[d.Axis].Is(1):
		return d, distErr("", "%s: mask is broadcast along its sharded axis %d", o.Name(), d.Axis)
	case mask.Dist.Kind != Sharded && d.Kind == Sharded && !mask.Shape[d.Axis].Is(1):
		return d, distErr("shard it the same way, or give it size 1 there", "%s: mask is replicated but has size %s along axis %d, along which the scores are sharded",
			o.Name(), mask.Shape[d.Axis], d.Axis)
	}
	return d, nil
}

func distEmbedding(m *Module, o *Op, _ Type) (Dist, error) {
	table, ids, off := arg(o, 0).Dist, arg(o, 1).Dist, arg(o, 2).Dist
	switch {
	case ids.Kind != Replicated:
		return Dist{}, distErr("", "embedding: ids are %s; want them replicated", ids.describe())
	case table.Kind == Sharded && table.Axis == 0 && off == table:
		return contracted(m, o, table.Ways)
	}
	return Dist{}, distErr("use gather for a replicated table", "embedding: the table is %s and the offset %s; want both sharded along axis 0", table.describe(), off.describe())
}

func distAllReduce(_ *Module, o *Op, _ Type) (Dist, error) {
	d := arg(o, 0).Dist
	if d.Kind == Partial {
		return Dist{}, nil
	}
	help := "remove the all_reduce"
	if d.Kind == Sharded {
		help = "join shards with all_gather"
	}
	return Dist{}, &ruleError{
		code: "V08", help: help,
		msg: fmt.Sprintf("all_reduce of a %s value: reducing what is not partial multiplies it by the number of ranks", d.describe()),
	}
}

func distAllGather(m *Module, o *Op, _ Type) (Dist, error) {
	d := arg(o, 0).Dist
	if want := (Dist{Sharded, int(o.Int("axis")), m.TP}); d != want {
		return Dist{}, &ruleError{code: "V08", msg: fmt.Sprintf("all_gather along axis %d of a %s value; want it %s", want.Axis, d.describe(), want.describe())}
	}
	return Dist{}, nil
}
