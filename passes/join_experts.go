package passes

import (
	"slices"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// joinExpertsPass makes shared experts ones of the routed bank, which every token
// chooses: one op computes all.
//
// Before:
//
//	%0 = slice %z {axis = 1, start = 0, stop = 4} : f32[3, 4]
//	%1 = sigmoid %0 : f32[3, 4]
//	%2 = reshape %bias {shape = [1, 4]} : f32[1, 4]
//	%3 = add %1, %2 : f32[3, 4]
//	%4, %5 = topk %3 {k = 2} : f32[3, 2], i32[3, 2]
//	%6 = gather_elements %0, %5 {axis = 1} : f32[3, 2]
//	%7 = slice %z {axis = 1, start = 4, stop = 5} : f32[3, 1]
//	%8 = concat %6, %7 {axis = 1} : f32[3, 3]
//	%9 = softmax %8 : f32[3, 3]
//	%10 = slice %9 {axis = 1, start = 0, stop = 2} : f32[3, 2]
//	%11 = slice %9 {axis = 1, start = 2, stop = 3} : f32[3, 1]
//	%12 = moe %x, %5, %10, %w13, %w2 : f32[3, 8]
//	%13 = reshape %x {shape = [1, 1, 3, 8]} : f32[1, 1, 3, 8]
//	%14 = matmul %13, %s13 {dtype = f32, trans_b = true} : f32[1, 2, 3, 6]
//	%15 = slice %14 {axis = 1, start = 0, stop = 1} : f32[1, 1, 3, 6]
//	%16 = slice %14 {axis = 1, start = 1, stop = 2} : f32[1, 1, 3, 6]
//	%17 = silu %15 : f32[1, 1, 3, 6]
//	%18 = mul %17, %16 : f32[1, 1, 3, 6]
//	%19 = transpose %11 {perm = [1, 0]} : f32[1, 3]
//	%20 = reshape %19 {shape = [1, 1, 3, 1]} : f32[1, 1, 3, 1]
//	%21 = mul %18, %20 : f32[1, 1, 3, 6]
//	%22 = reshape %s2 {shape = [1, 1, 8, 6]} : f32[1, 1, 8, 6]
//	%23 = matmul %21, %22 {dtype = f32, trans_b = true} : f32[1, 1, 3, 8]
//	%24 = reduce_sum %23 {axis = 0} : f32[1, 1, 3, 8]
//	%25 = reshape %24 {shape = [3, 8]} : f32[3, 8]
//	%26 = add %12, %25 : f32[3, 8]
//
// After:
//
//	%0 = const 1e+30 {dtype = f32} : f32[1]
//	%1 = sigmoid %z : f32[3, 5]
//	%2 = concat %bias, %0 {axis = 0} : f32[5]
//	%3 = reshape %2 {shape = [1, 5]} : f32[1, 5]
//	%4 = add %1, %3 : f32[3, 5]
//	%5, %6 = topk %4 {k = 3} : f32[3, 3], i32[3, 3]
//	%7 = gather_elements %z, %6 {axis = 1} : f32[3, 3]
//	%8 = softmax %7 : f32[3, 3]
//	%9 = moe %x, %6, %8, %w13, %w2, %s13, %s2 {shared = 1} : f32[3, 8]
//
// A bias that no sigmoid reaches makes the router choose the shared experts, ahead of
// the others and in order. It lies behind that of the routed ones, so putting both together costs
// nothing in a step. What an expert's weight multiplies is then its result, not what
// goes into its last product, and its result is rounded with the others: sums end in
// other last bits.
//
// A gather is from one bank: where experts are to be gathered the shared ones' matrices
// are concatenated with the routed ones', behind which lowering places them.
//
// It does not fire on a router of another kind, where an inner value has other
// readers, or where the two sums meet only after a reduction (collapse-reduces makes
// them meet before).
var joinExpertsPass = Pass{
	Name:     "join-experts",
	Summary:  "makes shared experts ones of the routed bank that every token chooses",
	Stages:   Family,
	Optional: true,
	Inexact:  true,
	After:    []Order{{"collapse-reduces", "sums of routed and shared experts must meet before they are reduced"}},
	Run:      joinExperts,
}

func joinExperts(c *Context, m *ir.Module) (bool, error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	return applyPatterns(c, m, []pattern{{"sum of routed and shared experts", []string{"add"}, routedAndShared}})
}

// surely is the bias of the last shared expert, and of the others times how many follow:
// more than any routed one can have.
const surely = 1e30

// experts is the sum of routed and shared experts from the sum up.
type experts struct {
	routed, moe *ir.Op // the summand: moe, or its cast
	router      router
	w13, w2     *ir.Value // of the shared experts
	inner       []*ir.Value
}

// router is what chooses experts and weighs them: the weights of all are a function,
// token by token, of the logits of those chosen and of the shared ones.
type router struct {
	z, bias *ir.Value
	k       int64
	weigh   []*ir.Op // from the logits to the weights, last one first
}

func routedAndShared(r *rewriter, o *ir.Op) bool {
	for i := range o.Args {
		x, why := matchExperts(o.Args[i], o.Args[1-i])
		if x == nil {
			continue
		}
		for _, v := range x.inner {
			if why == "" && r.uses.Count(v) > 1 {
				why = v.Name() + " is used by others too"
			}
		}
		if why != "" {
			r.ctx.Remark(o.Loc, "not joined: %s", why)
			return false
		}
		return r.replace(x.build(r))
	}
	return false
}

// build makes one op of all experts.
func (x *experts) build(r *rewriter) *ir.Value {
	t := &x.router
	routed, shared := t.bias.Type.Shape[0], x.w2.Type.Shape[0]
	n, _ := shared.Const()
	biases := []*ir.Value{t.bias}
	for i := range n {
		biases = append(biases, r.Const(surely*float64(n-i), dtype.F32))
	}
	all := routed.Add(shared)
	score := r.Add(r.Sigmoid(t.z), r.Reshape(r.Concat(0, biases...), []ir.Dim{ir.D(1), all}))
	_, chosen := r.Topk(score, t.k+n)
	w := r.GatherElements(t.z, chosen, 1)
	for _, o := range slices.Backward(t.weigh) {
		w = r.Again(o, append([]*ir.Value{w}, o.Args[1:]...)...)[0]
	}
	w = r.CastTo(w, x.moe.Args[2].Type.DType)
	y := r.MoE(x.moe.Args[0], chosen, w, x.banks(r)...)
	if r.Err() != nil {
		return nil
	}
	y.Def.Attrs = append(y.Def.Attrs, ir.Attr{Name: "shared", Dim: shared})
	return r.CastTo(y, x.routed.Results[0].Type.DType)
}

// banks are the matrices of all experts: one bank where they are to be gathered.
func (x *experts) banks(r *rewriter) []*ir.Value {
	banks := append(slices.Clone(x.moe.Args[3:]), x.w13, x.w2)
	if r.ctx.Params.MoE != GatheredExperts {
		return banks
	}
	var all [2][]*ir.Value
	for i, b := range banks {
		all[i%2] = append(all[i%2], b)
	}
	return []*ir.Value{r.Concat(0, all[0]...), r.Concat(0, all[1]...)}
}

// matchExperts finds routed experts in one summand and shared ones in the other; nil
// when there are none, and why they cannot be one where something is in the way.
func matchExperts(routed, shared *ir.Value) (x *experts, why string) {
	x = &experts{inner: []*ir.Value{routed, shared}}
	x.moe = def(routed, "moe")
	if c := def(routed, "cast"); c != nil {
		x.moe = def(c.Args[0], "moe")
		x.inner = append(x.inner, c.Args[0])
	}
	if x.moe == nil {
		return nil, ""
	}
	x.routed = routed.Def
	gamma := x.matchShared(shared)
	if gamma == nil {
		return nil, ""
	}
	if why := x.matchRouter(gamma); why != "" {
		return x, why
	}
	return x, ""
}

// matchShared finds the shared experts, and the weights f32 [T, S] of theirs.
func (x *experts) matchShared(v *ir.Value) (gamma *ir.Value) {
	sum := def(x.through(v, "reshape"), "reduce_sum")
	if sum == nil || sum.Int("axis") != 0 {
		return nil
	}
	down := x.def(sum.Args[0], "matmul")
	if down == nil || !down.Attr("trans_b").Bool {
		return nil
	}
	x.w2 = bare(down.Args[1])
	act := x.def(down.Args[0], "mul")
	if act == nil || x.w2.Param == nil || x.w2.Type.Rank() != 3 {
		return nil
	}
	turned := def(x.through(act.Args[1], "reshape"), "transpose")
	if turned == nil || turned.Args[0].Type.Rank() != 2 || !x.matchGated(act.Args[0]) || !x.fits() {
		return nil
	}
	return x.through(turned.Args[0], "cast")
}

// matchGated finds silu(gate)·up of the shared experts on what the routed ones read.
func (x *experts) matchGated(v *ir.Value) bool {
	gated := x.def(v, "mul")
	if gated == nil {
		return false
	}
	gate, up := x.def(gated.Args[0], "silu"), x.def(gated.Args[1], "slice")
	if gate == nil || up == nil {
		return false
	}
	first := x.def(gate.Args[0], "slice")
	if first == nil || first.Args[0] != up.Args[0] || !halves(first, up) {
		return false
	}
	product := def(up.Args[0], "matmul")
	if product == nil || !product.Attr("trans_b").Bool || product.Args[1].Param == nil || bare(product.Args[0]) != x.moe.Args[0] {
		return false
	}
	x.w13 = product.Args[1]
	return true
}

// fits reports whether shared experts are of the size and distribution of the routed.
func (x *experts) fits() bool {
	alike := func(shared, routed ir.Type) bool {
		return shared.Rank() == routed.Rank() && ir.SameShape(shared.Shape[1:], routed.Shape[1:]) && shared.Dist == routed.Dist
	}
	return alike(x.w13.Type, x.moe.Args[3].Type) && alike(x.w2.Type, x.moe.Args[4].Type) && x.w13.Type.Shape[0].Equal(x.w2.Type.Shape[0])
}

// halves reports whether two slices are the first and the second of two elements of
// axis 1.
func halves(first, second *ir.Op) bool {
	at := func(o *ir.Op, name string, n int64) bool { return o.Attr(name).Dim.Is(n) }
	return first.Int("axis") == 1 && second.Int("axis") == 1 && at(first, "start", 0) && at(first, "stop", 1) && at(second, "start", 1) && at(second, "stop", 2)
}

// matchRouter finds the router of both weights, and says why it cannot choose the
// shared experts too.
func (x *experts) matchRouter(gamma *ir.Value) string {
	const other = "the router is of another kind"
	t := &x.router
	chosen := x.moe.Args[1]
	top := def(chosen, "topk")
	routedWeights, sharedWeights := def(x.through(x.moe.Args[2], "cast"), "slice"), def(gamma, "slice")
	if top == nil || routedWeights == nil || sharedWeights == nil || routedWeights.Args[0] != sharedWeights.Args[0] {
		return other
	}
	t.k = top.Int("k")
	w := routedWeights.Args[0]
	if !partsAt(routedWeights, sharedWeights, t.k, w) {
		return other
	}
	x.inner = append(x.inner, gamma, x.through(x.moe.Args[2], "cast"))
	for {
		o := w.Def
		if o == nil || !byToken(o) {
			return other
		}
		if o.Name() == "concat" {
			break
		}
		t.weigh = append(t.weigh, o)
		if w != routedWeights.Args[0] {
			x.inner = append(x.inner, w)
		}
		w = o.Args[0]
	}
	x.inner = append(x.inner, w)
	return x.matchLogits(w.Def, top, other)
}

// matchLogits finds what the logits of those chosen and of the shared experts are parts
// of.
func (x *experts) matchLogits(both, top *ir.Op, other string) string {
	t := &x.router
	score := x.def(top.Args[0], "add")
	picked := x.def(both.Args[0], "gather_elements")
	if len(both.Args) != 2 || both.Int("axis") != 1 || score == nil || picked == nil || picked.Args[1] != top.Results[1] {
		return other
	}
	sigmoid, bias := x.def(score.Args[0], "sigmoid"), def(score.Args[1], "reshape")
	if sigmoid == nil || bias == nil || bias.Args[0].Param == nil || sigmoid.Args[0] != picked.Args[0] {
		return other
	}
	routed, shared := def(picked.Args[0], "slice"), x.def(both.Args[1], "slice")
	if routed == nil || shared == nil || routed.Args[0] != shared.Args[0] {
		return other
	}
	t.z, t.bias = routed.Args[0], bias.Args[0]
	n, _ := t.bias.Type.Shape[0].Const()
	if !partsAt(routed, shared, n, t.z) || !t.z.Type.Shape[1].Equal(t.bias.Type.Shape[0].Add(x.w2.Type.Shape[0])) {
		return other
	}
	return ""
}

// partsAt reports whether two slices are all of axis 1 of a value, the first up to n.
func partsAt(first, second *ir.Op, n int64, v *ir.Value) bool {
	dim := func(o *ir.Op, name string) ir.Dim { return o.Attr(name).Dim }
	return first.Int("axis") == 1 && second.Int("axis") == 1 && dim(first, "start").Is(0) && dim(first, "stop").Is(n) &&
		dim(second, "start").Is(n) && dim(second, "stop").Equal(v.Type.Shape[1])
}

// byToken reports whether an op works on a row of logits whatever their order, or joins
// them.
func byToken(o *ir.Op) bool {
	switch o.Name() {
	case "softmax", "logsigmoid", "sigmoid", "exp", "cast", "concat":
		return true
	case "mul", "div":
		return o.Args[1].Type.Shape[len(o.Args[1].Type.Shape)-1].Is(1)
	}
	return false
}

// def is the op of that name that makes a value which nothing else should read.
func (x *experts) def(v *ir.Value, name string) *ir.Op {
	x.inner = append(x.inner, v)
	return def(v, name)
}

// through is what a value is the reshape or cast of, which nothing else should read.
func (x *experts) through(v *ir.Value, name string) *ir.Value {
	for def(v, name) != nil {
		x.inner = append(x.inner, v)
		v = v.Def.Args[0]
	}
	return v
}
