package dump

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower"
	"quill/recipes"
	"quill/recipes/target"
	"quill/recipes/target/header"
)

// compile makes a bundle of a deployment whose model is below testdata.
func compile(t *testing.T, text, buckets string) *recipes.Bundle {
	t.Helper()
	models, err := filepath.Abs("../../testdata")
	require.NoError(t, err)
	return compileIn(t, t.TempDir(), "model: "+models+"/"+text, buckets)
}

// compileIn makes a bundle of a deployment in a folder.
func compileIn(t *testing.T, dir, text, buckets string) *recipes.Bundle {
	t.Helper()
	if buckets != "" {
		text += "buckets: {strategy: file, path: buckets.txt}\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "buckets.txt"), []byte(buckets), 0o666))
	}
	path := filepath.Join(dir, "deploy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	d, err := lower.ReadDeployment(path)
	require.NoError(t, err)
	b, _, err := lower.Compile(t.Context(), d, nil)
	require.NoError(t, err)
	return b
}

func builtIn(t *testing.T) *target.Profile {
	t.Helper()
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	return p
}

// standIn is the built-in profile with the made-up layout of experts' parameters.
func standIn(t *testing.T) *target.Profile {
	t.Helper()
	p := builtIn(t)
	text, err := os.ReadFile("testdata/standin.h")
	require.NoError(t, err)
	h, err := header.Parse("standin.h", text, nil)
	require.NoError(t, err)
	m, err := h.Merge(p, "standin.h", false)
	require.NoError(t, err)
	require.Equal(t, []string{"ns_MoeKernel::ParamsV2"}, m.Added)
	return p
}

// everything lists all recipes of a bundle.
func everything(b *recipes.Bundle) *Listing {
	l := &Listing{Name: "all"}
	for h, r := range b.Recipes {
		l.Entries = append(l.Entries, Entry{Hash: h, Recipe: r})
	}
	slices.SortFunc(l.Entries, func(x, y Entry) int { return bytes.Compare(x.Hash[:], y.Hash[:]) })
	return l
}

const nano = "tensor_parallel: 2\nmax_model_len: 256\nmax_num_seqs: 4\nblock_size: 16\nmax_batched_tokens: 64\nprecision: both\n"

// few are a bucket of each family, where not all are compiled.
const few = "prefill q=64 c=0,1,16\ndecode b=1 n=1,16\ndecode b=4 n=4,64\n"

// Every recipe, written as a graph, is read as that recipe by a decoder that has nothing
// of what wrote it: shapes, sections, offsets, operands with absent ones, order, and
// every byte of parameters.
func TestGraphsAreTheRecipes(t *testing.T) {
	const small = "configs/inkling-small\ntensor_parallel: 8\nmax_model_len: 4096\nmax_num_seqs: 2\nkv_blocks: 64\nmax_batched_tokens: 512\n"
	const smallBuckets = "prefill q=512 c=0,8,32\ndecode b=1 n=2,32\ndecode b=2 n=2,64\n"
	seen := map[string]bool{} // structures
	for _, c := range []struct{ name, text, buckets string }{
		{"small", "nano-small\n" + nano, ""},
		{"dense", "nano-dense\n" + nano, ""},
		{"big", "nano-big\n" + strings.Replace(nano, "parallel: 2", "parallel: 4", 1), ""},
		{"gathered", "nano-small\n" + nano + "moe: gather\n", ""},
		{"experts apart", "nano-small\n" + nano + "moe: fused\nmoe_experts_per_node: 3\n", few},
		{"plain", "nano-small\n" + nano + "attention: plain\n", few},
		{"plain gathered", "nano-big\n" + nano + "attention: plain\nmoe: gather\n", few},
		{"masked", "nano-small\n" + nano + "attention: masked\n", few},
		{"exact", "nano-small\n" + nano + "far: exact\nsub_block_rows: 32\n", few},
		{"masked gathered", "nano-small\n" + nano + "attention: masked\nmoe: gather\n", few},
		{"tiled", "nano-small\n" + nano + "far: tiled\n", few},
		{"tiled gathered", "nano-small\n" + nano + "far: tiled\nmoe: gather\n", few},
		{"one rank", "nano-big\n" + strings.Replace(nano, "parallel: 2", "parallel: 1", 1), few},
		{"inkling-small", small, smallBuckets},
		{"inkling-small gathered exact", small + "moe: gather\nfar: exact\n", smallBuckets},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := compile(t, c.text, c.buckets)
			l := everything(b)
			text, err := l.JSON(standIn(t))
			require.NoError(t, err)
			read, err := decodeGraphs(text, readABI(t, "abi.json", "standin.json"))
			require.NoError(t, err)
			require.Len(t, read, len(l.Entries))
			nodes, absent, after, shared := 0, 0, 0, 0
			for i, r := range read {
				want := l.Entries[i].Recipe
				require.True(t, bytes.Equal(inFormat(want), inFormat(r)), "%s is read as another recipe", l.Entries[i].ID())
				checkRules(t, want)
				nodes += len(want.Nodes)
				for j := range want.Nodes {
					n := &want.Nodes[j]
					after += len(n.After)
					if slices.Contains(n.In, recipes.Absent) {
						absent++
					}
					if n.Params != nil {
						seen[n.Params.Struct] = true
					}
				}
				for j := range want.Tensors {
					if x := &want.Tensors[j]; x.Section != recipes.Workspace && x.Offset > 0 {
						shared++
					}
				}
			}
			again, err := l.JSON(standIn(t))
			require.NoError(t, err)
			require.True(t, bytes.Equal(text, again))
			t.Logf("%d recipes, %d nodes, %d bytes; %d nodes with absent operands, %d edges of order, %d tensors at offsets", len(read), nodes, len(text), absent, after, shared)
			require.Positive(t, shared)
		})
	}
	for _, s := range readABI(t, "abi.json", "standin.json").Structs {
		require.True(t, seen[s.Name], "no recipe has %s", s.Name)
	}
}

// Without the layout of experts' parameters no graph of them is written, and the error
// says which recipe, node, structure and header, and what to do.
func TestMissingLayoutIsRefused(t *testing.T) {
	b := compile(t, "nano-small\n"+nano, few)
	refused := 0
	for _, e := range everything(b).Entries {
		l := &Listing{Name: "one", Entries: []Entry{e}}
		text, err := l.JSON(builtIn(t))
		at := slices.IndexFunc(e.Recipe.Nodes, func(n recipes.Node) bool { return strings.HasPrefix(n.GUID, "moe_") })
		if at < 0 {
			require.NoError(t, err)
			continue
		}
		refused++
		require.Nil(t, text)
		require.ErrorAs(t, err, new(*target.MissingError))
		for _, part := range []string{e.ID(), e.Recipe.Name, e.Recipe.Nodes[at].Name, e.Recipe.Nodes[at].GUID, "ns_MoeKernel::ParamsV2", "quill target import perf_lib_layer_params.h"} {
			require.ErrorContains(t, err, part)
		}
	}
	require.Positive(t, refused)
	text, err := everything(b).JSON(builtIn(t))
	require.Nil(t, text)
	require.Error(t, err)
}

// sample is some recipes with all structures that recipes have.
func sample(t *testing.T) *Listing {
	t.Helper()
	l := &Listing{Name: "sample"}
	for _, form := range []string{"", "moe: gather\nattention: plain\n"} {
		for _, e := range everything(compile(t, "nano-small\n"+nano+form, few)).Entries {
			if len(e.Recipe.Nodes) < 60 {
				l.Entries = append(l.Entries, e)
			}
		}
	}
	return l
}

// Whatever is changed in a graph, the decoder reads another recipe or refuses it.
func TestChangedGraphsDiffer(t *testing.T) {
	layouts := readABI(t, "abi.json", "standin.json")
	rng := rand.New(rand.NewPCG(11, 12))
	made := map[string]int{}
	for _, e := range sample(t).Entries {
		text, err := (&Listing{Name: "one", Entries: []Entry{e}}).JSON(standIn(t))
		require.NoError(t, err)
		want := inFormat(e.Recipe)
		// reads says whether the decoder reads the recipe from a changed graph.
		reads := func(change func(*rand.Rand, *docGraph) bool) (same, changed bool) {
			var f docFile
			require.NoError(t, strict(text, &f))
			if !change(rng, &f.Graphs[0]) {
				return false, false
			}
			again, err := json.Marshal(&f)
			require.NoError(t, err)
			read, err := decodeGraphs(again, layouts)
			return err == nil && bytes.Equal(want, inFormat(read[0])), true
		}
		same, _ := reads(func(*rand.Rand, *docGraph) bool { return true })
		require.True(t, same, "what is not changed")
		for _, m := range mutations {
			for range 2 {
				same, changed := reads(m.change)
				require.False(t, same, "%s: %s is not noticed", e.ID(), m.name)
				if changed {
					made[m.name]++
				}
			}
		}
	}
	t.Logf("%v", made)
	for _, m := range mutations {
		require.GreaterOrEqual(t, made[m.name], 15, m.name)
	}
}

// mutations change a graph, if they can.
var mutations = []struct {
	name   string
	change func(rng *rand.Rand, g *docGraph) bool
}{
	{"a bit of parameters", func(rng *rand.Rand, g *docGraph) bool {
		n := &g.Nodes[rng.IntN(len(g.Nodes))]
		if len(n.Params) == 0 {
			return false
		}
		i := rng.IntN(len(n.Params))
		n.Params[i] = int(int8(n.Params[i]) ^ 1<<rng.IntN(8))
		return true
	}},
	{"a byte less of parameters", func(rng *rand.Rand, g *docGraph) bool {
		n := &g.Nodes[rng.IntN(len(g.Nodes))]
		if len(n.Params) == 0 {
			return false
		}
		n.Params = n.Params[1:]
		return true
	}},
	{"a dim", func(rng *rand.Rand, g *docGraph) bool {
		x := &g.Tensors[rng.IntN(len(g.Tensors))]
		i := rng.IntN(len(x.Max))
		x.Max[i]++
		x.Min[i]++
		return true
	}},
	{"a smallest dim", func(rng *rand.Rand, g *docGraph) bool {
		x := &g.Tensors[rng.IntN(len(g.Tensors))]
		x.Min[rng.IntN(len(x.Min))]--
		return true
	}},
	{"the order of dims", func(rng *rand.Rand, g *docGraph) bool {
		x := &g.Tensors[rng.IntN(len(g.Tensors))]
		old := slices.Clone(x.Max)
		slices.Reverse(x.Max)
		slices.Reverse(x.Min)
		return !slices.Equal(old, x.Max)
	}},
	{"an offset", func(rng *rand.Rand, g *docGraph) bool {
		x := &g.Tensors[rng.IntN(len(g.Tensors))]
		if x.Offset == nil {
			return false
		}
		*x.Offset += 128
		return true
	}},
	{"a section", func(rng *rand.Rand, g *docGraph) bool {
		x := &g.Tensors[rng.IntN(len(g.Tensors))]
		if x.Section == nil {
			return false
		}
		x.Section[0]++
		return true
	}},
	{"no section", func(rng *rand.Rand, g *docGraph) bool {
		x := &g.Tensors[rng.IntN(len(g.Tensors))]
		if x.Section == nil {
			return false
		}
		*x.Persistent, x.Section, x.Offset = false, nil, nil
		return true
	}},
	{"an element type", func(rng *rand.Rand, g *docGraph) bool {
		x := &g.Tensors[rng.IntN(len(g.Tensors))]
		x.DType = map[string]string{"bf16": "float32", "float32": "int32", "int32": "float32", "int8": "uint8"}[x.DType]
		return true
	}},
	{"a name of a tensor", func(rng *rand.Rand, g *docGraph) bool {
		g.Tensors[rng.IntN(len(g.Tensors))].Name += "x"
		return true
	}},
	{"an operand", func(rng *rand.Rand, g *docGraph) bool {
		n := &g.Nodes[rng.IntN(len(g.Nodes))]
		name := g.Tensors[rng.IntN(len(g.Tensors))].Name
		if len(n.In) == 0 {
			return false
		}
		i := rng.IntN(len(n.In))
		old := n.In[i]
		n.In[i] = name
		return name != old
	}},
	{"an absent operand", func(rng *rand.Rand, g *docGraph) bool {
		n := &g.Nodes[rng.IntN(len(g.Nodes))]
		if len(n.In) == 0 {
			return false
		}
		i := rng.IntN(len(n.In))
		old := n.In[i]
		n.In[i] = ""
		return old != ""
	}},
	{"the order of operands", func(rng *rand.Rand, g *docGraph) bool {
		n := &g.Nodes[rng.IntN(len(g.Nodes))]
		if len(n.In) < 2 || n.In[0] == n.In[1] {
			return false
		}
		n.In[0], n.In[1] = n.In[1], n.In[0]
		return true
	}},
	{"a result", func(rng *rand.Rand, g *docGraph) bool {
		n := &g.Nodes[rng.IntN(len(g.Nodes))]
		name := g.Tensors[rng.IntN(len(g.Tensors))].Name
		old := n.Out[0]
		n.Out[0] = name
		return name != old
	}},
	{"an edge of order more", func(rng *rand.Rand, g *docGraph) bool {
		if len(g.Nodes) < 2 {
			return false
		}
		i := 1 + rng.IntN(len(g.Nodes)-1)
		g.Nodes[i].Blocking = append(g.Nodes[i].Blocking, g.Nodes[rng.IntN(i)].Name)
		return true
	}},
	{"an edge of order less", func(_ *rand.Rand, g *docGraph) bool {
		for i := range g.Nodes {
			if len(g.Nodes[i].Blocking) > 0 {
				g.Nodes[i].Blocking = g.Nodes[i].Blocking[1:]
				return true
			}
		}
		return false
	}},
	{"the order of nodes", func(rng *rand.Rand, g *docGraph) bool {
		if len(g.Nodes) < 2 {
			return false
		}
		i := rng.IntN(len(g.Nodes) - 1)
		g.Nodes[i], g.Nodes[i+1] = g.Nodes[i+1], g.Nodes[i]
		return true
	}},
	{"a GUID", func(rng *rand.Rand, g *docGraph) bool {
		n := &g.Nodes[rng.IntN(len(g.Nodes))]
		old := n.GUID
		n.GUID = g.Nodes[rng.IntN(len(g.Nodes))].GUID
		return n.GUID != old
	}},
}

var (
	nodeLine = regexp.MustCompile(`^ +(\d+) ([ ~]) (\S+) +(.*?)  ?<- (.*)$`)
	inText   = regexp.MustCompile(`^(\S+):(\w+)\{([\d,]*)\}@([\w.]+)\+0x([0-9a-f]+)(?:\[(\d+)-(\d+)\])?$`)
)

// The text has a line for each node, with its operands in order; dims and places are
// those of the recipe, and lifetimes reach from the first line of a tensor to the last.
func TestTextSaysWhatRecipesSay(t *testing.T) {
	lives := 0
	for _, e := range sample(t).Entries {
		l := &Listing{Name: "one", Entries: []Entry{e}}
		first, last := map[string]int{}, map[string]int{} // lines of workspace tensors
		said := map[string][2]string{}
		next := 0
		for line := range strings.Lines(string(l.Text())) {
			m := nodeLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if m == nil {
				continue
			}
			require.Equal(t, fmt.Sprint(next), m[1])
			n := &e.Recipe.Nodes[next]
			require.Equal(t, n.GUID, m[3])
			require.Equal(t, n.Computes(), m[2] == " ")
			outs, ins := strings.Fields(m[4]), strings.Fields(strings.Split(m[5], "  ")[0])
			if strings.Contains(line, "…") {
				next++
				continue // experts' matrices in short
			}
			for _, side := range []struct {
				list  []int
				words []string
			}{{n.Out, outs}, {n.In, ins}} {
				if len(side.list) == 0 {
					require.Equal(t, []string{"–"}, side.words)
					continue
				}
				require.Len(t, side.words, len(side.list), line)
				for i, x := range side.list {
					if x == recipes.Absent {
						require.Equal(t, "–", side.words[i])
						continue
					}
					tensor := &e.Recipe.Tensors[x]
					p := inText.FindStringSubmatch(side.words[i])
					require.NotNil(t, p, side.words[i])
					require.Equal(t, []string{tensor.Name, tensor.DType.String(), numbers(tensor.Dims)}, p[1:4])
					if tensor.Section != recipes.Workspace {
						require.Equal(t, []string{e.Recipe.Sections[tensor.Section].Name, fmt.Sprintf("%x", tensor.Offset), "", ""}, p[4:8])
						continue
					}
					if _, ok := first[tensor.Name]; !ok {
						first[tensor.Name] = next
					}
					last[tensor.Name] = next
					said[tensor.Name] = [2]string{p[6], p[7]}
				}
			}
			next++
		}
		require.Equal(t, len(e.Recipe.Nodes), next)
		if slices.ContainsFunc(e.Recipe.Nodes, func(n recipes.Node) bool { return strings.HasPrefix(n.GUID, "moe_") }) {
			continue // a line was left out
		}
		for name, life := range said {
			lives++
			require.Equal(t, [2]string{fmt.Sprint(first[name]), fmt.Sprint(last[name])}, life, name)
		}
	}
	require.Greater(t, lives, 100)
}
