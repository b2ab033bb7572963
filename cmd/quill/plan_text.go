package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"quill/lower"
	"quill/recipes"
)

// printForecast writes a forecast for people.
func printForecast(w io.Writer, path string, f *lower.Forecast) error {
	var text bytes.Buffer // which takes everything
	t := table(&text)
	d := &f.Deployment
	fmt.Fprintf(t, "deployment\t%s for %s\n", path, f.Target)
	fmt.Fprintf(t, "\ttensor_parallel %d, max_model_len %d, max_num_seqs %d, max_batched_tokens %d\n",
		d.TensorParallel, d.MaxModelLen, d.MaxNumSeqs, d.MaxBatchedTokens)
	fmt.Fprintf(t, "\tkv_blocks %d of block_size %d, embedding %s\n", d.KVBlocks, d.BlockSize, d.Embedding)
	for _, n := range f.Notes {
		fmt.Fprintf(t, "note\t%s\n", n)
	}
	fmt.Fprintf(t, "largest kv_blocks\t%s\n", largestText(f.LargestPool))
	fmt.Fprintf(t, "longest max_model_len\t%s\n", largestText(f.LongestRequest))
	_ = t.Flush()
	printStrategies(&text, f.Strategies)
	for i := range f.Memory {
		printMemoryForecast(&text, &f.Memory[i], d.TensorParallel)
	}
	_, err := w.Write(text.Bytes())
	return err
}

func largestText(l lower.Largest) string {
	if l.Value == 0 {
		return "none: " + l.Next
	}
	return fmt.Sprintf("%d, %s a rank; above it %s", l.Value, size(l.Bytes), l.Next)
}

// printStrategies shows a column for each.
func printStrategies(w io.Writer, list []lower.StrategyForecast) {
	fmt.Fprintln(w)
	t := table(w)
	row := func(name string, cell func(*lower.StrategyForecast) string) {
		fmt.Fprintf(t, "  %s", name)
		for i := range list {
			text := "-"
			if list[i].Error == "" {
				text = cell(&list[i])
			}
			fmt.Fprintf(t, "\t%s", text)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintf(t, "  BUCKETS BY STRATEGY")
	for i := range list {
		fmt.Fprintf(t, "\t%s", list[i].Strategy)
	}
	fmt.Fprintln(t)
	row("all", func(s *lower.StrategyForecast) string { return fmt.Sprint(s.Buckets) })
	for _, name := range familyNames(list) {
		row(name, func(s *lower.StrategyForecast) string {
			i := slices.IndexFunc(s.Families, func(f lower.FamilyBuckets) bool { return f.Family == name })
			if i < 0 {
				return "-"
			}
			return fmt.Sprint(s.Families[i].Buckets)
		})
	}
	for i, c := range list[0].Coverage {
		row("holes, "+string(c.Phase), func(s *lower.StrategyForecast) string {
			return fmt.Sprintf("%d of %d", s.Coverage[i].Holes, s.Coverage[i].Shapes)
		})
	}
	for i, p := range list[0].Padding {
		row(fmt.Sprintf("padding, %s %s", p.Phase, p.Size), func(s *lower.StrategyForecast) string {
			if s.Padding[i].Shapes == 0 {
				return "-"
			}
			return fmt.Sprintf("%.2f (%.2f)", s.Padding[i].Mean, s.Padding[i].Worst)
		})
	}
	_ = t.Flush()
	for i := range list {
		if list[i].Error != "" {
			fmt.Fprintf(w, "  %s: %s\n", list[i].Strategy, list[i].Error)
		}
	}
}

// familyNames are those of all strategies, in the order in which the first has them.
func familyNames(list []lower.StrategyForecast) (names []string) {
	for i := range list {
		for _, f := range list[i].Families {
			if !slices.Contains(names, f.Family) {
				names = append(names, f.Family)
			}
		}
	}
	return names
}

func printMemoryForecast(w io.Writer, m *lower.MemoryForecast, ranks int) {
	all := 0
	for i := range m.Families {
		all += m.Families[i].Buckets
	}
	fmt.Fprintf(w, "\n%s: %s\n\n", m.Precision, fitText(m))
	t := table(w)
	fmt.Fprintln(t, "  MEMORY\tBYTES A RANK")
	for _, l := range m.Lines {
		fmt.Fprintf(t, "  %s\t%d\t%s", l.Name, l.Bytes, size(l.Bytes))
		if note := lineNote(l, m, all); note != "" {
			fmt.Fprintf(t, "\t%s", note)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintf(t, "  total\t%d\t%s\n", m.Bytes, size(m.Bytes))
	fmt.Fprintf(t, "  device\t%d\t%s\n", m.LimitBytes, size(m.LimitBytes))
	_ = t.Flush()
	fmt.Fprintf(w, "\n  pool: %v\n", &m.Pool)
	for _, k := range m.Pool.Kinds {
		fmt.Fprintf(w, "    a block of each of %s has %d B of keys and values, %d B of convolutions\n", count(k.Layers, "layer"), k.KVBytes, k.ConvBytes)
	}
	fmt.Fprintf(w, "  heaviest step: %s, %s of arena and %s of workspace\n", m.Heaviest.Bucket, size(m.Heaviest.ArenaBytes), size(m.Heaviest.WorkspaceBytes))
	fmt.Fprintf(w, "  not in the sum: programs of %s, some %s (estimate), and what collectives of up to %s are buffered in (not known)\n\n",
		count(m.Recipes, "recipe"), size(m.ProgramBytes), size(m.CollectiveBytes))
	fmt.Fprintln(t, "  FAMILY\tBUCKETS\tCOMPILED\tDISTINCT RECIPES")
	for _, f := range m.Families {
		fmt.Fprintf(t, "  %s\t%d\t%d\t%d\n", f.Family, f.Buckets, f.Compiled, f.Recipes)
	}
	fmt.Fprintf(t, "  all\t%d\t%d\t%d\n", all, m.Compiled, m.Recipes)
	_ = t.Flush()
	h := &m.Host
	fmt.Fprintf(t, "\n  HOST MEMORY\tBYTES OF ALL RANKS (%d)\n", ranks)
	for _, l := range []struct {
		name  string
		bytes int64
		note  string
	}{
		{"checkpoint", h.CheckpointBytes, "read once"},
		{"inputs and outputs", h.StagingBytes, "of the largest step"},
		{"bundle", h.BundleBytes, fmt.Sprintf("plans and recipes of %d of %d buckets, not compressed", m.Compiled, all)},
		{"CPU device: buffers", h.BufferBytes, "all but weights and workspace"},
		{"CPU device: copied weights", h.CopiedBytes, "at start, unless they are packed"},
		{"CPU device: mapped weights", h.MappedBytes, "page cache, which need not fit"},
	} {
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\n", l.name, l.bytes, size(l.bytes), l.note)
	}
	_ = t.Flush()
}

func fitText(m *lower.MemoryForecast) string {
	if m.OverBytes > 0 {
		return fmt.Sprintf("does not fit, %s too much", size(m.OverBytes))
	}
	return fmt.Sprintf("fits, %s left", size(m.LimitBytes-m.Bytes))
}

// lineNote says how far a line of memory is known.
func lineNote(l lower.MemoryLine, m *lower.MemoryForecast, all int) string {
	part := ""
	if m.Compiled < all {
		part = fmt.Sprintf("of %d of %d buckets", m.Compiled, all)
	}
	switch {
	case l.Name == string(recipes.KV) || l.Name == string(recipes.Conv):
		return "pool"
	case l.Name == lower.WorkspaceLine && part != "":
		return "estimate, " + part
	case l.Name == lower.WorkspaceLine:
		return "estimate"
	case l.Estimate:
		return part
	}
	return ""
}
