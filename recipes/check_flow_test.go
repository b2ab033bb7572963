package recipes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
)

// What launches read must be what was put there.
func TestCheckFollowsWhatLaunchesRead(t *testing.T) {
	const launch = `set bf16: plan prefill/q=8,c=2: step 0: launch "layer 0" of recipe seg: `
	// refile changes the recipe of the launch.
	refile := func(b *Bundle, change func(*Recipe)) {
		l := b.Sets[0].Plans[0].Steps[0].Launch
		r := b.Recipes[l.Recipe]
		delete(b.Recipes, l.Recipe)
		change(r)
		l.Recipe = r.Hash()
		b.Recipes[l.Recipe] = r
	}
	for _, c := range []struct {
		name string
		harm func(b *Bundle)
		want string
	}{
		{"nothing", func(*Bundle) {}, ""},
		{
			"an input that is not there", func(b *Bundle) { b.Sets[0].Plans[0].Inputs = b.Sets[0].Plans[0].Inputs[:1] },
			launch + "tensor x has bytes 256 to 264 of arena; nothing was put at byte 256",
		},
		{
			"half an input", func(b *Bundle) { b.Sets[0].Plans[0].Inputs[1].Dims = []int64{2} },
			launch + "tensor x has bytes 256 to 264 of arena; nothing was put at byte 260",
		},
		{"an input of another type", func(b *Bundle) {
			b.Sets[0].Plans[0].Inputs[1].DType, b.Sets[0].Plans[0].Inputs[1].Dims = dtype.I32, []int64{2}
		}, launch + "tensor x is bf16; at byte 256 of arena, in it, begins input rows, which is i32"},
		{
			"an input of other dims", func(b *Bundle) { b.Sets[0].Plans[0].Inputs[1].Dims = []int64{2, 2} },
			launch + "tensor x has dims {4}; input rows, which is there, has {2, 2}",
		},
		{"an input of other dims that the recipe has too", func(b *Bundle) {
			b.Sets[0].Plans[0].Inputs[1].Dims = []int64{2, 2}
			refile(b, func(r *Recipe) {
				r.Tensors = append(r.Tensors, Tensor{Name: "view", DType: dtype.BF16, Dims: []int64{2, 2}, Section: 1})
			})
		}, ""},
		{
			"a weight of another type", func(b *Bundle) {
				b.Sets[0].Weights[0].DType = dtype.F32
				b.Sets[0].Weights[1].Offset = 64
				b.Sets[0].Weights[2].Offset = 128
			},
			launch + "tensor w is bf16; at byte 0 of weights, in it, begins weight embed, which is f32",
		},
		{"a weight of other dims", func(b *Bundle) {
			b.Sets[0].Weights = b.Sets[0].Weights[2:]
			b.Sets[0].Weights[0] = Weight{Fill: 1, Ways: 1, DType: dtype.BF16, Shape: []int64{1, 4}, Offset: 16}
		}, launch + "tensor w has dims {4}; weight constant, which is there, has {4, 1}"},
		{
			"where no weight is", func(b *Bundle) { b.Sets[0].Plans[0].Steps[0].Launch.Bindings[0].Offset = 200 },
			launch + "tensor w has bytes 200 to 208 of weights; nothing was put at byte 200",
		},
		{
			"a weight that is written", func(b *Bundle) { refile(b, func(r *Recipe) { r.Nodes[0].Out[0] = 0 }) },
			launch + "tensor w lies in weights, and is written",
		},
		{"a sum of another type", func(b *Bundle) {
			c := b.Sets[0].Plans[0].Steps[1].Collective
			c.DType, c.Count = dtype.F32, 2
		}, `set bf16: plan prefill/q=8,c=2: step 1: all_reduce "": tensor in is f32; at byte 264 of arena, in it, begins tensor y of "layer 0", which is bf16`},
		{
			"a sum of what is not there", func(b *Bundle) { b.Sets[0].Plans[0].Steps[1].Collective.Count = 8 },
			`step 1: all_reduce "": tensor in has bytes 264 to 280 of arena; nothing was put at byte 272`,
		},
		{
			"an output that nothing made", func(b *Bundle) { b.Sets[0].Plans[1].Outputs[0].Offset = 192 },
			"plan logits/r=2: output: tensor logits has bytes 192 to 248 of arena; nothing was put at byte 192",
		},
		{"a state of two types", func(b *Bundle) {
			refile(b, func(r *Recipe) {
				r.Sections = append(r.Sections, Section{Name: "k", Buffer: KV, Size: 16})
				r.Tensors = append(r.Tensors, Tensor{Name: "k0", DType: dtype.BF16, Dims: []int64{8}, Section: 2}, Tensor{Name: "k1", DType: dtype.F32, Dims: []int64{2}, Section: 2, Offset: 8})
				r.Nodes = append(r.Nodes, Node{Name: "a", GUID: "identity", In: []int{3}, Out: []int{2}}, Node{Name: "b", GUID: "identity", In: []int{4}, Out: []int{2}})
			})
			l := b.Sets[0].Plans[0].Steps[0].Launch
			l.Bindings = append(l.Bindings, Binding{KV, 0})
		}, launch + `tensor k1 is f32; at byte 0 of kv, in it, begins tensor k0 of "layer 0", which is bf16`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := tinyBundle(t)
			b.Native = nil // recipes change
			c.harm(b)
			if c.want == "" {
				require.NoError(t, b.Check())
			} else {
				require.ErrorContains(t, b.Check(), c.want)
			}
		})
	}
}
