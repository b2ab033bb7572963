package dump

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// A plan is listed with each recipe once, in the order of launches, and all launches of
// it; a recipe with those of all plans.
func TestListings(t *testing.T) {
	b := compile(t, "nano-small\n"+nano, few)
	uses := map[recipes.Hash]int{}
	for i := range b.Sets {
		s := &b.Sets[i]
		for j := range s.Plans {
			p := &s.Plans[j]
			l := OfPlan(b, s, p)
			var order, want []recipes.Hash
			launches := 0
			for k := range l.Entries {
				e := &l.Entries[k]
				order = append(order, e.Hash)
				require.Same(t, b.Recipes[e.Hash], e.Recipe)
				for _, u := range e.Uses {
					require.Equal(t, e.Hash, u.Launch().Recipe)
				}
				launches += len(e.Uses)
				uses[e.Hash] += len(e.Uses)
			}
			steps := 0
			for _, step := range p.Steps {
				if step.Launch == nil {
					continue
				}
				steps++
				if !slices.Contains(want, step.Launch.Recipe) {
					want = append(want, step.Launch.Recipe)
				}
			}
			require.Equal(t, want, order)
			require.Equal(t, steps, launches)
			one := l.Only(want[0])
			require.Nil(t, one.Plan)
			require.Equal(t, l.Entries[:1], one.Entries)
			text := string(l.Text())
			for k := range l.Entries {
				require.Equal(t, 1, strings.Count(text, "\nrecipe "+l.Entries[k].ID()+"\n"))
				require.Equal(t, len(l.Entries[k].Uses), strings.Count(text, "  "+l.Entries[k].ID()+"  "), "steps that launch it")
			}
		}
	}
	both := []*recipes.Set{&b.Sets[0], &b.Sets[1]}
	for h, n := range uses {
		require.Len(t, OfRecipe(b, both, h).Entries[0].Uses, n)
	}
}

// What the format cannot say is refused.
func TestGraphsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(r *recipes.Recipe)
	}{
		{"", func(*recipes.Recipe) {}},
		{"tensors 0 and 2 are both called a", func(r *recipes.Recipe) { r.Tensors[2].Name = "a" }},
		{"tensor 1 has no name", func(r *recipes.Recipe) { r.Tensors[1].Name = "" }},
		{"nodes 0 and 1 are both called n0", func(r *recipes.Recipe) { r.Nodes[1].Name = "n0" }},
		{"node 1 has no name", func(r *recipes.Recipe) { r.Nodes[1].Name = "" }},
		{"tensor free has rank 0, want 1 to 25", func(r *recipes.Recipe) { r.Tensors[3].Dims = nil }},
		{"tensor free has rank 26, want 1 to 25", func(r *recipes.Recipe) { r.Tensors[3].Dims = make([]int64, 26) }},
		{"tensor free: the format has no name for type invalid", func(r *recipes.Recipe) { r.Tensors[3].DType = dtype.Invalid }},
		{"recipe r: node n1 (neg_fwd_bf16): operand 0, x, tensor b: want bf16, have f32", func(r *recipes.Recipe) { r.Nodes[1].GUID = "neg_fwd_bf16" }},
		{"tensor b has two producers, n0 and n1", func(r *recipes.Recipe) { r.Nodes[1].Out[0] = 1 }},
	} {
		tensor := func(name string) recipes.Tensor {
			return recipes.Tensor{Name: name, DType: dtype.F32, Dims: []int64{2}}
		}
		r := &recipes.Recipe{
			Name: "r", Sections: []recipes.Section{{Name: "s", Buffer: recipes.Arena, Size: 8}},
			Tensors: []recipes.Tensor{tensor("a"), tensor("b"), tensor("c"), tensor("free")},
			Nodes: []recipes.Node{
				{Name: "n0", GUID: "exp_fwd_f32", In: []int{0}, Out: []int{1}},
				{Name: "n1", GUID: "neg_fwd_f32", In: []int{1}, Out: []int{2}},
			},
		}
		c.spoil(r)
		text, err := (&Listing{Name: "l", Entries: []Entry{{Recipe: r}}}).JSON(builtIn(t))
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "r-000000000000: ")
		require.Nil(t, text)
	}
}

// Many tensors alike at equal distances are one in texts, and no others.
func TestRunsOfOperands(t *testing.T) {
	r := &recipes.Recipe{Name: "r", Sections: []recipes.Section{{Name: "s"}, {Name: "u"}}}
	var list []int
	add := func(section int, offset int64, dims ...int64) {
		list = append(list, len(r.Tensors))
		r.Tensors = append(r.Tensors, recipes.Tensor{Name: "x", DType: dtype.F32, Dims: dims, Section: section, Offset: offset})
	}
	for i := range int64(5) {
		add(0, 64+128*i, 2, 4)
	}
	add(0, 64+128*5, 4, 2) // other dims
	for i := range int64(4) {
		add(1, 1024-128*i, 4, 2)
	}
	for i := range int64(3) { // too few
		add(0, 8*i, 1)
	}
	list = append(list, recipes.Absent, recipes.Absent, recipes.Absent, recipes.Absent)
	for range 4 {
		add(recipes.Workspace, 0, 1)
	}
	var got [][3]int64
	for _, x := range runs(r, list) {
		got = append(got, [3]int64{int64(x.first), int64(x.n), x.step})
	}
	require.Equal(t, [][3]int64{
		{0, 5, 128},
		{5, 1, 0},
		{6, 4, -128},
		{10, 1, 0},
		{11, 1, 0},
		{12, 1, 0},
		{-1, 1, 0},
		{-1, 1, 0},
		{-1, 1, 0},
		{-1, 1, 0},
		{13, 1, 0},
		{14, 1, 0},
		{15, 1, 0},
		{16, 1, 0},
	}, got)
}

var dotLine = []*regexp.Regexp{
	regexp.MustCompile(`^(?:digraph "[^"]*" \{|subgraph cluster_\w+ \{|label="(?:[^"\\]|\\.)*";|\}|//.*|(?:graph|node|edge) \[.*\];)$`),
	regexp.MustCompile(`^(\w+) \[(?:\w+=(?:"(?:[^"\\]|\\.)*"|\w+)(?:, )?)+\];$`),
	regexp.MustCompile(`^(\w+) -> (\w+)(?: \[\w+=(?:"(?:[^"\\]|\\.)*"|\w+)\])?;$`),
}

// A picture has every node once, and edges between them; what is quoted is.
func TestDotIsWellFormed(t *testing.T) {
	b := compile(t, "nano-small\n"+nano, few)
	b.Recipes[b.Sets[0].Plans[0].Steps[0].Launch.Recipe].Nodes[0].Origin = "a \"quoted\" \\ origin"
	edges := 0
	for i := range b.Sets[0].Plans {
		p := &b.Sets[0].Plans[i]
		l := OfPlan(b, &b.Sets[0], p)
		there, nodes := map[string]bool{}, len(p.Steps)
		for k := range l.Entries {
			nodes += len(l.Entries[k].Recipe.Nodes) + len(l.Entries[k].Recipe.Sections)
		}
		text := string(l.Dot())
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if dotLine[0].MatchString(line) {
				continue
			}
			if m := dotLine[1].FindStringSubmatch(line); m != nil {
				require.False(t, there[m[1]], line)
				there[m[1]] = true
				continue
			}
			m := dotLine[2].FindStringSubmatch(line)
			require.NotNil(t, m, line)
			require.True(t, there[m[1]] && there[m[2]], line)
			edges++
		}
		require.Len(t, there, nodes)
		require.Equal(t, strings.Count(text, "{\n"), strings.Count(text, "\n}"))
	}
	require.Greater(t, edges, 1000)
}
