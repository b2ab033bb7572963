package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"quill/recipes"
)

// memoryReport is where in a step of a bucket most memory of the arena and the
// workspace holds values.
type memoryReport struct {
	PeakBytes int64 `json:"peak_bytes"`
	// ArenaBytes and WorkspaceBytes are the parts of the peak.
	ArenaBytes     int64 `json:"arena_bytes"`
	WorkspaceBytes int64 `json:"workspace_bytes"`
	// Step is the step of the plan, −1 where it has none, Launch its label; Node is the
	// number of the recipe's node, −1 in a collective.
	Step   int    `json:"step"`
	Launch string `json:"launch"`
	Node   int    `json:"node"`
	GUID   string `json:"guid,omitempty"`
	Origin string `json:"origin,omitempty"`
	// Tensors are the largest that are alive then.
	Tensors []recipes.Alive `json:"tensors"`
}

// mostTensors is how many tensors a report shows of those alive at a peak.
const mostTensors = 10

func newMemoryReport(b *recipes.Bundle, p *recipes.Plan) memoryReport {
	m := b.Memory(p)
	r := memoryReport{
		PeakBytes: m.Peak, ArenaBytes: m.ArenaBytes, WorkspaceBytes: m.WorkspaceBytes, Step: m.Step, Node: m.Node,
		Tensors: append([]recipes.Alive{}, m.Tensors[:min(mostTensors, len(m.Tensors))]...), // [] as JSON
	}
	if m.Step < 0 {
		return r
	}
	if c := p.Steps[m.Step].Collective; c != nil {
		r.Launch, r.GUID = c.Label, string(c.Kind)
		return r
	}
	l := p.Steps[m.Step].Launch
	n := &b.Recipes[l.Recipe].Nodes[m.Node]
	r.Launch, r.GUID, r.Origin = l.Label, n.GUID, recipes.Origin(l.Label, n.Origin)
	return r
}

// where names the step and the node of the peak.
func (r *memoryReport) where() string {
	switch {
	case r.Step < 0:
		return "-"
	case r.Node < 0:
		return fmt.Sprintf("step %d, %s (%s)", r.Step, r.Launch, r.GUID)
	}
	return fmt.Sprintf("step %d, %s, node %d (%s)", r.Step, r.Launch, r.Node, r.GUID)
}

// printMemory shows the peak of every bucket, and the tensors of some.
func (s *setReport) printMemory(w io.Writer, bucket string) {
	t := table(w)
	fmt.Fprintln(t, "\n  BUCKET\tARENA\tOF LAYERS\tWORKSPACE\tOF LAYERS\tALIVE AT THE PEAK\tIN ARENA\tIN WORKSPACE\tWHERE")
	for i := range s.Buckets {
		b := &s.Buckets[i]
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Name, size(b.ArenaBytes), size(b.LayerBytes),
			size(b.WorkspaceBytes), size(b.LayerWorkspaceBytes), size(b.Memory.PeakBytes), size(b.Memory.ArenaBytes), size(b.Memory.WorkspaceBytes), b.Memory.where())
	}
	_ = t.Flush() // to memory
	for _, b := range s.shown(bucket) {
		fmt.Fprintf(w, "\n  %s: the largest of %s alive at %s\n", b.Name, size(b.Memory.PeakBytes), b.Memory.where())
		fmt.Fprintln(t, "  BYTES\tTYPE\tDIMS\tIN\tTENSOR\tORIGIN")
		for i := range b.Memory.Tensors {
			x := &b.Memory.Tensors[i]
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\n", size(x.Bytes), x.DType, dimsText(x.Dims), x.Where, x.Name, x.Origin)
		}
		_ = t.Flush()
	}
}

// dimsText spells dims, fastest first, as 128x16.
func dimsText(dims []int64) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(dims), " ", "x"), "[]")
}

// shown are the buckets whose tensors are shown: the named one, else of each family the
// one that takes most.
func (s *setReport) shown(bucket string) []*bucketReport {
	var list []*bucketReport
	for i := range s.Buckets {
		b := &s.Buckets[i]
		if bucket != "" {
			if b.Name == bucket {
				list = append(list, b)
			}
			continue
		}
		at := slices.IndexFunc(list, func(o *bucketReport) bool { return o.Family == b.Family })
		switch {
		case at < 0:
			list = append(list, b)
		case b.ArenaBytes+b.WorkspaceBytes > list[at].ArenaBytes+list[at].WorkspaceBytes:
			list[at] = b
		}
	}
	return list
}

// checkBucket reports a bucket that no set of a bundle has.
func (r *report) checkBucket(bucket string) error {
	var names []string
	for i := range r.Sets {
		for j := range r.Sets[i].Buckets {
			names = append(names, r.Sets[i].Buckets[j].Name)
		}
	}
	if bucket == "" || slices.Contains(names, bucket) {
		return nil
	}
	near := ""
	for _, n := range names {
		if strings.HasPrefix(n, strings.SplitN(bucket, "/", 2)[0]+"/") && near == "" {
			near = ", such as " + n
		}
	}
	return fmt.Errorf("the bundle has no bucket %q; quill inspect without --bucket lists them%s", bucket, near)
}
