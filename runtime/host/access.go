package host

// A movement node (reshape, transpose, slice, broadcast, gather along an axis)
// computes nothing: its result's elements are elements of its operand. An access
// says where they are, so that whoever reads the result can read the operand.

// part is a factor of a dimension: n elements that lie stride bytes apart or,
// with an index, at index[i·step]·stride. Inside a group of fused nodes, whose values
// have no fixed place, it is an axis instead.
type part struct {
	n      int
	stride int
	index  int // i32 tensor of indices, or none
	node   int // that picks by them
	step   int // in the index, of a part that was cut; the parts of one index belong together
	axis   int // of a group, or none
}

const none = -1

// access is where the elements of a tensor are: at bytes from the start of
// another tensor, by dimension the parts of which it is the product, fastest
// first. A dimension of one element has no part.
type access struct {
	tensor int
	at     int
	dims   [][]part
	picked []part // of one element: what its index says is added to at
}

// denseAccess is a tensor where it is itself.
func denseAccess(tensor int, dims []int, size int) access {
	a := access{tensor: tensor, dims: make([][]part, len(dims))}
	stride := size
	for i, d := range dims {
		if d != 1 {
			a.dims[i] = []part{{n: d, stride: stride, index: none, axis: none}}
		}
		stride *= d
	}
	return a
}

func (a access) with(dims [][]part) access {
	a.dims = dims
	return a
}

// reshape regroups the parts.
func (a access) reshape(dims []int) (access, bool) {
	var parts []part
	for _, d := range a.dims {
		parts = append(parts, d...)
	}
	out, ok := regroup(joined(parts), dims, cut)
	return a.with(out), ok
}

// regroup distributes parts over dims; cut splits one after n elements, and
// says whether it can.
func regroup(parts []part, dims []int, cut func(p part, n int) (low, high part, ok bool)) ([][]part, bool) {
	out := make([][]part, len(dims))
	for i, n := range dims {
		for n != 1 {
			if len(parts) == 0 || n == 0 || parts[0].n == 0 {
				return nil, false
			}
			p := parts[0]
			parts = parts[1:]
			if n%p.n != 0 {
				if p.n%n != 0 {
					return nil, false
				}
				low, high, ok := cut(p, n)
				if !ok {
					return nil, false
				}
				p, parts = low, append([]part{high}, parts...)
			}
			out[i], n = append(out[i], p), n/p.n
		}
	}
	return out, len(parts) == 0
}

// cut splits a part in memory, or in its index, after n elements.
func cut(p part, n int) (low, high part, ok bool) {
	low, high = p, p
	low.n, high.n = n, p.n/n
	if p.index == none {
		high.stride = p.stride * n
	} else {
		high.step = p.step * n
	}
	return low, high, true
}

// joined merges neighbours that lie as one.
func joined(parts []part) []part {
	var out []part
	for _, p := range parts {
		if k := len(out) - 1; k >= 0 && p.index == none && out[k].index == none && p.stride == out[k].stride*out[k].n {
			out[k].n *= p.n
			continue
		}
		out = append(out, p)
	}
	return out
}

func (a access) transpose(perm []int) access {
	out := make([][]part, len(perm))
	for i, p := range perm {
		out[i] = a.dims[p]
	}
	return a.with(out)
}

// slice keeps n elements of an axis, from one on.
func (a access) slice(axis, from, n, length int) (access, bool) {
	if n == length {
		return a, true
	}
	d := joined(a.dims[axis])
	if len(d) != 1 || d[0].index != none {
		return a, false
	}
	p := d[0]
	a.at += from * p.stride
	p.n = n
	out := append([][]part(nil), a.dims...)
	out[axis] = nil
	if n != 1 {
		out[axis] = []part{p}
	}
	return a.with(out), true
}

// broadcast repeats the elements of dims that have one.
func (a access) broadcast(dims []int) access {
	out := append([][]part(nil), a.dims...)
	for i, d := range dims {
		if d != 1 && len(out[i]) == 0 {
			out[i] = []part{{n: d, index: none, axis: none}}
		}
	}
	return a.with(out)
}

// gather picks n elements of an axis by an index tensor, as a node does.
func (a access) gather(axis, index, node, n int) (access, bool) {
	p := part{axis: none}
	switch d := joined(a.dims[axis]); {
	case len(d) == 1 && d[0].index == none:
		p = d[0]
	case len(d) != 0:
		return a, false
	}
	p.n, p.index, p.node, p.step = n, index, node, 1
	out := append([][]part(nil), a.dims...)
	out[axis] = []part{p}
	if n == 1 {
		out[axis] = nil
		a.picked = append(append([]part(nil), a.picked...), p)
	}
	return a.with(out), true
}
