package passes

import (
	"slices"

	"quill/ir"
	"quill/ir/ops"
)

// fuseQKVRPass makes one product of those of one row with several weights: the
// projections of queries, keys, values and relative logits.
//
// Before:
//
//	%0 = matmul %x, %q {dtype = bf16, trans_b = true} : bf16[4, 8]@shard(1, 2)
//	%1 = matmul %x, %k {dtype = bf16, trans_b = true} : bf16[4, 6]@shard(1, 2)
//	%2 = matmul %x, %v {dtype = bf16, trans_b = true} : bf16[4, 6]@shard(1, 2)
//
// After:
//
//	%0 = reshape %k {shape = [1, 6, 8], shard = 1} : bf16[1, 6, 8]@shard(1, 2)
//	%1 = reshape %v {shape = [1, 6, 8], shard = 1} : bf16[1, 6, 8]@shard(1, 2)
//	%2 = concat %0, %1 {axis = 0} : bf16[2, 6, 8]@shard(1, 2)
//	%3, %4 = matmul_joined %x, %q, %2 {dtype = bf16} : bf16[4, 8]@shard(1, 2), bf16[4, 2, 6]@shard(2, 2)
//	%5 = slice %4 {axis = 1, start = 0, stop = 1} : bf16[4, 1, 6]@shard(2, 2)
//	%6 = reshape %5 {shape = [4, 6], shard = 1} : bf16[4, 6]@shard(1, 2)
//	%7 = slice %4 {axis = 1, start = 1, stop = 2} : bf16[4, 1, 6]@shard(2, 2)
//	%8 = reshape %7 {shape = [4, 6], shard = 1} : bf16[4, 6]@shard(1, 2)
//
// Neighbours of one type, as keys and values are, become one result, so that what
// follows can treat them as one: hoist-conv-history does. Weights are put together
// where they are stored: each rank has its parts behind each other, in whatever
// number of ways each of them is sharded. Nothing is copied when a step runs.
//
// It does not fire where a weight is computed, or read by another product as well, as
// a tied one is; where x is not replicated, so that its product is a part of a sum;
// and on a product alone. It may run anywhere before outlining.
var fuseQKVRPass = Pass{
	Name:     "fuse-qkvr",
	Summary:  "makes one product of those of one value with several weights",
	Stages:   Family,
	Optional: true,
	Run:      fuseQKVR,
}

func fuseQKVR(c *Context, m *ir.Module) (changed bool, err error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	for _, f := range m.Funcs {
		j := joiner{ctx: c, mod: m, uses: ir.NewUses(f)}
		if j.function(f) {
			changed, m.Level = true, ops.Fused
		}
	}
	return changed, nil
}

// joiner joins the products of one function.
type joiner struct {
	ctx  *Context
	mod  *ir.Module
	uses *ir.Uses
}

func (j *joiner) function(f *ir.Func) bool {
	siblings := map[*ir.Value][]*ir.Op{} // products by x, in order
	for _, o := range f.Ops {
		if j.joinable(o) {
			siblings[o.Args[0]] = append(siblings[o.Args[0]], o)
		}
	}
	var list []*ir.Op
	gone := map[*ir.Op]bool{}
	for _, o := range f.Ops {
		if j.joinable(o) {
			if s := siblings[o.Args[0]]; len(s) > 1 && s[0] == o && j.alike(s) && j.ctx.Rewrite() {
				list = append(list, j.join(s)...)
				for _, p := range s {
					gone[p] = true
				}
			}
		}
		if !gone[o] {
			list = append(list, o)
		}
	}
	f.Ops = list
	return len(gone) > 0
}

// joinable reports whether an op is a product of rows with a weight as it is stored.
func (j *joiner) joinable(o *ir.Op) bool {
	if o.Name() != "matmul" || !o.Attr("trans_b").Bool || o.Args[0].Type.Rank() != 2 || o.Args[0].Type.Dist.Kind != ir.Replicated {
		return false
	}
	w := o.Args[1]
	return w.Param != nil && w.Param.Kind == ir.Weight && o.Results[0].Type.Dist.Kind != ir.Partial
}

// alike reports whether products can be one, and says why not.
func (j *joiner) alike(list []*ir.Op) bool {
	for i, o := range list {
		switch {
		case o.Attr("dtype").DType != list[0].Attr("dtype").DType:
			j.ctx.Remark(o.Loc, "not joined: products of one value have different types")
		case j.uses.Count(o.Args[1]) > 1:
			j.ctx.Remark(o.Loc, "not joined: %s is read by others too", o.Args[1].Name())
		case slices.ContainsFunc(list[:i], func(p *ir.Op) bool { return p.Args[1] == o.Args[1] }):
			j.ctx.Remark(o.Loc, "not joined: %s is a factor twice", o.Args[1].Name())
		default:
			continue
		}
		return false
	}
	return true
}

// join builds the product of all, and lets its parts stand for those of each.
func (j *joiner) join(list []*ir.Op) []*ir.Op {
	scratch := &ir.Func{}
	b := ir.NewBuilder(j.mod, scratch).At(list[0].Loc)
	groups := neighbours(list)
	var weights []*ir.Value
	for _, g := range groups {
		weights = append(weights, stacked(b, g))
	}
	results := b.MatmulJoined(list[0].Args[0], list[0].Attr("dtype").DType, weights...)
	for i, g := range groups {
		for k, o := range g {
			v := results[i]
			b.At(o.Loc)
			if len(g) > 1 {
				t := o.Results[0].Type
				v = b.ReshapeShard(b.Slice(v, 1, ir.D(int64(k)), ir.D(int64(k)+1)), t.Dist.Axis, t.Shape...)
			}
			j.uses.ReplaceAll(o.Results[0], v)
		}
	}
	if b.Err() != nil {
		panic(b.Err()) // what is joinable has these types
	}
	return scratch.Ops
}

// neighbours groups products that follow each other and have weights of one type.
func neighbours(list []*ir.Op) (groups [][]*ir.Op) {
	for _, o := range list {
		if last := len(groups) - 1; last >= 0 && groups[last][0].Args[1].Type.Equal(o.Args[1].Type) {
			groups[last] = append(groups[last], o)
			continue
		}
		groups = append(groups, []*ir.Op{o})
	}
	return groups
}

// stacked are the weights [N, K] of products as one operand: [P, N, K] if there are P
// of them, else the one as it is.
func stacked(b *ir.Builder, list []*ir.Op) *ir.Value {
	if len(list) == 1 {
		return list[0].Args[1]
	}
	var parts []*ir.Value
	for _, o := range list {
		t := o.Args[1].Type
		parts = append(parts, b.ReshapeShard(o.Args[1], t.Dist.Axis+1, ir.D(1), t.Shape[0], t.Shape[1]))
	}
	return b.Concat(0, parts...)
}
