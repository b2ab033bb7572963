package host

import (
	"fmt"
	"slices"
	"strings"

	"quill/recipes"
	"quill/recipes/dtype"
)

// sdpaGUID is attention as one node. The device has no kernel for it: loading
// writes it out as the products, sums and softmax that it stands for, so that it
// becomes rows like those that a recipe spells out, and scores exist for a tile of
// rows at a time.
const sdpaGUID = "sdpa_recomp_fwd"

var sdpaParams = &schema{"ns_Sdpa::Params", []param{
	{name: "scale", typ: recipes.F32},
	{name: "is_causal", typ: recipes.U8}, // 0: what hides a key is a mask
	{name: "dropout.ratio", typ: recipes.F32},
	{name: "dropout.seed", typ: recipes.U32, max: maxU32},
	{name: "dropout.disableMaskOut", typ: recipes.U8, min: 1, max: 1},
	{name: "is_inference", typ: recipes.U8, max: 1},
}}

// writeOut writes out the nodes of a recipe that are several of the table's. It is
// the recipe itself if there are none.
func writeOut(r *recipes.Recipe) (*recipes.Recipe, error) {
	if !slices.ContainsFunc(r.Nodes, func(n recipes.Node) bool { return isSDPA(n.GUID) }) {
		return r, nil
	}
	x := &expansion{recipes.Recipe{Name: r.Name, Sections: r.Sections, Tensors: slices.Clone(r.Tensors)}}
	last := make([]int, len(r.Nodes)) // where a node is now
	for i := range r.Nodes {
		n := r.Nodes[i]
		n.After = nil
		for _, a := range r.Nodes[i].After {
			n.After = append(n.After, last[a])
		}
		if isSDPA(n.GUID) {
			s, err := newSDPA(r, i)
			if err != nil {
				return nil, err
			}
			x.sdpa(s, &n)
		} else {
			x.Nodes = append(x.Nodes, n)
		}
		last[i] = len(x.Nodes) - 1
	}
	return &x.Recipe, nil
}

func isSDPA(guid string) bool { return strings.HasPrefix(guid, sdpaGUID+"_") }

// sdpa is a node that was checked.
type sdpa struct {
	dt    dtype.Type
	scale float32
	stats bool
	// rows are the dims of the scores above the keys, keys their number.
	rows []int64
	keys int64
}

// newSDPA checks a node: q {D, Sq, group, heads}, k {D, Sk, 1, heads}, v {Dv, Sk,
// 1, heads} and perhaps a mask {Sk, …} whose other dims are those of the scores or 1;
// all may have a batch behind the heads.
func newSDPA(r *recipes.Recipe, i int) (*sdpa, error) {
	src := &r.Nodes[i]
	n := &node{index: i, name: src.GUID, where: where(r, i), params: src.Params}
	dt, _ := dtype.Parse(strings.TrimPrefix(src.GUID, sdpaGUID+"_"))
	if !slices.Contains(floatTypes, dt) {
		return nil, fmt.Errorf("%s: GUID %q has no type suffix of %v", n.where, src.GUID, floatTypes)
	}
	n.dt, n.in, n.out = dt, operands(r, "in", src.In), operands(r, "out", src.Out)
	if err := sdpaParams.check(n); err != nil {
		return nil, err
	}
	inference, _ := src.Params.Int("is_inference")
	s := &sdpa{dt: dt, stats: inference == 0}
	s.scale, _ = src.Params.FloatOf("scale")
	if drop, _ := src.Params.FloatOf("dropout.ratio"); drop != 0 {
		return nil, n.bad("parameter dropout.ratio", "value", drop, 0)
	}
	outs := 1
	if s.stats {
		outs = 3
	}
	if len(n.in) != 3 && len(n.in) != 4 {
		return nil, n.bad("operands", "number", len(n.in), "3 or 4")
	}
	if len(n.out) != outs {
		return nil, n.bad("results", "number", len(n.out), outs)
	}
	least, most := 4, 5
	for j := range n.in {
		if n.in[j].absent {
			return nil, n.bad(n.in[j].label, "operand", "absent", "a tensor")
		}
		if j > 0 {
			least, most = len(n.in[0].dims), len(n.in[0].dims)
		}
		if err := n.ranked(&n.in[j], least, most); err != nil {
			return nil, err
		}
		if err := n.typed(&n.in[j], dt); err != nil {
			return nil, err
		}
	}
	q, k, v := n.in[0].dims, n.in[1].dims, n.in[2].dims
	rows, outer, sk := q[1:], q[3:], k[1] // heads, and a batch
	if err := n.shaped(&n.in[1], slices.Concat([]int{q[0], sk, 1}, outer)); err != nil {
		return nil, err
	}
	if err := n.shaped(&n.in[2], slices.Concat([]int{v[0], sk, 1}, outer)); err != nil {
		return nil, err
	}
	if len(n.in) > 3 {
		scores := slices.Concat([]int{sk}, rows)
		for j, d := range n.in[3].dims {
			if d != scores[j] && (j == 0 || d != 1) {
				return nil, n.bad(n.in[3].label, "dims", n.in[3].dims, fmt.Sprintf("%v, or 1 above the first", scores))
			}
		}
	}
	for j := range n.out {
		want, typ := slices.Concat([]int{1}, rows), dt
		if j == 0 {
			want[0] = v[0]
		}
		if j == 2 {
			typ = dtype.F32
		}
		if err := n.shaped(&n.out[j], want); err != nil {
			return nil, err
		}
		if err := n.typed(&n.out[j], typ); err != nil {
			return nil, err
		}
	}
	s.keys = int64(sk)
	for _, d := range rows {
		s.rows = append(s.rows, int64(d))
	}
	return s, nil
}

// expansion is a recipe in the making.
type expansion struct{ recipes.Recipe }

func (x *expansion) temp(t dtype.Type, dims ...int64) int {
	x.Tensors = append(x.Tensors, recipes.Tensor{Name: fmt.Sprintf("x%d", len(x.Tensors)), DType: t, Dims: dims, Section: recipes.Workspace})
	return len(x.Tensors) - 1
}

// sdpa appends the nodes that stand for one.
func (x *expansion) sdpa(s *sdpa, src *recipes.Node) {
	w := writer{x, s, src, len(x.Nodes)}
	y := w.product(w.scores(), src.In[0], src.In[1], 1)
	if s.scale != 1 {
		y = w.node("mult_fwd_f32", nil, w.scores(), y, w.number(s.scale))
	}
	if len(src.In) > 3 {
		mask := src.In[3]
		if s.dt == dtype.BF16 {
			mask = w.cast(mask, x.temp(dtype.F32, x.Tensors[mask].Dims...))
		}
		y = w.node("add_fwd_f32", nil, w.scores(), y, mask)
	}
	if s.stats {
		y = w.statistics(y)
	} else {
		y = w.node("softmax_fwd_f32", w.param(softmaxParams, recipes.I32), w.scores(), y)
	}
	if s.dt == dtype.BF16 {
		y = w.cast(y, x.temp(dtype.BF16, x.Tensors[y].Dims...))
	}
	w.product(src.Out[0], y, src.In[2], 0)
	x.Nodes[w.first].After = src.After
}

// writer writes out one node.
type writer struct {
	*expansion
	s     *sdpa
	src   *recipes.Node
	first int
}

// statistics are m and linv of the scores; it returns the probabilities.
func (w *writer) statistics(scores int) int {
	m, linv := w.src.Out[1], w.src.Out[2]
	axis := w.param(reduceParams, recipes.U32)
	top := m
	if w.s.dt == dtype.BF16 {
		exact := w.node("reduce_max_fwd_f32", axis, w.column(), scores)
		top = w.cast(w.cast(exact, m), w.column())
	} else {
		w.node("reduce_max_fwd_f32", axis, m, scores)
	}
	e := w.node("exp_fwd_f32", nil, w.scores(), w.node("sub_fwd_f32", nil, w.scores(), scores, top))
	sum := w.node("reduce_sum_fwd_f32", axis, w.column(), e)
	w.node("div_fwd_f32", nil, linv, w.number(1), sum)
	return w.node("mult_fwd_f32", nil, w.scores(), e, linv)
}

func (w *writer) node(guid string, p *recipes.Params, out int, in ...int) int {
	w.Nodes = append(w.Nodes, recipes.Node{
		Name: fmt.Sprintf("%s.%d", w.src.Name, len(w.Nodes)-w.first), GUID: guid, Params: p, In: in, Out: []int{out}, Origin: w.src.Origin,
	})
	return out
}

func (w *writer) scores() int { return w.temp(dtype.F32, append([]int64{w.s.keys}, w.s.rows...)...) }
func (w *writer) column() int { return w.temp(dtype.F32, append([]int64{1}, w.s.rows...)...) }

func (w *writer) number(v float32) int {
	p := &recipes.Params{Struct: constantParams.name, Fields: []recipes.Field{{Name: "value", Type: recipes.F32, Float: v}}}
	return w.node("constant_f32", p, w.temp(dtype.F32, slices.Repeat([]int64{1}, len(w.s.rows)+1)...))
}

// param is a structure whose only field is 0.
func (w *writer) param(s *schema, t recipes.FieldType) *recipes.Params {
	return &recipes.Params{Struct: s.name, Fields: []recipes.Field{{Name: s.fields[0].name, Type: t, Ints: []int64{0}}}}
}

func (w *writer) product(out, a, b int, transposed int64) int {
	return w.node("batch_gemm", &recipes.Params{Struct: gemmParams.name, Fields: []recipes.Field{
		{Name: "transpose_a", Type: recipes.U8, Ints: []int64{0}}, {Name: "transpose_b", Type: recipes.U8, Ints: []int64{transposed}},
	}}, out, a, b)
}

func (w *writer) cast(x, out int) int {
	guid := fmt.Sprintf("cast_%s_to_%s", w.Tensors[x].DType, w.Tensors[out].DType)
	return w.node(guid, w.param(castParams, recipes.I32), out, x)
}
