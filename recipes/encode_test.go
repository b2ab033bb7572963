package recipes

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes/dtype"
)

var (
	drawText  = rapid.SampledFrom([]string{"", "x", "t1", "layer 3 attention", "x\x00", strings.Repeat("long ", 50)})
	drawType  = rapid.SampledFrom([]dtype.Type{dtype.I8, dtype.U8, dtype.I32, dtype.I64, dtype.BF16, dtype.F32})
	drawInt64 = rapid.OneOf(rapid.Int64(), rapid.Int64Range(-2, 300), rapid.Just(int64(math.MinInt64)), rapid.Just(int64(math.MaxInt64)))
	drawInt   = rapid.OneOf(rapid.IntRange(-1, 300), rapid.Int())
	drawFloat = rapid.Map(rapid.Uint32(), math.Float32frombits)
)

// drawList draws lists that are nil where they have no elements.
func drawList[T any](t *rapid.T, element func(*rapid.T) T) []T {
	n := rapid.IntRange(0, 3).Draw(t, "length")
	var out []T
	for range n {
		out = append(out, element(t))
	}
	return out
}

func drawDims(t *rapid.T) []int64 {
	return drawList(t, func(t *rapid.T) int64 { return drawInt64.Draw(t, "dim") })
}

func drawInts(t *rapid.T) []int {
	return drawList(t, func(t *rapid.T) int { return drawInt.Draw(t, "int") })
}

func drawRecipe(t *rapid.T) *Recipe {
	return &Recipe{
		Name: drawText.Draw(t, "name"),
		Sections: drawList(t, func(t *rapid.T) Section {
			return Section{drawText.Draw(t, "name"), rapid.SampledFrom(Buffers()).Draw(t, "buffer"), drawInt64.Draw(t, "size")}
		}),
		Tensors: drawList(t, func(t *rapid.T) Tensor {
			return Tensor{drawText.Draw(t, "name"), drawType.Draw(t, "type"), drawDims(t), drawInt.Draw(t, "section"), drawInt64.Draw(t, "offset")}
		}),
		Nodes: drawList(t, func(t *rapid.T) Node {
			n := Node{Name: drawText.Draw(t, "name"), GUID: drawText.Draw(t, "guid"), In: drawInts(t), Out: drawInts(t), After: drawInts(t), Origin: drawText.Draw(t, "origin")}
			if rapid.Bool().Draw(t, "params") {
				n.Params = &Params{Struct: drawText.Draw(t, "struct"), Fields: drawList(t, func(t *rapid.T) Field {
					return Field{drawText.Draw(t, "name"), rapid.SampledFrom([]FieldType{U8, I32, F32, Enum}).Draw(t, "type"), drawDims(t), drawFloat.Draw(t, "float"), drawText.Draw(t, "sym")}
				})}
			}
			return n
		}),
	}
}

func drawIO(t *rapid.T) IO {
	return IO{drawText.Draw(t, "name"), drawType.Draw(t, "type"), drawDims(t), drawInt64.Draw(t, "offset")}
}

func drawStep(t *rapid.T) (s Step) {
	if rapid.Bool().Draw(t, "launch") {
		s.Launch = &Launch{
			Recipe: Hash(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash")), Label: drawText.Draw(t, "label"), Break: drawText.Draw(t, "break"),
			Bindings: drawList(t, func(t *rapid.T) Binding {
				return Binding{rapid.SampledFrom(Buffers()).Draw(t, "buffer"), drawInt64.Draw(t, "offset")}
			}),
		}
	}
	if rapid.Bool().Draw(t, "collective") {
		s.Collective = &Collective{
			rapid.SampledFrom([]CollectiveKind{AllReduce, AllGather}).Draw(t, "kind"), drawType.Draw(t, "type"),
			drawInt64.Draw(t, "count"), drawInt64.Draw(t, "in"), drawInt64.Draw(t, "out"), drawText.Draw(t, "label"),
		}
	}
	return s
}

func drawPlan(t *rapid.T) *Plan {
	return &Plan{
		Bucket: Bucket{rapid.SampledFrom([]Phase{Prefill, Decode, Logits}).Draw(t, "phase"), drawInt.Draw(t, "seqs"), drawInt.Draw(t, "query"), drawInt.Draw(t, "blocks")},
		Family: drawText.Draw(t, "family"), Inputs: drawList(t, drawIO), Outputs: drawList(t, drawIO), Steps: drawList(t, drawStep),
		ArenaBytes: drawInt64.Draw(t, "arena"), LayerBytes: drawInt64.Draw(t, "of layers"), WorkspaceBytes: drawInt64.Draw(t, "workspace"), CarryBytes: drawInt64.Draw(t, "carry"),
	}
}

// What is encoded decodes to itself, and in no other bytes. NaNs keep theirs.
func TestEncodingIsCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecipe(t)
		data := r.Encode()
		again, err := DecodeRecipe(data, Sum(data))
		require.NoError(t, err)
		require.Equal(t, data, again.Encode())
		require.True(t, sameBits(r, again))

		p := drawPlan(t)
		data = p.Encode()
		plan, err := DecodePlan(data, Sum(data))
		require.NoError(t, err)
		require.Equal(t, p, plan)
		require.Equal(t, data, plan.Encode())
	})
}

// sameBits compares recipes, whose floats may be NaNs.
func sameBits(a, b *Recipe) bool {
	var bits [2][]uint32
	for i, r := range []*Recipe{a, b} {
		for j := range r.Nodes {
			if p := r.Nodes[j].Params; p != nil {
				for k := range p.Fields {
					bits[i] = append(bits[i], math.Float32bits(p.Fields[k].Float))
					p.Fields[k].Float = 0
				}
			}
		}
	}
	return slices.Equal(bits[0], bits[1]) && reflect.DeepEqual(a, b)
}

// A byte that is not what it was, at any place, or one that is missing or too many, is
// found by the hash.
func TestDecodingFindsDamage(t *testing.T) {
	r := tinyRecipe("seg", dtype.BF16)
	data, hash := r.Encode(), r.Hash()
	for i := range data {
		for bit := range 8 {
			bad := slices.Clone(data)
			bad[i] ^= 1 << bit
			_, err := DecodeRecipe(bad, hash)
			require.ErrorContains(t, err, "is damaged", "bit %d of byte %d", bit, i)
		}
		_, err := DecodeRecipe(data[:i], hash)
		require.ErrorContains(t, err, "is damaged")
	}
	_, err := DecodeRecipe(append(slices.Clone(data), 0), hash)
	require.ErrorContains(t, err, "is damaged")
}

// Data whose hash is right, but which is not what Encode writes.
func TestDecodingWantsTheCanonicalForm(t *testing.T) {
	head := func(rest ...byte) []byte { return append([]byte(recipeKind), rest...) }
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, `does not begin with "quill recipe\n"`},
		{"a plan", (&Plan{}).Encode(), `does not begin with "quill recipe\n"`},
		{"no version", head(), "is cut short"},
		{"another version", head(2, 0, 0, 0, 0, 0), "has encoding version 2, this quill reads encoding version 1"},
		{"a long number", head(0x81, 0, 0, 0, 0, 0, 0), "is not in the canonical form"},
		{"a huge number", head(append(bytes.Repeat([]byte{0xff}, 9), 0x7f)...), "a number is out of range"},
		{"a text of later", head(1, 1, 0, 0, 0), "text 1 of 0"},
		{"a text that is longer than the rest", head(1, 0, 9, 0, 0, 0), "is cut short"},
		{"a list that is longer than the rest", head(1, 0, 0, 9, 0, 0), "is cut short"},
		{"more", head(1, 0, 0, 0, 0, 0, 7), "1 bytes too many"},
		{"a text twice", head(1, 0, 1, 'x', 1, 1, 1, 'x', 0, 0, 0, 0), "is not in the canonical form"},
		{"a flag", head(1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0), "a number is out of range"},
		{"a type", head(1, 0, 0, 0, 1, 0, 1, 3, 'i', '9', '9', 0, 0, 0, 0), `unknown element type "i99"`},
	} {
		_, err := DecodeRecipe(c.data, Sum(c.data))
		require.ErrorContains(t, err, c.want, c.name)
	}
	good := head(1, 0, 0, 0, 0, 0)
	r, err := DecodeRecipe(good, Sum(good))
	require.NoError(t, err)
	require.Equal(t, &Recipe{}, r)
}

func FuzzDecode(f *testing.F) {
	r := tinyRecipe("seg", dtype.BF16)
	f.Add(r.Encode())
	f.Add((&Recipe{}).Encode())
	set := tinySet(dtype.F32, r.Hash())
	for i := range set.Plans {
		f.Add(set.Plans[i].Encode())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := DecodeRecipe(data, Sum(data)); err == nil {
			require.Equal(t, data, r.Encode())
			_ = r.Check() // must not panic
		}
		if p, err := DecodePlan(data, Sum(data)); err == nil {
			require.Equal(t, data, p.Encode())
		}
	})
}
