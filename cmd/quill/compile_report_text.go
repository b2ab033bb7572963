package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"quill/lower"
)

// print writes the report for people: families, buckets that deviate from most of
// their family, what passes did, and remarks.
func (r *compileReport) print(w io.Writer) error {
	var b bytes.Buffer
	d := &r.Deployment
	fmt.Fprintf(&b, "%s for %s: %d layers on %s, max_model_len %d, max_num_seqs %d, block_size %d, kv_blocks %d, max_batched_tokens %d\n",
		r.Bundle, r.Target, r.Model.Layers, count(d.TensorParallel, "rank"), d.MaxModelLen, d.MaxNumSeqs, d.BlockSize, d.KVBlocks, d.MaxBatchedTokens)
	fmt.Fprintf(&b, "passes %s\nparams %s\n", r.Compiled.Passes, strings.Join(r.Compiled.Params, " "))
	for i := range r.Sets {
		r.Sets[i].print(&b)
	}
	if len(r.Remarks) > 0 {
		fmt.Fprintf(&b, "\nremarks: what was not done and why, or how much was done\n")
	}
	for i := range r.Remarks {
		fmt.Fprintf(&b, "  %s\n", &r.Remarks[i])
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (r *remarkReport) String() string {
	at := []string{r.Family}
	if r.Source != "" {
		at = append(at, r.Source)
	}
	switch n := len(r.Layers); {
	case n == 1:
		at = append(at, fmt.Sprintf("layer %d", r.Layers[0]))
	case n > 1:
		at = append(at, count(n, "layer"))
	}
	if r.Modules > 1 {
		at = append(at, count(r.Modules, "bucket"))
	}
	return fmt.Sprintf("%s: %s (%s)", r.Pass, r.Message, strings.Join(at, ", "))
}

func (s *compileSet) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s of %s, %s\n\n", s.Precision, count(len(s.Buckets), "bucket"), plural(len(s.Families), "family", "families"), count(s.Recipes, "recipe"))
	s.printFamilies(w)
	printKinds(w, s.largestOfAll())
	s.printDeviations(w)
	for i := range s.Families {
		f := &s.Families[i]
		if len(f.Passes) > 0 {
			fmt.Fprintf(w, "\n%s %s: passes over the family, sizes at %s\n\n", s.Precision, f.Name, atText(f.At))
			printPasses(w, f.Passes)
		}
		if k := s.largest(f.Name); k != nil && len(k.Passes) > 0 {
			fmt.Fprintf(w, "\n%s %s: passes over its largest bucket, %s\n\n", s.Precision, f.Name, k.Name)
			printPasses(w, k.Passes)
		}
		printHoisted(w, f)
	}
}

// of are the buckets of a family.
func (s *compileSet) of(family string) []*compileBucket {
	var list []*compileBucket
	for i := range s.Buckets {
		if s.Buckets[i].Family == family {
			list = append(list, &s.Buckets[i])
		}
	}
	return list
}

// largest is the bucket of a family with most rows and blocks.
func (s *compileSet) largest(family string) *compileBucket {
	list := s.of(family)
	if len(list) == 0 {
		return nil
	}
	return slices.MaxFunc(list, func(a, b *compileBucket) int { return a.compare(&b.bucketReport) })
}

// largestOfAll are the largest buckets of all families.
func (s *compileSet) largestOfAll() []*bucketReport {
	var list []*bucketReport
	for i := range s.Families {
		if b := s.largest(s.Families[i].Name); b != nil {
			list = append(list, &b.bucketReport)
		}
	}
	return list
}

// printFamilies shows what a step takes, a column for each family.
func (s *compileSet) printFamilies(w io.Writer) {
	t := table(w)
	row := func(name string, cell func([]*compileBucket) string) {
		fmt.Fprintf(t, "  %s", name)
		for i := range s.Families {
			fmt.Fprintf(t, "\t%s", cell(s.of(s.Families[i].Name)))
		}
		fmt.Fprintln(t)
	}
	number := func(name string, of func(*compileBucket) int) {
		row(name, func(list []*compileBucket) string { return spanOf(list, of).String() })
	}
	bytes := func(name string, of func(*compileBucket) int) {
		row(name, func(list []*compileBucket) string { return spanOf(list, of).sizes() })
	}
	row("A STEP", func(list []*compileBucket) string { return list[0].Family })
	row("(buckets)", func(list []*compileBucket) string { return fmt.Sprintf("(%d)", len(list)) })
	number("ops", func(b *compileBucket) int { return b.IR.Ops })
	number("chain of ops", func(b *compileBucket) int { return b.IR.Chain })
	number("compute nodes", func(b *compileBucket) int { return b.ComputeNodes })
	number("chain of nodes", func(b *compileBucket) int { return b.Chain })
	number("launches", func(b *compileBucket) int { return b.Launches })
	number("distinct segments", func(b *compileBucket) int { return b.IR.Segments })
	number("distinct recipes", func(b *compileBucket) int { return b.Recipes })
	number("all-reduces", func(b *compileBucket) int { return b.AllReduces })
	number("all-gathers", func(b *compileBucket) int { return b.AllGathers })
	number("moved sections", func(b *compileBucket) int { return b.MovedSections })
	for _, reason := range s.reasons() {
		number("break: "+reason, func(b *compileBucket) int { return b.Breaks[reason] })
	}
	bytes("masks written", func(b *compileBucket) int { return int(b.MaskBytesTotal) })
	bytes("masks at once", func(b *compileBucket) int { return int(b.MaskBytesPeak) })
	bytes("masks a layer", func(b *compileBucket) int { return b.layerMasks() })
	bytes("arena", func(b *compileBucket) int { return int(b.ArenaBytes) })
	bytes("arena of layers", func(b *compileBucket) int { return int(b.LayerBytes) })
	_ = t.Flush() // a Buffer takes everything
}

// layerMasks are the masks of the layer that reads most.
func (b *bucketReport) layerMasks() int {
	most := int64(0)
	for _, l := range b.MaskLayers {
		most = max(most, l.Total)
	}
	return int(most)
}

// reasons are those of all breaks.
func (s *compileSet) reasons() []string {
	all := map[string]bool{}
	for i := range s.Buckets {
		for reason := range s.Buckets[i].Breaks {
			all[reason] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func spanOf(list []*compileBucket, of func(*compileBucket) int) span {
	s := span{Min: of(list[0]), Max: of(list[0])}
	for _, b := range list {
		s.Min, s.Max = min(s.Min, of(b)), max(s.Max, of(b))
	}
	return s
}

// sizes spells a span of bytes.
func (s span) sizes() string {
	switch {
	case s.Max == 0:
		return "-"
	case s.Min == s.Max:
		return size(int64(s.Max))
	}
	return size(int64(s.Min)) + "-" + size(int64(s.Max))
}

// structure is what buckets of a family mostly have alike.
func (b *compileBucket) structure() string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(b.Breaks)) {
		parts = append(parts, fmt.Sprintf("%d %s", b.Breaks[reason], reason))
	}
	return fmt.Sprintf("%s of %s; breaks: %s", plural(b.Launches, "launch", "launches"), count(b.IR.Segments, "distinct segment"), strings.Join(parts, ", "))
}

// printDeviations lists the buckets with another structure than most of their
// family.
func (s *compileSet) printDeviations(w io.Writer) {
	title := "\n  buckets that deviate from most of their family\n"
	for i := range s.Families {
		groups := map[string][]*compileBucket{}
		var order []string
		for _, b := range s.of(s.Families[i].Name) {
			k := b.structure()
			if groups[k] == nil {
				order = append(order, k)
			}
			groups[k] = append(groups[k], b)
		}
		if len(order) == 1 {
			continue
		}
		slices.SortStableFunc(order, func(a, b string) int { return len(groups[b]) - len(groups[a]) })
		fmt.Fprint(w, title)
		title = ""
		fmt.Fprintf(w, "  %s: %s have %s\n", s.Families[i].Name, count(len(groups[order[0]]), "bucket"), order[0])
		for _, k := range order[1:] {
			fmt.Fprintf(w, "    %s: %s\n", k, bucketNames(groups[k]))
		}
	}
}

// bucketNames lists buckets: few by name, many by the first and the last.
func bucketNames(list []*compileBucket) string {
	if n := len(list); n > 3 {
		return fmt.Sprintf("%d buckets, %s to %s", n, list[0].Name, list[n-1].Name)
	}
	names := make([]string, len(list))
	for i, b := range list {
		names[i] = b.Name
	}
	return strings.Join(names, ", ")
}

func atText(at map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(at)) {
		parts = append(parts, fmt.Sprintf("%s = %d", name, at[name]))
	}
	return strings.Join(parts, ", ")
}

// printPasses shows what passes did: numbers before and after where they changed.
func printPasses(w io.Writer, list []passReport) {
	t := table(w)
	fmt.Fprintln(t, "  PASS\tREWRITES\tOPS\tCHAIN\tLAUNCHES\tSEGMENTS\tREDUCES\tGATHERS\tMASKS\tAT ONCE")
	var idle []string
	for i := range list {
		p := &list[i]
		if !p.Changed {
			idle = append(idle, p.Pass)
			continue
		}
		fmt.Fprintf(t, "  %s\t%d", p.Pass, p.Rewrites)
		for _, of := range []func(*lower.Measures) string{
			func(m *lower.Measures) string { return fmt.Sprint(m.Ops) },
			func(m *lower.Measures) string { return fmt.Sprint(m.Chain) },
			func(m *lower.Measures) string { return fmt.Sprint(m.Launches) },
			func(m *lower.Measures) string { return fmt.Sprint(m.Segments) },
			func(m *lower.Measures) string { return fmt.Sprint(m.AllReduces) },
			func(m *lower.Measures) string { return fmt.Sprint(m.AllGathers) },
			func(m *lower.Measures) string { return size(m.MaskBytes) },
			func(m *lower.Measures) string { return size(m.MaskPeak) },
		} {
			before, after := of(&p.Before), of(&p.After)
			if before != after {
				after = before + " → " + after
			}
			fmt.Fprintf(t, "\t%s", after)
		}
		fmt.Fprintln(t)
	}
	if len(idle) < len(list) {
		_ = t.Flush() // a Buffer takes everything
	}
	if len(idle) > 0 {
		fmt.Fprintf(w, "  nothing to do for %s\n", strings.Join(idle, ", "))
	}
}

// printHoisted shows what a family computes once a step instead of in each layer.
func printHoisted(w io.Writer, f *compileFamily) {
	if len(f.Hoisted) == 0 {
		return
	}
	fmt.Fprintf(w, "\n  %s: hoisted out of layers\n", f.Name)
	t := table(w)
	fmt.Fprintln(t, "  OP\tSOURCE\tLAYERS\tBYTES")
	for _, h := range f.Hoisted {
		fmt.Fprintf(t, "  %s\t%s\t%d\t%s\n", h.Op, h.Source, h.Layers, size(h.Bytes))
	}
	_ = t.Flush()
}
