package recipes

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"quill/recipes/safetensors"
)

// PackVersion is the format of packed weights this code reads and writes.
const PackVersion = 1

// A file of packed weights begins with the magic number, the length of the
// header (64-bit, little-endian) and the header, JSON padded with spaces so
// that what follows, the image, begins at a multiple of PackAlign.
const (
	packMagic     = "quillwts"
	packPrefix    = len(packMagic) + 8
	maxPackHeader = 64 << 20
)

// PackHeader says what packed weights are and what they were made for and from.
type PackHeader struct {
	Format    int    `json:"format"` // PackVersion
	Quill     string `json:"quill"`  // version of the packer
	Model     string `json:"model"`  // fingerprint of the architecture
	Precision string `json:"precision"`
	// TensorParallel is the number of ranks.
	TensorParallel int `json:"tensor_parallel"`
	// Weights is the SHA-256 of the weights map and of the size of its buffer.
	Weights    Hash       `json:"weights"`
	Checkpoint PackSource `json:"checkpoint"`
	// All means that every slot is packed: nothing else of the checkpoint is needed.
	All    bool   `json:"all"`
	Bytes  int64  `json:"bytes"`  // of the image
	SHA256 string `json:"sha256"` // of the image, in hexadecimal
	Runs   []Run  `json:"runs"`
}

// PackSource identifies a checkpoint by what its file system says, without
// reading it.
type PackSource struct {
	// Inventory is the SHA-256 of the names, types, shapes and files of the
	// tensors that the weights come from.
	Inventory Hash         `json:"inventory"`
	Files     []SourceFile `json:"files"` // that have these tensors, sorted by name
}

// SourceFile is one file of a checkpoint.
type SourceFile struct {
	Name     string    `json:"name"` // in the checkpoint's directory
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
}

// Packing is how the image is laid out.
func (h *PackHeader) Packing() *Packing { return &Packing{Bytes: h.Bytes, Runs: h.Runs} }

// NewPackHeader describes packed weights of one of a bundle's sets. SHA256 is
// left for the writer.
func NewPackHeader(quill string, b *Bundle, set *Set, ckpt *safetensors.Checkpoint, all bool) (*PackHeader, error) {
	tp := b.Manifest.Deployment.TensorParallel
	source, err := newPackSource(set.Weights, ckpt)
	if err != nil {
		return nil, err
	}
	packed := func(w *Weight) bool { return all || !IsDirect(w, ckpt, tp) }
	p := NewPacking(set.Weights, tp, packed)
	return &PackHeader{
		Format: PackVersion, Quill: quill,
		Model: b.Manifest.Model.Fingerprint, Precision: set.Info.Precision, TensorParallel: tp,
		Weights: set.hash(), Checkpoint: source,
		All: all, Bytes: p.Bytes, Runs: p.Runs,
	}, nil
}

// IsDirect reports whether a checkpoint has the slot as it is for all ranks.
func IsDirect(w *Weight, ckpt *safetensors.Checkpoint, tp int) bool {
	t, ok := ckpt.Tensor(w.Tensor)
	if !ok {
		return false
	}
	_, ok = w.Direct(&t, 0, tp)
	return ok
}

// hash identifies the weights map and the size of its buffer.
func (s *Set) hash() Hash {
	h := sha256.New()
	// Neither numbers and strings nor a hash can fail to be written.
	_ = json.NewEncoder(h).Encode(s.Info.Bytes[Weights])
	_ = json.NewEncoder(h).Encode(s.Weights)
	return Hash(h.Sum(nil))
}

func newPackSource(weights []Weight, ckpt *safetensors.Checkpoint) (PackSource, error) {
	var used []*safetensors.Tensor
	seen := make(map[string]bool)
	for i := range weights {
		name := weights[i].Tensor
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		t, ok := ckpt.Tensor(name)
		if !ok {
			return PackSource{}, fmt.Errorf("the checkpoint %s has no tensor %s", ckpt.Dir(), plain(name))
		}
		used = append(used, &t)
	}
	slices.SortFunc(used, func(a, b *safetensors.Tensor) int { return strings.Compare(a.Name, b.Name) })
	h := sha256.New()
	files := make(map[string]bool)
	var s PackSource
	for _, t := range used {
		base := filepath.Base(t.File)
		fmt.Fprintf(h, "%q %s %s %q\n", t.Name, t.DType, shapeText(t.Shape), base)
		if files[base] {
			continue
		}
		files[base] = true
		f, err := statSource(ckpt.Dir(), base)
		if err != nil {
			return s, err
		}
		s.Files = append(s.Files, f)
	}
	slices.SortFunc(s.Files, func(a, b SourceFile) int { return strings.Compare(a.Name, b.Name) })
	s.Inventory = Hash(h.Sum(nil))
	return s, nil
}

func statSource(dir, name string) (SourceFile, error) {
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		return SourceFile{}, err
	}
	return SourceFile{name, info.Size(), info.ModTime().UTC()}, nil
}

// CheckFor reports in what a set of a bundle differs from the one that the
// weights were packed for.
func (h *PackHeader) CheckFor(b *Bundle, set *Set) error {
	for _, d := range []struct {
		what       string
		have, want any
	}{
		{"model fingerprint", h.Model, b.Manifest.Model.Fingerprint},
		{"precision", h.Precision, set.Info.Precision},
		{"tensor_parallel", h.TensorParallel, b.Manifest.Deployment.TensorParallel},
		{"weights map", h.Weights, set.hash()},
	} {
		if d.have != d.want {
			return fmt.Errorf("they were packed for %s %v, the bundle has %v", d.what, d.have, d.want)
		}
	}
	return h.Packing().check(set.Weights, h.TensorParallel)
}

// CheckFrom reports in what a checkpoint differs from the one that the weights
// were packed from.
func (h *PackHeader) CheckFrom(set *Set, ckpt *safetensors.Checkpoint) error {
	have, err := newPackSource(set.Weights, ckpt)
	if err != nil {
		return err
	}
	if err := h.Checkpoint.compare(have.Files); err != nil {
		return err
	}
	if h.Checkpoint.Inventory != have.Inventory {
		return fmt.Errorf("they were packed from tensors with hash %v, those of the checkpoint %s have %v", h.Checkpoint.Inventory, ckpt.Dir(), have.Inventory)
	}
	return nil
}

// compare compares with the files of a checkpoint as they are.
func (s *PackSource) compare(have []SourceFile) error {
	if len(s.Files) != len(have) {
		return fmt.Errorf("they were packed from %d files, the checkpoint has %d", len(s.Files), len(have))
	}
	for i := range have {
		a, b := &s.Files[i], &have[i]
		switch {
		case a.Name != b.Name:
			return fmt.Errorf("they were packed from a file %s, the checkpoint has %s", plain(a.Name), plain(b.Name))
		case a.Bytes != b.Bytes:
			return fmt.Errorf("they were packed from %s of %d bytes, the checkpoint's has %d", plain(a.Name), a.Bytes, b.Bytes)
		case !a.Modified.Equal(b.Modified):
			return fmt.Errorf("they were packed from %s as of %s, the checkpoint's is of %s",
				plain(a.Name), a.Modified.Format(time.RFC3339Nano), b.Modified.Format(time.RFC3339Nano))
		}
	}
	return nil
}

// Absent reports whether a directory has none of the files.
func (s *PackSource) Absent(dir string) bool {
	return !slices.ContainsFunc(s.Files, func(f SourceFile) bool {
		_, err := os.Lstat(filepath.Join(dir, f.Name))
		return !errors.Is(err, os.ErrNotExist)
	})
}

// encode is all that comes before the image. Its length does not depend on the
// digest.
func (h *PackHeader) encode() ([]byte, error) {
	if h.SHA256 == "" {
		unknown := *h
		unknown.SHA256 = strings.Repeat("0", hex.EncodedLen(sha256.Size))
		h = &unknown
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	size := padded(int64(packPrefix + len(text) + 1))
	out := append(make([]byte, 0, size), packMagic...)
	out = binary.LittleEndian.AppendUint64(out, uint64(size)-uint64(packPrefix))
	out = append(out, text...)
	for int64(len(out)) < size-1 {
		out = append(out, ' ')
	}
	return append(out, '\n'), nil
}
