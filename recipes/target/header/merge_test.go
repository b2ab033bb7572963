package header

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/target"
)

func load(t *testing.T) *target.Profile {
	t.Helper()
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	return p
}

func merge(t *testing.T, p *target.Profile, text string, all bool) (*Merged, error) {
	t.Helper()
	h, err := Parse("vendor.h", []byte(text), nil)
	require.NoError(t, err)
	return h.Merge(p, "vendor.h of a test", all)
}

// A made-up form of experts' parameters: numbers and order are those of no vendor.
const experts = `
enum MoeFlags_t { MOE_FLAGS_PERMUTED_WEIGHTS = 4, MOE_FLAGS_FUSED_GEMM = 32, MOE_FLAGS_CALC_AMAX = 64 };
enum MoeActivationMode_t { MOE_ACTIVATION_MODE_RELU, MOE_ACTIVATION_MODE_GELU, MOE_ACTIVATION_MODE_SILU };
namespace ns_MoeKernel {
struct ParamsV2 {
  unsigned flags;
  struct { int experts_min; int experts_max; } router;
  struct { bool first; MoeActivationMode_t activation; } experts;
};
}
`

// A missing structure gets the header's layout and keeps what recipes call its fields.
func TestMissingStructureIsFilled(t *testing.T) {
	p := load(t)
	v := &recipes.Params{Struct: "ns_MoeKernel::ParamsV2", Fields: []recipes.Field{
		{Name: "flags", Type: recipes.Enum, Sym: "MOE_FLAGS_PERMUTED_WEIGHTS|MOE_FLAGS_FUSED_GEMM"},
		{Name: "experts_min", Type: recipes.I32, Ints: []int64{3}},
		{Name: "experts_max", Type: recipes.I32, Ints: []int64{258}},
		{Name: "experts.first", Type: recipes.U8, Ints: []int64{1}},
		{Name: "activation", Type: recipes.Enum, Sym: "silu"},
	}}
	_, err := p.Encode(v)
	require.ErrorContains(t, err, "quill target import perf_lib_layer_params.h")
	m, err := merge(t, p, experts, false)
	require.NoError(t, err)
	require.Equal(t, []string{"ns_MoeKernel::ParamsV2"}, m.Added)
	require.NotContains(t, m.Missing, "ns_MoeKernel::ParamsV2")
	require.Contains(t, m.Missing, "ns_MoeKernel::ParamsV3")
	b, err := p.Encode(v)
	require.NoError(t, err)
	require.Equal(t, []byte{36, 0, 0, 0, 3, 0, 0, 0, 2, 1, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0}, b)
	again, err := p.Decode(v.Struct, b, dtype.BF16)
	require.NoError(t, err)
	require.Equal(t, v, again)

	// What was made is a profile, and takes the same header once more.
	file, err := p.Format()
	require.NoError(t, err)
	p, err = target.Parse(file)
	require.NoError(t, err)
	m, err = merge(t, p, experts, false)
	require.NoError(t, err)
	require.Empty(t, m.Added)
	require.Contains(t, m.Checked, "ns_MoeKernel::ParamsV2")
	second, err := p.Format()
	require.NoError(t, err)
	require.Equal(t, string(file), string(second))
}

// What header and profile both have must be alike; the error has the header's place.
func TestDifferencesAreErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"namespace ns_GatherKernel { struct Params { long axis; }; }", "vendor.h:1:29: ns_GatherKernel::Params of the header is not that of profile gaudi2-1.21: it has 8 bytes and alignment 8 in the header, 4 and 4 in the profile"},
		{"namespace ns_GatherKernel { struct Params { unsigned axis; }; }", "it has uint32_t axis at byte 0 in the header, int32_t axis at byte 0 in the profile"},
		{"namespace ns_GatherKernel { struct Params { int dim; }; }", "it has int32_t dim at byte 0 in the header, int32_t axis at byte 0"},
		{"namespace ns_GatherKernel { struct Params { int axis = 1; }; }", "it has int32_t axis at byte 0, by default [1], in the header"},
		{"namespace ns_GatherKernel { struct Params { short axis; short more; int x[0 + 0 - 0 + 0 + 0 - 0 + 1 - 1 + 1]; }; }", "it has 8 bytes"},
		{"struct synSliceAxisParamsV2 { unsigned axis; unsigned long begin, end; };", "it has uint64_t begin at byte 8 in the header, uint32_t _structPadding at byte 4, by default [0], in the profile"},
		{"struct synTransposeParamsNDims { unsigned tensorDim; unsigned permutation[5]; };", "it has 24 bytes and alignment 4 in the header, 104 and 4"},
		{"struct synTransposeParamsNDims { unsigned tensorDim, x[5], permutation[20]; };", "it has uint32_t[5] x at byte 4 in the header, uint32_t[25] permutation"},
		{"namespace ns_ConstantKernel { struct Params { float constant; }; }", "it has float constant at byte 0 in the header, float constant.f at byte 0 in a union in the profile"},
		{"enum KTensorType_t { K_TENSOR_SHAPE, K_TENSOR_NONE };", "vendor.h:1:1: KTensorType_t of the header is not that of profile gaudi2-1.21: K_TENSOR_NONE is 1 in the header, 0 in the profile"},
		{"enum KTensorType_t { K_TENSOR_NONE };", "the header has no K_TENSOR_SHAPE, which is 1 in the profile"},
		{"enum KTensorType_t : char { K_TENSOR_NONE, K_TENSOR_SHAPE };", "the header holds it in int8_t, the profile in uint32_t"},
		{strings.Replace(experts, "experts_max", "last", 1), "the header has no field router.experts_max, which recipes have as experts_max; it has [flags router.experts_min router.last"},
		{strings.Replace(experts, "unsigned flags", "float flags", 1), "flags MoeFlags_t: want an enumeration, and the field to be an integer"},
		{strings.Replace(experts, "unsigned flags", "unsigned flags : 3", 1), "vendor.h:6:12: ns_MoeKernel::ParamsV2 has no layout: bit-fields are not supported"},
		{"namespace ns_MoeKernel { struct ParamsV2 { Unknown x; }; }", "vendor.h:1:44: ns_MoeKernel::ParamsV2 has no layout: type Unknown is not known"},
	} {
		_, err := merge(t, load(t), c.text, false)
		require.ErrorContains(t, err, c.want, c.text)
	}
}

// Only what the profile lists is added, unless all is wanted; what a profile cannot have
// is left out.
func TestOtherStructures(t *testing.T) {
	const text = "enum Kind { ONE = 1 };\nstruct Other { Kind kind; struct Inner { int n; } inner; };\nstruct Floats { float f[3]; };"
	p := load(t)
	m, err := merge(t, p, text, false)
	require.NoError(t, err)
	require.Empty(t, m.Added)
	require.Nil(t, p.Struct("Other"))
	require.Equal(t, load(t).Sources, p.Sources)

	m, err = merge(t, p, text, true)
	require.NoError(t, err)
	require.Equal(t, []string{"Other"}, m.Added)
	require.NotNil(t, p.Enum("Kind"))
	require.Len(t, m.Skipped, 1)
	require.ErrorContains(t, m.Skipped[0].Err, "vendor.h:3:1: field f: recipes carry no arrays of floats")
	b, err := p.Encode(&recipes.Params{Struct: "Other", Fields: []recipes.Field{
		{Name: "kind", Type: recipes.Enum, Sym: "ONE"}, {Name: "inner.n", Type: recipes.I32, Ints: []int64{-2}},
	}})
	require.NoError(t, err)
	require.Equal(t, []byte{1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff}, b)
}

// Structures that the profile has are compared with a header that has all of them.
func TestSyntheticHeaderAgrees(t *testing.T) {
	p := load(t)
	m, err := synthetic(t).Merge(p, "synthetic", true)
	require.NoError(t, err)
	require.Subset(t, m.Checked, []string{"synGEMMParams", "synAxisParams", "synSliceAxisParamsV2", "ns_RangeKernel::Params", "ns_Sdpa::Params"})
	require.Empty(t, p.Struct("ns_Sdpa::Params").Unverified)
	require.Equal(t, "synthetic", p.Sources[len(p.Sources)-1].What)
}
