package passes

import (
	"errors"
	"fmt"

	"quill/ir"
	"quill/recipes/dtype"
)

// expandMoEPass computes experts without an op of their own, where the deployment
// says moe: gather.
//
// Before:
//
//	%0 = moe %x, %e, %w, %w13, %w2 : f32[1, 8]
//
// After:
//
//	%0 = reshape %x {shape = [1, 1, 1, 1, 8]} : f32[1, 1, 1, 1, 8]
//	%1 = gather %w13, %e {axis = 0} : f32[1, 2, 2, 4, 8]
//	%2 = matmul %0, %1 {dtype = f32, trans_b = true} : f32[1, 2, 2, 1, 4]
//	%3 = slice %2 {axis = 2, start = 0, stop = 1} : f32[1, 2, 1, 1, 4]
//	%4 = slice %2 {axis = 2, start = 1, stop = 2} : f32[1, 2, 1, 1, 4]
//	%5 = silu %3 : f32[1, 2, 1, 1, 4]
//	%6 = mul %5, %4 : f32[1, 2, 1, 1, 4]
//	%7 = reshape %6 {shape = [1, 2, 1, 4]} : f32[1, 2, 1, 4]
//	%8 = gather %w2, %e {axis = 0} : f32[1, 2, 8, 4]
//	%9 = matmul %7, %8 {dtype = f32, trans_b = true} : f32[1, 2, 1, 8]
//	%10 = reshape %9 {shape = [1, 2, 8]} : f32[1, 2, 8]
//	%11 = reshape %w {shape = [1, 1, 2]} : f32[1, 1, 2]
//	%12 = matmul %11, %10 {dtype = f32, trans_b = false} : f32[1, 1, 8]
//	%13 = reshape %12 {shape = [1, 8]} : f32[1, 8]
//
// It has three forms. With T tokens of k choices each and E experts, they read
//
//	pairs    the matrices of each choice, which are gathered: T·k of them, three
//	         times (read, written, read again)
//	all      those of all experts, once, and multiply each by all T tokens: what a
//	         token did not choose is left out of its sum
//	sorted   choices in the order of their experts, in groups of rows that have one
//	         expert each: at most (T·k + E·(rows − 1))/rows of them, three times
//
// and the one that takes least is used. Where a matrix has so many rows that their
// product takes longer than the reading (ridge), that counts. So for 256 experts of
// which each token chooses 6, up to 14 tokens are pairs, and more than some 580 are
// sorted.
//
// Experts that all tokens share (the op says which) have one product for all tokens in
// pairs and sorted ones too, on their matrices as they lie; a single token's are gathered
// with the others, since reading them thrice takes less time than nodes of their own.
//
// Rounding is that of moe: gate, up, activations, what each expert gives, and the sum,
// which stays in f32 where it is only cast to that. The sum of pairs and sorted ones is
// taken in the order of choices, that of all in the order of experts; the weights of an
// expert that a token names twice are then added first. Rows of different tokens never
// meet: rows that fill up a group are those of some choice, and nothing reads what they
// give. What an expert gives that a token did not choose is hidden by selection, ahead of
// its last product; its matrix is taken to be finite.
//
// Buffers have at most some bytes: gathered matrices, and results of single experts.
// The latter are all alive at once where choices are sorted, since a token's come from
// anywhere.
//
// It does not fire on sizes that are not numbers yet, on several banks, and on a part
// of the experts.
var expandMoEPass = Pass{
	Name:     "expand-moe",
	Summary:  "computes experts by products with matrices that are gathered, for moe: gather",
	Stages:   Bucket,
	Optional: true,
	Inexact:  true,
	After:    []Order{{"sub-block", "cutting a segment would make weights of its constants, for which there is no place by then"}},
	Options: []Option{
		{Name: "form", Kind: Choice, Default: "auto", Choices: []string{"auto", "pairs", "all", "sorted"}, Doc: "of all experts; auto takes what costs least"},
		{Name: "rows", Kind: Int, Default: "128", Doc: "choices of one expert that are computed as one, when sorted"},
		{Name: "bytes", Kind: Bytes, Default: "256MiB", Doc: "most bytes of gathered matrices, or of results of single experts"},
	},
	Run: expandMoE,
}

// ridge is by how many rows a matrix is multiplied in the time in which it is read: a
// Gaudi 2 has 432 TFLOP/s in bf16 beside 2.45 TB/s, so 176 multiply-adds an element.
const ridge = 176

// exactInts is the end of the integers that f32 holds.
const exactInts = 1 << 24

func expandMoE(c *Context, m *ir.Module) (bool, error) {
	if c.Params.MoE != GatheredExperts {
		return false, nil
	}
	if n := c.Int("rows"); n < 1 || n >= exactInts {
		return false, fmt.Errorf("option rows is %d, want 1 to %d", n, exactInts-1)
	}
	if c.Int("bytes") < 1 {
		return false, errors.New("option bytes is 0, want a number from 1")
	}
	return applyPatterns(c, m, []pattern{
		{"experts whose sum is cast to f32", []string{"cast"}, func(r *rewriter, o *ir.Op) bool {
			moe := def(o.Args[0], "moe")
			return moe != nil && onlyCast(r, moe) && gatherExperts(r, moe, dtype.F32)
		}},
		{"experts", []string{"moe"}, func(r *rewriter, o *ir.Op) bool {
			return !onlyCast(r, o) && gatherExperts(r, o, o.Results[0].Type.DType)
		}},
	})
}

// gatherExperts replaces the op being looked at by what a moe computes, in a type.
func gatherExperts(r *rewriter, o *ir.Op, sum dtype.Type) bool {
	g := &gatherer{
		rewriter: r, x: o.Args[0], experts: o.Args[1], weights: o.Args[2], w13: o.Args[3], w2: o.Args[4],
		dt: o.Args[0].Type.DType, sumType: sum, rows: r.ctx.Int("rows"), bytes: r.ctx.Int("bytes"),
	}
	if len(o.Args) > 5 || o.Attr("first") != nil {
		r.ctx.Remark(o.Loc, "not expanded: experts are in several banks, or a part of all")
		return false
	}
	e, w13 := o.Args[1].Type.Shape, o.Args[3].Type.Shape
	for _, d := range []struct {
		size ir.Dim
		n    *int64
	}{{e[0], &g.tokens}, {e[1], &g.k}, {w13[0], &g.count}, {w13[2], &g.width}, {w13[3], &g.hidden}} {
		n, ok := d.size.Const()
		if !ok || n < 1 {
			r.ctx.Remark(o.Loc, "not expanded: a size is %s", d.size)
			return false
		}
		*d.n = n
	}
	if o.Attr("shared") != nil && o.Int("shared") < min(g.k, g.count) {
		g.shared = o.Int("shared")
	}
	switch g.form(r.ctx.Choice("form")) {
	case "pairs":
		return r.replace(g.pairs())
	case "all":
		return r.replace(g.all())
	}
	return r.replace(g.sorted())
}

// gatherer builds the forms of one op.
type gatherer struct {
	*rewriter
	x, experts, weights, w13, w2    *ir.Value
	tokens, k, count, width, hidden int64
	shared                          int64 // of k and count: first choices of all, and last experts
	dt, sumType                     dtype.Type
	rows, bytes                     int64
}

// pairCount is how many choices there are of experts that are not shared.
func (g *gatherer) pairCount() int64 { return g.tokens * (g.k - g.shared) }

// groups is how many groups of rows these choices may need, however they are
// distributed: each expert that is chosen has one that is not full.
func (g *gatherer) groups() int64 {
	return (g.pairCount() + min(g.count-g.shared, g.pairCount())*(g.rows-1)) / g.rows
}

// form is the cheapest one, by what an expert's matrices cost to read, unless the
// option names another.
func (g *gatherer) form(option string) string {
	if option == "sorted" && g.groups()*g.rows >= exactInts {
		option = "auto"
	}
	if option != "auto" {
		return option
	}
	pairs, groups := float64(g.pairCount()), float64(g.groups())
	all := float64(g.count-g.shared) * max(1, float64(g.tokens)/ridge)
	sorted := groups * max(3, float64(g.rows)/ridge)
	switch {
	case 3*pairs <= min(all, sorted):
		return "pairs"
	case all <= sorted || groups*float64(g.rows) >= exactInts:
		return "all"
	}
	return "sorted"
}

// expertBytes are those of an expert's matrices.
func (g *gatherer) expertBytes() int64 { return 3 * g.width * g.hidden * int64(g.dt.Size()) }

func dimsOf(ns ...int64) []ir.Dim {
	ds := make([]ir.Dim, len(ns))
	for i, n := range ns {
		ds[i] = ir.D(n)
	}
	return ds
}

// parts calls a function for ranges of n things, of which as many are together as have
// at most so many bytes.
func (g *gatherer) parts(n, each int64, build func(a, b int64) *ir.Value) []*ir.Value {
	most := max(1, g.bytes/each)
	var list []*ir.Value
	for a := int64(0); a < n; a += most {
		list = append(list, build(a, min(n, a+most)))
	}
	return list
}

// joined puts values behind each other along an axis.
func (g *gatherer) joined(axis int64, list ...*ir.Value) *ir.Value {
	if len(list) == 1 {
		return list[0]
	}
	return g.Concat(axis, list...)
}

func (g *gatherer) outer(v *ir.Value, a, b int64) *ir.Value {
	if v.Type.Shape[0].Is(b - a) {
		return v
	}
	return g.Slice(v, 0, ir.D(a), ir.D(b))
}

// activated is silu(gate)·up of products [outer…, 2, rows, I], without that axis.
func (g *gatherer) activated(x, w13 *ir.Value, outer ...int64) *ir.Value {
	both := g.wide(g.Matmul(x, w13, true, g.dt))
	axis := int64(both.Type.Rank() - 3)
	gate, up := g.Slice(both, axis, ir.D(0), ir.D(1)), g.Slice(both, axis, ir.D(1), ir.D(2))
	act := g.CastTo(g.Mul(g.Silu(gate), up), g.dt)
	return g.ReshapeShard(act, len(outer), dimsOf(append(outer, g.width)...)...)
}

// sum is the weighted sum of tokens a … b−1 over their choices, of which each has a row
// of y [b − a, k, H].
func (g *gatherer) sum(y *ir.Value, a, b int64) *ir.Value {
	w := g.Reshape(g.outer(g.weights, a, b), dimsOf(b-a, 1, g.k))
	return g.Reshape(g.Matmul(w, y, false, g.sumType), dimsOf(b-a, g.hidden))
}

// ofShared is what the shared experts give all tokens: [shared, T, H].
func (g *gatherer) ofShared() *ir.Value {
	first := g.count - g.shared
	act := g.activated(g.Reshape(g.x, dimsOf(1, 1, g.tokens, g.hidden)), g.outer(g.w13, first, g.count), g.shared, g.tokens)
	return g.Matmul(act, g.outer(g.w2, first, g.count), true, g.dt)
}

// others are the experts that tokens choose beside the shared ones. A token without
// numbers chooses any, so they are bounded.
func (g *gatherer) others() *ir.Value {
	if g.shared == 0 {
		return g.experts
	}
	return g.Min(g.Slice(g.experts, 1, ir.D(g.shared), ir.D(g.k)), g.number(float64(g.count-g.shared-1), dtype.I32, 2))
}

func (g *gatherer) pairs() *ir.Value {
	if g.tokens == 1 {
		g.shared = 0
	}
	experts, k := g.others(), g.k-g.shared
	var shared *ir.Value // [T, shared, H]
	if g.shared > 0 {
		shared = g.Transpose(g.ofShared(), []int64{1, 0, 2})
	}
	return g.joined(0, g.parts(g.tokens, k*g.expertBytes(), func(a, b int64) *ir.Value {
		n, chosen := b-a, g.outer(experts, a, b)
		x := g.Reshape(g.outer(g.x, a, b), dimsOf(n, 1, 1, 1, g.hidden))
		act := g.activated(x, g.Gather(g.w13, chosen, 0), n, k, 1)
		y := g.Reshape(g.Matmul(act, g.Gather(g.w2, chosen, 0), true, g.dt), dimsOf(n, k, g.hidden))
		if shared != nil {
			y = g.Concat(1, g.outer(shared, a, b), y)
		}
		return g.sum(y, a, b)
	})...)
}

// all multiplies by groups of experts. Their sums are taken in f32.
func (g *gatherer) all() *ir.Value {
	each := g.Reshape(g.Iota(ir.D(g.count)), dimsOf(g.count, 1, 1))
	hit := g.Eq(each, g.Reshape(g.experts, dimsOf(1, g.tokens, g.k))) // [E, T, k]
	zero := g.number(0, dtype.F32, 3)
	weights := g.ReduceSum(g.Select(hit, g.Reshape(g.wide(g.weights), dimsOf(1, g.tokens, g.k)), zero), 2)
	chosen := g.Lt(zero, g.ReduceMax(g.Select(hit, g.number(1, dtype.F32, 3), zero), 2))
	size := int64(g.dt.Size())
	// Products, activations in both types, results in both types and weighted.
	bytes := g.tokens * (g.width*(3*size+12) + g.hidden*(size+8))
	x := g.Reshape(g.x, dimsOf(1, 1, g.tokens, g.hidden))
	var sum *ir.Value
	most := max(1, g.bytes/bytes)
	for a := int64(0); a < g.count; a += most {
		b := min(g.count, a+most)
		act := g.activated(x, g.outer(g.w13, a, b), b-a, g.tokens)
		act = g.Select(g.outer(chosen, a, b), act, g.number(0, g.dt, 3))
		y := g.wide(g.Matmul(act, g.outer(g.w2, a, b), true, g.dt))
		part := g.ReduceSum(g.Mul(y, g.outer(weights, a, b)), 0)
		if sum != nil {
			part = g.Add(sum, part)
		}
		sum = part
	}
	return g.Reshape(g.CastTo(sum, g.sumType), dimsOf(g.tokens, g.hidden))
}

// sorted puts choices into groups of one expert. Rows of shared experts come first.
func (g *gatherer) sorted() *ir.Value {
	s := g.sort()
	row := g.hidden * int64(g.dt.Size())
	var y []*ir.Value
	if g.shared > 0 {
		y = append(y, g.Reshape(g.ofShared(), dimsOf(g.shared*g.tokens, g.hidden)))
	}
	y = append(y, g.parts(g.groups(), max(g.expertBytes(), g.rows*row), func(a, b int64) *ir.Value {
		expert := g.outer(s.expert, a, b)
		x := g.Reshape(g.Gather(g.x, g.outer(s.token, a, b), 0), dimsOf(b-a, 1, g.rows, g.hidden))
		act := g.activated(x, g.Gather(g.w13, expert, 0), b-a, g.rows)
		return g.Reshape(g.Matmul(act, g.Gather(g.w2, expert, 0), true, g.dt), dimsOf((b-a)*g.rows, g.hidden))
	})...)
	all := g.joined(0, y...)
	return g.joined(0, g.parts(g.tokens, g.k*row, func(a, b int64) *ir.Value {
		return g.sum(g.Gather(all, g.outer(s.row, a, b), 0), a, b)
	})...)
}

// sorting says where choices are computed.
type sorting struct {
	expert *ir.Value // i32 [groups], of each group
	token  *ir.Value // i32 [groups, rows], of each row of a group; of any token where it only fills up
	row    *ir.Value // i32 [T, k], of each choice among those of shared experts and then of all groups
}

// sort puts choices in the order of their experts, which is stable, and gives each
// expert as many groups as its choices need, one behind the other. Numbers are integers
// that f32 holds exactly, so no sum depends on its order.
//
//	start    choices of lower experts           begin of an expert's choices when sorted
//	end      groups of experts up to this one
//	base     start − rows · (end − own groups)  sorted choice = base + row
func (g *gatherer) sort() sorting {
	pairs, n, f32 := g.pairCount(), g.groups(), dtype.F32
	experts, count, k := g.others(), g.count-g.shared, g.k-g.shared
	line := dimsOf(1, pairs)
	order := g.argsort(g.Reshape(experts, line), pairs)
	rank := g.argsort(g.Reshape(order, line), pairs)

	// Predicates as numbers are summed by products where there are many of them.
	below := g.Lt(g.Reshape(experts, dimsOf(pairs, 1)), g.Reshape(g.Iota(ir.D(count+1)), dimsOf(1, count+1)))
	starts := g.Matmul(g.Broadcast(g.number(1, dtype.BF16, 2), line), g.indicator(below, dtype.BF16), false, f32)
	start := g.Slice(starts, 1, ir.D(0), ir.D(count))
	choices := g.Sub(g.Slice(starts, 1, ir.D(1), ir.D(count+1)), start)
	most := (pairs + g.rows - 1) / g.rows
	full := g.Mul(g.counting(most, most, 1), g.number(float64(g.rows), f32, 2))
	own := g.ReduceSum(g.indicator(g.Lt(full, choices), f32), 0)
	upTo := g.Le(g.counting(count, count, 1), g.counting(count, 1, count))
	end := g.Matmul(own, g.indicator(upTo, f32), false, f32)
	base := g.Sub(start, g.Mul(g.Sub(end, own), g.number(float64(g.rows), f32, 2)))
	base = g.Reshape(g.Cast(base, dtype.I32), dimsOf(count))

	// Groups behind the last one are the last expert's.
	expert := g.ReduceSum(g.indicator(g.Le(end, g.counting(n, n, 1)), f32), 1)
	expert = g.Cast(g.Min(expert, g.number(float64(count-1), f32, 2)), dtype.I32)
	expert = g.Reshape(expert, dimsOf(n))
	at := g.Add(g.Reshape(g.Gather(base, expert, 0), dimsOf(n, 1)), g.Reshape(g.Iota(ir.D(n*g.rows)), dimsOf(n, g.rows)))
	at = g.Min(at, g.number(float64(pairs-1), dtype.I32, 2))
	token := g.Broadcast(g.Reshape(g.Iota(ir.D(g.tokens)), dimsOf(g.tokens, 1)), dimsOf(g.tokens, k))
	token = g.Gather(g.Reshape(token, dimsOf(pairs)), order, 0)
	row := g.Sub(g.Reshape(rank, dimsOf(g.tokens, k)), g.Gather(base, experts, 0))
	return sorting{expert: expert, token: g.Gather(token, at, 0), row: g.behindShared(row)}
}

// behindShared are the rows of choices among all, given those among the rows of groups.
func (g *gatherer) behindShared(row *ir.Value) *ir.Value {
	if g.shared == 0 {
		return row
	}
	n := g.shared * g.tokens
	own := g.Transpose(g.Reshape(g.Iota(ir.D(n)), dimsOf(g.shared, g.tokens)), []int64{1, 0})
	return g.Concat(1, own, g.Add(row, g.number(float64(n), dtype.I32, 2)))
}

// argsort is the place of each of n numbers i32 [1, n] in ascending order: i32 [n].
func (g *gatherer) argsort(v *ir.Value, n int64) *ir.Value {
	_, order := g.Topk(g.Neg(g.Cast(v, dtype.F32)), n)
	return g.Reshape(order, dimsOf(n))
}

// indicator is 1 where a predicate holds, else 0.
func (g *gatherer) indicator(p *ir.Value, t dtype.Type) *ir.Value {
	rank := p.Type.Rank()
	return g.Select(p, g.number(1, t, rank), g.number(0, t, rank))
}

// counting is 0 … n−1 in f32, of a shape.
func (g *gatherer) counting(n int64, shape ...int64) *ir.Value {
	return g.Reshape(g.Cast(g.Iota(ir.D(n)), dtype.F32), dimsOf(shape...))
}
