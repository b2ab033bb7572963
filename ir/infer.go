package ir

import (
	"fmt"
	"slices"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

// ruleError is a violated type rule: the invariant's number, what is wrong and
// how to mend it.
type ruleError struct {
	code, msg, help string
}

func (e *ruleError) Error() string { return e.msg }

func shapeErr(format string, args ...any) error {
	return &ruleError{code: "V06", msg: fmt.Sprintf(format, args...)}
}

func operandErr(format string, args ...any) error {
	return &ruleError{code: "V04", msg: fmt.Sprintf(format, args...)}
}

// infer derives the result types of an op from its operands and attributes,
// which must have passed checkOperands and checkAttrs.
func infer(m *Module, o *Op) ([]Type, error) {
	rule, ok := shapeRules[o.Name()]
	if !ok {
		return nil, operandErr("op %s has no result rule", o.Name())
	}
	ts, err := rule(o)
	if err != nil {
		return nil, err
	}
	for _, t := range ts {
		if t.Rank() > maxRank {
			return nil, shapeErr("%s: the result has rank %d, more than %d", o.Name(), t.Rank(), maxRank)
		}
	}
	if err := inferDist(m, o, ts); err != nil {
		return nil, err
	}
	return ts, nil
}

// maxRank bounds shapes: a chain of gathers would double the rank at each op.
const maxRank = 16

// shapeRules gives element type and shape of each op's results.
var shapeRules = map[string]func(*Op) ([]Type, error){
	"const": func(o *Op) ([]Type, error) { return one(o.Attr("dtype").DType, D(1)) },
	"iota":  func(o *Op) ([]Type, error) { return one(dtype.I32, o.Attr("size").Dim) },

	"add": binaryRule, "sub": binaryRule, "mul": binaryRule, "div": binaryRule, "max": binaryRule, "min": binaryRule,
	"lt": predRule, "le": predRule, "eq": predRule, "and": predRule,
	"select": selectRule,
	"neg":    sameRule, "exp": sameRule, "log": sameRule, "sigmoid": sameRule, "logsigmoid": sameRule, "silu": sameRule,
	"cast": func(o *Op) ([]Type, error) { return one(o.Attr("dtype").DType, arg(o, 0).Shape...) },

	"reshape":   reshapeRule,
	"transpose": transposeRule,
	"broadcast": broadcastRule,
	"slice":     sliceRule,
	"concat":    concatRule,

	"reduce_sum": reduceRule, "reduce_max": reduceRule,
	"softmax":         lastAxisRule,
	"topk":            topkRule,
	"gather":          gatherRule,
	"gather_elements": gatherElementsRule,
	"matmul":          matmulRule,
	"matmul_joined":   matmulJoinedRule,

	"rms_norm":   rmsNormRule,
	"short_conv": shortConvRule,
	"moe":        moeRule,
	"embedding":  embeddingRule,
	"sdpa":       sdpaRule,
	"sdpa_stats": sdpaRule,

	"kv_read":    kvReadRule,
	"kv_write":   kvWriteRule,
	"conv_read":  convReadRule,
	"conv_write": convWriteRule,

	"conv_reads":  convReadsRule,
	"conv_writes": convWritesRule,

	"all_reduce":  sameRule,
	"all_gather":  allGatherRule,
	"graph_break": func(*Op) ([]Type, error) { return nil, nil },
	"call":        callRule,
}

func one(t dtype.Type, shape ...Dim) ([]Type, error) {
	return []Type{{DType: t, Shape: slices.Clone(shape)}}, nil
}

func arg(o *Op, i int) Type { return o.Args[i].Type }

// wantRank and the like keep the rules below readable.
func wantRank(o *Op, i, rank int) error {
	if got := arg(o, i).Rank(); got != rank {
		return shapeErr("%s: %s has rank %d, want %d", o.Name(), operandName(o, i), got, rank)
	}
	return nil
}

func wantDim(o *Op, i, axis int, want Dim, why string) error {
	if got := arg(o, i).Shape[axis]; !got.Equal(want) {
		return shapeErr("%s: axis %d of %s is %s, want %s (%s)", o.Name(), axis, operandName(o, i), got, want, why)
	}
	return nil
}

func wantSameType(o *Op, i, j int) error {
	if a, b := arg(o, i).DType, arg(o, j).DType; a != b {
		return operandErr("%s: %s is %s but %s is %s", o.Name(), operandName(o, i), a, operandName(o, j), b)
	}
	return nil
}

func operandName(o *Op, i int) string {
	if o.Def.Variadic() && i >= len(o.Def.Operands)-1 {
		if o.Name() == "moe" {
			return [...]string{"w13", "w2"}[(i-3)%2]
		}
		return fmt.Sprintf("operand %d", i)
	}
	return o.Def.Operands[i].Name
}

func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// axisOf is the axis attribute, checked against a rank.
func axisOf(o *Op, rank int) (int, error) {
	a := o.Int("axis")
	if a < 0 || a >= int64(rank) {
		return 0, shapeErr("%s: axis %d is outside rank %d", o.Name(), a, rank)
	}
	return int(a), nil
}

// broadcastShapes joins shapes of equal rank whose axes are equal or 1.
func broadcastShapes(o *Op, shapes ...[]Dim) ([]Dim, error) {
	out := slices.Clone(shapes[0])
	for _, s := range shapes[1:] {
		if len(s) != len(out) {
			return nil, shapeErr("%s: operands have ranks %d and %d; ranks must be equal", o.Name(), len(out), len(s))
		}
		for i, d := range s {
			switch {
			case out[i].Equal(d) || d.Is(1):
			case out[i].Is(1):
				out[i] = d
			default:
				return nil, shapeErr("%s: axis %d is %s in one operand and %s in another; want equal sizes or 1", o.Name(), i, out[i], d)
			}
		}
	}
	return out, nil
}

func binaryRule(o *Op) ([]Type, error) {
	if err := wantSameType(o, 0, 1); err != nil {
		return nil, err
	}
	s, err := broadcastShapes(o, arg(o, 0).Shape, arg(o, 1).Shape)
	if err != nil {
		return nil, err
	}
	return one(arg(o, 0).DType, s...)
}

func predRule(o *Op) ([]Type, error) {
	ts, err := binaryRule(o)
	if err != nil {
		return nil, err
	}
	return one(dtype.I8, ts[0].Shape...)
}

func selectRule(o *Op) ([]Type, error) {
	if err := wantSameType(o, 1, 2); err != nil {
		return nil, err
	}
	s, err := broadcastShapes(o, arg(o, 0).Shape, arg(o, 1).Shape, arg(o, 2).Shape)
	if err != nil {
		return nil, err
	}
	return one(arg(o, 1).DType, s...)
}

func sameRule(o *Op) ([]Type, error) { return one(arg(o, 0).DType, arg(o, 0).Shape...) }

func reshapeRule(o *Op) ([]Type, error) {
	x, to := arg(o, 0), o.Attr("shape").Dims
	got := Type{Shape: to}.Elems()
	if want := x.Elems(); !got.Equal(want) {
		return nil, shapeErr("reshape: %s has %s elements but %s has %s", shapeString(x.Shape), want, shapeString(to), got)
	}
	return one(x.DType, to...)
}

func transposeRule(o *Op) ([]Type, error) {
	x, perm := arg(o, 0), o.Ints("perm")
	seen := make([]bool, x.Rank())
	if len(perm) != x.Rank() {
		return nil, shapeErr("transpose: perm has %d entries for rank %d", len(perm), x.Rank())
	}
	out := make([]Dim, len(perm))
	for i, p := range perm {
		if p < 0 || p >= int64(len(perm)) || seen[p] {
			return nil, shapeErr("transpose: perm %v is not a permutation", perm)
		}
		seen[p] = true
		out[i] = x.Shape[p]
	}
	return one(x.DType, out...)
}

func broadcastRule(o *Op) ([]Type, error) {
	x, to := arg(o, 0), o.Attr("shape").Dims
	if len(to) != x.Rank() {
		return nil, shapeErr("broadcast: rank %d to rank %d; ranks must be equal", x.Rank(), len(to))
	}
	for i, d := range x.Shape {
		if !d.Is(1) && !d.Equal(to[i]) {
			return nil, shapeErr("broadcast: axis %d is %s and cannot become %s", i, d, to[i])
		}
	}
	return one(x.DType, to...)
}

func sliceRule(o *Op) ([]Type, error) {
	x := arg(o, 0)
	a, err := axisOf(o, x.Rank())
	if err != nil {
		return nil, err
	}
	start, stop := o.Attr("start").Dim, o.Attr("stop").Dim
	s, okS := start.Const()
	e, okE := stop.Const()
	n, okN := x.Shape[a].Const()
	if okS && s < 0 || okS && okE && e < s || okE && okN && e > n {
		return nil, shapeErr("slice: [%s, %s) is outside axis %d of size %s", start, stop, a, x.Shape[a])
	}
	out := slices.Clone(x.Shape)
	out[a] = stop.Sub(start)
	return one(x.DType, out...)
}

func concatRule(o *Op) ([]Type, error) {
	x := arg(o, 0)
	a, err := axisOf(o, x.Rank())
	if err != nil {
		return nil, err
	}
	out := slices.Clone(x.Shape)
	for i := 1; i < len(o.Args); i++ {
		y := arg(o, i)
		if err := wantSameType(o, 0, i); err != nil {
			return nil, err
		}
		if err := wantRank(o, i, x.Rank()); err != nil {
			return nil, err
		}
		for ax, d := range y.Shape {
			if ax != a {
				if err := wantDim(o, i, ax, x.Shape[ax], "axes other than the joined one must be equal"); err != nil {
					return nil, err
				}
				continue
			}
			out[a] = out[a].Add(d)
		}
	}
	return one(x.DType, out...)
}

func reduceRule(o *Op) ([]Type, error) {
	x := arg(o, 0)
	a, err := axisOf(o, x.Rank())
	if err != nil {
		return nil, err
	}
	out := slices.Clone(x.Shape)
	out[a] = D(1)
	return one(x.DType, out...)
}

func lastAxisRule(o *Op) ([]Type, error) {
	if arg(o, 0).Rank() == 0 {
		return nil, shapeErr("%s: the operand has no axis", o.Name())
	}
	return sameRule(o)
}

func topkRule(o *Op) ([]Type, error) {
	x, k := arg(o, 0), o.Int("k")
	if x.Rank() == 0 {
		return nil, shapeErr("topk: the operand has no axis")
	}
	if n, ok := x.Shape[x.Rank()-1].Const(); k < 1 || ok && k > n {
		return nil, shapeErr("topk: k = %d of %s elements", k, x.Shape[x.Rank()-1])
	}
	out := slices.Clone(x.Shape)
	out[len(out)-1] = D(k)
	return []Type{{DType: x.DType, Shape: out}, {DType: dtype.I32, Shape: slices.Clone(out)}}, nil
}

func gatherRule(o *Op) ([]Type, error) {
	x, idx := arg(o, 0), arg(o, 1)
	a, err := axisOf(o, x.Rank())
	if err != nil {
		return nil, err
	}
	if idx.Rank() == 0 {
		return nil, shapeErr("gather: the index has no axis")
	}
	return one(x.DType, slices.Concat(x.Shape[:a], idx.Shape, x.Shape[a+1:])...)
}

func gatherElementsRule(o *Op) ([]Type, error) {
	x, idx := arg(o, 0), arg(o, 1)
	a, err := axisOf(o, x.Rank())
	if err != nil {
		return nil, err
	}
	if err := wantRank(o, 1, x.Rank()); err != nil {
		return nil, err
	}
	out := slices.Clone(x.Shape)
	for i := range x.Shape {
		if i != a && !idx.Shape[i].Is(1) {
			if err := wantDim(o, 1, i, x.Shape[i], "axes other than the gathered one must be equal, or 1 in the index"); err != nil {
				return nil, err
			}
		}
	}
	out[a] = idx.Shape[a]
	return one(x.DType, out...)
}

func matmulRule(o *Op) ([]Type, error) {
	x, y := arg(o, 0), arg(o, 1)
	if err := wantSameType(o, 0, 1); err != nil {
		return nil, err
	}
	if x.Rank() < 2 || x.Rank() != y.Rank() {
		return nil, shapeErr("matmul: operands have ranks %d and %d; want equal ranks of at least 2", x.Rank(), y.Rank())
	}
	r := x.Rank()
	k, n := r-2, r-1
	if o.Attr("trans_b").Bool {
		k, n = r-1, r-2
	}
	if err := wantDim(o, 1, k, x.Shape[r-1], "the contracted size"); err != nil {
		return nil, err
	}
	lead, err := broadcastShapes(o, x.Shape[:r-2], y.Shape[:r-2])
	if err != nil {
		return nil, err
	}
	out := o.Attr("dtype").DType
	if out != x.DType && out != dtype.F32 {
		return nil, operandErr("matmul: result type %s; want %s or f32", out, x.DType)
	}
	return one(out, append(lead, x.Shape[r-2], y.Shape[n])...)
}

func matmulJoinedRule(o *Op) ([]Type, error) {
	if err := wantRank(o, 0, 2); err != nil {
		return nil, err
	}
	x, out := arg(o, 0), o.Attr("dtype").DType
	if out != x.DType && out != dtype.F32 {
		return nil, operandErr("matmul_joined: result type %s; want %s or f32", out, x.DType)
	}
	var ts []Type
	for i := 1; i < len(o.Args); i++ {
		w := arg(o, i)
		if w.Rank() != 2 && w.Rank() != 3 {
			return nil, shapeErr("matmul_joined: %s has rank %d, want 2 or 3", operandName(o, i), w.Rank())
		}
		if err := firstErr(wantSameType(o, 0, i), wantDim(o, i, w.Rank()-1, x.Shape[1], "the contracted size")); err != nil {
			return nil, err
		}
		ts = append(ts, Type{DType: out, Shape: append([]Dim{x.Shape[0]}, w.Shape[:w.Rank()-1]...)})
	}
	return ts, nil
}

func rmsNormRule(o *Op) ([]Type, error) {
	x := arg(o, 0)
	if x.Rank() == 0 {
		return nil, shapeErr("rms_norm: x has no axis")
	}
	if err := firstErr(wantSameType(o, 0, 1), wantRank(o, 1, 1)); err != nil {
		return nil, err
	}
	if err := wantDim(o, 1, 0, x.Shape[x.Rank()-1], "the last axis of x"); err != nil {
		return nil, err
	}
	return sameRule(o)
}

func shortConvRule(o *Op) ([]Type, error) {
	x, w := arg(o, 0), arg(o, 1)
	if x.Rank() < 2 {
		return nil, shapeErr("short_conv: the window has rank %d, want at least 2", x.Rank())
	}
	if err := wantRank(o, 1, 2); err != nil {
		return nil, err
	}
	if err := wantDim(o, 1, 1, x.Shape[x.Rank()-1], "the channels of the window"); err != nil {
		return nil, err
	}
	out := slices.Clone(x.Shape)
	out[x.Rank()-2] = out[x.Rank()-2].Sub(w.Shape[0]).Add(D(1))
	return one(x.DType, out...)
}

func moeRule(o *Op) ([]Type, error) {
	for i := range 3 {
		if err := wantRank(o, i, 2); err != nil {
			return nil, err
		}
	}
	x, e := arg(o, 0), arg(o, 1)
	err := firstErr(
		wantSameType(o, 0, 2),
		wantDim(o, 1, 0, x.Shape[0], "one row a token"),
		wantDim(o, 2, 0, x.Shape[0], "one row a token"),
		wantDim(o, 2, 1, e.Shape[1], "one weight an expert"),
	)
	if len(o.Args)%2 == 0 {
		return nil, operandErr("moe: the last bank has a w13 and no w2")
	}
	if o.Attr("first") != nil && o.Int("first") < 0 {
		return nil, &ruleError{code: "V05", msg: fmt.Sprintf("moe: first is %d; experts are numbered from 0", o.Int("first"))}
	}
	if err == nil && o.Attr("shared") != nil {
		err = wantShared(o)
	}
	for i := 3; i < len(o.Args) && err == nil; i += 2 {
		err = moeBank(o, i)
	}
	if err != nil {
		return nil, err
	}
	return sameRule(o)
}

// wantShared checks that a token can choose as many experts as all share.
func wantShared(o *Op) error {
	n := o.Int("shared")
	if k, known := arg(o, 1).Shape[1].Const(); n < 0 || known && n > k {
		return &ruleError{code: "V05", msg: fmt.Sprintf("moe: shared is %d, want 0 to the %s choices of a token", n, arg(o, 1).Shape[1])}
	}
	return nil
}

// moeBank checks a bank of experts, operands i and i + 1. All banks have the width
// of the first.
func moeBank(o *Op, i int) error {
	if err := firstErr(wantRank(o, i, 4), wantRank(o, i+1, 3)); err != nil {
		return err
	}
	x, w13 := arg(o, 0), arg(o, i)
	return firstErr(
		wantSameType(o, 0, i), wantSameType(o, 0, i+1),
		wantDim(o, i, 1, D(2), "gate and up"),
		wantDim(o, i, 2, arg(o, 3).Shape[2], "the expert width"),
		wantDim(o, i, 3, x.Shape[1], "the hidden size"),
		wantDim(o, i+1, 0, w13.Shape[0], "the number of experts"),
		wantDim(o, i+1, 1, x.Shape[1], "the hidden size"),
		wantDim(o, i+1, 2, w13.Shape[2], "the expert width"),
	)
}

func sdpaRule(o *Op) ([]Type, error) {
	batch := 0 // axes of it
	if arg(o, 0).Rank() == 5 {
		batch = 1
	}
	for i := range o.Args {
		if err := firstErr(wantRank(o, i, batch+4), wantSameType(o, 0, i)); err != nil {
			return nil, err
		}
	}
	q, k, v := arg(o, 0), arg(o, 1), arg(o, 2)
	for i := 1; batch > 0 && i < 3; i++ {
		if err := wantDim(o, i, 0, q.Shape[0], "the batch of q"); err != nil {
			return nil, err
		}
	}
	if err := firstErr(
		wantDim(o, 1, batch, q.Shape[batch], "the key/value heads of q"),
		wantDim(o, 1, batch+1, D(1), "a group of query heads shares its keys"),
		wantDim(o, 1, batch+3, q.Shape[batch+3], "the contracted size"),
		wantDim(o, 2, batch, q.Shape[batch], "the key/value heads of q"),
		wantDim(o, 2, batch+1, D(1), "a group of query heads shares its values"),
		wantDim(o, 2, batch+2, k.Shape[batch+2], "one value a key"),
	); err != nil {
		return nil, err
	}
	rows := q.Shape[: batch+3 : batch+3]
	if len(o.Args) > 3 {
		if err := wantDim(o, 3, batch+3, k.Shape[batch+2], "one number a key"); err != nil {
			return nil, err
		}
		for axis, n := range arg(o, 3).Shape[:batch+3] {
			if !n.Is(1) && !n.Equal(rows[axis]) {
				return nil, shapeErr("%s: axis %d of mask is %s, want %s or 1", o.Name(), axis, n, rows[axis])
			}
		}
	}
	ts, _ := one(q.DType, append(rows, v.Shape[batch+3])...)
	if o.Name() == "sdpa_stats" {
		stat := append(rows, D(1))
		ts = append(ts, Type{DType: q.DType, Shape: stat}, Type{DType: dtype.F32, Shape: slices.Clone(stat)})
	}
	return ts, nil
}

func embeddingRule(o *Op) ([]Type, error) {
	if err := firstErr(wantRank(o, 0, 2), wantRank(o, 1, 1), wantRank(o, 2, 1)); err != nil {
		return nil, err
	}
	if err := wantDim(o, 2, 0, D(1), "one offset"); err != nil {
		return nil, err
	}
	return one(arg(o, 0).DType, arg(o, 1).Shape[0], arg(o, 0).Shape[1])
}

func kvReadRule(o *Op) ([]Type, error) {
	if err := firstErr(wantRank(o, 0, 3), wantRank(o, 1, 1)); err != nil {
		return nil, err
	}
	c, b := arg(o, 0), o.Int("block_size")
	if n, ok := c.Shape[0].Const(); b < 1 || ok && n%b != 0 {
		return nil, shapeErr("kv_read: block_size %d does not divide %s slots", b, c.Shape[0])
	}
	return one(c.DType, arg(o, 1).Shape[0], D(b), c.Shape[1], c.Shape[2])
}

func kvWriteRule(o *Op) ([]Type, error) {
	return writeRule(o)
}

func convReadRule(o *Op) ([]Type, error) {
	if err := firstErr(wantRank(o, 0, 3), wantRank(o, 1, 1)); err != nil {
		return nil, err
	}
	s := arg(o, 0)
	return one(s.DType, arg(o, 1).Shape[0], s.Shape[1], s.Shape[2])
}

func convWriteRule(o *Op) ([]Type, error) { return writeRule(o) }

func writeRule(o *Op) ([]Type, error) {
	if err := firstErr(wantRank(o, 0, 3), wantRank(o, 1, 1), wantRank(o, 2, 3), wantSameType(o, 0, 2)); err != nil {
		return nil, err
	}
	s := arg(o, 0)
	if err := firstErr(
		wantDim(o, 2, 0, arg(o, 1).Shape[0], "one index a row"),
		wantDim(o, 2, 1, s.Shape[1], "that of the state"),
		wantDim(o, 2, 2, s.Shape[2], "that of the state"),
	); err != nil {
		return nil, err
	}
	return sameRule(o)
}

// likeStates checks that an op's states, operands from on, are of one type of rank 3.
func likeStates(o *Op, from int) error {
	for i := from; i < len(o.Args); i++ {
		if err := wantRank(o, i, 3); err != nil {
			return err
		}
		if !arg(o, i).Equal(arg(o, from)) {
			return shapeErr("%s: %s is %s, want %s as %s", o.Name(), operandName(o, i), arg(o, i), arg(o, from), operandName(o, from))
		}
	}
	return nil
}

func convReadsRule(o *Op) ([]Type, error) {
	if err := firstErr(wantRank(o, 0, 1), likeStates(o, 1)); err != nil {
		return nil, err
	}
	s := arg(o, 1)
	return one(s.DType, D(int64(len(o.Args)-1)), arg(o, 0).Shape[0], s.Shape[1], s.Shape[2])
}

func convWritesRule(o *Op) ([]Type, error) {
	if err := firstErr(wantRank(o, 0, 1), wantRank(o, 1, 4), likeStates(o, 2), wantSameType(o, 1, 2)); err != nil {
		return nil, err
	}
	s := arg(o, 2)
	if err := firstErr(
		wantDim(o, 1, 0, D(int64(len(o.Args)-2)), "one a state"),
		wantDim(o, 1, 1, arg(o, 0).Shape[0], "one index a row"),
		wantDim(o, 1, 2, s.Shape[1], "that of the states"),
		wantDim(o, 1, 3, s.Shape[2], "that of the states"),
	); err != nil {
		return nil, err
	}
	ts := make([]Type, len(o.Args)-2)
	for i := range ts {
		ts[i] = Type{DType: s.DType, Shape: slices.Clone(s.Shape)}
	}
	return ts, nil
}

func allGatherRule(o *Op) ([]Type, error) {
	x := arg(o, 0)
	a, err := axisOf(o, x.Rank())
	if err != nil {
		return nil, err
	}
	out := slices.Clone(x.Shape)
	out[a] = out[a].Mul(D(int64(max(x.Dist.Ways, 1))))
	return one(x.DType, out...)
}

func callRule(o *Op) ([]Type, error) {
	f := o.Attr("callee").Func
	if len(o.Args) != len(f.Params) {
		return nil, &ruleError{code: "V17", msg: fmt.Sprintf("call: @%s takes %s, got %d", f.Name, plural(len(f.Params), "argument"), len(o.Args))}
	}
	for i, p := range f.Params {
		if a := arg(o, i); !a.Equal(p.Value.Type) {
			return nil, &ruleError{code: "V17", msg: fmt.Sprintf("call: argument %d of @%s is %s, want %s", i, f.Name, a, p.Value.Type)}
		}
	}
	ts := make([]Type, len(f.Results))
	for i, r := range f.Results {
		ts[i] = r.Type
	}
	return ts, nil
}

// checkOperands checks the number and element types of operands.
func checkOperands(o *Op) error {
	want, least := len(o.Def.Operands), o.Def.Least()
	if o.Def.Name == "call" { // a segment may take nothing
		return nil
	}
	if o.Def.Variadic() {
		if len(o.Args) < want {
			return operandErr("%s takes at least %s, got %d", o.Name(), plural(want, "operand"), len(o.Args))
		}
	} else if len(o.Args) < least || len(o.Args) > want {
		number := plural(want, "operand")
		if least < want {
			number = fmt.Sprintf("%d or %s", least, number)
		}
		return operandErr("%s takes %s, got %d", o.Name(), number, len(o.Args))
	}
	for i, a := range o.Args {
		def := o.Def.Operands[min(i, want-1)]
		if !elemOK(def.Elem, a.Type.DType) {
			return operandErr("%s: %s is %s, want %s", o.Name(), operandName(o, i), a.Type.DType, elemNames[def.Elem])
		}
	}
	return nil
}

var elemNames = [...]string{
	ops.Any: "any type", ops.AnyFloat: "bf16 or f32", ops.Number: "bf16, f32 or i32",
	ops.I32: "i32", ops.Pred: "i8 (a predicate)", ops.F32: "f32",
}

func elemOK(e ops.Elem, t dtype.Type) bool {
	switch e {
	case ops.AnyFloat:
		return t.IsFloat()
	case ops.Number:
		return t.IsFloat() || t == dtype.I32
	case ops.I32:
		return t == dtype.I32
	case ops.Pred:
		return t == dtype.I8
	case ops.F32:
		return t == dtype.F32
	}
	return t.Size() > 0
}

// checkAttrs checks that exactly the table's attributes are there.
func checkAttrs(o *Op) error {
	for i := range o.Attrs {
		a := &o.Attrs[i]
		if _, ok := o.Def.Attr(a.Name); !ok {
			return &ruleError{code: "V05", msg: fmt.Sprintf("%s has no attribute %s", o.Name(), a.Name)}
		}
		if o.Attr(a.Name) != a {
			return &ruleError{code: "V05", msg: fmt.Sprintf("%s: attribute %s is given twice", o.Name(), a.Name)}
		}
	}
	for _, d := range o.Def.Attrs {
		a := o.Attr(d.Name)
		if a == nil && d.Optional {
			continue
		}
		if a == nil {
			return &ruleError{code: "V05", msg: fmt.Sprintf("%s: attribute %s is missing", o.Name(), d.Name), help: d.Doc}
		}
		ok := true
		switch d.Type {
		case ops.Int:
			_, ok = a.Dim.Const()
		case ops.Ints:
			for _, x := range a.Dims {
				_, isConst := x.Const()
				ok = ok && isConst
			}
		case ops.DType:
			ok = a.DType.Size() > 0
		case ops.Func:
			ok = a.Func != nil
		}
		if !ok {
			return &ruleError{code: "V05", msg: fmt.Sprintf("%s: attribute %s is not %s", o.Name(), d.Name, attrTypeNames[d.Type])}
		}
	}
	return nil
}

var attrTypeNames = [...]string{
	ops.Int: "an integer", ops.Dim: "a size", ops.Float: "a number", ops.String: "a string", ops.Bool: "true or false",
	ops.Ints: "a list of integers", ops.Dims: "a list of sizes", ops.DType: "an element type", ops.Func: "a function",
}
