package recipes

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
)

// Check reports the first inconsistency of a bundle: limits that cannot hold,
// recipes that are not what their hash says, and whatever would make a replay
// touch bytes outside its buffers. WriteBundle and ReadBundle call it, so a
// runtime need not ask again.
func (b *Bundle) Check() error {
	if err := b.Manifest.Deployment.Check(); err != nil {
		return fmt.Errorf("deployment: %w", err)
	}
	if m := &b.Manifest.Model; m.ValidVocab < 1 || m.ValidVocab > m.Vocab || m.Vocab > math.MaxInt32 {
		return fmt.Errorf("model: %d valid ids in a vocabulary of %d", m.ValidVocab, m.Vocab)
	}
	if err := b.checkArchitecture(); err != nil {
		return err
	}
	if w := b.Manifest.Model.Window; w < 0 || w > maxTokens {
		return fmt.Errorf("model: window is %d, want 0 to %d", w, maxTokens)
	}
	if err := b.Manifest.Model.checkKinds(); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if err := b.Manifest.Costs.check(); err != nil {
		return fmt.Errorf("costs: %w", err)
	}
	shapes, err := checkpointShapes(b.Checkpoint)
	if err != nil {
		return err
	}
	if err := b.checkRecipes(); err != nil {
		return err
	}
	if b.Native != nil {
		if err := b.Native.check(b.Recipes); err != nil {
			return fmt.Errorf("native recipes: %w", err)
		}
	}
	if len(b.Sets) == 0 {
		return errors.New("the bundle has no recipe set")
	}
	seen := make(map[string]bool)
	for i := range b.Sets {
		s := &b.Sets[i]
		if seen[s.Info.Precision] {
			return fmt.Errorf("set %s is there twice", s.Info.Precision)
		}
		seen[s.Info.Precision] = true
		c := setCheck{bundle: b, set: s, shapes: shapes}
		if err := c.run(); err != nil {
			return fmt.Errorf("set %s: %w", s.Info.Precision, err)
		}
	}
	return nil
}

// Bounds on the numbers of a deployment, far beyond any that makes sense: with
// them slot numbers (i32) do not overflow.
const (
	maxRanks  = 1 << 10
	maxBlock  = 1 << 12
	maxTokens = 1 << 24
	maxRefs   = 1 << 26
)

// Check reports a number that is out of bounds, naming its key first.
func (d *Deployment) Check() error {
	for _, f := range []struct {
		name     string
		val, max int
	}{
		{"tensor_parallel", d.TensorParallel, maxRanks},
		{"max_model_len", d.MaxModelLen, maxTokens},
		{"max_num_seqs", d.MaxNumSeqs, maxTokens},
		{"block_size", d.BlockSize, maxBlock},
		{"kv_blocks", d.KVBlocks, maxRefs},
		{"max_batched_tokens", d.MaxBatchedTokens, maxTokens},
	} {
		if f.val < 1 || f.val > f.max {
			return fmt.Errorf("%s is %d, want 1 to %d", f.name, f.val, f.max)
		}
	}
	if slots := int64(d.KVBlocks+2) * int64(d.BlockSize); slots > math.MaxInt32 {
		return fmt.Errorf("kv_blocks %d of block_size %d make %d slots, more than 31 bits count", d.KVBlocks, d.BlockSize, slots)
	}
	if need := d.BlocksFor(d.MaxModelLen); need > d.KVBlocks {
		return fmt.Errorf("max_model_len %d needs %d blocks, kv_blocks is %d: raise kv_blocks or lower max_model_len",
			d.MaxModelLen, need, d.KVBlocks)
	}
	return nil
}

// BlocksFor is the number of blocks that hold n tokens.
func (d *Deployment) BlocksFor(n int) int { return (n + d.BlockSize - 1) / d.BlockSize }

func (b *Bundle) checkArchitecture() error {
	have, err := Fingerprint(b.Architecture)
	if err != nil {
		return fmt.Errorf("%s of the bundle: %w", architectureName, err)
	}
	if want := b.Manifest.Model.Fingerprint; have != want {
		return fmt.Errorf("%s of the bundle has fingerprint %s, the manifest says %s", architectureName, have, want)
	}
	return nil
}

func (b *Bundle) checkRecipes() error {
	for _, h := range sortedHashes(b.Recipes) {
		r := b.Recipes[h]
		if r == nil {
			return fmt.Errorf("recipe %v is nil", h)
		}
		if sum := r.Hash(); sum != h {
			return fmt.Errorf("recipe %s has hash %v but is filed under %v", r.Name, sum, h)
		}
		if err := r.Check(); err != nil {
			return err
		}
	}
	return nil
}

func sortedHashes[V any](m map[Hash]V) []Hash {
	return slices.SortedFunc(maps.Keys(m), func(a, b Hash) int { return bytes.Compare(a[:], b[:]) })
}

// setCheck checks one set of a bundle.
type setCheck struct {
	bundle *Bundle
	set    *Set
	shapes map[string][]int64 // of the checkpoint's tensors
}

// precisionName is what a set may be called: it is a folder in the bundle.
var precisionName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// folders are the names that precisions may not take.
var folders = []string{recipeDir, nativeDir}

func (c *setCheck) run() error {
	info := &c.set.Info
	if !precisionName.MatchString(info.Precision) || slices.Contains(folders, info.Precision) {
		return fmt.Errorf("precision %q is not a usable name", info.Precision)
	}
	for _, b := range slices.Sorted(maps.Keys(info.Bytes)) {
		n := info.Bytes[b]
		if !slices.Contains(Buffers(), b) {
			return fmt.Errorf("unknown buffer %q, want one of %v", b, Buffers())
		}
		if n < 0 || n > maxBytes {
			return fmt.Errorf("buffer %s has %d bytes", b, n)
		}
	}
	if n := info.WorkspaceBytes; n < 0 || n > maxBytes {
		return fmt.Errorf("the workspace has %d bytes", n)
	}
	if err := c.weights(); err != nil {
		return err
	}
	if len(info.Plans) != len(c.set.Plans) {
		return fmt.Errorf("the manifest lists %d plans, the set has %d", len(info.Plans), len(c.set.Plans))
	}
	seen := make(map[string]bool) // by what names the plan's entry
	for i := range c.set.Plans {
		p := &c.set.Plans[i]
		if p.Bucket != info.Plans[i] {
			return fmt.Errorf("plan %d is for %v, the manifest says %v", i, p.Bucket, info.Plans[i])
		}
		if seen[p.Bucket.String()] {
			return fmt.Errorf("plan %v is there twice", p.Bucket)
		}
		seen[p.Bucket.String()] = true
		if err := c.plan(p); err != nil {
			return fmt.Errorf("plan %v: %w", p.Bucket, err)
		}
	}
	return c.flow()
}
