package lower

import (
	"context"
	"maps"
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
	w := measurer{
		env: env, depth: map[*ir.Value]int{}, root: map[*ir.Value]*ir.Value{}, seen: map[*ir.Value]bool{},
		layers: map[int]*recipes.LayerMasks{}, layerSeen: map[int]map[*ir.Value]bool{},
	}
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
	for _, layer := range slices.Sorted(maps.Keys(w.layers)) {
		w.MaskLayers = append(w.MaskLayers, *w.layers[layer])
	}
	return w.Measures, nil
}

// measurer walks through a step.
type measurer struct {
	Measures
	env       map[string]int64
	depth     map[*ir.Value]int
	root      map[*ir.Value]*ir.Value // of parameters and results: the value of the entry
	seen      map[*ir.Value]bool      // masks that are counted
	layers    map[int]*recipes.LayerMasks
	layerSeen map[int]map[*ir.Value]bool
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
	masks := map[int]map[*ir.Value]bool{} // by layer
	for _, inner := range f.Ops {
		w.op(inner)
		if name := inner.Name(); (name == "sdpa" || name == "sdpa_stats") && len(inner.Args) > maskOperand {
			layer := -1
			if o.Loc.Layer >= 0 && inner.Loc.Layer >= 0 {
				layer = o.Loc.Layer + inner.Loc.Layer
			}
			if masks[layer] == nil {
				masks[layer] = map[*ir.Value]bool{}
			}
			masks[layer][inner.Args[maskOperand]] = true
		}
	}
	for i, v := range f.Return {
		w.depth[o.Results[i]], w.root[v] = w.depth[v], o.Results[i]
	}
	w.masks(masks)
}

// masks adds up the masks that a launch reads.
func (w *measurer) masks(byLayer map[int]map[*ir.Value]bool) {
	all := map[*ir.Value]bool{}
	for layer, masks := range byLayer {
		maps.Copy(all, masks)
		if layer < 0 {
			continue
		}
		if w.layers[layer] == nil {
			w.layers[layer], w.layerSeen[layer] = &recipes.LayerMasks{Layer: layer}, map[*ir.Value]bool{}
		}
		k := w.layers[layer]
		alive, fresh := w.sum(masks, w.layerSeen[layer])
		k.Total += fresh
		k.Peak = max(k.Peak, alive)
	}
	alive, fresh := w.sum(all, w.seen)
	w.MaskBytes += fresh
	w.MaskPeak = max(w.MaskPeak, alive)
}

// sum is the bytes of masks, and without those that were seen. One that a launch
// makes is another one in each launch.
func (w *measurer) sum(masks, seen map[*ir.Value]bool) (alive, fresh int64) {
	for v := range masks {
		n, err := v.Type.Elems().Eval(w.env)
		if err != nil {
			continue // a size without a value has none of these bytes
		}
		n *= int64(v.Type.DType.Size())
		alive += n
		if root := w.root[v]; root != nil {
			if seen[root] {
				continue
			}
			seen[root] = true
		}
		fresh += n
	}
	return alive, fresh
}
