package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"quill/recipes"
)

func newDiff() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff A.quill B.quill",
		Short: "Show what differs between two bundles",
		Long: `Show what differs between two bundles: fields of the manifest, memory, the weights map,
buckets, plans, and recipes. Recipes that differ are those of the same launch of a
bucket that both have; they are compared by sections and nodes. Text shows the first few
of each, --json all.

The exit code is 0 if the bundles are equal, 1 if they differ, and 2 if one cannot be
read or the command is wrong, as that of diff(1). Compiling the same twice gives equal
bundles, but for native recipes, which hold the time when they were compiled.`,
		Example: examples(
			"quill diff old.quill new.quill",
			"quill diff old.quill new.quill --json | jq '.sets[].recipes[].nodes_by_guid'",
		),
		Args: twoBundles,
		RunE: func(cmd *cobra.Command, args []string) error {
			var read [2]*recipes.Bundle
			for i, path := range args {
				b, err := recipes.ReadBundle(path)
				if err != nil {
					return trouble{err}
				}
				read[i] = b
			}
			d, err := newBundleDiff(args[0], args[1], read[0], read[1])
			if err == nil && asJSON {
				err = writeJSON(cmd.OutOrStdout(), d)
			} else if err == nil {
				err = d.print(cmd.OutOrStdout())
			}
			if err != nil {
				return trouble{err}
			}
			if !d.Equal {
				return outcome(exitDiffer)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func twoBundles(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usagef("two bundles are wanted, there are %d arguments", len(args))
	}
	return nil
}

// bundleDiff is what differs between two bundles. As JSON it is for machines: fields are
// only ever added. Lists are empty where nothing differs.
type bundleDiff struct {
	A            string        `json:"a"`
	B            string        `json:"b"`
	Equal        bool          `json:"equal"`
	Manifest     []fieldChange `json:"manifest"`
	Architecture bool          `json:"architecture_differs"`
	Checkpoint   []fieldChange `json:"checkpoint"` // tensors
	// Recipes are numbers of distinct ones.
	OnlyA  int `json:"recipes_only_in_a"`
	OnlyB  int `json:"recipes_only_in_b"`
	Shared int `json:"recipes_in_both"`
	// Native is what compiled the native recipes, and how many differ.
	Native []fieldChange `json:"native"`
	Sets   []setDiff     `json:"sets"`
}

// fieldChange is a value that differs, as text; "" is none.
type fieldChange struct {
	Name string `json:"name"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// setDiff compares the sets of one precision, which one side may lack.
type setDiff struct {
	Precision string        `json:"precision"`
	In        string        `json:"in"` // "a", "b" or "both"
	Memory    []fieldChange `json:"memory"`
	Weights   []fieldChange `json:"weights"` // slots by number
	OnlyA     []string      `json:"buckets_only_in_a"`
	OnlyB     []string      `json:"buckets_only_in_b"`
	Order     bool          `json:"order_of_buckets_differs"`
	Plans     []planDiff    `json:"plans"` // of buckets that both have
	Recipes   []recipeDiff  `json:"recipes"`
}

// planDiff compares the plans of a bucket.
type planDiff struct {
	Bucket string        `json:"bucket"`
	Fields []fieldChange `json:"fields"` // numbers and lists that differ
	// Steps counts steps that differ; First is the first of them.
	Steps int    `json:"steps"`
	First string `json:"first_step"`
}

// recipeDiff compares two recipes of the same launch.
type recipeDiff struct {
	A        string        `json:"a"` // segment and hash
	B        string        `json:"b"`
	Launches int           `json:"launches"` // that have these two
	First    string        `json:"first_launch"`
	Sections []fieldChange `json:"sections"`
	Nodes    []fieldChange `json:"nodes_by_guid"` // numbers of nodes
	Changed  []fieldChange `json:"nodes"`
	// Wiring is that only names, places and operands of the same nodes differ.
	Wiring bool `json:"only_wiring"`
}

func newBundleDiff(nameA, nameB string, a, b *recipes.Bundle) (*bundleDiff, error) {
	manifest, err := manifestDiff(&a.Manifest, &b.Manifest)
	if err != nil {
		return nil, err
	}
	d := &bundleDiff{
		A: nameA, B: nameB, Equal: reflect.DeepEqual(a, b), Manifest: manifest,
		Architecture: string(a.Architecture) != string(b.Architecture),
		Checkpoint:   mapDiff(tensorTexts(a.Checkpoint), tensorTexts(b.Checkpoint)), Native: nativeDiff(a.Native, b.Native), Sets: []setDiff{},
	}
	for h := range a.Recipes {
		if b.Recipes[h] != nil {
			d.Shared++
		}
	}
	d.OnlyA, d.OnlyB = len(a.Recipes)-d.Shared, len(b.Recipes)-d.Shared
	for i := range a.Sets {
		s := &a.Sets[i]
		if t := setNamed(b, s.Info.Precision); t == nil {
			d.Sets = append(d.Sets, setDiff{Precision: s.Info.Precision, In: "a"})
		} else if s := newSetDiff(a, b, s, t); !s.empty() {
			d.Sets = append(d.Sets, s)
		}
	}
	for i := range b.Sets {
		if p := b.Sets[i].Info.Precision; setNamed(a, p) == nil {
			d.Sets = append(d.Sets, setDiff{Precision: p, In: "b"})
		}
	}
	return d, nil
}

func setNamed(b *recipes.Bundle, precision string) *recipes.Set {
	for i := range b.Sets {
		if b.Sets[i].Info.Precision == precision {
			return &b.Sets[i]
		}
	}
	return nil
}

// manifestDiff compares all of two manifests but their sets.
func manifestDiff(a, b *recipes.Manifest) ([]fieldChange, error) {
	var flat [2]map[string]string
	for i, m := range []recipes.Manifest{*a, *b} {
		var order []string
		for _, s := range m.Sets {
			order = append(order, s.Precision)
		}
		m.Sets = nil
		text, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		var v map[string]any
		dec := json.NewDecoder(strings.NewReader(string(text)))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		delete(v, "sets")
		flat[i] = map[string]string{"precisions": strings.Join(order, ", ")}
		flatten(flat[i], "", v)
	}
	return mapDiff(flat[0], flat[1]), nil
}

// flatten adds what a JSON value holds under the path to it. A text key=value in a list
// is what its key has.
func flatten(to map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			flatten(to, strings.TrimPrefix(path+"."+key, "."), value)
		}
	case []any:
		for i, value := range v {
			if key, value, ok := strings.Cut(fmt.Sprint(value), "="); ok {
				to[path+"."+key] = value
			} else {
				flatten(to, path+"."+strconv.Itoa(i), v[i])
			}
		}
	default:
		to[path] = fmt.Sprint(v)
	}
}

// mapDiff lists the keys whose values differ, sorted.
func mapDiff(a, b map[string]string) []fieldChange {
	all := maps.Clone(a)
	maps.Copy(all, b)
	list := []fieldChange{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		x, inA := a[key]
		y, inB := b[key]
		if x != y || inA != inB {
			list = append(list, fieldChange{key, x, y})
		}
	}
	return list
}

// tensorTexts has the tensors of a checkpoint by name, with their places in the list.
func tensorTexts(list []recipes.CheckpointTensor) map[string]string {
	texts := make(map[string]string, len(list))
	for i, t := range list {
		texts[t.Name] = fmt.Sprintf("%s %s of %s, tensor %d", t.DType, shapeText(t.Shape), t.Part, i)
	}
	return texts
}

func newSetDiff(a, b *recipes.Bundle, s, t *recipes.Set) setDiff {
	d := setDiff{
		Precision: s.Info.Precision, In: "both", Memory: mapDiff(memoryTexts(&s.Info), memoryTexts(&t.Info)),
		Weights: mapDiff(weightTexts(s.Weights), weightTexts(t.Weights)), OnlyA: []string{}, OnlyB: []string{}, Plans: []planDiff{},
	}
	plans := map[recipes.Bucket]*recipes.Plan{}
	for i := range t.Plans {
		plans[t.Plans[i].Bucket] = &t.Plans[i]
	}
	pairs := recipePairs{a: a, b: b, at: map[[2]recipes.Hash]int{}, list: []recipeDiff{}}
	for i := range s.Plans {
		p := &s.Plans[i]
		q := plans[p.Bucket]
		if q == nil {
			d.OnlyA = append(d.OnlyA, p.Bucket.String())
			continue
		}
		delete(plans, p.Bucket)
		if string(p.Encode()) != string(q.Encode()) {
			d.Plans = append(d.Plans, newPlanDiff(p, q))
			pairs.add(p, q)
		}
	}
	for i := range t.Plans {
		if plans[t.Plans[i].Bucket] != nil {
			d.OnlyB = append(d.OnlyB, t.Plans[i].Bucket.String())
		}
	}
	d.Order = len(d.OnlyA)+len(d.OnlyB) == 0 && !slices.Equal(s.Info.Plans, t.Info.Plans)
	d.Recipes = pairs.list
	return d
}

// empty reports whether nothing differs.
func (d *setDiff) empty() bool {
	return d.In == "both" && len(d.Memory)+len(d.Weights)+len(d.OnlyA)+len(d.OnlyB)+len(d.Plans)+len(d.Recipes) == 0 && !d.Order
}

func memoryTexts(s *recipes.SetInfo) map[string]string {
	texts := map[string]string{"workspace": strconv.FormatInt(s.WorkspaceBytes, 10)}
	for b, n := range s.Bytes {
		texts[string(b)] = strconv.FormatInt(n, 10)
	}
	return texts
}

// weightTexts has what fills the slots of a weights map, by number.
func weightTexts(ws []recipes.Weight) map[string]string {
	texts := make(map[string]string, len(ws))
	for i := range ws {
		w := &ws[i]
		what := w.Tensor
		if what == "" {
			what = fmt.Sprintf("constant %v + rank * %v", w.Fill, w.Step)
		}
		text := fmt.Sprintf("%s %v %s at byte %d, axis %d in %d", what, w.DType, shapeText(w.Shape), w.Offset, w.Axis, w.Ways)
		if len(w.Reshape)+len(w.Perm) > 0 {
			text += fmt.Sprintf(", as %s in order %v", shapeText(w.Reshape), w.Perm)
		}
		if len(w.Rows) > 0 {
			text += fmt.Sprintf(", rows %v", w.Rows)
		}
		if w.Times != 0 {
			text += fmt.Sprintf(", times %v", w.Times)
		}
		if w.Plus != 0 {
			text += fmt.Sprintf(", plus %v", w.Plus)
		}
		if w.Part > 0 {
			text += fmt.Sprintf(", part %d", w.Part)
		}
		texts[fmt.Sprintf("slot %06d", i)] = text
	}
	return texts
}

func newPlanDiff(p, q *recipes.Plan) planDiff {
	d := planDiff{Bucket: p.Bucket.String(), Fields: mapDiff(planTexts(p), planTexts(q))}
	for i := range max(len(p.Steps), len(q.Steps)) {
		a, b := stepText(p, i), stepText(q, i)
		if a == b {
			continue
		}
		if d.Steps++; d.Steps == 1 {
			d.First = fmt.Sprintf("step %d: %s / %s", i, a, b)
		}
	}
	return d
}

// planTexts has all of a plan but its steps.
func planTexts(p *recipes.Plan) map[string]string {
	launches := 0
	for i := range p.Steps {
		if p.Steps[i].Launch != nil {
			launches++
		}
	}
	texts := map[string]string{
		"family": p.Family, "arena": strconv.FormatInt(p.ArenaBytes, 10), "arena of layers": strconv.FormatInt(p.LayerBytes, 10),
		"workspace": strconv.FormatInt(p.WorkspaceBytes, 10), "launches": strconv.Itoa(launches), "collectives": strconv.Itoa(len(p.Steps) - launches),
	}
	for kind, list := range map[string][]recipes.IO{"input": p.Inputs, "output": p.Outputs} {
		for i, io := range list {
			texts[kind+" "+io.Name] = fmt.Sprintf("number %d, %v %s at byte %d", i, io.DType, shapeText(io.Dims), io.Offset)
		}
	}
	return texts
}

// stepText says all of a step, "none" where there is none.
func stepText(p *recipes.Plan, i int) string {
	if i >= len(p.Steps) {
		return "none"
	}
	if l := p.Steps[i].Launch; l != nil {
		return fmt.Sprintf("launch %q of %.12s at %v, break %q", l.Label, l.Recipe, l.Bindings, l.Break)
	}
	return fmt.Sprintf("%+v", *p.Steps[i].Collective)
}

// recipePairs are the recipes that differ between the same launches.
type recipePairs struct {
	a, b *recipes.Bundle
	at   map[[2]recipes.Hash]int // in the list
	list []recipeDiff
}

// add compares the launches of two plans. Launches of one label are the same, the first
// with the first and so on.
func (r *recipePairs) add(p, q *recipes.Plan) {
	other := map[string][]*recipes.Launch{}
	for i := range q.Steps {
		if l := q.Steps[i].Launch; l != nil {
			other[l.Label] = append(other[l.Label], l)
		}
	}
	for i := range p.Steps {
		l := p.Steps[i].Launch
		if l == nil || len(other[l.Label]) == 0 {
			continue
		}
		m := other[l.Label][0]
		other[l.Label] = other[l.Label][1:]
		if l.Recipe == m.Recipe {
			continue
		}
		key := [2]recipes.Hash{l.Recipe, m.Recipe}
		n, ok := r.at[key]
		if !ok {
			n = len(r.list)
			r.at[key] = n
			d := newRecipeDiff(r.a.Recipes[l.Recipe], r.b.Recipes[m.Recipe])
			d.A, d.B = recipeID(r.a, l.Recipe), recipeID(r.b, m.Recipe)
			d.First = fmt.Sprintf("%s, step %d (%s)", p.Bucket, i, l.Label)
			r.list = append(r.list, d)
		}
		r.list[n].Launches++
	}
}

func recipeID(b *recipes.Bundle, h recipes.Hash) string {
	return fmt.Sprintf("%s-%.12s", b.Recipes[h].Name, h)
}

func newRecipeDiff(a, b *recipes.Recipe) recipeDiff {
	d := recipeDiff{Sections: mapDiff(sectionTexts(a), sectionTexts(b)), Nodes: mapDiff(guidCounts(a), guidCounts(b)), Changed: nodeDiff(a, b)}
	d.Wiring = len(d.Sections)+len(d.Nodes)+len(d.Changed) == 0
	return d
}

func sectionTexts(r *recipes.Recipe) map[string]string {
	texts := map[string]string{}
	for i, s := range r.Sections {
		texts[fmt.Sprintf("section %03d %s", i, s.Name)] = fmt.Sprintf("%d bytes of %s", s.Size, s.Buffer)
	}
	return texts
}

func guidCounts(r *recipes.Recipe) map[string]string {
	n := map[string]int{}
	for i := range r.Nodes {
		n[r.Nodes[i].GUID]++
	}
	texts := map[string]string{}
	for guid, count := range n {
		texts[guid] = strconv.Itoa(count)
	}
	return texts
}

// nodeDiff lists nodes that only one of two recipes has, by all that they are but names
// and places. Those of one origin and GUID are pairs.
func nodeDiff(a, b *recipes.Recipe) []fieldChange {
	onlyA, onlyB := nodesWithout(a, b), nodesWithout(b, a)
	key := func(n *recipes.Node) string { return n.Origin + "\x00" + n.GUID }
	pairs := map[string][]int{} // of b
	for _, i := range onlyB {
		k := key(&b.Nodes[i])
		pairs[k] = append(pairs[k], i)
	}
	list, paired := []fieldChange{}, map[int]bool{}
	for _, i := range onlyA {
		n := &a.Nodes[i]
		f := fieldChange{Name: n.Origin, A: describeNode(a, i)}
		if k := key(n); len(pairs[k]) > 0 {
			f.B, paired[pairs[k][0]], pairs[k] = describeNode(b, pairs[k][0]), true, pairs[k][1:]
		}
		list = append(list, f)
	}
	for _, i := range onlyB {
		if !paired[i] {
			list = append(list, fieldChange{Name: b.Nodes[i].Origin, B: describeNode(b, i)})
		}
	}
	return list
}

// nodesWithout lists the nodes of a recipe that another has not, or not as often.
func nodesWithout(r, other *recipes.Recipe) (list []int) {
	key := func(r *recipes.Recipe, i int) string { return r.Nodes[i].Origin + "\x00" + describeNode(r, i) }
	left := map[string]int{}
	for i := range other.Nodes {
		left[key(other, i)]++
	}
	for i := range r.Nodes {
		if k := key(r, i); left[k] > 0 {
			left[k]--
		} else {
			list = append(list, i)
		}
	}
	return list
}

// describeNode is a node without names, places and origin.
func describeNode(r *recipes.Recipe, i int) string {
	n := &r.Nodes[i]
	var t strings.Builder
	operands := func(list []int) {
		for k, v := range list {
			if k > 0 {
				t.WriteString(", ")
			}
			if v == recipes.Absent {
				t.WriteString("-")
				continue
			}
			fmt.Fprintf(&t, "%v%v", r.Tensors[v].DType, r.Tensors[v].Dims)
		}
	}
	operands(n.Out)
	fmt.Fprintf(&t, " = %s(", n.GUID)
	operands(n.In)
	t.WriteString(")")
	if p := n.Params; p != nil {
		fmt.Fprintf(&t, " %s", p.Struct)
		for _, f := range p.Fields {
			fmt.Fprintf(&t, " %s=%s", f.Name, fieldValue(&f))
		}
	}
	if len(n.After) > 0 {
		fmt.Fprintf(&t, " after %s", count(len(n.After), "node"))
	}
	return t.String()
}

func fieldValue(f *recipes.Field) string {
	switch f.Type {
	case recipes.F32:
		return strconv.FormatFloat(float64(f.Float), 'g', -1, 32)
	case recipes.Enum:
		return f.Sym
	}
	return strings.Trim(fmt.Sprint(f.Ints), "[]")
}
