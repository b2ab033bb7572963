package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"quill/recipes"
)

// compare orders buckets of a family by rows, then by blocks.
func (b *bucketReport) compare(c *bucketReport) int {
	return cmp.Or(cmp.Compare(b.Query+b.Seqs, c.Query+c.Seqs), cmp.Compare(b.Blocks, c.Blocks))
}

// largestOf are the largest buckets of each family, in the order of the families.
func largestOf(buckets []bucketReport) []*bucketReport {
	var list []*bucketReport
	for i := range buckets {
		b := &buckets[i]
		at := slices.IndexFunc(list, func(c *bucketReport) bool { return c.Family == b.Family })
		switch {
		case at < 0:
			list = append(list, b)
		case b.compare(list[at]) > 0:
			list[at] = b
		}
	}
	return list
}

// printKinds shows where compute nodes of some buckets are, a column for each: in a layer
// of each kind, with the longest chain of nodes of that layer alone, and outside layers.
func printKinds(w io.Writer, list []*bucketReport) {
	t := table(w)
	row := func(name string, cell func(*bucketReport) string) {
		fmt.Fprintf(t, "  %s", name)
		for _, b := range list {
			fmt.Fprintf(t, "\t%s", cell(b))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(w)
	row("COMPUTE NODES OF", func(b *bucketReport) string { return b.Name })
	row("a step", func(b *bucketReport) string { return fmt.Sprint(b.ComputeNodes) })
	row("chains merged", func(b *bucketReport) string { return fmt.Sprint(b.MergedNodes) })
	for _, kind := range kindsOf(list) {
		name := "a layer, " + string(kind)
		if kind == recipes.OutsideLayers {
			name = "outside layers"
		}
		row(name, func(b *bucketReport) string {
			k := b.kind(kind)
			return span{Min: k.LeastOfLayer, Max: k.MostOfLayer}.String()
		})
		row("  its chain", func(b *bucketReport) string {
			k := b.kind(kind)
			return span{Min: k.LeastChain, Max: k.MostChain}.String()
		})
	}
	_ = t.Flush() // to a Buffer, which takes everything
}

// kind is what a bucket's step executes for layers of a kind, nothing if it has none.
func (b *bucketReport) kind(kind recipes.LayerKind) recipes.KindWork {
	for _, k := range b.LayerKinds {
		if k.Kind == kind {
			return k
		}
	}
	return recipes.KindWork{}
}

// kindsOf are the kinds that any of some buckets has, what is outside layers last.
func kindsOf(list []*bucketReport) []recipes.LayerKind {
	var kinds []recipes.LayerKind
	outside := false
	for _, b := range list {
		for _, k := range b.LayerKinds {
			if k.Kind == recipes.OutsideLayers {
				outside = true
			} else if !slices.Contains(kinds, k.Kind) {
				kinds = append(kinds, k.Kind)
			}
		}
	}
	if outside {
		kinds = append(kinds, recipes.OutsideLayers)
	}
	return kinds
}
