package passes

import (
	"slices"

	"quill/ir"
	"quill/recipes/dtype"
)

// farPieces are the blocks of a step's list that lie before all bands, cut so that
// attention of them needs no mask: a piece is either history as a whole, or counts
// for nothing as a whole.
//
// It relies on how the host lays out a chunk (attention_facts.go): of F blocks
// before the band the last R are full of history, 0 ≤ R ≤ F, and the others are
// padding. R is known when the step runs. Piece i has ⌊(F + 2^i)/2^(i+1)⌋ blocks, the
// upper half of what the pieces before it leave; where F + 1 is a power of 2, so are
// they. They are F together, and any R is the sum of some of them: from the largest
// on those are taken that fit into what is left, and each reads the blocks right
// before those of the one before it. One that is not taken reads blocks that are
// history or padding, all finite, and hide takes its weight away.
//
// How many pieces there are follows from the largest F. In a bucket of few blocks
// the smallest ones have nothing left to halve. A size is at least 1, so they read
// a block each that is never taken.
type farPieces struct {
	near  *ir.Value // i32, the blocks behind those before the band
	parts []farPiece
}

type farPiece struct {
	blocks *ir.Value // i32
	hide   *ir.Value // f32 [1, 1, 1, 1], added to the maximum: 0, or what makes its weight 0
}

// newFarPieces builds the pieces of the first count blocks of a list.
func newFarPieces(b *ir.Builder, m *ir.Module, l *blockList, count ir.Dim) *farPieces {
	block, zero := ir.D(l.block), b.Const(0, dtype.I32)
	seen, low := b.Const(0, dtype.F32), b.Const(hiddenMask, dtype.F32)
	one := ir.D(1)
	// left are the slots of history that no piece has yet, end the number of blocks
	// before those that pieces have.
	left := b.Max(b.Add(l.start, sizeOf(b, count.Mul(block))), zero)
	end := sizeOf(b, count)
	f := &farPieces{near: b.Slice(l.blocks, 0, count, l.blocks.Type.Shape[0])}
	for _, size := range pieceSizes(m, count) {
		slots := sizeOf(b, size.Mul(block))
		taken := b.Le(slots, left)
		first := b.Max(b.Sub(end, sizeOf(b, size)), zero)
		f.parts = append(f.parts, farPiece{
			blocks: b.Gather(l.blocks, b.Add(b.Iota(size), first), 0),
			hide:   b.Reshape(b.Select(taken, seen, low), []ir.Dim{one, one, one, one}),
		})
		left, end = b.Select(taken, b.Sub(left, slots), left), b.Select(taken, first, end)
	}
	return f
}

// pieceSizes are the blocks of each piece of count blocks, the largest first.
func pieceSizes(m *ir.Module, count ir.Dim) []ir.Dim {
	var sizes []ir.Dim
	for half := int64(1); !m.AtLeast(ir.D(half-1).Sub(count), 0); half *= 2 {
		from := count
		if !m.AtLeast(count, half) {
			from = derive(m, "far", &ir.SymDef{Fn: "max", X: count, Y: ir.D(half)})
		}
		sizes = append(sizes, derive(m, "piece", &ir.SymDef{Fn: "floor", X: from.Add(ir.D(half)), Y: ir.D(2 * half)}))
	}
	return sizes
}

// sizeOf is a size as a value, i32 [1].
func sizeOf(b *ir.Builder, d ir.Dim) *ir.Value {
	if n, ok := d.Const(); ok {
		return b.Const(float64(n), dtype.I32)
	}
	return b.Slice(b.Iota(d.Add(ir.D(1))), 0, d, d.Add(ir.D(1)))
}

// madeOf says how all keys, or values, of attention are made: blocks of a cache
// become rows of slots, the chunk's rows are joined to them, and movements follow.
type madeOf struct {
	read, rows, join *ir.Op
	moves            []*ir.Op // from the last to the first
	axes             []int    // of keys in what they make
}

// madeOfBlocks follows keys or values, [heads, 1, Sk, D], back to the list that they
// are read from, nil where they are made in another way.
func madeOfBlocks(v *ir.Value, l *blockList) *madeOf {
	k, axis := &madeOf{}, 2
	for ; def(v, "concat") == nil; v = v.Def.Args[0] {
		at := axis
		switch {
		case def(v, "reshape") != nil:
			axis = sameAxis(v.Type.Shape, v.Def.Args[0].Type.Shape, axis)
		case def(v, "transpose") != nil:
			axis = int(v.Def.Ints("perm")[axis])
		default:
			return nil
		}
		if axis < 0 {
			return nil
		}
		k.moves, k.axes = append(k.moves, v.Def), append(k.axes, at)
	}
	k.join = v.Def
	if axis != 0 || k.join.Int("axis") != 0 || len(k.join.Args) != 2 {
		return nil
	}
	if k.rows = def(k.join.Args[0], "reshape"); k.rows == nil {
		return nil
	}
	if k.read = def(k.rows.Args[0], "kv_read"); k.read == nil || k.read.Args[1] != l.blocks {
		return nil
	}
	if !k.join.Args[0].Type.Shape[0].Equal(l.slots()) {
		return nil
	}
	return k
}

// slots is the number of slots of all blocks of a list.
func (l *blockList) slots() ir.Dim { return ir.SymDim(l.size).Mul(ir.D(l.block)) }

// of are the rows of slots of blocks.
func (k *madeOf) of(b *ir.Builder, blocks *ir.Value) *ir.Value {
	size := k.read.Int("block_size")
	shape := slices.Clone(k.rows.Results[0].Type.Shape)
	shape[0] = blocks.Type.Shape[0].Mul(ir.D(size))
	return b.ReshapeShard(b.KVRead(k.read.Args[0], blocks, size), k.rows.Results[0].Type.Dist.Axis, shape...)
}

// moved does the movements again, of other rows.
func (k *madeOf) moved(b *ir.Builder, rows *ir.Value) *ir.Value {
	n := rows.Type.Shape[0]
	for i, o := range slices.Backward(k.moves) {
		if o.Name() == "transpose" {
			rows = b.Transpose(rows, o.Ints("perm"))
			continue
		}
		t := o.Results[0].Type
		shape := slices.Clone(t.Shape)
		shape[k.axes[i]] = n
		rows = b.ReshapeShard(rows, t.Dist.Axis, shape...)
	}
	return rows
}

// heldByPosition reports whether slots of a list hold a token where their position
// is one of the history, and nothing else says so: token is which keys hold one.
func heldByPosition(f *ir.Func, l *blockList, token *ir.Value) bool {
	position := func(v *ir.Value) bool {
		add := def(bare(v), "add")
		if add == nil {
			return false
		}
		for i, x := range add.Args {
			if def(x, "iota") != nil && x.Type.Shape[0].Equal(l.slots()) && bare(add.Args[1-i]) == l.start {
				return true
			}
		}
		return false
	}
	from := false
	for _, part := range conjuncts(token) {
		join := def(bare(part), "concat")
		if join == nil || !join.Args[0].Type.Elems().Equal(l.slots()) {
			return false
		}
		for _, p := range conjuncts(join.Args[0]) {
			if le := def(p, "le"); le != nil && position(le.Args[1]) {
				zero, ok := splat(le.Args[0])
				if !ok || zero != 0 {
					return false
				}
				from = true
				continue
			}
			lt, length := def(p, "lt"), f.Param("ctx_len")
			if lt == nil || length == nil || !position(lt.Args[0]) || bare(lt.Args[1]) != length.Value {
				return false
			}
		}
	}
	return from
}
