package passes

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// fuseRelBiasPass makes one op of attention with a relative bias: the bias, and
// what selects the scores that a row sees, become its additive mask.
//
// Before:
//
//	%0 = and %past, %token : i8[1, 1, 4, 6]
//	%1 = matmul %q, %k {dtype = f32, trans_b = true} : f32[1, 2, 4, 6]
//	%2 = add %1, %bias : f32[1, 2, 4, 6]
//	%3 = const -30000 {dtype = f32} : f32[1]
//	%4 = reshape %3 {shape = [1, 1, 1, 1]} : f32[1, 1, 1, 1]
//	%5 = select %0, %2, %4 : f32[1, 2, 4, 6]
//	%6 = softmax %5 : f32[1, 2, 4, 6]
//	%7 = matmul %6, %v {dtype = f32, trans_b = false} : f32[1, 2, 4, 8]
//
// After:
//
//	%0 = and %past, %token : i8[1, 1, 4, 6]
//	%1 = reshape %token {shape = [1, 1, 6, 1]} : i8[1, 1, 6, 1]
//	%2 = const -1e+30 {dtype = f32} : f32[1]
//	%3 = reshape %2 {shape = [1, 1, 1, 1]} : f32[1, 1, 1, 1]
//	%4 = select %0, %bias, %3 : f32[1, 2, 4, 6]
//	%5 = const 0 {dtype = f32} : f32[1]
//	%6 = reshape %5 {shape = [1, 1, 1, 1]} : f32[1, 1, 1, 1]
//	%7 = select %1, %k, %6 : f32[1, 1, 6, 8]
//	%8 = sdpa %q, %7, %v, %4 {scale = 1} : f32[1, 2, 4, 8]
//
// A sum hides less than a selection: a score that is large enough wins over any
// finite mask. So keys that hold no token, whose slots may hold any finite
// number, become zeros: %token is the part of the predicate that depends on the
// key alone. The others are keys of the sequence. Their scores vanish in −1e30, so a
// row that sees nothing gives the mean of the values as before.
//
// Each row of a decode step has keys of its own, q [s, kvHeads, group, D] and
// k [s, kvHeads, Sk, D]: the rows become the batch, of one query each. Nothing there
// says which keys hold a token, and keys need not become zeros, which would copy them
// in each layer. Queries and keys are normalised rows (RMS norm, then a weight):
// queries by the graph, keys because all rows that the graph writes to the cache are,
// and because the runtime has nothing else in it: slots that no sequence has written
// are zeros, others hold rows of the same graph from before, and blocks with what is
// not finite are zeroed before they are used again. So by Cauchy-Schwarz, with wq and
// wk the largest weights of the two norms, no score is larger than scale·D·wq·wk. That is
// wq·wk with the scale 1/D, where vanishing in −1e30 takes less than 1e22.
//
// It does not fire where no part of the predicate says which keys hold a token, unless
// keys are normalised as above; where the mask would be rounded to a type that the bias
// does not have; where scores or bias are used by others too, which would be computed
// twice; where the product with the values has another type than q; where the
// deployment wants plain attention. Layers that see all of a sequence decode block by
// block and have no softmax to find.
//
// Masks that differ by head are unproven on cards. Without this pass attention
// stays a chain of products, sums and a softmax, which are.
var fuseRelBiasPass = Pass{
	Name:     "fuse-rel-bias",
	Summary:  "makes attention one op whose additive mask is bias and what a row sees",
	Stages:   Family,
	Optional: true,
	Inexact:  true,
	After:    []Order{{"local-window", "it makes lists of blocks shorter, and what the op says of its keys counts them"}},
	Run:      fuseRelBias,
}

func fuseRelBias(c *Context, m *ir.Module) (bool, error) {
	if m.Level == ops.Plan || c.Params.Attention == Plain {
		return false, nil
	}
	changed, err := applyPatterns(c, m, []pattern{{"attention with a bias", []string{"matmul"}, attentionWithBias}})
	if changed {
		m.Level = ops.Fused
	}
	return changed, err
}

// hiddenScore is at most what a score must be to hide a key, hiddenMask the
// number in a mask that does: it absorbs every score of a key that holds a token,
// in any float type.
const (
	hiddenScore = -10000
	hiddenMask  = -1e30
)

// chain is captured attention from the product with the values up.
type chain struct {
	q, k, v, bias, visible *ir.Value
	scale                  float64
	// inner are values that nothing else may read.
	inner []*ir.Value
}

func attentionWithBias(r *rewriter, o *ir.Op) bool {
	refuse := func(format string, args ...any) bool {
		r.ctx.Remark(o.Loc, "not fused: "+format, args...)
		return false
	}
	c, why := matchChain(o)
	switch {
	case why != "":
		return refuse("%s", why)
	case c == nil:
		return false
	}
	t := c.q.Type.DType
	for _, v := range c.inner {
		if r.uses.Count(v) > 1 {
			return refuse("%s is used by others too", v.Name())
		}
	}
	if o.Results[0].Type.DType != t {
		return refuse("the result is %s and the queries are %s", o.Results[0].Type.DType, t)
	}
	token := c.token(r)
	switch {
	case token == nil && !c.ownKeys():
		return refuse("nothing says which keys hold a token, so what others hold might win over the mask")
	case token == nil && !r.normalised(c):
		return refuse("nothing says which keys hold a token, and queries or what is written to the cache are not normalised, so others might win over the mask")
	case token != nil && !c.k.Type.Shape[1].Is(1), token != nil && !c.v.Type.Shape[1].Is(1):
		return refuse("keys and values have an axis for the queries of a group")
	}
	bias := r.uncast(c.bias, t)
	if bias == nil {
		return refuse("the bias is computed in %s and the mask would be rounded to %s", c.bias.Type.DType, t)
	}
	mask := r.Select(c.visible, bias, r.number(hiddenMask, t, 4))
	var y *ir.Value
	if token == nil {
		y = r.SDPA(r.unit(c.q, 3), r.unit(c.k, 2), r.unit(c.v, 2), r.unit(mask, 3), c.scale)
		y = r.reshaped(y, o.Results[0].Type)
	} else {
		k := r.Select(token, c.k, r.number(0, t, 4))
		y = r.SDPA(c.q, k, c.v, mask, c.scale)
		y.Def.Attrs = append(y.Def.Attrs, r.facts(c, o.Results[0])...)
	}
	if err := r.Err(); err != nil {
		return refuse("%v", err)
	}
	return r.replace(y)
}

// matchChain finds attention that ends in a product. It says why a product with
// what a softmax makes is none.
func matchChain(o *ir.Op) (c *chain, why string) {
	if o.Attr("trans_b").Bool || o.Results[0].Type.Rank() != 4 {
		return nil, ""
	}
	c = &chain{v: o.Args[1], scale: 1}
	probs := o.Args[0]
	c.inner = append(c.inner, probs)
	if cast := def(probs, "cast"); cast != nil {
		probs = cast.Args[0]
		c.inner = append(c.inner, probs)
	}
	soft := def(probs, "softmax")
	if soft == nil {
		return nil, ""
	}
	sel := def(soft.Args[0], "select")
	if sel == nil {
		return nil, "no selection says what a row sees"
	}
	if low, ok := splat(sel.Args[2]); !ok || low > hiddenScore {
		return nil, fmt.Sprintf("what hides a key is no number that is at most %d", hiddenScore)
	}
	sum := def(sel.Args[1], "add")
	if sum == nil {
		return nil, "no bias is added to the scores"
	}
	c.visible = sel.Args[0]
	c.inner = append(c.inner, soft.Args[0], sel.Args[1])
	for i, x := range sum.Args {
		if c.bias == nil && c.scores(x) {
			c.bias = sum.Args[1-i]
			c.inner = append(c.inner, c.bias)
		}
	}
	if c.bias == nil {
		return nil, "the scores are no product of queries and keys"
	}
	return c, ""
}

// ownKeys reports whether each row has keys of its own: q is [s, kvHeads, group, D].
func (c *chain) ownKeys() bool {
	own := func(v *ir.Value) bool { return ir.SameShape(v.Type.Shape[:2], c.q.Type.Shape[:2]) }
	return own(c.k) && own(c.v)
}

// normalised reports whether queries are normalised, and keys are read from a cache to
// which nothing but normalised rows is written.
func (r *rewriter) normalised(c *chain) bool {
	k := c.k
	for def(k, "reshape") != nil || def(k, "transpose") != nil {
		k = k.Def.Args[0]
	}
	read := def(k, "kv_read")
	if read == nil || def(bare(c.q), "rms_norm") == nil {
		return false
	}
	cache := read.Args[0]
	for def(cache, "kv_write") != nil {
		cache = cache.Def.Args[0]
	}
	if cache.Param == nil || cache.Param.Kind != ir.State {
		return false
	}
	for v, writes := cache, 0; ; writes++ {
		next := slices.IndexFunc(r.uses.Of(v), func(u ir.Use) bool { return u.Op != nil && u.Op.Name() == "kv_write" })
		if next < 0 {
			return writes > 0
		}
		write := r.uses.Of(v)[next].Op
		if def(bare(write.Args[2]), "rms_norm") == nil {
			return false
		}
		v = write.Results[0]
	}
}

// unit inserts an axis of size 1.
func (r *rewriter) unit(v *ir.Value, axis int) *ir.Value {
	t := v.Type
	t.Shape = slices.Insert(slices.Clone(t.Shape), axis, ir.D(1))
	if t.Dist.Axis >= axis {
		t.Dist.Axis++
	}
	return r.reshaped(v, t)
}

func (r *rewriter) reshaped(v *ir.Value, t ir.Type) *ir.Value {
	return r.ReshapeShard(v, t.Dist.Axis, t.Shape...)
}

// scores finds q·kᵀ, times a number or not.
func (c *chain) scores(x *ir.Value) bool {
	product, scale := def(x, "matmul"), 1.0
	inner := []*ir.Value{x}
	if mul := def(x, "mul"); mul != nil {
		for i, y := range mul.Args {
			if n, ok := splat(y); ok {
				product, scale = def(mul.Args[1-i], "matmul"), n
				inner = append(inner, mul.Args[1-i])
			}
		}
	}
	if product == nil || !product.Attr("trans_b").Bool {
		return false
	}
	c.q, c.k, c.scale = product.Args[0], product.Args[1], scale
	c.inner = append(c.inner, inner...)
	return true
}

// token is which keys hold a token, as i8 [1, 1, Sk, 1]: the parts of the
// predicate that depend on the key alone. It is nil if there is none.
func (c *chain) token(r *rewriter) *ir.Value {
	keys := c.k.Type.Shape[2]
	var all *ir.Value
	for _, part := range conjuncts(c.visible) {
		if !ofKeys(part, keys) {
			continue
		}
		one := ir.D(1)
		v := r.Reshape(part, []ir.Dim{one, one, keys, one})
		if all != nil {
			v = r.And(all, v)
		}
		all = v
	}
	return all
}

// ofKeys reports whether a part of a predicate depends on the key alone.
func ofKeys(part *ir.Value, keys ir.Dim) bool {
	n := part.Type.Rank()
	return part.Type.Shape[n-1].Equal(keys) && part.Type.Elems().Equal(keys) && part.Type.Dist.Kind == ir.Replicated
}

// conjuncts are the predicates that must all hold for one to hold, without the
// reshapes in between that only add axes of size 1.
func conjuncts(v *ir.Value) []*ir.Value {
	if v.Def != nil {
		switch in := v.Def.Args; v.Def.Name() {
		case "and":
			return append(conjuncts(in[0]), conjuncts(in[1])...)
		case "reshape":
			if ir.SameShape(withoutOnes(in[0].Type.Shape), withoutOnes(v.Type.Shape)) {
				return conjuncts(in[0])
			}
		}
	}
	return []*ir.Value{v}
}

func withoutOnes(shape []ir.Dim) []ir.Dim {
	var out []ir.Dim
	for _, d := range shape {
		if !d.Is(1) {
			out = append(out, d)
		}
	}
	return out
}

// number is a constant of a rank.
func (r *rewriter) number(v float64, t dtype.Type, rank int) *ir.Value {
	ones := make([]ir.Dim, rank)
	for i := range ones {
		ones[i] = ir.D(1)
	}
	return r.Reshape(r.Const(v, t), ones)
}

// uncast is a value as it was before it was cast from a type, nil if it was not.
// Movements behind the cast are done again.
func (r *rewriter) uncast(v *ir.Value, t dtype.Type) *ir.Value {
	if v.Type.DType == t {
		return v
	}
	if v.Def == nil {
		return nil
	}
	switch v.Def.Name() {
	case "cast":
		if x := v.Def.Args[0]; x.Type.DType == t && holdsAll(t, v.Type.DType) {
			return x
		}
	case "reshape":
		if x := r.uncast(v.Def.Args[0], t); x != nil {
			return r.ReshapeShard(x, v.Type.Dist.Axis, v.Type.Shape...)
		}
	case "transpose":
		if x := r.uncast(v.Def.Args[0], t); x != nil {
			return r.Transpose(x, v.Def.Ints("perm"))
		}
	}
	return nil
}
