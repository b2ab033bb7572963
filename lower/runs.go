package lower

import (
	"slices"

	"quill/ir"
	"quill/recipes"
)

// A run is a list of parameters of a segment that an op of it reads as one, so that
// they should lie behind each other in memory, without a gap:
//
//	concat along axis 0, matmul_joined   weights, or values of earlier segments
//	conv_reads, conv_writes              states
//
// Where they do, the op needs no copy (lower/synapse). Where they cannot, nodes put
// them together.
type run []*ir.Param

// runsOf lists the runs of a segment. A parameter is in one run at most.
func runsOf(f *ir.Func) []run {
	var runs []run
	for _, o := range f.Ops {
		var r run
		switch o.Name() {
		case "concat":
			if o.Int("axis") == 0 {
				r = joined(o.Args)
			}
		case "matmul_joined":
			r = joined(o.Args[1:])
		case "conv_reads", "conv_writes":
			for _, a := range o.Args[o.Def.FirstState():] {
				r = append(r, a.State())
			}
		}
		if len(r) > 1 && r.placed() {
			runs = addRun(runs, r)
		}
	}
	for i := misaligned(f, runs); i >= 0; i = misaligned(f, runs) {
		runs = slices.Delete(runs, i, i+1)
	}
	return runs
}

// misaligned is the number of a run of weights of which a node would read some at an
// address that the device cannot bind, since another op has them in another order or
// alone; −1 if there is none.
func misaligned(f *ir.Func, runs []run) int {
	for _, o := range f.Ops {
		if o.Name() == "reshape" {
			continue // a view: who reads it counts
		}
		args := o.Args
		if o.Name() == "concat" && o.Int("axis") == 0 && inRun(runs, joined(args)) {
			continue
		}
		if o.Name() == "matmul_joined" && inRun(runs, joined(args[1:])) {
			args = args[1:2]
		}
		for _, a := range args {
			first := joined([]*ir.Value{a})
			if first == nil {
				continue
			}
			if i := slices.IndexFunc(runs, func(r run) bool { return slices.Contains(r, first[0]) && !r.aligned(first[0]) }); i >= 0 {
				return i
			}
		}
	}
	return -1
}

// inRun reports whether parameters are a part of a run.
func inRun(runs []run, r run) bool {
	return len(r) > 1 && slices.ContainsFunc(runs, r.within)
}

// aligned reports whether a weight of a run begins where the device can bind it. Values
// and states are not placed as a run if they would not (memory.go, layout.go).
func (r run) aligned(p *ir.Param) bool {
	if p.Kind != ir.Weight {
		return true
	}
	offset := int64(0)
	for _, q := range r[:slices.Index(r, p)] {
		n, err := typeBytes(q.Value.Type)
		if err != nil {
			return false
		}
		offset += n
	}
	return offset%recipes.Alignment == 0
}

// joined lists the parameters whose elements are, one after the other, those of some
// values; nil where there are others too.
func joined(args []*ir.Value) run {
	var r run
	for _, a := range args {
		var more run
		switch {
		case a.Param != nil:
			more = run{a.Param}
		case a.Def.Name() == "reshape", a.Def.Name() == "concat" && a.Def.Int("axis") == 0:
			more = joined(a.Def.Args)
		}
		if more == nil {
			return nil
		}
		r = append(r, more...)
	}
	return r
}

// placed reports whether lowering may place parameters as a run: all are different and
// of one kind, neither the host's nor carried over.
func (r run) placed() bool {
	for i, p := range r {
		if p.Kind != r[0].Kind || p.Kind == ir.Host || p.Kind == ir.Carry {
			return false
		}
		if slices.Contains(r[:i], p) {
			return false
		}
	}
	return true
}

// addRun adds a run, which may hold others, or be in one. Of two that overlap
// otherwise the first counts.
func addRun(runs []run, r run) []run {
	kept := runs[:0:0]
	for _, s := range runs {
		switch {
		case s.within(r): // the new one says more
		case r.within(s):
			return runs
		case slices.ContainsFunc(r, func(p *ir.Param) bool { return slices.Contains(s, p) }):
			return runs
		default:
			kept = append(kept, s)
		}
	}
	return append(kept, r)
}

// within reports whether r is a part of s.
func (r run) within(s run) bool {
	for i := 0; i+len(r) <= len(s); i++ {
		if slices.Equal(r, s[i:i+len(r)]) {
			return true
		}
	}
	return false
}

// parts says that results of a segment are parts of one value of it, so that this
// lives where they do and nothing needs to be copied.
type parts struct {
	root    *ir.Value
	bytes   int64         // of the root
	offsets map[int]int64 // of results, by number
}

// partsOf finds the results of a segment of concrete sizes that are contiguous parts
// of a value that the segment computes and does not return. No two share a byte, since
// an all-reduce of one, which works in place, would change the other: of results that
// do the first is a part.
func partsOf(f *ir.Func) ([]parts, error) {
	var list []parts
	for i, v := range f.Return {
		root, offset, ok := partOf(v)
		if !ok || root.Def == nil || root.Param != nil || slices.Contains(f.Return, root) || f.Results[i].Kind != ir.Temp {
			continue
		}
		bytes, err := typeBytes(root.Type)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(list, func(p parts) bool { return p.root == root })
		if at < 0 {
			at = len(list)
			list = append(list, parts{root: root, bytes: bytes, offsets: map[int]int64{}})
		}
		apart, err := list[at].apart(f, i, offset)
		if err != nil {
			return nil, err
		}
		if apart {
			list[at].offsets[i] = offset
		}
	}
	return slices.DeleteFunc(list, func(p parts) bool { return len(p.offsets) < 2 }), nil
}

// apart reports whether a result that begins at an offset shares no byte with others.
func (p *parts) apart(f *ir.Func, result int, offset int64) (bool, error) {
	n, err := typeBytes(f.Return[result].Type)
	if err != nil {
		return false, err
	}
	for i, at := range p.offsets {
		m, err := typeBytes(f.Return[i].Type)
		if err != nil {
			return false, err
		}
		if offset < at+m && at < offset+n {
			return false, nil
		}
	}
	return true, nil
}

// partOf is the value that v is a contiguous part of, by slices of outer axes and
// reshapes, and where it begins, in bytes; ok is false when v is no such part.
func partOf(v *ir.Value) (root *ir.Value, offset int64, ok bool) {
	for v.Def != nil {
		switch v.Def.Name() {
		case "reshape":
		case "slice":
			x := v.Def.Args[0].Type
			inner := int64(x.DType.Size())
			for i, d := range x.Shape {
				n, known := d.Const()
				axis := int(v.Def.Int("axis"))
				switch {
				case !known || i < axis && n != 1:
					return nil, 0, false
				case i > axis:
					inner *= n
				}
			}
			start, known := v.Def.Attr("start").Dim.Const()
			if !known {
				return nil, 0, false
			}
			offset += start * inner
			ok = true
		default:
			return v, offset, ok
		}
		v = v.Def.Args[0]
	}
	return v, offset, false
}
