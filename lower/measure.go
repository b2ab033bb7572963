package lower

import (
	"context"
	"slices"

	"quill/ir"
	"quill/ir/ops"
	"quill/passes"
	"quill/recipes"
)

// Measures are what a step of a module takes, as it is executed if it is cut into
// segments now.
type Measures struct {
	// Ops are all ops of a step, those of a segment as often as it is called,
	// without calls, breaks and constants, which a segment does not hold.
	Ops int `json:"ops"`
	// Chain is the longest chain of ops of which each needs the one before, without
	// those that only say where something is; collectives are links of it.
	Chain int `json:"chain"`
	// Launches are segments in sequence, Segments those that differ.
	Launches   int `json:"launches"`
	Segments   int `json:"distinct_segments"`
	AllReduces int `json:"all_reduces"`
	AllGathers int `json:"all_gathers"`
	// Breaks counts what ends segments, by reason.
	Breaks map[string]int `json:"breaks"`
	// MaskBytes are those of additive masks that attention reads, each once, and
	// MaskPeak those of the launch with most of them.
	MaskBytes  int64                `json:"mask_bytes_total"`
	MaskPeak   int64                `json:"mask_bytes_peak"`
	MaskLayers []recipes.LayerMasks `json:"mask_layers,omitempty"`
}

// layoutOps only say where something is, or move it.
var layoutOps = []string{"reshape", "broadcast", "transpose", "slice", "concat"}

// maskOperand is the operand of sdpa that is its mask.
const maskOperand = 3

// Measure measures a module, with sizes at the given values of its base symbols. The
// module stays as it is.
func Measure(ctx context.Context, m *ir.Module, base map[string]int64) (Measures, error) {
	env, err := m.Env(base)
	if err != nil {
		return Measures{}, err
	}
	w := measurer{env: env, depth: map[*ir.Value]int{}, root: map[*ir.Value]*ir.Value{}}
	w.Breaks = map[string]int{}
	w.breaks(m.Entry())
	if m.Level != ops.Plan {
		cut, err := passes.Parse("outline-segments")
		if err != nil {
			return Measures{}, err
		}
		m = m.Clone()
		if err := passes.Run(ctx, m, cut); err != nil {
			return Measures{}, err
		}
	}
	w.Segments = len(m.Funcs) - 1
	for _, o := range m.Entry().Ops {
		switch {
		case o.Name() == "call":
			w.call(o)
		case o.Def.Has(ops.Collective):
			w.op(o)
		}
	}
	w.MaskBytes, w.MaskPeak = w.masks.Bytes()
	w.MaskLayers = w.masks.Layers()
	return w.Measures, nil
}

// measurer walks through a step.
type measurer struct {
	Measures
	env   map[string]int64
	depth map[*ir.Value]int
	root  map[*ir.Value]*ir.Value // of parameters and results: the value of the entry
	masks recipes.MaskTally[*ir.Value]
}

// breaks counts what ends segments.
func (w *measurer) breaks(f *ir.Func) {
	for _, o := range f.Ops {
		switch o.Name() {
		case "graph_break":
			w.Breaks[recipes.BreakReason(o.Attr("reason").Str)]++
		case "all_reduce":
			w.AllReduces++
			w.Breaks["all_reduce"]++
		case "all_gather":
			w.AllGathers++
			w.Breaks["all_gather"]++
		}
	}
}

// op counts an op and puts its results at the end of a chain.
func (w *measurer) op(o *ir.Op) {
	w.Ops++
	d := 0
	for _, a := range o.Args {
		d = max(d, w.depth[a])
	}
	if !slices.Contains(layoutOps, o.Name()) {
		d++
	}
	w.Chain = max(w.Chain, d)
	for _, r := range o.Results {
		w.depth[r] = d
	}
}

// call walks through a segment.
func (w *measurer) call(o *ir.Op) {
	w.Launches++
	f := o.Attr("callee").Func
	for i, p := range f.Params {
		w.depth[p.Value], w.root[p.Value] = w.depth[o.Args[i]], o.Args[i]
	}
	for _, inner := range f.Ops {
		w.op(inner)
	}
	for i, v := range f.Return {
		w.depth[o.Results[i]], w.root[v] = w.depth[v], o.Results[i]
	}
	w.masks.Launch(w.maskReads(o))
}

// maskReads are the masks that attention of a segment reads.
func (w *measurer) maskReads(call *ir.Op) []recipes.MaskRead[*ir.Value] {
	var reads []recipes.MaskRead[*ir.Value]
	for _, o := range call.Attr("callee").Func.Ops {
		if o.Name() != "sdpa" && o.Name() != "sdpa_stats" || len(o.Args) <= maskOperand {
			continue
		}
		v := o.Args[maskOperand]
		read := recipes.MaskRead[*ir.Value]{Mask: v, Bytes: bytesAt(w.env, v.Type), Layer: -1}
		if root := w.root[v]; root != nil {
			read.Mask = root
		} else {
			read.Own = true
		}
		if call.Loc.Layer >= 0 && o.Loc.Layer >= 0 { // which counts from the call's
			read.Layer = call.Loc.Layer + o.Loc.Layer
		}
		reads = append(reads, read)
	}
	return reads
}

// bytesAt is the size of a type where symbols have values, 0 where one has none.
func bytesAt(env map[string]int64, t ir.Type) int64 {
	n, err := t.Elems().Eval(env)
	if err != nil {
		return 0
	}
	return n * int64(t.DType.Size())
}
