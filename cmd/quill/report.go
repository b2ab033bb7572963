package main

import "quill/recipes"

// report is what inspect shows. As JSON it is for machines: fields are only
// ever added.
type report struct {
	Bundle     string             `json:"bundle"`
	FileBytes  int64              `json:"file_bytes"`
	Format     int                `json:"format"`
	Quill      string             `json:"quill"`
	Target     string             `json:"target"`
	Model      recipes.Model      `json:"model"`
	Deployment recipes.Deployment `json:"deployment"`
	Costs      recipes.Costs      `json:"costs"`
	Compiled   recipes.Compiled   `json:"compiled"`
	// Checkpoint is the number of tensors that a checkpoint has, by part.
	Checkpoint map[string]int `json:"checkpoint"`
	Recipes    int            `json:"recipes"` // distinct, of all sets
	Native     *nativeReport  `json:"native"`  // null if there are none
	Sets       []setReport    `json:"sets"`
}

// setReport is one precision.
type setReport struct {
	Precision string                   `json:"precision"`
	Bytes     map[recipes.Buffer]int64 `json:"bytes"` // of one rank
	// WorkspaceBytes is what recipes need beside the buffers, as the compiler estimates it.
	WorkspaceBytes int64 `json:"workspace_bytes"`

	Weights  weightsReport  `json:"weights"`
	Recipes  int            `json:"recipes"`
	Buckets  []bucketReport `json:"buckets"`
	Families []familyReport `json:"families"`
}

// weightsReport describes the weights map.
type weightsReport struct {
	Slots     int   `json:"slots"`
	Constants int   `json:"constants"` // slots that come from no tensor
	Tensors   int   `json:"tensors"`   // of the checkpoint
	Bytes     int64 `json:"bytes"`     // of one rank, without padding
}

// bucketReport is one plan.
type bucketReport struct {
	Name        string        `json:"name"` // as commands take it
	Phase       recipes.Phase `json:"phase"`
	Seqs        int           `json:"seqs"`
	Query       int           `json:"query"`
	Blocks      int           `json:"blocks"`
	Family      string        `json:"family"`
	Launches    int           `json:"launches"`
	Collectives int           `json:"collectives"`
	AllReduces  int           `json:"all_reduces"`
	AllGathers  int           `json:"all_gathers"`
	Recipes     int           `json:"recipes"`
	// MovedSections are those that a launch has elsewhere than the launch of the recipe
	// before (recipes.Work).
	MovedSections int `json:"moved_sections"`
	Nodes         int `json:"nodes"`
	// ComputeNodes are those that compute or copy, Chain the most of them that
	// need each other one after the other.
	ComputeNodes int `json:"compute_nodes"`
	Chain        int `json:"chain"`
	// Masks are the additive masks of attention: what a step writes of them, and
	// what is alive at once.
	MaskBytesTotal int64 `json:"mask_bytes_total"`
	MaskBytesPeak  int64 `json:"mask_bytes_peak"`
	ArenaBytes     int64 `json:"arena_bytes"`
	// LayerBytes are those of the arena for values of several layers.
	LayerBytes int64 `json:"layer_bytes"`
	// WorkspaceBytes is the largest workspace of a recipe, LayerWorkspaceBytes what of it
	// is for values of several layers.
	WorkspaceBytes      int64        `json:"workspace_bytes"`
	LayerWorkspaceBytes int64        `json:"layer_workspace_bytes"`
	Memory              memoryReport `json:"memory"`
	// MaskLayers are those that attention of each layer reads, if it has any.
	MaskLayers []recipes.LayerMasks `json:"mask_layers,omitempty"`
	// Breaks counts why launches are not one with the one before, by reason.
	Breaks map[string]int `json:"breaks"`
	// MergedNodes are compute nodes with element-wise chains as one node each, LayerKinds
	// and Sources say where compute nodes are (recipes.Work).
	MergedNodes int                `json:"merged_nodes"`
	LayerKinds  []recipes.KindWork `json:"layer_kinds"`
	Sources     map[string]int     `json:"compute_nodes_by_source"`
}

// familyReport is all buckets of one graph shape.
type familyReport struct {
	Name       string `json:"name"`
	Buckets    int    `json:"buckets"`
	Recipes    int    `json:"recipes"`
	Launches   span   `json:"launches"`
	AllReduces span   `json:"all_reduces"`
	AllGathers span   `json:"all_gathers"`
	Chain      span   `json:"chain"`
	MaskTotal  span   `json:"mask_bytes_total"`
	MaskPeak   span   `json:"mask_bytes_peak"`
	// Nodes is how many nodes of each GUID a step has.
	Nodes map[string]span `json:"nodes"`
}

// span is the smallest and the largest number.
type span struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

func newReport(path string, size int64, b *recipes.Bundle) *report {
	r := &report{
		Bundle: path, FileBytes: size,
		Format: b.Manifest.Format, Quill: b.Manifest.Quill, Target: b.Manifest.Target, Model: b.Manifest.Model, Deployment: b.Manifest.Deployment,
		Costs: b.Manifest.Costs, Compiled: b.Manifest.Compiled,
		Checkpoint: map[string]int{}, Recipes: len(b.Recipes), Native: newNativeReport(b.Native),
	}
	for _, t := range b.Checkpoint {
		part := t.Part
		if part == "" {
			part = recipes.TextPart
		}
		r.Checkpoint[part]++
	}
	for i := range b.Sets {
		r.Sets = append(r.Sets, newSetReport(b, &b.Sets[i]))
	}
	return r
}

func newSetReport(b *recipes.Bundle, s *recipes.Set) setReport {
	r := setReport{Precision: s.Info.Precision, Bytes: s.Info.Bytes, WorkspaceBytes: s.Info.WorkspaceBytes, Weights: newWeightsReport(s.Weights)}
	used := hashSet{}
	var names []string // in the order of the plans
	families := map[string][]*recipes.Plan{}
	for i := range s.Plans {
		p := &s.Plans[i]
		used.add(p)
		if families[p.Family] == nil {
			names = append(names, p.Family)
		}
		families[p.Family] = append(families[p.Family], p)
		r.Buckets = append(r.Buckets, newBucketReport(b, p))
	}
	r.Recipes = len(used)
	for _, name := range names {
		f := newFamilyReport(b, name, families[name])
		f.sum(r.Buckets)
		r.Families = append(r.Families, f)
	}
	return r
}

// sum adds what the buckets of the family have.
func (f *familyReport) sum(buckets []bucketReport) {
	first := true
	for i := range buckets {
		b := &buckets[i]
		if b.Family != f.Name {
			continue
		}
		for _, n := range []struct {
			to *span
			n  int
		}{
			{&f.Launches, b.Launches},
			{&f.AllReduces, b.AllReduces},
			{&f.AllGathers, b.AllGathers},
			{&f.Chain, b.Chain},
			{&f.MaskTotal, int(b.MaskBytesTotal)},
			{&f.MaskPeak, int(b.MaskBytesPeak)},
		} {
			if first {
				*n.to = span{n.n, n.n}
			}
			n.to.Min, n.to.Max = min(n.to.Min, n.n), max(n.to.Max, n.n)
		}
		first = false
	}
}

func newWeightsReport(ws []recipes.Weight) weightsReport {
	r := weightsReport{Slots: len(ws)}
	tensors, places := map[string]bool{}, map[int64]bool{}
	for i := range ws {
		w := &ws[i]
		if w.Tensor == "" {
			r.Constants++
		} else {
			tensors[w.Tensor] = true
		}
		if !places[w.Offset] { // slots may share their bytes
			r.Bytes += w.Bytes()
		}
		places[w.Offset] = true
	}
	r.Tensors = len(tensors)
	return r
}

// hashSet is a set of recipes.
type hashSet map[recipes.Hash]bool

func (h hashSet) add(p *recipes.Plan) {
	for i := range p.Steps {
		if l := p.Steps[i].Launch; l != nil {
			h[l.Recipe] = true
		}
	}
}

func newBucketReport(b *recipes.Bundle, p *recipes.Plan) bucketReport {
	used := hashSet{}
	used.add(p)
	at, w := &p.Bucket, b.Work(p)
	if w.Breaks == nil {
		w.Breaks = map[string]int{} // {} as JSON
	}
	return bucketReport{
		Name: at.String(), Phase: at.Phase, Seqs: at.Seqs, Query: at.Query, Blocks: at.Blocks, Family: p.Family,
		Launches: w.Launches, Collectives: w.AllReduces + w.AllGathers, AllReduces: w.AllReduces, AllGathers: w.AllGathers,
		Recipes: len(used), MovedSections: w.Moved, Nodes: w.Nodes, ComputeNodes: w.Compute, Chain: w.Chain,
		MergedNodes: w.Merged, LayerKinds: w.Kinds, Sources: w.Sources,
		MaskBytesTotal: w.MaskBytes, MaskBytesPeak: w.MaskPeak, MaskLayers: w.MaskLayers, Breaks: w.Breaks, ArenaBytes: p.ArenaBytes, LayerBytes: p.LayerBytes,
		WorkspaceBytes: p.WorkspaceBytes, LayerWorkspaceBytes: b.LayerWorkspace(p), Memory: newMemoryReport(b, p),
	}
}

// nodes counts by GUID the nodes that one step executes.
func nodes(b *recipes.Bundle, p *recipes.Plan) map[string]int {
	n := map[string]int{}
	for i := range p.Steps {
		if l := p.Steps[i].Launch; l != nil {
			for j := range b.Recipes[l.Recipe].Nodes {
				n[b.Recipes[l.Recipe].Nodes[j].GUID]++
			}
		}
	}
	return n
}

func newFamilyReport(b *recipes.Bundle, name string, plans []*recipes.Plan) familyReport {
	r := familyReport{Name: name, Buckets: len(plans), Nodes: map[string]span{}}
	used := hashSet{}
	steps := make([]map[string]int, len(plans))
	for i, p := range plans {
		used.add(p)
		steps[i] = nodes(b, p)
		for guid := range steps[i] {
			r.Nodes[guid] = span{Min: steps[0][guid]}
		}
	}
	r.Recipes = len(used)
	for guid, s := range r.Nodes {
		for _, step := range steps {
			s.Min, s.Max = min(s.Min, step[guid]), max(s.Max, step[guid])
		}
		r.Nodes[guid] = s
	}
	return r
}
