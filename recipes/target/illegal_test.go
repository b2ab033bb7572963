package target

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// illegalCase is a combination that is refused: an example with one change.
type illegalCase struct {
	rule string
	what string // the change, as docs/target.md says it
	of   string // the example's GUID; stateful and plan are others
	make func(*draft)
}

func swapTensor(i int, t tensor) func(*draft) {
	return func(d *draft) { d.in(i).DType, d.in(i).Dims = t.t, t.dims }
}

func swapResult(i int, t tensor) func(*draft) {
	return func(d *draft) { d.out(i).DType, d.out(i).Dims = t.t, t.dims }
}

func setGUID(guid string) func(*draft) { return func(d *draft) { d.Nodes[0].GUID = guid } }

func setInt(name string, v ...int64) func(*draft) { return func(d *draft) { d.set(name, v...) } }

func setFloat(name string, v float32) func(*draft) {
	return func(d *draft) { d.field(name).Float = v }
}

// extra gives the node one more operand.
func extra(t tensor) func(*draft) {
	return func(d *draft) { d.Nodes[0].In = append(d.Nodes[0].In, d.add(t)) }
}

// Two examples are not of one node: a state that is updated between two reads, and the
// launches of a plan.
const (
	statefulExample = "a state"
	planExample     = "a plan"
)

var illegalCases = []illegalCase{
	{"guid", "a node that no profile lists", "gemm", setGUID("masked_batch_gemm")},
	{"guid", "a GUID without its suffix", "add_fwd", setGUID("add_fwd")},
	{"guid-refused", "the largest element's index of bf16", "reduce_max_fwd", setGUID("argmax_fwd_bf16")},
	{"guid-refused", "the smallest element's index of bf16", "reduce_max_fwd", setGUID("argmin_fwd_bf16")},
	{"suffix", "sums of i64", "add_fwd", setGUID("add_fwd_i64")},
	{"suffix", "a constant of i64", "constant", setGUID("constant_i64")},
	{"suffix", "a cast from bf16 to i64, which has no kernel", "cast_bf16_to", setGUID("cast_bf16_to_i64")},
	{"operands", "one operand too few", "add_fwd", func(d *draft) { d.Nodes[0].In = d.Nodes[0].In[:1] }},
	{"operands", "one operand too many", "neg_fwd", extra(single(6, 2))},
	{"operands", "an absent operand that is no option", "add_fwd", func(d *draft) { d.Nodes[0].In[1] = recipes.Absent }},
	{"operands", "a norm without its second result", "rms_norm_fwd", func(d *draft) { d.Nodes[0].Out = d.Nodes[0].Out[:1] }},
	{"operands", "experts of which one has no second matrix", "moe", func(d *draft) { d.Nodes[0].In = d.Nodes[0].In[:6] }},
	{"type", "an operand of another type than the suffix", "add_fwd", swapTensor(1, single(64, 1, 3))},
	{"type", "a predicate that is not i8", "where_fwd", swapTensor(0, index(1, 5, 3))},
	{"type", "a comparison whose result is not i8", "less_fwd", swapResult(0, index(7, 4))},
	{"type", "an index of i64", "gather_fwd", swapTensor(1, tensor{dtype.I64, []int64{7}})},
	{"type", "the largest elements in another type", "topk", swapResult(0, half(2, 5))},
	{"rank", "an operand of six dims", "neg_fwd", swapTensor(0, single(1, 1, 1, 1, 1, 12))},
	{"rank", "a product of three dims that is no batch_gemm", "gemm", swapTensor(0, half(64, 4, 1))},
	{"params", "parameters where there are none", "add_fwd", func(d *draft) { d.Nodes[0].Params = params("synGEMMParams") }},
	{"params", "no parameters where there are some", "gemm", func(d *draft) { d.Nodes[0].Params = nil }},
	{"params", "parameters of another node", "gemm", func(d *draft) { d.Nodes[0].Params = params("synConcatenateParams", ints("axis", recipes.U32, 0)) }},
	{"params", "a field that is not given", "gather_fwd", func(d *draft) { d.Nodes[0].Params.Fields = nil }},
	{"axis", "an axis beyond the last dim", "gather_fwd", setInt("axis", 3)},
	{"axis", "an axis below 0", "softmax_fwd", setInt("dim", -1)},
	{"axis", "rows of another axis than the slowest replaced", "index_copy_fwd", setInt("axis", 1)},

	{"product-inner", "inner dims that differ", "gemm", swapTensor(1, half(32, 64))},
	{"product-batch", "batch dims of 3 and 2", "batch_gemm", swapTensor(1, half(32, 64, 2, 2))},
	{"product-batch", "operands of different rank", "batch_gemm", swapTensor(1, half(32, 64, 3))},
	{"product-types", "a product of bf16 and f32", "gemm", swapTensor(1, single(64, 32))},
	{"product-types", "a product of f32 that gives bf16", "gemm", func(d *draft) { d.in(0).DType, d.in(1).DType, d.out(0).DType = dtype.F32, dtype.F32, dtype.BF16 }},
	{"product-bias", "a bias as third operand", "gemm", extra(half(32))},
	{"product-result", "a result that is not {N, M}", "gemm", swapResult(0, single(4, 32))},

	{"elementwise-dims", "sizes that differ and are not 1", "add_fwd", swapTensor(1, half(64, 2, 3))},
	{"elementwise-dims", "operands of different rank", "add_fwd", swapTensor(1, half(64))},
	{"elementwise-dims", "a result that is smaller than an operand", "where_fwd", swapResult(0, half(64, 5, 1))},
	{"elementwise-dims", "a softmax of other dims", "softmax_fwd", swapResult(0, single(6, 1))},
	{"move-type", "a reshape to another type", "reshape", swapResult(0, single(64, 15))},
	{"reshape", "another number of elements", "reshape", swapResult(0, half(64, 14))},
	{"reshape", "an identity of other dims", "identity", swapResult(0, half(64, 15, 1))},
	{"transpose", "a dim that is there twice", "transpose", setInt("permutation", 0, 2, 2)},
	{"transpose", "a dim that is left out", "transpose", func(d *draft) { d.set("tensorDim", 2); d.set("permutation", 1, 0) }},
	{"transpose", "a result whose dims are not permuted", "transpose", swapResult(0, half(64, 5, 3))},
	{"broadcast", "a dim of 2 broadcast to 5", "broadcast", swapTensor(0, half(64, 2, 3))},
	{"broadcast", "a result of higher rank", "broadcast", swapTensor(0, half(64, 1))},
	{"slice", "a slice beyond the end", "slice_axis", setInt("end", 6)},
	{"slice", "a slice of nothing", "slice_axis", setInt("begin", 4)},
	{"slice", "a result of another length", "slice_axis", swapResult(0, half(64, 4, 3))},
	{"concat", "lengths that do not add up", "concat", swapResult(0, half(64, 8, 3))},
	{"concat", "parts that differ in another dim", "concat", swapTensor(1, half(32, 2, 3))},
	{"constant-finite", "minus infinity for hidden keys", "constant", setFloat("value", float32(math.Inf(-1)))},
	{"constant-finite", "a constant that is no number", "constant", setFloat("value", float32(math.NaN()))},
	{"constant-finite", "a finite number that bf16 rounds to infinity", "constant", setFloat("value", -math.MaxFloat32)},
	{"constant-range", "300 as i8", "constant", func(d *draft) {
		d.Nodes[0].GUID, d.out(0).DType = "constant_i8", dtype.I8
		d.Nodes[0].Params = params("ns_ConstantKernel::Params", ints("value", recipes.I32, 300))
	}},
	{"range", "more elements than steps", "range", swapResult(0, index(5))},
	{"range", "steps of 0", "range", setInt("delta", 0)},

	{"reduce", "a sum that drops the dim", "reduce_sum_fwd", swapResult(0, single(6))},
	{"softmax-mask", "a mask as second operand", "softmax_fwd", extra(single(6, 5))},
	{"topk", "more than there are", "topk", setInt("bsw", 7)},
	{"topk", "results of another length", "topk", swapResult(1, index(3, 5))},
	{"gather", "a result without the index's dims", "gather_fwd", swapResult(0, half(64, 5, 3))},
	{"gather-elements", "an index of other dims than the operand", "gather_elements_fwd", swapTensor(1, index(2, 4))},
	{"gather-elements", "a result of other dims than the index", "gather_elements_fwd", swapResult(0, single(3, 5))},
	{"index-copy", "fewer rows than indices", "index_copy_fwd", swapTensor(2, half(64, 2, 2))},
	{"index-copy", "a result of other dims than the operand", "index_copy_fwd", func(d *draft) { d.Nodes[0].Out[0] = d.add(half(64, 2, 31)) }},

	{"norm", "gamma of another length", "rms_norm_fwd", swapTensor(1, half(32))},
	{"norm", "inv_rms of x's dims", "rms_norm_fwd", swapResult(1, single(64, 5, 3))},
	{"norm", "a result of other dims", "rms_norm_fwd", swapResult(0, half(64, 15))},
	{"norm-params", "the structure of the backward kernel", "rms_norm_fwd", func(d *draft) { d.Nodes[0].Params.Struct = "ns_LayerNormKernel::Params" }},
	{"norm-params", "eps without epsValid", "rms_norm_fwd", setInt("epsValid", 0)},
	{"norm-params", "a norm over another dim", "rms_norm_fwd", setInt("NormAxisBmp", 2)},
	{"norm-params", "eps of 0", "rms_norm_fwd", setFloat("eps", 0)},

	{"attention-dims", "keys of another head_dim", "sdpa_recomp_fwd", swapTensor(1, half(32, 9, 1, 2))},
	{"attention-dims", "values of another number of keys", "sdpa_recomp_fwd", swapTensor(2, half(32, 8, 1, 2))},
	{"attention-dims", "keys of lower rank", "sdpa_recomp_fwd", swapTensor(1, half(64, 9, 2))},
	{"attention-dims", "keys of another number of groups", "sdpa_recomp_fwd", swapTensor(1, half(64, 9, 1, 1))},
	{"attention-dims", "a result of the queries' head_dim", "sdpa_recomp_fwd", swapResult(0, half(64, 5, 4, 2))},
	{"attention-heads", "8 heads of queries and 2 of keys in one dim", "sdpa_recomp_fwd", func(d *draft) {
		d.in(0).Dims, d.in(1).Dims, d.in(2).Dims = []int64{64, 5, 8, 1}, []int64{64, 9, 2, 1}, []int64{32, 9, 2, 1}
		d.out(0).Dims = []int64{32, 5, 8, 1}
	}},
	{"attention-mask", "a mask of half the group", "sdpa_recomp_fwd", swapTensor(3, half(9, 5, 2, 2))},
	{"attention-mask", "a mask of more rows than queries", "sdpa_recomp_fwd", swapTensor(3, half(9, 6, 1, 1))},
	{"attention-mask", "a mask for one key", "sdpa_recomp_fwd", swapTensor(3, half(1, 5, 1, 1))},
	{"attention-causal", "the causal flag beside a mask", "sdpa_recomp_fwd", setInt("is_causal", 1)},
	{"attention-lengths", "valid lengths beside a mask", "sdpa_recomp_fwd", extra(index(2))},
	{"attention-statistics", "statistics of the inference form", "sdpa_recomp_fwd", func(d *draft) { training(d); d.set("is_inference", 1) }},
	{"attention-statistics", "the training form without statistics", "sdpa_recomp_fwd", setInt("is_inference", 0)},
	{"attention-statistics", "statistics with a row for each key", "sdpa_recomp_fwd", func(d *draft) { training(d); d.out(1).Dims[0] = 9 }},
	{"attention-params", "dropout", "sdpa_recomp_fwd", setFloat("dropout.ratio", 0.5)},
	{"attention-params", "a scale that is infinite", "sdpa_recomp_fwd", setFloat("scale", float32(math.Inf(1)))},

	{"experts-count", "more numbers than experts", "moe", setInt("experts_max", 6)},
	{"experts-dims", "a matrix of another size", "moe", swapTensor(4, half(64, 26))},
	{"experts-dims", "choices for other tokens", "moe", swapTensor(1, index(2, 4))},
	{"experts-dims", "weights of fewer choices", "moe", swapTensor(2, half(1, 3))},
	{"experts-dims", "a result of other dims", "moe", swapResult(0, half(32, 3))},
	{"experts-form", "another activation", "moe", func(d *draft) { d.field("activation").Sym = "gelu" }},

	{"size", "a tensor of which 32 bits cannot count the elements", "neg_fwd", func(d *draft) {
		swapTensor(0, single(1<<30, 4))(d)
		swapResult(0, single(1<<30, 4))(d)
	}},
	{"size", "a move of more than 4 GiB", "reshape", func(d *draft) {
		d.Nodes[0].GUID = "broadcast"
		swapTensor(0, half(1<<30, 4))(d)
		swapResult(0, half(1<<30, 4))(d)
	}},
	{"size", "a product of bf16 beyond 32 bits", "gemm", func(d *draft) {
		swapTensor(0, half(1<<17, 1<<16))(d)
		swapTensor(1, half(1<<17, 4))(d)
		swapResult(0, half(4, 1<<16))(d)
	}},
	{"program-data", "1,800 experts in a recipe", "moe", func(d *draft) {
		in := slices.Clone(d.Nodes[0].In[:3])
		for _, of := range []recipes.Tensor{*d.in(3), *d.in(5)} {
			for range 1800 {
				in = append(in, d.at(of.Section, 0, tensor{of.DType, of.Dims}))
			}
		}
		d.Nodes[0].In = in
		d.set("experts_max", 1803)
	}},
	{"name-length", "a tensor without a name", "gemm", func(d *draft) { d.in(0).Name = "" }},
	{"name-length", "a node's name of 2,000 characters", "gemm", func(d *draft) { d.Nodes[0].Name = strings.Repeat("x", 2000) }},
	{"name-length", "a GUID of 31 characters", "gemm", setGUID(strings.Repeat("g", 31))},
	{"name-unique", "two tensors of one name", "gemm", func(d *draft) { d.in(1).Name = d.in(0).Name }},
	{"name-unique", "two nodes of one name", statefulExample, func(d *draft) { d.Nodes[1].Name = "n0" }},
	{"sections", "more sections than 16 bits number", "neg_fwd", func(d *draft) { d.Sections = append(d.Sections, make([]recipes.Section, 65532)...) }},
	{"offset", "f32 at an odd byte", "neg_fwd", func(d *draft) { d.in(0).Offset = 6 }},

	{"producer", "a tensor that two nodes write", statefulExample, func(d *draft) { d.Nodes[2].Out[0] = d.Nodes[0].Out[0] }},
	{"read-early", "a tensor that is read before it is written", statefulExample, func(d *draft) { d.Nodes[0].In[0], d.Nodes[1].After = d.Nodes[1].Out[0], nil }},
	{"read-early", "a node that reads what it writes", statefulExample, func(d *draft) { d.Nodes[1].In[0] = d.Nodes[1].Out[0] }},
	{"order", "an update that does not wait for a read of the old version", statefulExample, func(d *draft) { d.Nodes[1].After = nil }},
	{"order", "an update that does not wait for a read through a view of the old version", statefulExample, func(d *draft) {
		view := d.at(recipes.Workspace, 0, half(64, 32))
		d.node("reshape", nil, []int{d.Nodes[0].In[0]}, []int{view})
		d.Nodes = []recipes.Node{d.Nodes[3], d.Nodes[0], d.Nodes[1]}
		d.Nodes[1].In = []int{view, d.Nodes[1].In[1]}
	}},
	{"order", "a read of the new version that does not wait for the update", statefulExample, func(d *draft) { d.Nodes[2].In[0] = d.Nodes[0].In[0] }},
	{"order", "a second update that does not wait for the first", statefulExample, func(d *draft) {
		d.Nodes[2] = d.Nodes[1]
		d.Nodes[2].Name, d.Nodes[2].After, d.Nodes[2].Out = "n2", []int{0}, []int{d.at(0, 0, half(64, 32))}
	}},
	{"in-place", "a sum that lies where its operand does", "add_fwd", func(d *draft) { d.out(0).Section = d.in(0).Section }},
	{"in-place", "an update that begins a row later", "index_copy_fwd", func(d *draft) { d.out(0).Offset = 128 }},
	{"in-place", "an update whose values lie in the state", "index_copy_fwd", func(d *draft) { d.in(2).Section = d.in(0).Section }},
	{"in-place", "two results at one place", "topk", func(d *draft) { d.out(1).Section = d.out(0).Section }},

	{"launch-address", "a section at byte 64", planExample, func(d *draft) { d.Sections[0].Size = 64 }},
	{"launch-overlap", "sections that share bytes", planExample, func(d *draft) { d.Sections[0].Size = 128 }},
	{"attention-loop", "attention alone, launched twice in a row", planExample, func(d *draft) { d.Sections[0].Size = 1 << 20 }},
}

// planError is the error of a plan of two launches of attention alone whose sections are
// bound so many bytes apart.
func planError(p *Profile, apart int64) error {
	r := example("sdpa_recomp_fwd").finish()
	plan := &recipes.Plan{Bucket: recipes.Bucket{Phase: recipes.Decode, Seqs: 1, Blocks: 4}}
	for i := range 2 {
		l := &recipes.Launch{Label: fmt.Sprintf("layer %d attn", i)}
		for k := range r.Sections {
			l.Bindings = append(l.Bindings, recipes.Binding{Buffer: recipes.Arena, Offset: int64(k) * apart})
		}
		plan.Steps = append(plan.Steps, recipes.Step{Launch: l})
	}
	return p.CheckPlan(plan, func(recipes.Hash) *recipes.Recipe { return r })
}

// err is what a case's recipe or plan is refused for.
func (c *illegalCase) err(p *Profile) error {
	switch c.of {
	case planExample:
		d := &draft{}
		d.add(half(1))
		c.make(d)
		return planError(p, d.Sections[0].Size)
	case statefulExample:
		d := stateful()
		c.make(d)
		return p.CheckRecipe(d.finish())
	}
	d := example(c.of)
	c.make(d)
	return p.CheckRecipe(d.finish())
}

// Each rule has a case at least, which breaks it and no other, and docs/target.md says of
// each what it is, why, and with which message it is refused.
func TestIllegalCombinations(t *testing.T) {
	p := load(t)
	var table strings.Builder
	table.WriteString("| not taken | why | message | test |\n|---|---|---|---|\n")
	at := 0 // cases come in the order of rules
	for _, r := range Rules {
		require.NotNil(t, find(p.Sources, func(s *Source) bool { return s.ID == r.Source }), r.Name)
		first := at
		for ; at < len(illegalCases) && illegalCases[at].rule == r.Name; at++ {
			c := &illegalCases[at]
			name := fmt.Sprintf("%s/%d", r.Name, at-first+1)
			err := c.err(p)
			fmt.Fprintf(&table, "| %s | %s (%s) | `%s` | %s |\n", c.what, r.Why, r.Source, short(fmt.Sprint(err)), name)
			t.Run(name, func(t *testing.T) {
				illegal, ok := errors.AsType[*IllegalError](err)
				require.True(t, ok, "%s: %v", c.what, err)
				require.Equal(t, r.Name, illegal.Rule, "%s: %v", c.what, err)
				require.NotEmpty(t, illegal.Operand)
				require.NotEmpty(t, illegal.Want)
				require.NotEmpty(t, illegal.Have)
				require.NotEmpty(t, illegal.Help)
			})
		}
		require.Greater(t, at, first, "rule %s has no case", r.Name)
	}
	require.Equal(t, len(illegalCases), at, "the cases are not in the order of the rules")
	sources := ""
	for _, s := range p.Sources {
		sources += fmt.Sprintf("- %s: %s\n", s.ID, s.What)
	}
	document(t, "sources", sources)
	document(t, "combinations", table.String())
}

// short is a message for the table: names of thousands of characters are cut.
func short(s string) string {
	if len(s) > 1500 {
		s = s[:60] + "…" + s[len(s)-200:]
	}
	return strings.ReplaceAll(s, "|", `\|`)
}

// document compares a part of docs/target.md, between two comments, with what it should
// be.
func document(t *testing.T, part, want string) {
	const file = "../../docs/target.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), "<!-- "+part+" -->\n")
	require.True(t, ok, part)
	have, after, ok := strings.Cut(rest, "<!-- end -->")
	require.True(t, ok, part)
	if os.Getenv("QUILL_BLESS") != "" {
		require.NoError(t, os.WriteFile(file, []byte(before+"<!-- "+part+" -->\n"+want+"<!-- end -->"+after), 0o666))
		return
	}
	require.Equal(t, want, have, "QUILL_BLESS=1 rewrites docs/target.md")
}
