package recipes

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// weights checks every slot against the checkpoint and the weights buffer. Two
// slots may share all bytes when they mean the same, as tied weights do.
func (c *setCheck) weights() error {
	limit := c.set.Info.Bytes[Weights]
	ranks := c.bundle.Manifest.Deployment.TensorParallel
	spans := make([]span, 0, len(c.set.Weights))
	for i := range c.set.Weights {
		w := &c.set.Weights[i]
		if err := c.weight(w, ranks); err != nil {
			return fmt.Errorf("weight %d (%s): %w", i, w.what(), err)
		}
		if !within(w.Offset, w.Bytes(), limit) {
			return fmt.Errorf("weight %d (%s): %d bytes at byte %d of a weights buffer of %d", i, w.what(), w.Bytes(), w.Offset, limit)
		}
		if w.Part > 1 && !follows(c.set.Weights, i) || w.Part < 0 {
			return fmt.Errorf("weight %d (%s): part %d of a run does not lie behind part %d", i, w.what(), w.Part, w.Part-1)
		}
		spans = append(spans, span{w.Offset, w.Offset + w.Bytes(), i})
	}
	sortSpans(spans)
	spans = slices.CompactFunc(spans, func(a, b span) bool {
		return a.lo == b.lo && a.hi == b.hi && reflect.DeepEqual(c.set.Weights[a.index], c.set.Weights[b.index])
	})
	if a, b, ok := overlap(spans); ok {
		return fmt.Errorf("weights %d (%s) and %d (%s) share bytes", a, c.set.Weights[a].what(), b, c.set.Weights[b].what())
	}
	return nil
}

// follows reports whether the slot before weight i is the part of the run before it.
func follows(ws []Weight, i int) bool {
	return i > 0 && ws[i-1].Part == ws[i].Part-1 && ws[i-1].Offset+ws[i-1].Bytes() == ws[i].Offset
}

func (c *setCheck) weight(w *Weight, ranks int) error {
	if w.DType.Size() == 0 {
		return errors.New("no element type")
	}
	if _, ok := elems(w.Shape); !ok {
		return fmt.Errorf("shape %s", shapeText(w.Shape))
	}
	switch {
	case w.Tensor == "" && (len(w.Rows) > 0 || w.computed()):
		return errors.New("rows, times and plus are of a tensor, not of a constant")
	case w.Tensor == "":
		return w.checkConstant(ranks)
	}
	if err := w.checkComputed(); err != nil {
		return err
	}
	shape, ok := c.shapes[w.Tensor]
	if !ok {
		return errors.New("the checkpoint list has no such tensor")
	}
	_, err := w.view(shape, 0, ranks)
	return err
}

// what names a slot in errors.
func (w *Weight) what() string {
	if w.Tensor == "" {
		return "constant"
	}
	return w.Tensor
}

// checkpointShapes indexes the checkpoint list, which must name no tensor twice.
func checkpointShapes(list []CheckpointTensor) (map[string][]int64, error) {
	shapes := make(map[string][]int64, len(list))
	for i := range list {
		t := &list[i]
		if _, ok := elems(t.Shape); !ok || t.Name == "" {
			return nil, fmt.Errorf("checkpoint tensor %q has shape %s", t.Name, shapeText(t.Shape))
		}
		if _, ok := shapes[t.Name]; ok {
			return nil, fmt.Errorf("checkpoint tensor %s is listed twice", t.Name)
		}
		if !slices.Contains(parts, t.part()) {
			return nil, fmt.Errorf("checkpoint tensor %s belongs to part %q, want one of %s", t.Name, t.Part, strings.Join(parts, ", "))
		}
		shapes[t.Name] = t.Shape
	}
	return shapes, nil
}
