package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"quill/recipes"
)

// print writes the report for people. It shows the memory of a bucket, or of the largest
// of each family if none is named.
func (r *report) print(w io.Writer, bucket string) error {
	var text bytes.Buffer
	t := table(&text)
	m, d := &r.Model, &r.Deployment
	fmt.Fprintf(t, "bundle\t%s, %s, format %d, by quill %s for %s\n", r.Bundle, size(r.FileBytes), r.Format, r.Quill, r.Target)
	fmt.Fprintf(t, "model\t%d layers, hidden %d, vocabulary %d (%d rows), end token %d\n", m.Layers, m.Hidden, m.ValidVocab, m.Vocab, m.EOS)
	fmt.Fprintf(t, "fingerprint\t%s\n", m.Fingerprint)
	fmt.Fprintf(t, "checkpoint\t%s\n", r.checkpoint())
	fmt.Fprintf(t, "deployment\ttensor_parallel %d, max_model_len %d, max_num_seqs %d, max_batched_tokens %d\n",
		d.TensorParallel, d.MaxModelLen, d.MaxNumSeqs, d.MaxBatchedTokens)
	fmt.Fprintf(t, "\tkv_blocks %d of block_size %d, embedding %s\n", d.KVBlocks, d.BlockSize, d.Embedding)
	fmt.Fprintf(t, "compiler\tbuild %s, encoding %d, profile %s (%.12s)\n", cmp.Or(r.Compiled.Build, "unknown"), r.Compiled.Encoding, r.Compiled.Profile, r.Compiled.ProfileHash)
	fmt.Fprintf(t, "passes\t%s\n", r.Compiled.Passes)
	fmt.Fprintf(t, "params\t%s\n", strings.Join(r.Compiled.Params, " "))
	fmt.Fprintf(t, "costs\trow %d, pad %d, block %d, key %d\n", r.Costs.Row, r.Costs.Pad, r.Costs.Block, r.Costs.Key)
	fmt.Fprintf(t, "recipes\t%d\n", r.Recipes)
	fmt.Fprintf(t, "native\t%v\n", r.Native)
	_ = t.Flush() // a Buffer takes everything
	for i := range r.Sets {
		r.Sets[i].print(&text)
		r.Sets[i].printMemory(&text, bucket)
	}
	_, err := w.Write(text.Bytes())
	return err
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func (r *report) checkpoint() string {
	var parts []string
	for _, part := range slices.Sorted(maps.Keys(r.Checkpoint)) {
		parts = append(parts, fmt.Sprintf("%d %s", r.Checkpoint[part], part))
	}
	return strings.Join(parts, ", ") + " tensors"
}

func (s *setReport) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s, %s\n\n", s.Precision, count(len(s.Buckets), "bucket"), count(s.Recipes, "recipe"))
	t := table(w)
	fmt.Fprintln(t, "  BUFFER\tBYTES A RANK")
	for _, b := range recipes.Buffers() {
		fmt.Fprintf(t, "  %s\t%d\t%s\n", b, s.Bytes[b], size(s.Bytes[b]))
	}
	fmt.Fprintf(t, "  workspace\t%d\t%s\n", s.WorkspaceBytes, size(s.WorkspaceBytes))
	_ = t.Flush()
	fmt.Fprintf(w, "\n  weights: %s (%s), from %s, %s\n\n", count(s.Weights.Slots, "slot"),
		count(s.Weights.Constants, "constant"), count(s.Weights.Tensors, "tensor"), size(s.Weights.Bytes))
	fmt.Fprintln(t, "  BUCKET\tFAMILY\tLAUNCHES\tREDUCES\tGATHERS\tRECIPES\tNODES\tCOMPUTE\tCHAIN\tMASKS\tAT ONCE\tARENA\tOF LAYERS")
	for i := range s.Buckets {
		b := &s.Buckets[i]
		fmt.Fprintf(t, "  %s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", b.Name, b.Family, b.Launches, b.AllReduces, b.AllGathers,
			b.Recipes, b.Nodes, b.ComputeNodes, b.Chain, size(b.MaskBytesTotal), size(b.MaskBytesPeak), size(b.ArenaBytes), size(b.LayerBytes))
	}
	_ = t.Flush()
	fmt.Fprintln(w)
	s.printFamilies(t)
	_ = t.Flush()
	printKinds(w, largestOf(s.Buckets))
}

// printFamilies shows a column for each family.
func (s *setReport) printFamilies(w io.Writer) {
	row := func(name string, cell func(*familyReport) string) {
		fmt.Fprintf(w, "  %s", name)
		for i := range s.Families {
			fmt.Fprintf(w, "\t%s", cell(&s.Families[i]))
		}
		fmt.Fprintln(w)
	}
	row("NODES A STEP", func(f *familyReport) string { return f.Name })
	row("(buckets)", func(f *familyReport) string { return fmt.Sprintf("(%d)", f.Buckets) })
	row("(recipes)", func(f *familyReport) string { return fmt.Sprintf("(%d)", f.Recipes) })
	guids := map[string]bool{}
	for i := range s.Families {
		for guid := range s.Families[i].Nodes {
			guids[guid] = true
		}
	}
	for _, guid := range slices.Sorted(maps.Keys(guids)) {
		row(guid, func(f *familyReport) string { return f.Nodes[guid].String() })
	}
}

func (s span) String() string {
	switch {
	case s.Max == 0:
		return "-"
	case s.Min == s.Max:
		return fmt.Sprint(s.Max)
	}
	return fmt.Sprintf("%d-%d", s.Min, s.Max)
}
