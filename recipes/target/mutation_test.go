package target_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/target"
)

// mutation breaks one thing in a copy of a recipe, at a node of it as a rule. It says what
// it did, "" if there was nothing to break, and whether what is left is legal all the same.
type mutation func(rng *rand.Rand, r *recipes.Recipe, n *recipes.Node) (what string, harmless bool)

var mutations = map[string]mutation{
	"a dim": mutateDim, "a type": mutateType, "an operand": mutateOperand, "a missing operand": dropOperand,
	"a parameter": mutateParam, "a permutation": mutatePermutation, "a suffix": mutateSuffix,
	"an After edge": dropEdge, "an offset": mutateOffset, "a place": mutatePlace, "a name": mutateName,
}

// What is broken at random in recipes of models is found, but for changes that leave a
// recipe legal, which are listed where they are made.
func TestMutationsOfRecipes(t *testing.T) {
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	const nano = "nano-small\nmax_model_len: 64\nmax_num_seqs: 2\nblock_size: 16\nmax_batched_tokens: 32\n"
	at := map[string][]place{} // nodes, by GUID: each is as likely to be broken as any other
	for _, text := range []string{
		"tensor_parallel: 2\n", "tensor_parallel: 2\nmoe: gather\nfar: exact\nsub_block_rows: 8\n", "tensor_parallel: 4\nattention: plain\nprecision: f32\nembedding: sharded\n",
	} {
		b := compile(t, nano+text, "")
		for _, h := range slices.SortedFunc(maps.Keys(b.Recipes), func(a, b recipes.Hash) int { return bytes.Compare(a[:], b[:]) }) {
			for i, n := range b.Recipes[h].Nodes {
				at[n.GUID] = append(at[n.GUID], place{b.Recipes[h], i})
			}
		}
	}
	guids := slices.Sorted(maps.Keys(at))
	for name, mutate := range mutations {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 8))
			found, harmless := 0, 0
			for range 2000 {
				of := pick(rng, at[pick(rng, guids)])
				r := clone(of.recipe)
				what, legal := mutate(rng, r, &r.Nodes[of.node])
				if what == "" {
					continue
				}
				switch err := p.CheckRecipe(r); {
				case err != nil:
					found++
				case legal:
					harmless++
				default:
					t.Fatalf("recipe %s is taken with %s", r.Name, what)
				}
			}
			t.Logf("%d found, %d legal", found, harmless)
			require.Greater(t, found, 100)
		})
	}
}

// place is a node.
type place struct {
	recipe *recipes.Recipe
	node   int
}

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

// operand picks a tensor of a node.
func operand(rng *rand.Rand, n *recipes.Node) int {
	return pick(rng, slices.DeleteFunc(slices.Concat(n.In, n.Out), func(t int) bool { return t == recipes.Absent }))
}

func clone(r *recipes.Recipe) *recipes.Recipe {
	c := *r
	c.Sections, c.Tensors, c.Nodes = slices.Clone(r.Sections), slices.Clone(r.Tensors), slices.Clone(r.Nodes)
	return &c
}

// use is an operand of a node, or a result (of a number below 0: −1 is the first).
type use struct {
	n *recipes.Node
	i int
}

// uses lists where a tensor is an operand or a result.
func uses(r *recipes.Recipe, t int) []use {
	var list []use
	for k := range r.Nodes {
		n := &r.Nodes[k]
		for i, x := range n.In {
			if x == t {
				list = append(list, use{n, i})
			}
		}
		for i, x := range n.Out {
			if x == t {
				list = append(list, use{n, -1 - i})
			}
		}
	}
	return list
}

// base is a GUID without its suffix.
func base(n *recipes.Node) string {
	for _, t := range types {
		if b, ok := strings.CutSuffix(n.GUID, "_"+t.String()); ok {
			return b
		}
	}
	return n.GUID
}

func mutateDim(rng *rand.Rand, r *recipes.Recipe, n *recipes.Node) (string, bool) {
	t := operand(rng, n)
	x := &r.Tensors[t]
	d := rng.IntN(len(x.Dims))
	dims := slices.Clone(x.Dims)
	dims[d] += []int64{-1, 1, 3}[rng.IntN(3)]
	what := fmt.Sprintf("dims %v instead of %v in %s", dims, x.Dims, x.Name)
	legal := true
	for _, u := range uses(r, t) {
		legal = legal && anyDim(r, u, d, dims[d])
		what += fmt.Sprintf(", %s %d", u.n.GUID, u.i)
	}
	x.Dims = dims
	return what, legal
}

// anyDim reports whether an operand may have another size of a dim:
//
//	the axis of which elements are picked, sliced or reduced
//	1 where it is broadcast, or the result's size where it was
//	a constant may have any, and so may what is broadcast from 1
func anyDim(r *recipes.Recipe, u use, d int, size int64) bool {
	picked := map[string]string{"gather_fwd": "axis", "gather_elements_fwd": "axis", "topk": "axis", "reduce_sum_fwd": "reductionDimension", "reduce_max_fwd": "reductionDimension", "slice_axis": "axis"}
	switch b := base(u.n); b {
	case "gather_fwd", "gather_elements_fwd", "topk", "reduce_sum_fwd", "reduce_max_fwd", "slice_axis":
		axis, _ := u.n.Params.Int(picked[b])
		return u.i == 0 && axis == int64(d)
	case "constant":
		return true
	case "broadcast":
		x, y := r.Tensors[u.n.In[0]].Dims[d], r.Tensors[u.n.Out[0]].Dims[d]
		return u.i < 0 && x == 1 || u.i >= 0 && (size == 1 || size == y)
	case "add_fwd", "sub_fwd", "mult_fwd", "div_fwd", "max_fwd", "min_fwd", "less_fwd", "less_equal_fwd", "equal_fwd", "and_fwd", "where_fwd":
		return u.i >= 0 && (size == 1 || size == r.Tensors[u.n.Out[0]].Dims[d])
	case "batch_gemm":
		return u.i >= 0 && d >= 2 && (size == 1 || size == r.Tensors[u.n.Out[0]].Dims[d])
	case "sdpa_recomp_fwd":
		return u.i == 3 && (size == 1 || size == r.Tensors[u.n.In[0]].Dims[d])
	}
	return false
}

var types = []dtype.Type{dtype.BF16, dtype.F32, dtype.I32, dtype.I8}

func mutateType(rng *rand.Rand, r *recipes.Recipe, n *recipes.Node) (string, bool) {
	t := operand(rng, n)
	x := &r.Tensors[t]
	now := types[rng.IntN(len(types))]
	if now == x.DType {
		return "", false
	}
	what := fmt.Sprintf("%s instead of %s in %s", now, x.DType, x.Name)
	legal := true
	for _, u := range uses(r, t) {
		legal = legal && anyType(r, u, now)
		what += fmt.Sprintf(", %s %d", u.n.GUID, u.i)
	}
	x.DType = now
	return what, legal
}

// anyType reports whether an operand may have another type: masks may be bf16 or f32, and
// so may the sums of products of bf16, and linv.
func anyType(r *recipes.Recipe, u use, t dtype.Type) bool {
	if !t.IsFloat() {
		return false
	}
	switch base(u.n) {
	case "gemm", "batch_gemm":
		return u.i == -1 && (t == dtype.F32 || r.Tensors[u.n.In[0]].DType == t)
	case "sdpa_recomp_fwd":
		return u.i == 3 || u.i == -3
	}
	return false
}

// mutateOperand gives a node another tensor, of another type; one of the same may be as
// legal.
func mutateOperand(rng *rand.Rand, r *recipes.Recipe, n *recipes.Node) (string, bool) {
	if len(n.In) == 0 {
		return "", false
	}
	i, t := rng.IntN(len(n.In)), rng.IntN(len(r.Tensors))
	if n.In[i] == recipes.Absent || r.Tensors[n.In[i]].DType == r.Tensors[t].DType {
		return "", false
	}
	n.In = slices.Clone(n.In)
	n.In[i] = t
	return fmt.Sprintf("tensor %s as operand %d of %s", r.Tensors[t].Name, i, n.GUID), anyType(r, use{n, i}, r.Tensors[t].DType)
}

// dropOperand takes one out. Attention needs no mask; parts that are joined are missed
// by their length.
func dropOperand(_ *rand.Rand, _ *recipes.Recipe, n *recipes.Node) (string, bool) {
	if len(n.In) == 0 || n.In[len(n.In)-1] == recipes.Absent {
		return "", false
	}
	n.In = n.In[:len(n.In)-1]
	return fmt.Sprintf("%s without its last operand", n.GUID), base(n) == "sdpa_recomp_fwd" && len(n.In) == 3
}

// paramFields are those that are broken: to what number from which.
var paramFields = map[string]func(int64) int64{
	"axis": up, "reductionDimension": up, "dim": beyond, "begin": up, "end": up, "bsw": up, "limit": up, "start": up, "delta": up,
	"transpose_a": flip, "transpose_b": flip, "epsValid": flip, "is_causal": flip, "is_inference": flip, "experts_min": up, "experts_max": up,
	"NormAxisBmp": up, "normalizedShapeDims": up,
}

func up(v int64) int64     { return v + 1 }
func beyond(v int64) int64 { return v + 9 }
func flip(v int64) int64   { return 1 - v }

func mutateParam(rng *rand.Rand, r *recipes.Recipe, n *recipes.Node) (string, bool) {
	if n.Params == nil || len(n.Params.Fields) == 0 {
		return "", false
	}
	p := *n.Params
	p.Fields = slices.Clone(p.Fields)
	f := &p.Fields[rng.IntN(len(p.Fields))]
	change, ok := paramFields[f.Name]
	if !ok || len(f.Ints) != 1 {
		return "", false
	}
	was := f.Ints[0]
	f.Ints = []int64{change(was)}
	n.Params = &p
	what := fmt.Sprintf("%s of %s is %d instead of %d", f.Name, n.GUID, f.Ints[0], was)
	return what, anyParam(r, n, f.Name, was, f.Ints[0])
}

// anyParam reports whether a parameter may have another number: an axis that is as long
// as the other one, a square matrix that is turned, the causal flag without a mask.
func anyParam(r *recipes.Recipe, n *recipes.Node, field string, was, now int64) bool {
	alike := func(t int) bool {
		d := r.Tensors[t].Dims
		return was < int64(len(d)) && now < int64(len(d)) && d[was] == d[now]
	}
	switch field {
	case "axis":
		switch base(n) {
		case "concat":
			return alike(n.Out[0]) && len(n.In) == 1
		case "gather_elements_fwd":
			x, index := r.Tensors[n.In[0]].Dims, r.Tensors[n.In[1]].Dims
			return now < int64(len(x)) && x[was] == index[was]
		}
		return alike(n.In[0])
	case "reductionDimension":
		return alike(n.In[0])
	case "transpose_a", "transpose_b":
		d := r.Tensors[n.In[map[string]int{"transpose_a": 0, "transpose_b": 1}[field]]].Dims
		return d[0] == d[1]
	case "is_causal":
		return len(n.In) == 3
	}
	return false
}

func mutatePermutation(rng *rand.Rand, r *recipes.Recipe, _ *recipes.Node) (string, bool) {
	from := rng.IntN(len(r.Nodes))
	at := slices.IndexFunc(r.Nodes[from:], func(n recipes.Node) bool { return n.GUID == "transpose" })
	if at < 0 {
		return "", false
	}
	n := &r.Nodes[from+at]
	p := *n.Params
	p.Fields = slices.Clone(p.Fields)
	perm := slices.Clone(p.Fields[1].Ints)
	a, b := rng.IntN(len(perm)), rng.IntN(len(perm))
	if a == b {
		return "", false
	}
	perm[a], perm[b] = perm[b], perm[a]
	p.Fields[1].Ints = perm
	n.Params = &p
	d := r.Tensors[n.In[0]].Dims
	return fmt.Sprintf("permutation %v of %v", perm, d), d[perm[a]] == d[perm[b]]
}

// mutateSuffix gives a GUID another type.
func mutateSuffix(rng *rand.Rand, _ *recipes.Recipe, n *recipes.Node) (string, bool) {
	i := strings.LastIndexByte(n.GUID, '_')
	if i < 0 {
		return "", false
	}
	was, ok := dtype.Parse(n.GUID[i+1:])
	now := types[rng.IntN(len(types))]
	if !ok || was == now {
		return "", false
	}
	what := fmt.Sprintf("%s instead of %s", now, n.GUID)
	n.GUID = n.GUID[:i+1] + now.String()
	return what, false
}

// dropEdge takes out an edge between nodes that touch a section, which is needed unless
// another path leads from one to the other, or none of them writes what the other touches.
func dropEdge(rng *rand.Rand, r *recipes.Recipe, _ *recipes.Node) (string, bool) {
	var with []int
	for i := range r.Nodes {
		if len(r.Nodes[i].After) > 0 {
			with = append(with, i)
		}
	}
	if len(with) == 0 {
		return "", false
	}
	i := with[rng.IntN(len(with))]
	n := &r.Nodes[i]
	k := rng.IntN(len(n.After))
	before := n.After[k]
	n.After = slices.Delete(slices.Clone(n.After), k, k+1)
	return fmt.Sprintf("%s not after %s", n.Name, r.Nodes[before].Name), !meet(r, before, i) || reaches(r, before, i)
}

// meet reports whether two nodes touch the same bytes and one writes them.
func meet(r *recipes.Recipe, a, b int) bool {
	overlap := func(x, y []int) bool {
		for _, s := range x {
			for _, t := range y {
				if s < 0 || t < 0 {
					continue
				}
				u, v := stored(r, s), stored(r, t)
				if u.Section >= 0 && u.Section == v.Section && u.Offset < v.Offset+v.Bytes() && v.Offset < u.Offset+u.Bytes() {
					return true
				}
			}
		}
		return false
	}
	m, n := &r.Nodes[a], &r.Nodes[b]
	return overlap(m.Out, n.Out) || overlap(m.Out, n.In) || overlap(m.In, n.Out)
}

// stored is what a tensor may be another view of: what only moves elements need not copy
// them.
func stored(r *recipes.Recipe, t int) *recipes.Tensor {
	for i := range r.Nodes {
		n := &r.Nodes[i]
		moves := slices.Contains([]string{"identity", "reshape", "transpose", "slice_axis", "broadcast"}, n.GUID)
		if moves && n.Out[0] == t && r.Tensors[t].Section == recipes.Workspace {
			return stored(r, n.In[0])
		}
	}
	return &r.Tensors[t]
}

// reaches reports whether node b waits for node a, by the definition.
func reaches(r *recipes.Recipe, a, b int) bool {
	waits := make([]bool, len(r.Nodes))
	waits[a] = true
	by := map[int]bool{} // tensors that wait
	for i := range r.Nodes {
		n := &r.Nodes[i]
		w := i == a || slices.ContainsFunc(n.After, func(m int) bool { return waits[m] }) || slices.ContainsFunc(n.In, func(t int) bool { return by[t] })
		waits[i] = w && i >= a
		for _, t := range n.Out {
			by[t] = waits[i]
		}
	}
	return waits[b]
}

// mutateOffset moves a tensor of a section by a byte, which only types of one byte may.
func mutateOffset(rng *rand.Rand, r *recipes.Recipe, _ *recipes.Node) (string, bool) {
	x := &r.Tensors[rng.IntN(len(r.Tensors))]
	if x.Section == recipes.Workspace || x.DType.Size() == 1 {
		return "", false
	}
	x.Offset++
	r.Sections[x.Section].Size += 8
	return "byte " + fmt.Sprint(x.Offset), false
}

// mutatePlace puts a result where an operand of its node is.
func mutatePlace(_ *rand.Rand, r *recipes.Recipe, n *recipes.Node) (string, bool) {
	if len(n.In) == 0 || n.In[0] == recipes.Absent || r.Tensors[n.In[0]].Section == recipes.Workspace {
		return "", false
	}
	x, y := &r.Tensors[n.In[0]], &r.Tensors[n.Out[0]]
	if x.Section == y.Section && x.Offset == y.Offset || x.Bytes() == 0 || y.Bytes() == 0 {
		return "", false
	}
	y.Section, y.Offset = x.Section, x.Offset
	r.Sections[x.Section].Size = max(r.Sections[x.Section].Size, x.Offset+y.Bytes())
	return fmt.Sprintf("the result of %s at its operand", n.GUID), false
}

func mutateName(rng *rand.Rand, r *recipes.Recipe, _ *recipes.Node) (string, bool) {
	a, b := rng.IntN(len(r.Tensors)), rng.IntN(len(r.Tensors))
	r.Tensors[a].Name = r.Tensors[b].Name
	if a == b {
		r.Tensors[a].Name = ""
	}
	return "a tensor with the name " + r.Tensors[a].Name, false
}
