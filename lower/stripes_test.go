package lower

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/passes"
	"quill/recipes"
)

// movedSections is how many sections a launch moves at most when one step follows another,
// and what moves in the arena that is in no stripe, though it could begin at an address
// behind another of its size.
func movedSections(b *recipes.Bundle, p *recipes.Plan) (most int, others []string) {
	bound := map[recipes.Hash][]recipes.Binding{}
	for range 2 {
		most, others = 0, nil
		eachLaunch(b, p, func(_ int, l *recipes.Launch, r *recipes.Recipe) {
			moved := 0
			for i, at := range l.Bindings {
				before, s := bound[l.Recipe], r.Sections[i]
				if before == nil || before[i] == at {
					continue
				}
				moved++
				if s.Buffer == recipes.Arena && s.Size%recipes.Alignment == 0 && !strings.HasPrefix(s.Name, "layer") {
					others = append(others, fmt.Sprintf("%s of %q: %d, not %d", s.Name, l.Label, at.Offset, before[i].Offset))
				}
			}
			most = max(most, moved)
			bound[l.Recipe] = l.Bindings
		})
	}
	return most, others
}

// fewMove checks what moves in the plans of a bundle: at most four sections a launch, and
// when decoding of the arena only what launches take of values of all layers. Those of
// attention move weights, keys and values, and what they take of the convolutions of
// hidden states and of those of keys and values, which are sharded and thus have other
// distances from layer to layer (or the two states, in prefill); all others move weights
// and the first of these. That is six a layer at most, since there are two launches.
func fewMove(t *testing.T, what string, b *recipes.Bundle) {
	t.Helper()
	for i := range b.Sets[0].Plans {
		p := &b.Sets[0].Plans[i]
		if hasSubBlocks(p) { // each takes other rows
			continue
		}
		most, others := movedSections(b, p)
		layers := float64(b.Work(p).Moved) / float64(b.Manifest.Model.Layers)
		t.Logf("%s, %s: %d sections a launch, %.2f a layer", what, p.Bucket, most, layers)
		require.LessOrEqual(t, most, 4, "%s, %s", what, p.Bucket)
		require.LessOrEqual(t, layers, 6.0, "%s, %s", what, p.Bucket)
		switch p.Bucket.Phase {
		case recipes.Logits:
			require.Zero(t, most, "%s, %s", what, p.Bucket)
		case recipes.Decode:
			require.Empty(t, others, "%s, %s", what, p.Bucket)
		}
	}
}

func TestFewSectionsMove(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "buckets.txt")
	require.NoError(t, os.WriteFile(file, []byte("prefill q=16,64 c=0,4,32\ndecode b=1 n=8,32\ndecode b=4 n=32,128\n"), 0o600))
	for _, model := range []string{"nano-small", "nano-big", "nano-chat", "nano-dense"} {
		for _, tp := range []int{2, 4} {
			for _, moe := range []string{passes.FusedExperts, passes.GatheredExperts} {
				d, err := deployment(t, fmt.Sprintf("model: ../%s\ntensor_parallel: %d\nmax_model_len: 256\nmax_num_seqs: 4\nblock_size: 8\nmax_batched_tokens: 64\nmoe: %s\nbuckets: {strategy: file, path: %s}\n", model, tp, moe, file))
				require.NoError(t, err)
				b, _, err := Compile(t.Context(), d, nil)
				require.NoError(t, err)
				fewMove(t, fmt.Sprintf("%s on %d ranks, %s", model, tp, moe), b)
			}
		}
	}
}

func TestFewSectionsMoveOfInklingSmall(t *testing.T) {
	t.Parallel()
	for moe, b := range measured {
		fewMove(t, moe, b(t))
	}
}

// Nor do more where the states of all layers are too large for one op: with 16 Ki blocks they
// are read and written in four groups.
func TestFewSectionsMoveOfManyBlocks(t *testing.T) {
	t.Parallel()
	buckets := []string{"decode/b=1,n=16", "decode/b=16,n=352"}
	b := compileDeepWith(t, 42, func(d *Deployment) { d.KVBlocks = 16384 }, func(b recipes.Bucket) bool { return slices.Contains(buckets, b.String()) })
	require.Len(t, b.Sets[0].Plans, len(buckets))
	reads := 0
	eachLaunch(b, &b.Sets[0].Plans[0], func(_ int, _ *recipes.Launch, r *recipes.Recipe) {
		for _, n := range r.Nodes {
			if n.Origin == "conv.history" && strings.HasPrefix(n.GUID, "gather") {
				reads++
			}
		}
	})
	require.Greater(t, reads, 2, "the states of hidden rows are one group, and those of keys and values")
	fewMove(t, "many blocks", b)
}

// A value that one launch has elsewhere is seen: it moves there and back.
func TestMovedValueIsSeen(t *testing.T) {
	t.Parallel()
	b := compileSmall(t, "")
	i := slices.IndexFunc(b.Sets[0].Plans, func(p recipes.Plan) bool { return p.Bucket.Phase == recipes.Decode })
	p := &b.Sets[0].Plans[i]
	before := b.Work(p).Moved
	_, others := movedSections(b, p)
	require.Empty(t, others)
	var again []*recipes.Launch // of the recipe that has most launches
	of := map[recipes.Hash][]*recipes.Launch{}
	eachLaunch(b, p, func(_ int, l *recipes.Launch, _ *recipes.Recipe) {
		if of[l.Recipe] = append(of[l.Recipe], l); len(of[l.Recipe]) > len(again) {
			again = of[l.Recipe]
		}
	})
	require.Greater(t, len(again), 2)
	l := again[1]
	at := slices.IndexFunc(l.Bindings, func(x recipes.Binding) bool { return x == again[0].Bindings[slices.Index(l.Bindings, x)] })
	require.GreaterOrEqual(t, at, 0, "nothing stays where it is")
	l.Bindings[at].Offset += recipes.Alignment
	require.Equal(t, before+2, b.Work(p).Moved)
	if again[0].Bindings[at].Buffer == recipes.Arena {
		_, others = movedSections(b, p)
		require.Len(t, others, 2)
	}
}

// twice is an entry whose first launch leaves six values; launches of one segment take
// two of them each.
func twice(t *testing.T, takes ...[2]int) (*ir.Func, []*ir.Value) {
	t.Helper()
	text := `module @m {level = plan, tp = 1}
func @first(input %x: f32[6, 32]) -> (temp t0: f32[1, 32], temp t1: f32[1, 32], temp t2: f32[1, 32], temp t3: f32[1, 32], temp t4: f32[1, 32], temp t5: f32[1, 32]) {
  %y = exp %x
  %a = slice %y {axis = 0, start = 0, stop = 1}
  %b = slice %y {axis = 0, start = 1, stop = 2}
  %c = slice %y {axis = 0, start = 2, stop = 3}
  %d = slice %y {axis = 0, start = 3, stop = 4}
  %e = slice %y {axis = 0, start = 4, stop = 5}
  %f = slice %y {axis = 0, start = 5, stop = 6}
  return %a, %b, %c, %d, %e, %f
}
func @layer(temp %a: f32[1, 32], temp %b: f32[1, 32]) -> (temp t0: f32[1, 32]) {
  %c = add %a, %b
  return %c
}
func @f(input %x: f32[6, 32]) -> (output z: f32[1, 32]) {
  %0, %1, %2, %3, %4, %5 = call @first %x
`
	for i, ab := range takes {
		text += fmt.Sprintf("  %%%d = call @layer %%%d, %%%d\n", 6+i, ab[0], ab[1])
	}
	m, err := ir.VerifyText("test.qir", []byte(text+fmt.Sprintf("  return %%%d\n}\n", 5+len(takes))))
	require.NoError(t, err)
	return m.Entry(), m.Entry().Ops[0].Results
}

// Launches bind one section for what moves as far from each to the next, whether it is in
// one interval or in several; two for what moves by another distance; and none where one
// launch has another distance than the others or where there is one launch only.
func TestStripes(t *testing.T) {
	t.Parallel()
	of := func(bytes int64) *interval {
		return &interval{Interval: recipes.Interval{Life: recipes.Lifetime{First: 0, Last: 9}, Bytes: bytes}}
	}
	type at struct {
		interval int
		offset   int64
	}
	for _, c := range []struct {
		what  string
		takes [][2]int
		at    [6]at
		want  [][]int // of each stripe, the numbers of intervals
	}{
		{"one interval", [][2]int{{0, 3}, {1, 4}, {2, 5}}, [6]at{{0, 0}, {0, 128}, {0, 256}, {0, 384}, {0, 512}, {0, 640}}, [][]int{{0}}},
		{"two that move alike", [][2]int{{0, 3}, {1, 4}, {2, 5}}, [6]at{{0, 0}, {0, 128}, {0, 256}, {1, 0}, {1, 128}, {1, 256}}, [][]int{{0, 1}}},
		{"two behind each other at one operand", [][2]int{{0, 3}, {1, 4}, {2, 5}}, [6]at{{0, 0}, {0, 128}, {1, 0}, {2, 0}, {2, 128}, {2, 256}}, [][]int{{0, 1, 2}}},
		{"a gap at one operand", [][2]int{{0, 3}, {1, 4}, {2, 5}}, [6]at{{0, 0}, {0, 128}, {1, 128}, {2, 0}, {2, 128}, {2, 256}}, [][]int{{0, 1}, {2}}},
		{"no address for the second at one operand", [][2]int{{0, 3}, {1, 4}, {2, 5}}, [6]at{{0, 0}, {0, 128}, {1, 0}, {2, 0}, {2, 128}, {2, 256}}, [][]int{{2}}},
		{"another distance", [][2]int{{0, 3}, {1, 4}, {2, 5}}, [6]at{{0, 0}, {0, 128}, {0, 256}, {1, 0}, {1, 256}, {1, 512}}, [][]int{{0}, {1}}},
		{"two of three exchanged", [][2]int{{0, 3}, {1, 5}, {2, 4}}, [6]at{{0, 0}, {0, 128}, {0, 256}, {0, 384}, {0, 512}, {0, 640}}, nil},
		{"one launch", [][2]int{{0, 3}}, [6]at{{0, 0}, {0, 128}, {0, 256}, {0, 384}, {0, 512}, {0, 640}}, nil},
	} {
		entry, values := twice(t, c.takes...)
		live := liveness{blocks: map[*ir.Value]*interval{}, at: map[*ir.Value]int64{}}
		list := []*interval{of(768), of(768), of(768)}
		for i, at := range c.at {
			live.blocks[values[i]], live.at[values[i]] = list[at.interval], at.offset
		}
		switch {
		case strings.HasPrefix(c.what, "two behind"):
			list[0].Bytes = 256
		case strings.HasPrefix(c.what, "no address"):
			list[0].Bytes = 200
		}
		stripes, err := live.stripes(list, entry)
		require.NoError(t, err)
		var got [][]int
		for _, g := range stripes {
			g.Offset = 1024
			g.place()
			var numbers []int
			end := int64(1024)
			for _, iv := range slices.Concat(g.columns...) {
				require.Equal(t, end, iv.Offset, c.what)
				end += iv.Bytes
				numbers = append(numbers, slices.Index(list, iv))
			}
			require.Equal(t, end, g.Offset+g.Bytes, c.what)
			got = append(got, numbers)
		}
		require.Equal(t, c.want, got, c.what)
	}
}

// Stripes may take a third more memory, not more: here new rows of the last of three groups
// could lie where sums of the first were, and nothing of the history stays.
func TestStripesTakeLittleMore(t *testing.T) {
	t.Parallel()
	p, _, err := planOf(t, convsOf(6, 128, 2, 1<<23-1)) // two states have less than 2³¹ elements
	require.NoError(t, err)
	require.Equal(t, 3, guids(p)["index_copy_fwd_f32"])
	require.Empty(t, p.stripes)
	requireApart(t, p)
	p, _, err = planOf(t, convsOf(6, 128, 4, 1<<21))
	require.NoError(t, err)
	require.Equal(t, 3, guids(p)["index_copy_fwd_f32"])
	require.NotEmpty(t, p.stripes, "here all rows but one stay")
	requireApart(t, p)
}

// Sums and new rows of a convolution are one section of a layer's launch.
func TestConvolutionsAreInStripes(t *testing.T) {
	t.Parallel()
	p, _, err := planOf(t, convs(5, 128))
	require.NoError(t, err)
	requireApart(t, p)
	r := p.recipes[2]
	var names []string
	for _, s := range r.Sections {
		if s.Buffer == recipes.Arena {
			names = append(names, s.Name)
		}
	}
	require.Contains(t, names, "layer0")
	require.NotContains(t, names, "layer1")

	// Without addresses for the parts there are none.
	p, _, err = planOf(t, convs(5, 8))
	require.NoError(t, err)
	for _, r := range p.recipes {
		require.False(t, slices.ContainsFunc(r.Sections, func(s recipes.Section) bool { return strings.HasPrefix(s.Name, "layer") }))
	}
}
