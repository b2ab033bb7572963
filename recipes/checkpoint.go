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
	notes, bad := CompareCheckpoint(want, have)
	return notes, mismatches(bad).err(have.Dir())
}

// CompareCheckpoint is CheckCheckpoint with every difference by itself, sorted by tensor.
// It looks at names, shapes and types alone.
func CompareCheckpoint(want []CheckpointTensor, have *safetensors.Checkpoint) (notes []string, bad []TensorMismatch) {
	byName := make(map[string]*CheckpointTensor, len(want))
	for i := range want {
		byName[want[i].Name] = &want[i]
	}
	var found mismatches
	present := make(map[string]bool)
	unused := make(map[string]tally)
	for _, t := range have.Tensors() {
		w := byName[t.Name]
		present[t.Name] = true
		switch {
		case w == nil:
			found.add(t.Name, "", typeText(t.DType, t.Shape), "is unknown to the bundle (%s)", typeText(t.DType, t.Shape))
		case w.part() != TextPart:
			unused[w.Part] = unused[w.Part].plus(len(t.Data))
		default:
			found.compare(w, &t)
		}
	}
	for i := range want {
		if w := &want[i]; w.part() == TextPart && !present[w.Name] {
			found.add(w.Name, typeText(w.DType, w.Shape), "", "is missing, want %s", typeText(w.DType, w.Shape))
		}
	}
	slices.SortFunc(found, func(a, b TensorMismatch) int { return strings.Compare(a.Tensor, b.Tensor) })
	return unusedNotes(unused), found
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

// TensorMismatch is a tensor that a checkpoint lacks, should not have, or has otherwise.
type TensorMismatch struct {
	Tensor string
	// Want and Have are types and shapes, as BF16 [4, 8]; "" is no tensor.
	Want, Have string
	// Text says all of it, behind the tensor's name.
	Text string
}

// mismatches collects what is wrong.
type mismatches []TensorMismatch

func (m *mismatches) add(tensor, want, have, format string, args ...any) {
	*m = append(*m, TensorMismatch{tensor, want, have, fmt.Sprintf(format, args...)})
}

func typeText(dtype string, shape []int64) string { return dtype + " " + shapeText(shape) }

func (m *mismatches) compare(want *CheckpointTensor, have *safetensors.Tensor) {
	var diff []string
	if !slices.Equal(want.Shape, have.Shape) {
		diff = append(diff, fmt.Sprintf("has shape %s, want %s", shapeText(have.Shape), shapeText(want.Shape)))
	}
	if want.DType != have.DType {
		diff = append(diff, fmt.Sprintf("is %s, want %s", have.DType, want.DType))
	}
	if len(diff) > 0 {
		m.add(want.Name, typeText(want.DType, want.Shape), typeText(have.DType, have.Shape), "%s", strings.Join(diff, " and "))
	}
}

func (m mismatches) err(dir string) error {
	if len(m) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "checkpoint %s is not the one the bundle was compiled for, %d tensors differ:", dir, len(m))
	for i, l := range m {
		if i == maxMismatches {
			fmt.Fprintf(&b, "\n  and %d more", len(m)-maxMismatches)
			break
		}
		fmt.Fprintf(&b, "\n  %s %s", plain(l.Tensor), l.Text)
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
