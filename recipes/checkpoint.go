package recipes

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"quill/recipes/safetensors"
)

// CheckpointTensor is a tensor that a checkpoint of the architecture has.
type CheckpointTensor struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"` // as safetensors spells it: "BF16"
	Shape []int64 `json:"shape"`
	// Part is what the tensor belongs to. Only TextPart is served; a checkpoint
	// may lack the others.
	Part string `json:"part"`
}

// The parts of a checkpoint.
const (
	TextPart   = "text"
	VisionPart = "vision"
	AudioPart  = "audio"
	MTPPart    = "mtp"
)

var parts = []string{TextPart, VisionPart, AudioPart, MTPPart}

func (t *CheckpointTensor) part() string {
	if t.Part == "" {
		return TextPart
	}
	return t.Part
}

// maxMismatches is how many lines a mismatch lists before it only counts.
const maxMismatches = 50

// CheckCheckpoint compares a checkpoint with what a bundle was compiled for.
// The error lists every tensor that is missing, of another shape or type, or
// unknown, by name. Tensors of parts other than text may be absent; present
// ones are not looked at, and notes says for each part how many there are.
func CheckCheckpoint(want []CheckpointTensor, have *safetensors.Checkpoint) (notes []string, err error) {
	byName := make(map[string]*CheckpointTensor, len(want))
	for i := range want {
		byName[want[i].Name] = &want[i]
	}
	var bad mismatches
	present := make(map[string]bool)
	unused := make(map[string]tally)
	for _, t := range have.Tensors() {
		w := byName[t.Name]
		present[t.Name] = true
		switch {
		case w == nil:
			bad.add(t.Name, "is unknown to the bundle (%s %s)", t.DType, shapeText(t.Shape))
		case w.part() != TextPart:
			unused[w.Part] = unused[w.Part].plus(len(t.Data))
		default:
			bad.compare(w, &t)
		}
	}
	for i := range want {
		if w := &want[i]; w.part() == TextPart && !present[w.Name] {
			bad.add(w.Name, "is missing, want %s %s", w.DType, shapeText(w.Shape))
		}
	}
	return unusedNotes(unused), bad.err(have.Dir())
}

// tally counts tensors and their bytes.
type tally struct {
	tensors int
	bytes   int64
}

func (t tally) plus(bytes int) tally { return tally{t.tensors + 1, t.bytes + int64(bytes)} }

func unusedNotes(unused map[string]tally) []string {
	var notes []string
	for _, part := range parts {
		if u, ok := unused[part]; ok {
			notes = append(notes, fmt.Sprintf("%d %s tensors (%d bytes) are not used", u.tensors, part, u.bytes))
		}
	}
	return notes
}

// mismatches collects what is wrong, a line a tensor.
type mismatches []struct{ tensor, text string }

func (m *mismatches) add(tensor, format string, args ...any) {
	*m = append(*m, struct{ tensor, text string }{tensor, fmt.Sprintf(format, args...)})
}

func (m *mismatches) compare(want *CheckpointTensor, have *safetensors.Tensor) {
	var diff []string
	if !slices.Equal(want.Shape, have.Shape) {
		diff = append(diff, fmt.Sprintf("has shape %s, want %s", shapeText(have.Shape), shapeText(want.Shape)))
	}
	if want.DType != have.DType {
		diff = append(diff, fmt.Sprintf("is %s, want %s", have.DType, want.DType))
	}
	if len(diff) > 0 {
		m.add(want.Name, "%s", strings.Join(diff, " and "))
	}
}

func (m mismatches) err(dir string) error {
	if len(m) == 0 {
		return nil
	}
	slices.SortFunc(m, func(a, b struct{ tensor, text string }) int { return strings.Compare(a.tensor, b.tensor) })
	var b strings.Builder
	fmt.Fprintf(&b, "checkpoint %s is not the one the bundle was compiled for, %d tensors differ:", dir, len(m))
	for i, l := range m {
		if i == maxMismatches {
			fmt.Fprintf(&b, "\n  and %d more", len(m)-maxMismatches)
			break
		}
		fmt.Fprintf(&b, "\n  %s %s", plain(l.tensor), l.text)
	}
	return errors.New(b.String())
}

// plain is a name from a file as a message shows it: quoted if it could do more
// to a terminal than be read.
func plain(name string) string {
	if q := strconv.Quote(name); q != `"`+name+`"` {
		return q
	}
	return name
}
