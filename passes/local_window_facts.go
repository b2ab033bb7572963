package passes

import (
	"fmt"

	"quill/ir"
	"quill/ir/ops"
)

// facts says of each value with an axis of the list what is known of its elements
// that belong to dropped keys: those of blocks that no row's window reaches.
type facts struct {
	list      *blockList
	of        map[*ir.Value]fact
	invariant map[*ir.Value]bool // values that depend on the step's inputs only
	problems  map[*ir.Op]string  // why an op cannot do without dropped keys
	hides     map[*ir.Op]int64   // the window of selects that hide scores by it
}

// fact is what is known of a value.
type fact struct {
	axis int // of the list, −1 when it has none
	kind kind
	num  float64 // of fixed
	// Of predicates: they are false for keys that are at least that far back, 0 when
	// they need not be.
	window int64
}

type kind uint8

const (
	unknown kind = iota
	rowPosition
	listStart  // position of the list's first slot
	slotNumber // counted from there
	keyPosition
	distance
	fixed // dropped elements are a number
	zero
)

// unseen is the largest score that hides: beside one that is seen its exponential
// is 0.
const unseen = -10000

func factsOf(f *ir.Func, list *blockList) *facts {
	s := &facts{list: list, of: map[*ir.Value]fact{}, invariant: map[*ir.Value]bool{}, problems: map[*ir.Op]string{}, hides: map[*ir.Op]int64{}}
	for _, p := range f.Params {
		s.invariant[p.Value] = p.Kind == ir.Host
		s.param(p.Value)
	}
	for _, o := range f.Ops {
		s.op(o)
	}
	return s
}

func (s *facts) param(v *ir.Value) {
	axis, _ := s.list.axis(v)
	k := fact{axis: axis}
	switch v {
	case s.list.positions:
		k.kind = rowPosition
	case s.list.start:
		k.kind = listStart
	}
	s.of[v] = k
}

// op finds the facts of an op's results.
func (s *facts) op(o *ir.Op) {
	invariant := o.Def.Has(ops.Pure) && !o.Def.Has(ops.Collective) && !o.Def.Has(ops.StateRead)
	listed, single := false, true
	for _, a := range o.Args {
		invariant = invariant && s.invariant[a]
		listed = listed || s.of[a].axis >= 0
	}
	for _, r := range o.Results {
		s.invariant[r] = invariant
		axis, ok := s.list.axis(r)
		s.of[r] = fact{axis: axis}
		listed, single = listed || axis >= 0, single && ok
	}
	if !listed {
		if len(o.Results) == 1 {
			s.of[o.Results[0]] = s.plain(o)
		}
		return
	}
	k, why := fact{axis: -1}, ""
	switch {
	case len(o.Results) != 1:
		why = apart
	case !single:
		why = "has the list twice"
	default:
		k, why = s.rule(o)
	}
	if why == "" && k.axis != s.of[o.Results[0]].axis {
		why = "moves keys to other blocks"
	}
	if why != "" {
		s.problems[o] = o.Name() + " " + why
		return
	}
	s.of[o.Results[0]] = k
}

// plain is the fact of an op without the list: numbers, positions and the like in
// another shape.
func (s *facts) plain(o *ir.Op) fact {
	k := fact{axis: -1}
	switch o.Name() {
	case "reshape", "broadcast", "transpose":
		k = s.of[o.Args[0]]
	}
	if n, ok := splat(o.Results[0]); ok {
		k.kind, k.num = fixed, n
	}
	return k
}

// keysRule finds the fact of the result of an op with the list, or why the op
// cannot do without dropped keys.
type keysRule func(s *facts, o *ir.Op, in []fact) (fact, string)

var keysRules = map[string]keysRule{
	"iota": iotaKeys, "reshape": reshapeKeys, "transpose": transposeKeys, "broadcast": broadcastKeys, "slice": sliceKeys,
	"concat": concatKeys, "gather": gatherKeys, "gather_elements": gatherElementsKeys, "kv_read": readKeys, "matmul": matmulKeys,
	"reduce_sum": reduceKeys, "reduce_max": reduceKeys, "softmax": softmaxKeys,
}

func (s *facts) rule(o *ir.Op) (fact, string) {
	in := make([]fact, len(o.Args))
	for i, a := range o.Args {
		in[i] = s.of[a]
	}
	rule := keysRules[o.Name()]
	switch {
	case o.Def.Has(ops.Elementwise):
		rule = (*facts).elementwise
	case rule == nil:
		return fact{}, apart
	}
	k, why := rule(s, o, in)
	for _, x := range in {
		if why == "" && x.relative() && (k.kind != x.kind && k.kind != keyPosition || o.Name() == "concat") {
			why = "counts from the start of the list"
		}
	}
	return k, why
}

// relative reports whether a value means something only beside the start of the
// list: that itself, and the numbers of slots from there.
func (x fact) relative() bool { return x.kind == listStart || x.kind == slotNumber }

const apart = "is not known to keep blocks apart"

// iotaKeys are the slots of all blocks in a row.
func iotaKeys(s *facts, o *ir.Op, _ []fact) (fact, string) {
	if !o.Attr("size").Dim.Equal(ir.SymDim(s.list.size).Mul(ir.D(s.list.block))) {
		return fact{}, "counts blocks"
	}
	return fact{kind: slotNumber}, ""
}

// reshapeKeys keeps the elements of a block together if they are as many axes
// behind as many elements.
func reshapeKeys(s *facts, o *ir.Op, in []fact) (fact, string) {
	k := in[0]
	x, y := o.Args[0].Type.Shape, o.Results[0].Type.Shape
	to, _ := s.list.axis(o.Results[0])
	if to < 0 || !elems(x[:k.axis]).Equal(elems(y[:to])) {
		return fact{}, "moves keys to other blocks"
	}
	same := elems(x[k.axis+1:]).Equal(elems(y[to+1:]))
	_, whole := x[k.axis].Div(ir.SymDim(s.list.size))
	if !same && !whole {
		return fact{}, "moves keys to other blocks"
	}
	k.axis = to
	return k, ""
}

func elems(shape []ir.Dim) ir.Dim { return ir.Type{Shape: shape}.Elems() }

func transposeKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	k := in[0]
	for i, p := range o.Ints("perm") {
		if int(p) == in[0].axis {
			k.axis = i
		}
	}
	return k, ""
}

// broadcastKeys may give all keys the same.
func broadcastKeys(s *facts, o *ir.Op, in []fact) (fact, string) {
	k := in[0]
	if k.axis < 0 {
		k.axis, _ = s.list.axis(o.Results[0])
		if k.kind != fixed {
			k.kind = unknown
		}
	}
	return k, ""
}

func sliceKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	if int(o.Int("axis")) == in[0].axis {
		return fact{}, "cuts the list"
	}
	return in[0], ""
}

// concatKeys appends what is not of the list, as the chunk's own keys.
func concatKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	k := in[0]
	for i, x := range in[1:] {
		if x.axis >= 0 && int(o.Int("axis")) == x.axis {
			return fact{}, "joins two lists"
		}
		if x.axis != k.axis && x.axis >= 0 {
			return fact{}, fmt.Sprintf("has the list along another axis in operand %d", i+1)
		}
	}
	if k.axis < 0 {
		return fact{}, "puts something before the list"
	}
	if int(o.Int("axis")) != k.axis {
		return fact{axis: k.axis}, ""
	}
	return k, ""
}

func gatherKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	x, index, axis := in[0], in[1], int(o.Int("axis"))
	switch {
	case x.axis == axis:
		return fact{}, "picks from the list"
	case x.axis >= 0 && index.axis >= 0:
		return fact{}, "has the list twice"
	case x.axis >= 0:
		if x.axis > axis {
			x.axis += o.Args[1].Type.Rank() - 1
		}
		return fact{axis: x.axis}, ""
	}
	return fact{axis: axis + index.axis}, ""
}

func gatherElementsKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	x, index := in[0], in[1]
	switch {
	case x.axis == int(o.Int("axis")):
		return fact{}, "picks from the list"
	case x.axis >= 0 && index.axis >= 0 && x.axis != index.axis:
		return fact{}, "has the list twice"
	}
	return fact{axis: max(x.axis, index.axis)}, ""
}

func readKeys(s *facts, o *ir.Op, in []fact) (fact, string) {
	if o.Args[1] != s.list.blocks {
		return fact{}, "reads other blocks than the list's"
	}
	return fact{axis: in[1].axis}, ""
}

func matmulKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	x, y := in[0], in[1]
	r := o.Args[0].Type.Rank()
	contracted, free := r-2, r-1
	if o.Attr("trans_b").Bool {
		contracted, free = free, contracted
	}
	if x.axis == r-1 || y.axis == contracted {
		if x.kind != zero && y.kind != zero {
			return fact{}, "counts keys outside the window"
		}
		return fact{axis: -1}, ""
	}
	if y.axis == free {
		y.axis = r - 1
	}
	if x.axis >= 0 && y.axis >= 0 && x.axis != y.axis {
		return fact{}, "has the list twice"
	}
	k := fact{axis: max(x.axis, y.axis)}
	if x.axis >= 0 && x.kind == zero || y.axis >= 0 && y.kind == zero {
		k.kind = zero
	}
	return k, ""
}

func reduceKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	x := in[0]
	sum := o.Name() == "reduce_sum"
	if x.axis == int(o.Int("axis")) {
		if !sum || x.kind != zero {
			return fact{}, "counts keys outside the window"
		}
		return fact{axis: -1}, ""
	}
	if x.kind != zero && (sum || x.kind != fixed) {
		x.kind = unknown
	}
	return x, ""
}

func softmaxKeys(_ *facts, o *ir.Op, in []fact) (fact, string) {
	k := fact{axis: in[0].axis}
	if k.axis == o.Args[0].Type.Rank()-1 {
		if in[0].kind != fixed || in[0].num > unseen {
			return fact{}, "counts keys outside the window"
		}
		k.kind = zero
	}
	return k, ""
}

// elementwise joins the facts of operands whose elements meet.
func (s *facts) elementwise(o *ir.Op, in []fact) (fact, string) {
	k := fact{axis: -1}
	for _, x := range in {
		switch {
		case x.axis < 0:
			continue
		case k.axis >= 0 && k.axis != x.axis:
			return fact{}, "has the list twice"
		}
		k.axis = x.axis
	}
	switch o.Name() {
	case "select":
		s.choose(o, in, &k)
	case "and":
		k.window = min(in[0].window, in[1].window)
		if k.window == 0 {
			k.window = max(in[0].window, in[1].window)
		}
	case "lt":
		if n := in[1]; in[0].kind == distance && n.axis < 0 && n.kind == fixed && n.num > 0 {
			k.window = int64(n.num)
		}
	case "cast":
		if in[0].kind == zero && o.Results[0].Type.DType.IsFloat() {
			k.kind = zero
		}
	case "mul":
		if in[0].kind == zero || in[1].kind == zero {
			k.kind = zero
		}
	case "add": // positions count from the start of the list
		if in[0].kind == listStart && in[1].kind == slotNumber || in[0].kind == slotNumber && in[1].kind == listStart {
			k.kind = keyPosition
		}
	case "sub":
		if in[0].kind == rowPosition && in[1].kind == keyPosition {
			k.kind = distance
		}
	}
	return k, ""
}

// choose is the rule of select.
func (s *facts) choose(o *ir.Op, in []fact, k *fact) {
	cond, a, b := in[0], in[1], in[2]
	if b.kind == fixed && b.axis < 0 && b.num <= unseen && cond.window > 0 {
		s.hides[o] = cond.window
	}
	switch {
	case cond.window > 0 && (b.kind == fixed || b.kind == zero):
		k.kind, k.num = b.kind, b.num
	case a.kind == zero && b.kind == zero:
		k.kind = zero
	}
}
