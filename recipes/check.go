package recipes

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"quill/recipes/dtype"
)

// Check reports the first inconsistency of a bundle: limits that cannot hold,
// recipes that are not what their hash says, and whatever would make a replay
// touch bytes outside its buffers. WriteBundle and ReadBundle call it, so a
// runtime need not ask again.
func (b *Bundle) Check() error {
	if err := b.Manifest.Deployment.check(); err != nil {
		return fmt.Errorf("deployment: %w", err)
	}
	if m := &b.Manifest.Model; m.ValidVocab < 1 || m.ValidVocab > m.Vocab || m.Vocab > math.MaxInt32 {
		return fmt.Errorf("model: %d valid ids in a vocabulary of %d", m.ValidVocab, m.Vocab)
	}
	shapes, err := checkpointShapes(b.Checkpoint)
	if err != nil {
		return err
	}
	if err := b.checkRecipes(); err != nil {
		return err
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
// them neither slot numbers (i32) nor bucket costs (i64) overflow.
const (
	maxRanks  = 1 << 10
	maxBlock  = 1 << 12
	maxTokens = 1 << 24
	maxRefs   = 1 << 26
)

func (d *Deployment) check() error {
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

func (b *Bundle) checkRecipes() error {
	for _, h := range sortedHashes(b.Recipes) {
		r := b.Recipes[h]
		if r == nil {
			return fmt.Errorf("recipe %v is nil", h)
		}
		enc, err := r.Encode()
		if err != nil {
			return fmt.Errorf("recipe %v: %w", h, err)
		}
		if sum := Sum(enc); sum != h {
			return fmt.Errorf("recipe %s has hash %v but is filed under %v", r.Name, sum, h)
		}
		if err := r.Check(); err != nil {
			return err
		}
	}
	return nil
}

func sortedHashes(m map[Hash]*Recipe) []Hash {
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
var folders = []string{recipeDir}

func (c *setCheck) run() error {
	info := &c.set.Info
	if !precisionName.MatchString(info.Precision) || slices.Contains(folders, info.Precision) {
		return fmt.Errorf("precision %q is not a usable name", info.Precision)
	}
	for b, n := range info.Bytes {
		if !slices.Contains(Buffers(), b) {
			return fmt.Errorf("unknown buffer %q, want one of %v", b, Buffers())
		}
		if n < 0 || n > maxBytes {
			return fmt.Errorf("buffer %s has %d bytes", b, n)
		}
	}
	if err := c.weights(); err != nil {
		return err
	}
	if len(info.Plans) != len(c.set.Plans) {
		return fmt.Errorf("the manifest lists %d plans, the set has %d", len(info.Plans), len(c.set.Plans))
	}
	seen := make(map[Bucket]bool)
	for i := range c.set.Plans {
		p := &c.set.Plans[i]
		if p.Bucket != info.Plans[i] {
			return fmt.Errorf("plan %d is for %v, the manifest says %v", i, p.Bucket, info.Plans[i])
		}
		if seen[p.Bucket] {
			return fmt.Errorf("plan %v is there twice", p.Bucket)
		}
		seen[p.Bucket] = true
		if err := c.plan(p); err != nil {
			return fmt.Errorf("plan %v: %w", p.Bucket, err)
		}
	}
	return nil
}

func (b Bucket) check() error {
	ok := b.Seqs >= 0 && b.Seqs <= maxTokens && b.Query >= 0 && b.Query <= maxTokens && b.Blocks >= 0 && b.Blocks <= maxRefs
	switch b.Phase {
	case Prefill:
		ok = ok && b.Query > 0
	case Decode:
		ok = ok && b.Seqs > 0 && b.Blocks > 0
	case Logits:
		ok = ok && b.Seqs > 0
	default:
		ok = false
	}
	if !ok {
		return fmt.Errorf("bucket %+v cannot be", b)
	}
	return nil
}

func (c *setCheck) plan(p *Plan) error {
	if err := p.Bucket.check(); err != nil {
		return err
	}
	if arena := c.set.Info.Bytes[Arena]; p.ArenaBytes < 0 || p.ArenaBytes > arena {
		return fmt.Errorf("needs %d bytes of an arena of %d", p.ArenaBytes, arena)
	}
	if err := checkIO(p); err != nil {
		return err
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		var err error
		switch {
		case (s.Launch == nil) == (s.Collective == nil):
			err = errors.New("want either a launch or a collective")
		case s.Launch != nil:
			err = c.launch(s.Launch)
		default:
			err = s.Collective.check(p.ArenaBytes, c.bundle.Manifest.Deployment.TensorParallel)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// checkIO checks that inputs and outputs lie in the plan's part of the arena
// and that no two inputs share bytes.
func checkIO(p *Plan) error {
	var in []span
	names := make(map[string]bool)
	for i, io := range slices.Concat(p.Inputs, p.Outputs) {
		if io.DType.Size() == 0 {
			return fmt.Errorf("%q has no element type", io.Name)
		}
		if _, ok := elems(io.Dims); !ok {
			return fmt.Errorf("%q has dims %v", io.Name, io.Dims)
		}
		if !within(io.Offset, io.Bytes(), p.ArenaBytes) {
			return fmt.Errorf("%q has %d bytes at byte %d of the plan's arena of %d", io.Name, io.Bytes(), io.Offset, p.ArenaBytes)
		}
		if i >= len(p.Inputs) {
			continue
		}
		if names[io.Name] {
			return fmt.Errorf("input %q is there twice", io.Name)
		}
		names[io.Name] = true
		in = append(in, span{io.Offset, io.Offset + io.Bytes(), i})
	}
	if a, b, ok := overlap(in); ok {
		return fmt.Errorf("inputs %q and %q share bytes", p.Inputs[a].Name, p.Inputs[b].Name)
	}
	return nil
}

// span is a range of bytes and the index of what lies there.
type span struct {
	lo, hi int64
	index  int
}

// overlap finds two spans that share bytes; a and b are their indices.
func overlap(spans []span) (a, b int, ok bool) {
	spans = slices.DeleteFunc(spans, func(s span) bool { return s.lo == s.hi })
	sortSpans(spans)
	for i := 1; i < len(spans); i++ {
		if spans[i].lo < spans[i-1].hi {
			return spans[i-1].index, spans[i].index, true
		}
	}
	return 0, 0, false
}

func sortSpans(spans []span) {
	slices.SortFunc(spans, func(a, b span) int {
		switch {
		case a.lo != b.lo:
			return sign(a.lo - b.lo)
		case a.hi != b.hi:
			return sign(a.hi - b.hi)
		}
		return a.index - b.index
	})
}

func sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func (c *setCheck) launch(l *Launch) error {
	r := c.bundle.Recipes[l.Recipe]
	if r == nil {
		return fmt.Errorf("launch %q: the bundle has no recipe %v", l.Label, l.Recipe)
	}
	if len(l.Bindings) != len(r.Sections) {
		return fmt.Errorf("launch %q: %d bindings for the %d sections of recipe %s", l.Label, len(l.Bindings), len(r.Sections), r.Name)
	}
	for i, b := range l.Bindings {
		s := &r.Sections[i]
		size, ok := c.set.Info.Bytes[b.Buffer]
		switch {
		case b.Buffer != s.Buffer:
			return fmt.Errorf("launch %q: section %s of recipe %s lies in %s, the binding says %s", l.Label, s.Name, r.Name, s.Buffer, b.Buffer)
		case !ok:
			return fmt.Errorf("launch %q: section %s of recipe %s lies in %q, which has no size in the manifest", l.Label, s.Name, r.Name, b.Buffer)
		case !within(b.Offset, s.Size, size):
			return fmt.Errorf("launch %q: section %s of recipe %s has %d bytes at byte %d of %s with %d", l.Label, s.Name, r.Name, s.Size, b.Offset, b.Buffer, size)
		}
	}
	return nil
}

// check checks a collective's ranges. Out is either In (in place) or apart from
// it: between the two the result would depend on the order of the copies.
func (c *Collective) check(arena int64, ranks int) error {
	size := int64(c.DType.Size())
	if size == 0 || c.Count < 0 || c.Count > maxBytes/size {
		return fmt.Errorf("%s %q moves %d elements of %v", c.Kind, c.Label, c.Count, c.DType)
	}
	in := c.Count * size
	out, inPlace := in, c.In == c.Out
	switch c.Kind {
	case AllReduce:
	case AllGather:
		out, inPlace = in*int64(ranks), ranks == 1 && inPlace
	default:
		return fmt.Errorf("unknown collective %q", c.Kind)
	}
	if !within(c.In, in, arena) || !within(c.Out, out, arena) {
		return fmt.Errorf("%s %q moves %d bytes at %d to %d bytes at %d of the plan's arena of %d", c.Kind, c.Label, in, c.In, out, c.Out, arena)
	}
	if !inPlace && in > 0 && c.In < c.Out+out && c.Out < c.In+in {
		return fmt.Errorf("%s %q: its input at %d and its output at %d overlap", c.Kind, c.Label, c.In, c.Out)
	}
	return nil
}

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

func (c *setCheck) weight(w *Weight, ranks int) error {
	if w.DType.Size() == 0 {
		return errors.New("no element type")
	}
	if _, ok := elems(w.Shape); !ok {
		return fmt.Errorf("shape %s", shapeText(w.Shape))
	}
	if w.Tensor == "" {
		return w.checkConstant(ranks)
	}
	if w.DType == dtype.Invalid {
		return errors.New("no element type")
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
