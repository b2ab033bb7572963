package passes

import (
	"math"

	"quill/ir"
	"quill/recipes/dtype"
)

// canonicalizePass brings ops into the one form that other passes look for, and
// takes out those that do nothing.
//
// Before:
//
//	%0 = reshape %x {shape = [2, 4]} : f32[2, 4]
//	%1 = reshape %0 {shape = [4, 2]} : f32[4, 2]
//	%2 = const 1 {dtype = f32} : f32[1]
//	%3 = reshape %2 {shape = [1, 1]} : f32[1, 1]
//	%4 = mul %3, %1 : f32[4, 2]
//	%5 = exp %4 : f32[4, 2]
//
// After:
//
//	%0 = reshape %x {shape = [4, 2]} : f32[4, 2]
//	%1 = exp %0 : f32[4, 2]
//
// Results keep their bits; only which NaN a NaN is may change, which nothing can
// tell. What looks neutral and is not stays: x + 0 is 0 where x is −0, and so is
// the sum over an axis of size 1, which starts from 0; x − x and 0·x are NaN for
// an infinite x; a cast to bf16 and back rounds. Distributions stay as they are
// too: a reshape or transpose that moves the sharded axis is no identity, even
// where the rank's part has one element there. It does not fire where a function
// would return a parameter, or one value twice.
var canonicalizePass = Pass{
	Name:     "canonicalize",
	Summary:  "takes out ops that do nothing and gives the others one form",
	Stages:   Family | Bucket,
	Optional: true,
	Run:      func(c *Context, m *ir.Module) (bool, error) { return applyPatterns(c, m, canonical) },
}

var canonical = []pattern{
	{"identity", []string{"reshape", "broadcast", "cast", "slice", "concat"}, identity},
	{"reshape of reshape", []string{"reshape"}, reshapeOfReshape},
	{"broadcast of broadcast", []string{"broadcast"}, broadcastOfBroadcast},
	{"transpose of transpose", []string{"transpose"}, transposeOfTranspose},
	{"transpose as reshape", []string{"transpose"}, transposeAsReshape},
	{"cast there and back", []string{"cast"}, castBack},
	{"slice of slice", []string{"slice"}, sliceOfSlice},
	{"slice of concat", []string{"slice"}, sliceOfConcat},
	{"slice of iota", []string{"slice"}, sliceOfIota},
	{"gather of everything", []string{"gather"}, gatherAll},
	{"maximum of one", []string{"reduce_max"}, maxOfOne},
	{"constant to the right", []string{"add", "mul", "max", "min", "eq", "and"}, constantRight},
	{"neutral operand", []string{"add", "sub", "mul", "div"}, neutralOperand},
	{"operand with itself", []string{"max", "min"}, withItself},
	{"negation twice", []string{"neg"}, negTwice},
	{"choice of one", []string{"select"}, choiceOfOne},
}

// def is the op of a name that defines a value, nil when it is another.
func def(v *ir.Value, name string) *ir.Op {
	if v.Def == nil || v.Def.Name() != name {
		return nil
	}
	return v.Def
}

// identity finds ops that move nothing: the result has the operand's type, and
// none of these ops changes the order of elements.
func identity(r *rewriter, o *ir.Op) bool {
	return len(o.Args) == 1 && r.replace(o.Args[0])
}

func reshapeOfReshape(r *rewriter, o *ir.Op) bool {
	in := def(o.Args[0], "reshape")
	return in != nil && r.replace(r.reshape(in.Args[0], o.Results[0].Type))
}

// reshape builds a reshape to a type, with the axis that is sharded only where it
// has to be said. It must be the first that a pattern builds.
func (r *rewriter) reshape(x *ir.Value, t ir.Type) *ir.Value {
	if x.Type.Equal(t) {
		return x
	}
	if y := r.Reshape(x, t.Shape); r.Err() == nil && y.Type.Equal(t) {
		return y
	}
	r.start(r.root)
	return r.ReshapeShard(x, t.Dist.Axis, t.Shape...)
}

func broadcastOfBroadcast(r *rewriter, o *ir.Op) bool {
	in := def(o.Args[0], "broadcast")
	return in != nil && r.replace(r.BroadcastTo(in.Args[0], o.Results[0].Type.Dist, o.Attr("shape").Dims...))
}

func transposeOfTranspose(r *rewriter, o *ir.Op) bool {
	in := def(o.Args[0], "transpose")
	if in == nil {
		return false
	}
	inner, perm := in.Ints("perm"), o.Ints("perm")
	for i, p := range perm {
		perm[i] = inner[p]
	}
	return r.replace(r.Transpose(in.Args[0], perm))
}

// transposeAsReshape finds transposes that leave the order of all axes but those
// of size 1: a reshape moves nothing on any device. Where the sharded axis is one of
// those, it moves past others as a whole, and the transpose stays.
func transposeAsReshape(r *rewriter, o *ir.Op) bool {
	return ir.KeepsOrder(o.Args[0].Type.Shape, o.Ints("perm")) && r.replace(r.reshape(o.Args[0], o.Results[0].Type))
}

// castBack finds a cast back to the type that a value had before another cast,
// which held all its values.
func castBack(r *rewriter, o *ir.Op) bool {
	in := def(o.Args[0], "cast")
	if in == nil {
		return false
	}
	x := in.Args[0]
	return holdsAll(x.Type.DType, in.Results[0].Type.DType) && r.replace(x)
}

// holdsAll reports whether every value of one type is one of another.
func holdsAll(from, to dtype.Type) bool {
	switch from {
	case dtype.BF16:
		return to == dtype.F32
	case dtype.I8, dtype.U8: // 8 bits are the significand of bf16
		return to == dtype.I32 || to == dtype.I64 || to.IsFloat()
	case dtype.I32:
		return to == dtype.I64
	}
	return false
}

func sliceOfSlice(r *rewriter, o *ir.Op) bool {
	in := def(o.Args[0], "slice")
	if in == nil || in.Int("axis") != o.Int("axis") {
		return false
	}
	by := in.Attr("start").Dim
	return r.replace(r.Slice(in.Args[0], o.Int("axis"), by.Add(o.Attr("start").Dim), by.Add(o.Attr("stop").Dim)))
}

// sliceOfConcat finds a slice of which one operand of a concat has all elements,
// whatever the symbols are.
func sliceOfConcat(r *rewriter, o *ir.Op) bool {
	in := def(o.Args[0], "concat")
	axis := o.Int("axis")
	if in == nil || in.Int("axis") != axis {
		return false
	}
	start, stop := o.Attr("start").Dim, o.Attr("stop").Dim
	at := ir.D(0)
	for _, x := range in.Args {
		end := at.Add(x.Type.Shape[axis])
		if notNegative(start.Sub(at)) && notNegative(end.Sub(stop)) {
			return r.replace(r.Slice(x, axis, start.Sub(at), stop.Sub(at)))
		}
		at = end
	}
	return false
}

func notNegative(d ir.Dim) bool {
	n, ok := d.Const()
	return ok && n >= 0
}

func sliceOfIota(r *rewriter, o *ir.Op) bool {
	return def(o.Args[0], "iota") != nil && o.Attr("start").Dim.Is(0) && r.replace(r.Iota(o.Attr("stop").Dim))
}

// gatherAll finds a gather of all elements of an axis in order.
func gatherAll(r *rewriter, o *ir.Op) bool {
	x := o.Args[0]
	return def(o.Args[1], "iota") != nil && o.Args[1].Type.Shape[0].Equal(x.Type.Shape[o.Int("axis")]) && r.replace(x)
}

// maxOfOne finds the maximum over an axis of size 1. The sum over one is another
// matter, see above.
func maxOfOne(r *rewriter, o *ir.Op) bool {
	x := o.Args[0]
	return x.Type.Shape[o.Int("axis")].Is(1) && r.replace(x)
}

// splat is the number that all elements of a value have, if it is a constant in
// some shape.
func splat(v *ir.Value) (n float64, ok bool) {
	for v.Def != nil {
		switch v.Def.Name() {
		case "reshape", "broadcast", "transpose", "slice":
			v = v.Def.Args[0]
		case "const":
			n = v.Def.Attr("value").Float
			switch v.Type.DType {
			case dtype.F32:
				n = float64(float32(n))
			case dtype.BF16:
				n = float64(dtype.RoundBF16(float32(n)))
			}
			return n, true
		default:
			return 0, false
		}
	}
	return 0, false
}

func constantRight(r *rewriter, o *ir.Op) bool {
	_, left := splat(o.Args[0])
	_, right := splat(o.Args[1])
	if !left || right {
		return false
	}
	x, y := o.Args[1], o.Args[0]
	var z *ir.Value
	switch o.Name() {
	case "add":
		z = r.Add(x, y)
	case "mul":
		z = r.Mul(x, y)
	case "max":
		z = r.Max(x, y)
	case "min":
		z = r.Min(x, y)
	case "eq":
		z = r.Eq(x, y)
	case "and":
		z = r.And(x, y)
	}
	return r.replace(z)
}

// neutralOperand finds x·1, x/1, x + 0 and x − 0, with the zero whose sign makes
// no difference: −0 in a sum and 0 in a difference. Integers have one zero.
func neutralOperand(r *rewriter, o *ir.Op) bool {
	n, ok := splat(o.Args[1])
	if !ok {
		return false
	}
	zero := n == 0
	if o.Args[1].Type.DType.IsFloat() {
		zero = zero && math.Signbit(n) == (o.Name() == "add")
	}
	neutral := n == 1
	if o.Name() == "add" || o.Name() == "sub" {
		neutral = zero
	}
	return neutral && r.replace(o.Args[0])
}

func withItself(r *rewriter, o *ir.Op) bool {
	return o.Args[0] == o.Args[1] && r.replace(o.Args[0])
}

func negTwice(r *rewriter, o *ir.Op) bool {
	in := def(o.Args[0], "neg")
	return in != nil && r.replace(in.Args[0])
}

// choiceOfOne finds a choice between a value and itself, or by a constant.
func choiceOfOne(r *rewriter, o *ir.Op) bool {
	a, b := o.Args[1], o.Args[2]
	if cond, ok := splat(o.Args[0]); ok && cond == 0 {
		a = b
	} else if !ok && a != b {
		return false
	}
	return r.replace(a)
}
