package host

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// clone copies a recipe through its encoding.
func clone(t testing.TB, r *recipes.Recipe) *recipes.Recipe {
	c, err := recipes.DecodeRecipe(r.Encode(), r.Hash())
	require.NoError(t, err)
	return c
}

func testDevice(t testing.TB, ranks int) *Device {
	d, err := newDevice(ranks, map[recipes.Buffer]int64{recipes.Arena: 1 << 16, recipes.KV: 1 << 14, recipes.Weights: 1 << 12}, 0)
	require.NoError(t, err)
	d.limit = 1 << 22
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// Every GUID refuses every single change of its operands and parameters, and
// says where.
func TestLoadRefusesMutations(t *testing.T) {
	d := testDevice(t, 1)
	// Changes after which a node is still a node, by GUID and change.
	stillValid := map[string]bool{
		"gemm out 0 type": true, "batch_gemm out 0 type": true, // bf16 or f32 result
		"constant out dims": true,
	}
	for name, spec := range table {
		g := newGen(7)
		for range 15 {
			c := oracles[name](g)
			if slices.ContainsFunc(append(c.in, c.out...), func(v *val) bool { return v != nil && len(v.x) == 0 }) {
				continue
			}
			c.guid = name
			if spec.types != nil {
				c.guid += "_" + append(c.in, c.out...)[map[bool]int{true: 1}[name == "where_fwd"]].dt.String()
			}
			good, _ := c.recipe()
			refuse := func(what string, change func(r *recipes.Recipe, n *recipes.Node)) {
				r := clone(t, good)
				change(r, &r.Nodes[0])
				_, err := d.Load(r)
				if err == nil && stillValid[name+" "+what] {
					return
				}
				require.Error(t, err, "%s: %s", name, what)
				for _, part := range []string{"recipe case", `node 0 "n"`, r.Nodes[0].GUID, "from model.op"} {
					require.ErrorContains(t, err, part, what)
				}
			}
			_, err := d.Load(good)
			require.NoError(t, err)
			refuse("unknown GUID", func(_ *recipes.Recipe, n *recipes.Node) { n.GUID = "x" + n.GUID })
			refuse("other suffix", func(_ *recipes.Recipe, n *recipes.Node) { n.GUID += "_u8" })
			refuse("one more result", func(r *recipes.Recipe, n *recipes.Node) {
				t := r.Tensors[n.Out[0]]
				t.Section = recipes.Workspace
				r.Tensors = append(r.Tensors, t)
				n.Out = append(n.Out, len(r.Tensors)-1)
			})
			refuse("no result", func(_ *recipes.Recipe, n *recipes.Node) { n.Out = n.Out[:len(n.Out)-1] })
			if len(c.in) > 0 {
				refuse("one more operand", func(_ *recipes.Recipe, n *recipes.Node) { n.In = append(n.In, n.In[0]) })
			}
			if len(c.in) > 0 && name != "concat" { // whose lengths then differ, below
				refuse("one operand less", func(_ *recipes.Recipe, n *recipes.Node) { n.In = n.In[:len(n.In)-1] })
			}
			for i := range good.Nodes[0].In {
				refuse("absent swapped", func(_ *recipes.Recipe, n *recipes.Node) {
					if n.In[i] == recipes.Absent {
						n.In[i] = 0
					} else {
						n.In[i] = recipes.Absent
					}
				})
				if good.Nodes[0].In[i] != recipes.Absent {
					refuse("operand type", func(r *recipes.Recipe, n *recipes.Node) { retype(&r.Tensors[n.In[i]]) })
				}
				if good.Nodes[0].In[i] != recipes.Absent {
					refuse("operand rank", func(r *recipes.Recipe, n *recipes.Node) {
						x := &r.Tensors[n.In[i]]
						x.Dims = append(x.Dims, 2)
						r.Sections[0].Size *= 4
					})
				}
			}
			for i := range good.Nodes[0].Out {
				refuse("out 0 type", func(r *recipes.Recipe, n *recipes.Node) {
					x := &r.Tensors[n.Out[i]]
					switch {
					case i == 0 && x.DType == dtype.F32:
						x.DType = dtype.BF16
					case i == 0 && x.DType == dtype.BF16:
						x.DType = dtype.F32
						r.Sections[0].Size *= 4
					default:
						retype(x)
					}
				})
				refuse("out dims", func(r *recipes.Recipe, n *recipes.Node) {
					x := &r.Tensors[n.Out[i]]
					x.Dims = append(x.Dims, 2)
					r.Sections[0].Size *= 4
				})
			}
			if spec.params == nil {
				refuse("parameters", func(_ *recipes.Recipe, n *recipes.Node) { n.Params = params("synGEMMParams") })
				continue
			}
			refuse("no parameters", func(_ *recipes.Recipe, n *recipes.Node) { n.Params = nil })
			refuse("other parameters", func(_ *recipes.Recipe, n *recipes.Node) { n.Params.Struct += "V9" })
			refuse("unknown field", func(_ *recipes.Recipe, n *recipes.Node) {
				n.Params.Fields = append(n.Params.Fields, ints("zap", recipes.U8, 0))
			})
			refuse("repeated field", func(_ *recipes.Recipe, n *recipes.Node) {
				n.Params.Fields = append(n.Params.Fields, n.Params.Fields[0])
			})
			for i := range good.Nodes[0].Params.Fields {
				refuse("missing field", func(_ *recipes.Recipe, n *recipes.Node) {
					n.Params.Fields = slices.Delete(n.Params.Fields, i, i+1)
				})
				refuse("field type", func(_ *recipes.Recipe, n *recipes.Node) { n.Params.Fields[i].Type += "x" })
				refuse("field value", func(_ *recipes.Recipe, n *recipes.Node) {
					f := &n.Params.Fields[i]
					if f.Type == recipes.F32 {
						f.Ints = []int64{1}
					} else if f.Type == recipes.Enum {
						f.Sym = "gelu"
					} else {
						f.Ints = []int64{1 << 40}
					}
				})
				if f := good.Nodes[0].Params.Fields[i]; f.Type != recipes.F32 && f.Type != recipes.Enum {
					refuse("field count", func(_ *recipes.Recipe, n *recipes.Node) {
						n.Params.Fields[i].Ints = append(n.Params.Fields[i].Ints, 1)
					})
				}
			}
		}
	}
}

func retype(x *recipes.Tensor) {
	// No larger than before, so that it still lies in its section.
	if x.DType == dtype.U8 {
		x.DType = dtype.I8
	} else {
		x.DType = dtype.U8
	}
}

// Messages name the operand, what was expected and what came.
func TestLoadMessages(t *testing.T) {
	d := testDevice(t, 1)
	x := func(dt dtype.Type, dims ...int) *val { return newVal(dt, dims...) }
	for _, c := range []struct {
		testCase
		want string
	}{
		{
			testCase{guid: "add_fwd_f64", in: []*val{x(f32, 2), x(f32, 2)}, out: []*val{x(f32, 2)}},
			`recipe case: node 0 "n" (add_fwd_f64, from model.op): GUID "add_fwd_f64" has type suffix "f64", want one of [bf16 f32 i32]`,
		},
		{testCase{guid: "add_fwd", in: []*val{x(f32, 2), x(f32, 2)}, out: []*val{x(f32, 2)}}, `GUID "add_fwd" has no type suffix`},
		{testCase{guid: "gemm_f32", in: []*val{x(f32, 2), x(f32, 2)}, out: []*val{x(f32, 2)}}, `unknown GUID "gemm_f32"`},
		{testCase{guid: "add_fwd_f32", in: []*val{x(f32, 2)}, out: []*val{x(f32, 2)}}, `operands: number 1, want 2`},
		{testCase{guid: "add_fwd_f32", in: []*val{x(f32, 2), x(bf16, 2)}, out: []*val{x(f32, 2)}}, `in[1] "x1": type bf16, want f32`},
		{testCase{guid: "add_fwd_f32", in: []*val{x(f32, 2), x(f32, 3)}, out: []*val{x(f32, 3)}}, `in[0] "x0": dims [2], want to broadcast`},
		{testCase{guid: "add_fwd_f32", in: []*val{x(f32, 2), x(f32, 1)}, out: []*val{x(f32, 1)}}, `out[0] "y0": dims [1], want [2]`},
		{testCase{guid: "gemm", params: gemmP(0, 1), in: []*val{x(f32, 4, 2), x(f32, 5, 3)}, out: []*val{x(f32, 3, 2)}}, `in[1] "x1": dims [5 3], want [4 3]`},
		{testCase{guid: "gemm", params: gemmP(0, 2), in: []*val{x(f32, 4, 2), x(f32, 4, 3)}, out: []*val{x(f32, 3, 2)}}, `parameter transpose_b: value 2, want 0 to 1`},
		{testCase{guid: "gemm", params: gemmP(0, 1), in: []*val{x(f32, 4, 2), x(bf16, 4, 3)}, out: []*val{x(f32, 3, 2)}}, `in[1] "x1": type bf16, want f32`},
		{testCase{guid: "batch_gemm", params: gemmP(0, 1), in: []*val{x(f32, 4, 2, 2), x(f32, 4, 3, 3)}, out: []*val{x(f32, 3, 2, 3)}}, `in[1] "x1": dims [4 3 3], want slow dims equal`},
		{testCase{guid: "softmax_fwd_f32", params: axisP("ns_Softmax::Params", "dim", recipes.I32, 2), in: []*val{x(f32, 4, 2)}, out: []*val{x(f32, 4, 2)}}, `parameter dim: value 2, want a dim of in[0] "x0" with dims [4 2]`},
		{testCase{guid: "transpose", params: transposeP([]int{0, 0}), in: []*val{x(f32, 4, 2)}, out: []*val{x(f32, 4, 2)}}, `parameter permutation: value [0 0], want a permutation of 2 dims`},
		{testCase{guid: "slice_axis", params: sliceP(0, 3, 9), in: []*val{x(f32, 4, 2)}, out: []*val{x(f32, 4, 2)}}, `range [3, 9), want in axis 0 of in[0] "x0" with dims [4 2]`},
		{testCase{guid: "topk", params: topkP(9, 0), in: []*val{x(f32, 4), nil, nil}, out: []*val{x(f32, 9), x(i32, 9)}}, `parameter bsw: value 9, want at most dim 0`},
		{testCase{guid: "topk", params: topkP(1, 0), in: []*val{x(f32, 4), nil, x(f32, 1)}, out: []*val{x(f32, 1), x(i32, 1)}}, `in[2] "x2": operand present, want an empty slot`},
		{testCase{guid: "moe_f32", params: moeP(0, 2), in: []*val{x(f32, 4, 1), x(i32, 1, 1), x(f32, 1, 1), x(f32, 4, 6), x(f32, 3, 4)}, out: []*val{x(f32, 4, 1)}}, `operands: number 5, want 9`},
		{testCase{guid: "index_copy_fwd_f32", params: axisP("ns_IndexCopy::Params", "axis", recipes.I32, 1), in: []*val{x(f32, 4, 2), x(i32, 1), x(f32, 4, 1)}, out: []*val{x(f32, 4, 2)}}, `parameter axis: value 1, want 0`},
		{testCase{guid: "reduce_max_fwd_f32", params: axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 0), in: []*val{x(f32, 0, 2)}, out: []*val{x(f32, 1, 2)}}, `dims [0 2], want elements to reduce`},
		{testCase{guid: "range_i32", params: params("ns_RangeKernel::Params", ints("start", recipes.I32, 0), ints("limit", recipes.I32, 7), ints("delta", recipes.I32, 2)), out: []*val{x(i32, 3)}}, `out[0] "y0": dims [3], want [4]`},
	} {
		r, _ := c.recipe()
		_, err := d.Load(r)
		require.ErrorContains(t, err, c.want)
	}
}

func TestLoadRefusesBadTensors(t *testing.T) {
	d := testDevice(t, 1)
	for _, c := range []struct {
		change func(r *recipes.Recipe)
		want   string
	}{
		{func(r *recipes.Recipe) { r.Tensors[0].Dims = []int64{1 << 31, 1 << 31, 4} }, "tensor x0 has dims"},
		{func(r *recipes.Recipe) { r.Tensors[0].Dims = []int64{1 << 62, 1 << 62, 0} }, "tensor x0 has dims"},
		{func(r *recipes.Recipe) { r.Tensors[0].Dims = []int64{1, 1, 1, 1, 1, 1, 1, 1, 8} }, "rank 9"},
		{func(r *recipes.Recipe) { r.Tensors[0].Dims = []int64{-1} }, "dims [-1]"},
		{func(r *recipes.Recipe) { r.Tensors[0].Offset = 2 }, "want a multiple of 4"},
		{func(r *recipes.Recipe) { r.Tensors[0].Offset = 1 << 62 }, "at byte"},
		{func(r *recipes.Recipe) { r.Tensors[0].DType = dtype.Invalid }, "no element type"},
		{func(r *recipes.Recipe) { r.Tensors[0].Section = 3 }, "section 3 of 1"},
		{func(r *recipes.Recipe) { r.Sections[0].Size = 1 }, "with 1 bytes"},
		{func(r *recipes.Recipe) { r.Sections[0].Size = 1 << 60 }, "section all has"},
		{func(r *recipes.Recipe) { r.Sections[0].Buffer = "heap" }, "unknown buffer"},
		{func(r *recipes.Recipe) { r.Sections[0].Buffer = recipes.Weights }, "of the weights"},
		{func(r *recipes.Recipe) { r.Nodes = append(r.Nodes, r.Nodes[0]) }, "which node 0"},
		{func(r *recipes.Recipe) { r.Tensors[1].Offset = r.Tensors[0].Offset + 4 }, "overlap in memory"},
		{func(r *recipes.Recipe) {
			for i := range r.Tensors {
				r.Tensors[i].Dims = []int64{1 << 30}
				r.Tensors[i].Section = recipes.Workspace
			}
			r.Nodes[0].GUID, r.Nodes[0].In = "range_i32", nil
			r.Tensors[1].DType = dtype.I32
			r.Nodes[0].Params = params("ns_RangeKernel::Params", ints("start", recipes.I32, 0), ints("limit", recipes.I32, 1<<30), ints("delta", recipes.I32, 1))
		}, "limit 4194304"},
	} {
		v := testCase{guid: "neg_fwd_f32", in: []*val{newVal(f32, 8)}, out: []*val{newVal(f32, 8)}}
		r, _ := v.recipe()
		c.change(r)
		_, err := d.Load(r)
		require.ErrorContains(t, err, c.want)
	}
}

func TestBindRefuses(t *testing.T) {
	d, other := testDevice(t, 1), testDevice(t, 1)
	c := testCase{guid: "neg_fwd_f32", in: []*val{newVal(f32, 8)}, out: []*val{newVal(f32, 8)}}
	r, _ := c.recipe()
	p, err := d.Load(r)
	require.NoError(t, err)
	for _, c := range []struct {
		b    []recipes.Binding
		want string
	}{
		{nil, "0 bindings, want one for each of 1 sections"},
		{[]recipes.Binding{{Buffer: recipes.KV}}, "buffer kv, want arena"},
		{[]recipes.Binding{{Buffer: recipes.Arena, Offset: 2}}, "offset 2, want a multiple of 4"},
		{[]recipes.Binding{{Buffer: recipes.Arena, Offset: -4}}, "want inside the 65536 bytes"},
		{[]recipes.Binding{{Buffer: recipes.Arena, Offset: 1<<16 - 4}}, "want inside the 65536 bytes"},
		{[]recipes.Binding{{Buffer: recipes.Arena, Offset: 1<<63 - 4}}, "want inside the 65536 bytes"},
	} {
		_, err := d.Bind(p, c.b)
		require.ErrorContains(t, err, c.want)
	}
	_, err = other.Bind(p, []recipes.Binding{{Buffer: recipes.Arena}})
	require.ErrorContains(t, err, "another device")
}

// Two sections that share memory are checked like one.
func TestBindChecksSharedSections(t *testing.T) {
	d := testDevice(t, 1)
	r := &recipes.Recipe{
		Name:     "r",
		Sections: []recipes.Section{{Name: "a", Buffer: recipes.Arena, Size: 64}, {Name: "b", Buffer: recipes.Arena, Size: 64}, {Name: "c", Buffer: recipes.Arena, Size: 64}},
		Tensors: []recipes.Tensor{
			{Name: "a", DType: f32, Dims: []int64{16}},
			{Name: "b", DType: f32, Dims: []int64{16}, Section: 1},
			{Name: "c", DType: f32, Dims: []int64{16}, Section: 2},
		},
		Nodes: []recipes.Node{{Name: "n0", GUID: "neg_fwd_f32", In: []int{0}, Out: []int{1}}, {Name: "n1", GUID: "add_fwd_f32", In: []int{0, 1}, Out: []int{2}}},
	}
	p, err := d.Load(r)
	require.NoError(t, err)
	bind := func(a, b, c int64) error {
		var at []recipes.Binding
		for _, offset := range []int64{a, b, c} {
			at = append(at, recipes.Binding{Buffer: recipes.Arena, Offset: offset})
		}
		l, err := d.Bind(p, at)
		if err != nil {
			return err
		}
		m := as[float32](d.Bytes(0, recipes.Arena))
		for i := range 16 {
			m[int(a)/4+i] = float32(i)
		}
		require.NoError(t, l.Run(context.Background()))
		for i := range 16 {
			require.Zero(t, m[int(c)/4+i])
		}
		return nil
	}
	require.NoError(t, bind(0, 64, 128))
	require.NoError(t, bind(0, 64, 0), "in place")
	require.NoError(t, bind(0, 64, 64), "in place")
	require.ErrorContains(t, bind(0, 0, 64), `reads "a" after node 0 "n0" wrote "b" in its memory`)
	require.ErrorContains(t, bind(0, 32, 128), `"a" and "b" overlap in memory`)
	require.ErrorContains(t, bind(0, 64, 32), "overlap in memory")
}
