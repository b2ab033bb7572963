package dump

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"quill/recipes"
)

// legend says how to read a node.
const legend = `a node: number, ~ if it only says where something is, GUID, results <- operands, (parameters), nodes that finish first; op of the model
an operand: name:type{dims, fastest first}@section+byte, in the workspace (ws) [first-last node]; – is absent`

// Text writes a listing as lines: the steps of the plan, if there is one, then recipe by
// recipe its sections and its nodes in order.
func (l *Listing) Text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %s\n%s\n", l.Name, l.summary(), legend)
	if l.Plan != nil {
		l.steps(&b)
	}
	for i := range l.Entries {
		b.WriteByte('\n')
		newListed(&l.Entries[i]).write(&b)
	}
	l.totals(&b)
	return b.Bytes()
}

// plural spells a number with its noun.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func (l *Listing) summary() string {
	if l.Plan == nil {
		return plural(len(l.Entries), "recipe", "recipes")
	}
	launches, collectives := 0, 0
	for i := range l.Plan.Steps {
		if l.Plan.Steps[i].Launch != nil {
			launches++
		} else {
			collectives++
		}
	}
	return fmt.Sprintf("family %s, %s of %s, %s, %d bytes of arena, the last %d of them for values of several layers",
		l.Plan.Family, plural(launches, "launch", "launches"), plural(len(l.Entries), "recipe", "recipes"), plural(collectives, "collective", "collectives"),
		l.Plan.ArenaBytes, l.Plan.LayerBytes)
}

// table lines columns up that tabs end, each line behind a margin.
func table(b *bytes.Buffer, margin string, write func(t *tabwriter.Writer)) {
	var body bytes.Buffer
	t := tabwriter.NewWriter(&body, 0, 0, 2, ' ', 0)
	write(t)
	_ = t.Flush() // a Buffer takes everything
	for text := range bytes.Lines(body.Bytes()) {
		fmt.Fprintf(b, "%s%s\n", margin, bytes.TrimRight(text, " \n"))
	}
}

// steps writes the inputs, the steps and the outputs of the plan.
func (l *Listing) steps(b *bytes.Buffer) {
	ios := func(what string, list []recipes.IO) {
		if len(list) == 0 {
			return
		}
		fmt.Fprintf(b, "\n%s, in the arena\n", what)
		table(b, "  ", func(t *tabwriter.Writer) {
			for i := range list {
				fmt.Fprintf(t, "%s\t%s\t%#x\n", list[i].Name, shape(list[i].DType.String(), list[i].Dims), list[i].Offset)
			}
		})
	}
	ios("inputs", l.Plan.Inputs)
	b.WriteString("\nsteps, with the address of each section of the recipe\n")
	table(b, "  ", func(t *tabwriter.Writer) {
		for i := range l.Plan.Steps {
			if s := &l.Plan.Steps[i]; s.Launch != nil {
				l.launch(t, i, s.Launch)
			} else {
				c := s.Collective
				fmt.Fprintf(t, "%d\t%s\t%s\tarena+%#x <- arena+%#x %d %s\n", i, c.Kind, label(c.Label), c.Out, c.In, c.Count, c.DType)
			}
		}
	})
	ios("outputs", l.Plan.Outputs)
}

func label(text string) string {
	if text == "" {
		return "–"
	}
	return text
}

func (l *Listing) launch(t *tabwriter.Writer, step int, launch *recipes.Launch) {
	e := l.entry(launch.Recipe)
	parts := make([]string, len(launch.Bindings))
	for i, at := range launch.Bindings {
		parts[i] = fmt.Sprintf("%s=%s+%#x", e.Recipe.Sections[i].Name, at.Buffer, at.Offset)
	}
	why := ""
	if launch.Break != "" {
		why = "  ; " + launch.Break
	}
	fmt.Fprintf(t, "%d\t%s\t%s\t%s%s\n", step, e.ID(), label(launch.Label), strings.Join(parts, " "), why)
}

// listed is a recipe with what is written of it.
type listed struct {
	*Entry
	place *recipes.Placement
}

func newListed(e *Entry) *listed { return &listed{e, e.Recipe.PlaceWorkspace()} }

func (l *listed) write(b *bytes.Buffer) {
	r := l.Recipe
	fmt.Fprintf(b, "recipe %s\n", l.ID())
	table(b, "  ", func(t *tabwriter.Writer) {
		fmt.Fprintf(t, "hash\t%s\n", l.Hash)
		for i, line := range usesText(l.Uses) {
			name := "launched"
			if i > 0 {
				name = ""
			}
			fmt.Fprintf(t, "%s\t%s\n", name, line)
		}
		compute := l.computing()
		fmt.Fprintf(t, "nodes\t%d, %d compute or copy, %d (~) do not\n", len(r.Nodes), compute, len(r.Nodes)-compute)
		stored, inside, untouched := l.counts()
		fmt.Fprintf(t, "tensors\t%d: %d in sections, %d in the workspace, %d that no node touches\n", len(r.Tensors), stored, inside, untouched)
		fmt.Fprintf(t, "workspace\t%d bytes, as liveness places it\n", l.place.Bytes)
	})
	b.WriteString("\n")
	table(b, "  ", func(t *tabwriter.Writer) {
		fmt.Fprintln(t, "SECTION\tNAME\tBUFFER\tBYTES\tBOUND AT")
		for i := range r.Sections {
			s := &r.Sections[i]
			fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\n", i, s.Name, s.Buffer, s.Size, boundAt(l.Uses, i))
		}
	})
	b.WriteString("\n")
	l.nodes(b)
	b.WriteString("\n")
	l.kinds(b)
}

// mostShown is how many launches or addresses are listed where there may be many.
const mostShown = 8

// shorten lists the first of many.
func shorten(list []string) string {
	if n := len(list); n > mostShown {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:mostShown], ", "), n-mostShown)
	}
	return strings.Join(list, ", ")
}

// usesText says, a line a plan, where a recipe is launched.
func usesText(uses []Use) []string {
	if len(uses) == 0 {
		return []string{"nowhere"}
	}
	var lines []string
	for i := 0; i < len(uses); {
		var steps []string
		first := i
		for ; i < len(uses) && uses[i].Plan == uses[first].Plan; i++ {
			steps = append(steps, fmt.Sprintf("%d (%s)", uses[i].Step, label(uses[i].Launch().Label)))
		}
		word := "steps"
		if len(steps) == 1 {
			word = "step"
		}
		lines = append(lines, fmt.Sprintf("in %s, %s %s", uses[first].where(), word, shorten(steps)))
	}
	return lines
}

// boundAt are the addresses of a section, each once.
func boundAt(uses []Use, section int) string {
	var list []string
	for i := range uses {
		if at := fmt.Sprintf("%#x", uses[i].Launch().Bindings[section].Offset); !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	return label(shorten(list))
}

func (l *listed) computing() int {
	n := 0
	for i := range l.Recipe.Nodes {
		if l.Recipe.Nodes[i].Computes() {
			n++
		}
	}
	return n
}

func (l *listed) counts() (stored, inside, untouched int) {
	for i := range l.Recipe.Tensors {
		switch {
		case l.place.Life[i].First < 0:
			untouched++
		case l.Recipe.Tensors[i].Section == recipes.Workspace:
			inside++
		default:
			stored++
		}
	}
	return stored, inside, untouched
}

func (l *listed) nodes(b *bytes.Buffer) {
	r := l.Recipe
	wide := 0
	for i := range r.Nodes {
		wide = max(wide, len(r.Nodes[i].GUID))
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		mark := " "
		if !n.Computes() {
			mark = "~"
		}
		fmt.Fprintf(b, "  %5d %s %-*s  %s <- %s", i, mark, wide, n.GUID, l.operands(n.Out), l.operands(n.In))
		if n.Params != nil {
			fmt.Fprintf(b, "  (%s)", paramsText(n.Params))
		}
		if len(n.After) > 0 {
			fmt.Fprintf(b, "  after %s", numbers(n.After))
		}
		if n.Origin != "" {
			fmt.Fprintf(b, "  ; %s", n.Origin)
		}
		b.WriteByte('\n')
	}
}

func numbers[T int | int64](list []T) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = strconv.FormatInt(int64(v), 10)
	}
	return strings.Join(parts, ",")
}

func shape(dtype string, dims []int64) string { return dtype + "{" + numbers(dims) + "}" }

// operands lists tensors; – is an absent one, and many alike at equal distances are one.
func (l *listed) operands(list []int) string {
	var parts []string
	for _, run := range runs(l.Recipe, list) {
		if run.first == recipes.Absent {
			parts = append(parts, "–")
			continue
		}
		t := &l.Recipe.Tensors[run.first]
		text := fmt.Sprintf("%s:%s@%s", t.Name, shape(t.DType.String(), t.Dims), l.address(run.first))
		if run.n > 1 {
			text = fmt.Sprintf("%s…%s:%d×%s@%s by %#x", t.Name, l.Recipe.Tensors[run.last].Name, run.n, shape(t.DType.String(), t.Dims), l.address(run.first), run.step)
		}
		parts = append(parts, text)
	}
	return label(strings.Join(parts, " "))
}

// address is where a tensor begins and, in the workspace, how long it lives.
func (l *listed) address(t int) string {
	owner, at := l.place.Owner[t], l.place.At[t]
	o := &l.Recipe.Tensors[owner]
	life := ""
	if l.Recipe.Tensors[t].Section == recipes.Workspace {
		life = fmt.Sprintf("[%d-%d]", l.place.Life[t].First, l.place.Life[t].Last)
	}
	if o.Section != recipes.Workspace {
		return fmt.Sprintf("%s+%#x%s", l.Recipe.Sections[o.Section].Name, o.Offset+at, life)
	}
	return fmt.Sprintf("ws+%#x%s", l.place.Offset[t], life)
}

// run is tensors of one section, type and shape at equal distances: the matrices of the
// experts, of which a node may have hundreds.
type run struct {
	first, last, n int
	step           int64 // bytes
}

// leastRun is how many such tensors are written as one.
const leastRun = 4

func runs(r *recipes.Recipe, list []int) []run {
	var all []run
	for i := 0; i < len(list); {
		one := run{first: list[i], last: list[i], n: 1}
		for ; i+one.n < len(list); one.n++ {
			next := list[i+one.n]
			if next == recipes.Absent || one.first == recipes.Absent || !alike(&r.Tensors[one.first], &r.Tensors[next]) {
				break
			}
			step := r.Tensors[next].Offset - r.Tensors[one.last].Offset
			if one.n > 1 && step != one.step {
				break
			}
			one.last, one.step = next, step
		}
		if one.n < leastRun {
			one = run{first: list[i], last: list[i], n: 1}
		}
		i += one.n
		all = append(all, one)
	}
	return all
}

func alike(a, b *recipes.Tensor) bool {
	return a.Section != recipes.Workspace && a.Section == b.Section && a.DType == b.DType && slices.Equal(a.Dims, b.Dims)
}

func paramsText(p *recipes.Params) string {
	parts := make([]string, len(p.Fields))
	for i := range p.Fields {
		f := &p.Fields[i]
		v := f.Sym
		switch {
		case f.Type == recipes.F32:
			v = strconv.FormatFloat(float64(f.Float), 'g', -1, 32)
		case f.Type == recipes.Enum:
		case len(f.Ints) == 1:
			v = strconv.FormatInt(f.Ints[0], 10)
		default:
			v = "[" + numbers(f.Ints) + "]"
		}
		parts[i] = f.Name + "=" + v
	}
	return strings.Join(parts, " ")
}

// kinds counts the nodes of a recipe by GUID, the most first.
func (l *listed) kinds(b *bytes.Buffer) {
	compute, other := map[string]int{}, map[string]int{}
	for i := range l.Recipe.Nodes {
		if n := &l.Recipe.Nodes[i]; n.Computes() {
			compute[n.GUID]++
		} else {
			other[n.GUID]++
		}
	}
	fmt.Fprintf(b, "  in all    %s\n", label(countText(compute)))
	fmt.Fprintf(b, "          ~ %s\n", label(countText(other)))
}

func countText(count map[string]int) string {
	names := slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", count[name], name)
	}
	return strings.Join(names, ", ")
}

// totals adds up what the launches execute.
func (l *Listing) totals(b *bytes.Buffer) {
	if l.Plan == nil {
		return
	}
	nodes, compute, workspace := 0, 0, int64(0)
	for i := range l.Entries {
		e := newListed(&l.Entries[i])
		nodes += len(e.Uses) * len(e.Recipe.Nodes)
		compute += len(e.Uses) * e.computing()
		workspace = max(workspace, e.place.Bytes)
	}
	fmt.Fprintf(b, "\nin all a step has %s, %d of which compute or copy; the largest workspace has %d bytes\n", plural(nodes, "node", "nodes"), compute, workspace)
}
