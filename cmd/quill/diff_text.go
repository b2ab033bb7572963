package main

import (
	"bytes"
	"fmt"
	"io"
)

// How many of a kind are printed for people: fields of the manifest and of memory, which
// are few, and what there may be thousands of.
const (
	shownFields = 40
	shownDiffs  = 3
)

// print writes the differences for people. Nothing is written where there are none.
func (d *bundleDiff) print(w io.Writer) error {
	var t bytes.Buffer
	if !d.Equal {
		fmt.Fprintf(&t, "a: %s\nb: %s\n", d.A, d.B)
	}
	printFields(&t, "", "manifest", d.Manifest, shownFields)
	if d.Architecture {
		fmt.Fprintf(&t, "architecture: config.json differs\n")
	}
	printFields(&t, "", "checkpoint", d.Checkpoint, shownDiffs)
	if d.OnlyA+d.OnlyB > 0 {
		fmt.Fprintf(&t, "recipes: %d only in a, %d only in b, %d in both\n", d.OnlyA, d.OnlyB, d.Shared)
	}
	printFields(&t, "", "native recipes", d.Native, shownFields)
	for i := range d.Sets {
		d.Sets[i].print(&t)
	}
	_, err := w.Write(t.Bytes())
	return err
}

func (s *setDiff) print(w io.Writer) {
	if s.In != "both" {
		fmt.Fprintf(w, "%s: only in %s\n", s.Precision, s.In)
		return
	}
	fmt.Fprintf(w, "%s:\n", s.Precision)
	printFields(w, "  ", "memory", s.Memory, shownFields)
	printFields(w, "  ", "weights", s.Weights, shownDiffs)
	printNames(w, "buckets only in a", s.OnlyA)
	printNames(w, "buckets only in b", s.OnlyB)
	if s.Order {
		fmt.Fprintln(w, "  the same buckets in another order")
	}
	for i := range s.Plans {
		if i == shownDiffs {
			fmt.Fprintf(w, "  and %d more plans\n", len(s.Plans)-i)
			break
		}
		p := &s.Plans[i]
		fmt.Fprintf(w, "  plan %s: steps that differ: %d\n", printable(p.Bucket), p.Steps)
		printFields(w, "    ", "", p.Fields, shownDiffs)
	}
	for i := range s.Recipes {
		if i == shownDiffs {
			fmt.Fprintf(w, "  and %d more pairs of recipes\n", len(s.Recipes)-i)
			break
		}
		s.Recipes[i].print(w)
	}
}

func (r *recipeDiff) print(w io.Writer) {
	fmt.Fprintf(w, "  recipe %s / %s: launched %s, first in %s\n", printable(r.A), printable(r.B), count(r.Launches, "time"), printable(r.First))
	if r.Wiring {
		fmt.Fprintln(w, "    the same nodes, with other names, places or operands")
	}
	printFields(w, "    ", "sections", r.Sections, shownDiffs)
	printFields(w, "    ", "nodes", r.Nodes, shownDiffs)
	printFields(w, "    ", "", r.Changed, shownDiffs)
}

// printFields lists values that differ, the first ones.
func printFields(w io.Writer, indent, title string, list []fieldChange, most int) {
	if title != "" && len(list) > 0 {
		fmt.Fprintf(w, "%s%s:\n", indent, title)
		indent += "  "
	}
	for i, f := range list {
		if i == most {
			fmt.Fprintf(w, "%sand %d more\n", indent, len(list)-i)
			return
		}
		fmt.Fprintf(w, "%s%s: %s / %s\n", indent, printable(f.Name), printable(orNone(f.A)), printable(orNone(f.B)))
	}
}

func printNames(w io.Writer, title string, names []string) {
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(w, "  %s:", title)
	for i, name := range names {
		if i == shownDiffs {
			fmt.Fprintf(w, " and %d more", len(names)-i)
			break
		}
		fmt.Fprintf(w, " %s", printable(name))
	}
	fmt.Fprintln(w)
}
