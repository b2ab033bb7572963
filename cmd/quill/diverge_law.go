package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"quill/recipes"
	"quill/runtime"
)

// recipeDifference is where a recipe of the bundle is another than the one that
// this compiler makes for the same launch.
type recipeDifference struct {
	Bucket   string       `json:"bucket"` // the first that uses it
	PlanStep int          `json:"plan_step"`
	Launch   string       `json:"launch"`
	Recipe   recipes.Hash `json:"recipe"`
	Law      recipes.Hash `json:"recomputed"`
	Layer    int          `json:"layer"` // −1 for none
	Source   string       `json:"source_op,omitempty"`
	Op       string       `json:"ir_op,omitempty"`
	Tensor   string       `json:"tensor,omitempty"` // of the checkpoint
	nodeDifference
}

func (d *recipeDifference) String() string {
	what := d.What
	if d.Index >= 0 {
		what = fmt.Sprintf("node %s %s: %s", d.Name, d.GUID, d.What)
	}
	return fmt.Sprintf("%s, launch %q: %s", d.Bucket, d.Launch, what)
}

// nodeDifference is the first node, if it is a node, in which two recipes differ.
type nodeDifference struct {
	Index int    `json:"node"` // −1 if it is no node
	Name  string `json:"node_name,omitempty"`
	GUID  string `json:"guid,omitempty"`
	What  string `json:"what"`
}

// refused is the divergence of a device that refuses to load a bundle: at the first
// recipe that is not what is recomputed, nil if all are.
func refused(list []recipeDifference, failure error) *divergence {
	if len(list) == 0 {
		return nil
	}
	d := &list[0]
	return &divergence{
		Kind: "refused", Bucket: d.Bucket, PlanStep: d.PlanStep, Launch: d.Launch, Layer: d.Layer, Source: d.Source, Op: d.Op, Tensor: d.Tensor,
		Node: d.Index, Name: d.Name, GUID: d.GUID, Recipe: d.What, Failure: failure.Error(),
	}
}

// samePlans reports why two sets cannot be executed in lockstep.
func samePlans(have, law *recipes.Set) error {
	if len(have.Weights) != len(law.Weights) {
		return fmt.Errorf("the weights map has %d slots, %d are recomputed", len(have.Weights), len(law.Weights))
	}
	for i := range have.Weights {
		if h, l := &have.Weights[i], &law.Weights[i]; h.Offset != l.Offset || h.Bytes() != l.Bytes() {
			return fmt.Errorf("slot %d of the weights map has %d bytes at %d, %d at %d are recomputed", i, h.Bytes(), h.Offset, l.Bytes(), l.Offset)
		}
	}
	for i := range have.Plans {
		h, l := &have.Plans[i], &law.Plans[i]
		switch {
		case !reflect.DeepEqual(h.Inputs, l.Inputs) || !reflect.DeepEqual(h.Outputs, l.Outputs):
			return fmt.Errorf("plan %s has other inputs or outputs than are recomputed", h.Bucket)
		case len(h.Steps) != len(l.Steps):
			return fmt.Errorf("plan %s has %s, %d are recomputed", h.Bucket, count(len(h.Steps), "step"), len(l.Steps))
		}
		for j := range h.Steps {
			if (h.Steps[j].Launch == nil) != (l.Steps[j].Launch == nil) {
				return fmt.Errorf("step %d of plan %s is a launch in one of bundle and recomputed plan only", j, h.Bucket)
			}
		}
		if h.ArenaBytes < l.ArenaBytes {
			return fmt.Errorf("plan %s has %d bytes of arena, %d are recomputed", h.Bucket, h.ArenaBytes, l.ArenaBytes)
		}
	}
	for b, n := range law.Info.Bytes {
		if have.Info.Bytes[b] < n {
			return fmt.Errorf("buffer %s has %d bytes, %d are recomputed", b, have.Info.Bytes[b], n)
		}
	}
	return nil
}

// differences lists the recipes that are not what is recomputed, each once, and
// where launches bind one elsewhere.
func (l *lockstep) differences(law *recipes.Bundle, set *recipes.Set) ([]recipeDifference, error) {
	list := []recipeDifference{}
	seen := map[[2]recipes.Hash]bool{}
	for i := range set.Plans {
		p := &set.Plans[i]
		for j := range p.Steps {
			have, want := p.Steps[j], law.Sets[0].Plans[i].Steps[j]
			d := recipeDifference{Bucket: p.Bucket.String(), PlanStep: j, Layer: -1}
			d.Index = -1
			if have.Launch == nil {
				if c := *have.Collective; c != *want.Collective {
					d.Launch, d.What = c.Label, fmt.Sprintf("the collective is %+v, recomputed %+v", c, *want.Collective)
					list = append(list, d)
				}
				continue
			}
			d.Launch, d.Recipe, d.Law = have.Launch.Label, have.Launch.Recipe, want.Launch.Recipe
			if pair := [2]recipes.Hash{d.Recipe, d.Law}; d.Recipe != d.Law && !seen[pair] {
				seen[pair] = true
				d.nodeDifference = compareRecipes(l.bundle.Recipes[d.Recipe], law.Recipes[d.Law])
				if err := l.locate(&d, p); err != nil {
					return nil, err
				}
				list = append(list, d)
			}
			if !slices.Equal(have.Launch.Bindings, want.Launch.Bindings) {
				d.nodeDifference = nodeDifference{Index: -1, What: fmt.Sprintf("sections are bound to %v, recomputed %v", have.Launch.Bindings, want.Launch.Bindings)}
				list = append(list, d)
			}
		}
	}
	return list, nil
}

// locate says which op of the model a differing node belongs to.
func (l *lockstep) locate(d *recipeDifference, p *recipes.Plan) error {
	if d.Index < 0 {
		return nil
	}
	s := l.step(runtime.Watched{Plan: p, Step: d.PlanStep})
	traced, err := s.trace()
	if err != nil {
		return err
	}
	if o := s.opOf(traced, d.Index); o != nil {
		loc := s.absolute(o.Loc)
		d.Layer, d.Source, d.Op, d.Tensor = loc.Layer, loc.Op, o.Name(), s.tensors(o, loc)
	}
	return nil
}

// compareRecipes finds the first difference of two recipes that differ.
func compareRecipes(have, law *recipes.Recipe) nodeDifference {
	if i, ok := differingNode(have, law, 0, min(len(have.Nodes), len(law.Nodes))); ok {
		n := &have.Nodes[i]
		return nodeDifference{Index: i, Name: n.Name, GUID: n.GUID, What: nodeText(have, law, i)}
	}
	for i := range min(len(have.Tensors), len(law.Tensors)) {
		if !reflect.DeepEqual(have.Tensors[i], law.Tensors[i]) {
			return nodeDifference{Index: -1, What: tensorText(have, law, i)}
		}
	}
	return nodeDifference{Index: -1, What: fmt.Sprintf("%s and %s, recomputed %d and %d, or other names or sections",
		count(len(have.Nodes), "node"), count(len(have.Tensors), "tensor"), len(law.Nodes), len(law.Tensors))}
}

// differingNode is the first of the nodes from one up to another that differs, be it
// in where an operand or a result of it lies.
func differingNode(have, law *recipes.Recipe, from, to int) (int, bool) {
	for i := from; i < min(to, len(have.Nodes), len(law.Nodes)); i++ {
		if !reflect.DeepEqual(have.Nodes[i], law.Nodes[i]) {
			return i, true
		}
		if _, ok := differingTensor(have, law, i); ok {
			return i, true
		}
	}
	return 0, false
}

// differingTensor is the first operand or result of a node with equal ones that is
// another tensor.
func differingTensor(have, law *recipes.Recipe, node int) (int, bool) {
	for _, t := range slices.Concat(have.Nodes[node].In, have.Nodes[node].Out) {
		if t != recipes.Absent && !reflect.DeepEqual(have.Tensors[t], law.Tensors[t]) {
			return t, true
		}
	}
	return 0, false
}

// nodeText says in what node i of two recipes differs.
func nodeText(have, law *recipes.Recipe, i int) string {
	h, l := &have.Nodes[i], &law.Nodes[i]
	switch {
	case h.GUID != l.GUID:
		return fmt.Sprintf("GUID %s, recomputed %s", h.GUID, l.GUID)
	case !slices.Equal(h.In, l.In):
		return fmt.Sprintf("operands %v, recomputed %v", h.In, l.In)
	case !slices.Equal(h.Out, l.Out):
		return fmt.Sprintf("results %v, recomputed %v", h.Out, l.Out)
	case h.Params != nil && l.Params != nil && len(h.Params.Fields) == len(l.Params.Fields):
		for j := range h.Params.Fields {
			if f, g := h.Params.Fields[j], l.Params.Fields[j]; !reflect.DeepEqual(f, g) {
				return fmt.Sprintf("%s %s, recomputed %s", f.Name, fieldText(f), fieldText(g))
			}
		}
	}
	if t, ok := differingTensor(have, law, i); ok {
		return tensorText(have, law, t)
	}
	return "other parameters, names or order than recomputed"
}

func tensorText(have, law *recipes.Recipe, t int) string {
	return fmt.Sprintf("tensor %d is %+v, recomputed %+v", t, have.Tensors[t], law.Tensors[t])
}

func fieldText(f recipes.Field) string {
	switch {
	case f.Type == recipes.F32:
		return fmt.Sprint(f.Float)
	case f.Sym != "":
		return f.Sym
	case len(f.Ints) == 1:
		return fmt.Sprint(f.Ints[0])
	}
	return fmt.Sprint(f.Ints)
}

// sameForm reports whether the tensors of two recipes correspond one to one, so
// that a value of the one can be found in the other.
func sameForm(have, law *recipes.Recipe) bool {
	return len(have.Nodes) == len(law.Nodes) && slices.EqualFunc(have.Tensors, law.Tensors, func(a, b recipes.Tensor) bool {
		return a.DType == b.DType && slices.Equal(a.Dims, b.Dims)
	}) && slices.EqualFunc(have.Nodes, law.Nodes, func(a, b recipes.Node) bool { return slices.Equal(a.Out, b.Out) })
}

var errDiverged = errors.New("the bundle diverges from the reference interpreter")
