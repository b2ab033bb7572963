package dump

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"quill/recipes"
)

// colours of nodes by kind, by how their GUIDs begin; what is not listed computes
// element by element.
var colours = []struct{ colour, kind, guids string }{
	{"#f4b6a6", "products", "gemm batch_gemm sdpa_recomp_fwd moe"},
	{"#f7e3a1", "reductions, norms and choices", "reduce_ softmax_fwd rms_norm_fwd topk"},
	{"#b9d9f2", "moves", "transpose broadcast concat gather index_copy cast_ constant range"},
	{"#eeeeee", "only says where something is", ""},
	{"#c9e7c1", "element by element", ""},
}

func colourOf(n *recipes.Node) string {
	if !n.Computes() {
		return colours[3].colour
	}
	for _, c := range colours[:3] {
		if slices.ContainsFunc(strings.Fields(c.guids), func(p string) bool { return strings.HasPrefix(n.GUID, p) }) {
			return c.colour
		}
	}
	return colours[4].colour
}

// Dot writes a listing for Graphviz: a cluster a recipe, with sections as cylinders,
// nodes by kind, an edge for each tensor, and dashed ones for order alone. The steps of a
// plan are a cluster of their own.
func (l *Listing) Dot() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "digraph %s {\n", quote(l.Name))
	b.WriteString("graph [fontname=Helvetica];\nnode [fontname=Helvetica, shape=box, style=filled, fillcolor=white];\nedge [fontname=Helvetica, fontsize=9];\n")
	for _, c := range colours {
		fmt.Fprintf(&b, "// %s: %s\n", c.colour, c.kind)
	}
	if l.Plan != nil {
		l.dotSteps(&b)
	}
	for i := range l.Entries {
		newListed(&l.Entries[i]).dot(&b, i)
	}
	b.WriteString("}\n")
	return b.Bytes()
}

// quote makes a string of the dot language; lines are parted by \n as they are there.
func quote(lines ...string) string {
	text := strings.Join(lines, "\n")
	text = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(text)
	return `"` + text + `"`
}

func (l *Listing) dotSteps(b *bytes.Buffer) {
	fmt.Fprintf(b, "subgraph cluster_steps {\nlabel=%s;\n", quote("steps"))
	for i := range l.Plan.Steps {
		if s := &l.Plan.Steps[i]; s.Launch != nil {
			e := l.entry(s.Launch.Recipe)
			fmt.Fprintf(b, "s%d [label=%s];\n", i, quote(fmt.Sprintf("%d %s", i, s.Launch.Label), e.ID()))
		} else {
			c := s.Collective
			fmt.Fprintf(b, "s%d [shape=ellipse, label=%s];\n", i, quote(fmt.Sprintf("%d %s", i, c.Label), fmt.Sprintf("%s %d %s", c.Kind, c.Count, c.DType)))
		}
		if i > 0 {
			fmt.Fprintf(b, "s%d -> s%d;\n", i-1, i)
		}
	}
	b.WriteString("}\n")
}

// dot writes a recipe, the index-th of the listing.
func (l *listed) dot(b *bytes.Buffer, index int) {
	r := l.Recipe
	node := func(i int) string { return fmt.Sprintf("r%dn%d", index, i) }
	section := func(i int) string { return fmt.Sprintf("r%ds%d", index, i) }
	fmt.Fprintf(b, "subgraph cluster_%d {\nlabel=%s;\n", index, quote(append([]string{"recipe " + l.ID()}, usesText(l.Uses)...)...))
	for i := range r.Sections {
		s := &r.Sections[i]
		fmt.Fprintf(b, "%s [shape=cylinder, label=%s];\n", section(i), quote(s.Name, fmt.Sprintf("%s, %d bytes", s.Buffer, s.Size)))
	}
	writer := make([]int, len(r.Tensors))
	for t := range writer {
		writer[t] = -1
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		lines := []string{strconv.Itoa(i) + " " + n.GUID}
		if n.Params != nil {
			lines = append(lines, paramsText(n.Params))
		}
		if n.Origin != "" {
			lines = append(lines, n.Origin)
		}
		style := ""
		if !n.Computes() {
			style = `, style="filled,dashed"`
		}
		fmt.Fprintf(b, "%s [fillcolor=%q%s, label=%s];\n", node(i), colourOf(n), style, quote(lines...))
		for _, run := range runs(r, n.In) {
			switch t := run.first; {
			case t == recipes.Absent:
			case writer[t] >= 0:
				l.edge(b, node(writer[t]), node(i), run)
			case r.Tensors[t].Section != recipes.Workspace:
				l.edge(b, section(r.Tensors[t].Section), node(i), run)
			}
		}
		for _, t := range n.Out {
			writer[t] = i
			if s := r.Tensors[t].Section; s != recipes.Workspace {
				l.edge(b, node(i), section(s), run{first: t, last: t, n: 1})
			}
		}
		for _, a := range n.After {
			fmt.Fprintf(b, "%s -> %s [style=dashed];\n", node(a), node(i))
		}
	}
	b.WriteString("}\n")
}

func (l *listed) edge(b *bytes.Buffer, from, to string, r run) {
	t := &l.Recipe.Tensors[r.first]
	text := t.Name
	if r.n > 1 {
		text = fmt.Sprintf("%s…%s, %d of", t.Name, l.Recipe.Tensors[r.last].Name, r.n)
	}
	fmt.Fprintf(b, "%s -> %s [label=%s];\n", from, to, quote(text+" "+shape(t.DType.String(), t.Dims)))
}
