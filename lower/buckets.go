package lower

import (
	"fmt"
	"math"
	"math/bits"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"quill/recipes"
)

// buckets lists the deployment's buckets: prefill, then decode, then logits.
func (d *Deployment) buckets() ([]recipes.Bucket, error) {
	var bs []recipes.Bucket
	switch d.Buckets.Strategy {
	case "file":
		path := d.BucketList()
		src, err := recipes.ReadSmall(path, maxDeployment)
		if err != nil {
			return nil, d.at("buckets.path", "%v", err)
		}
		if bs, err = d.fileBuckets(path, src); err != nil {
			return nil, err
		}
	default:
		bs = d.expBuckets()
	}
	bs = append(bs, logitsBuckets(bs)...)
	if err := d.covered(bs); err != nil {
		return nil, err
	}
	return bs, nil
}

// BucketList is the file with the list of buckets, "" where there is none.
func (d *Deployment) BucketList() string {
	if d.Buckets.Path == "" || filepath.IsAbs(d.Buckets.Path) {
		return d.Buckets.Path
	}
	return filepath.Join(filepath.Dir(d.path), d.Buckets.Path)
}

// logitsBuckets projects one row a prefill and one a decoding sequence.
func logitsBuckets(bs []recipes.Bucket) []recipes.Bucket {
	rows := []int{1}
	for _, b := range bs {
		if b.Phase == recipes.Decode {
			rows = append(rows, b.Seqs)
		}
	}
	slices.Sort(rows)
	var out []recipes.Bucket
	for _, r := range slices.Compact(rows) {
		out = append(out, recipes.Bucket{Phase: recipes.Logits, Seqs: r})
	}
	return out
}

// curve is vllm-gaudi's exponential list: points values from lo to hi on an
// exponential, rounded up to multiples of step, without duplicates. A lo of 0
// or 1 is kept beside a curve that starts at step.
func curve(lo, step, hi, points int) []int {
	start := lo
	var vs []int
	if lo <= 1 {
		vs = append(vs, lo)
		start = step
	}
	for i := range points {
		v := float64(hi)
		if i < points-1 {
			v = float64(start) * math.Pow(float64(hi)/float64(start), float64(i)/float64(points-1))
		}
		vs = append(vs, min(ceilDiv(int(math.Ceil(v-1e-9)), step)*step, max(hi, lo)))
	}
	if len(vs) == 0 || vs[len(vs)-1] < hi {
		vs = append(vs, hi)
	}
	slices.Sort(vs)
	return slices.Compact(vs)
}

func log2Ceil(n int) int { return bits.Len(uint(max(n, 1) - 1)) }

// expBuckets follows vllm-gaudi's lists with a corrected edge: the longest
// context of query bucket i is what a chunk one token longer than the bucket
// before it can have, not what the full bucket can.
func (d *Deployment) expBuckets() []recipes.Bucket {
	b, mml := d.BlockSize, d.MaxModelLen
	mbt := d.MaxBatchedTokens
	queries := curve(min(b, mbt), min(b, mbt), mbt, max(log2Ceil(mbt), 1))
	most := ceilDiv(mml-1, b)
	c := max(1, (mml-queries[0])/b)
	if mml >= 8192 {
		c = max(1, (mml-mbt)/b)
	}
	c = min(c, most)
	var bs []recipes.Bucket
	before := 0
	for _, q := range queries {
		edge := min(ceilDiv(mml-before-1, b), most)
		ctx := []int{0}
		if most > 0 {
			for _, v := range curve(0, 1, c, log2Ceil(c)+1) {
				if v < c && v < edge { // the edge takes the place of the curve's end
					ctx = append(ctx, v)
				}
			}
			ctx = append(ctx, edge)
		}
		slices.Sort(ctx)
		for _, v := range slices.Compact(ctx) {
			bs = append(bs, recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: v})
		}
		before = q
	}
	return append(bs, d.expDecode()...)
}

func (d *Deployment) expDecode() []recipes.Bucket {
	perSeq := ceilDiv(d.MaxModelLen, d.BlockSize)
	seqs := curve(1, 2, d.MaxNumSeqs, log2Ceil(d.MaxNumSeqs)+1)
	most := perSeq * d.MaxNumSeqs
	refs := curve(1, d.MaxNumSeqs, most, log2Ceil(most)+1)
	var bs []recipes.Bucket
	for _, s := range seqs {
		var ns []int
		for _, n := range refs {
			ns = append(ns, min(max(n, s), s*perSeq)) // at least one block a sequence, at most all of it
		}
		slices.Sort(ns)
		for _, n := range slices.Compact(ns) {
			bs = append(bs, recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: n})
		}
	}
	return bs
}

// fileBuckets reads lists such as
//
//	prefill q=16,64 c=0,4,16
//	decode  b=1,4   n=1,16,64
//
// each line giving all combinations. # starts a comment. Combinations that
// cannot occur are errors, since they would only hide a mistake.
func (d *Deployment) fileBuckets(path string, src []byte) ([]recipes.Bucket, error) {
	var bs []recipes.Bucket
	for i, text := range strings.Split(string(src), "\n") {
		line, _, _ := strings.Cut(text, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		list, err := d.bucketLine(fields)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w\n  %.200s", path, i+1, err, text)
		}
		bs = append(bs, list...)
	}
	slices.SortStableFunc(bs, func(a, b recipes.Bucket) int {
		return slices.Compare([]int{phaseOrder(a), a.Seqs, a.Query, a.Blocks}, []int{phaseOrder(b), b.Seqs, b.Query, b.Blocks})
	})
	return slices.Compact(bs), nil
}

func phaseOrder(b recipes.Bucket) int {
	return slices.Index([]recipes.Phase{recipes.Prefill, recipes.Decode}, b.Phase)
}

func (d *Deployment) bucketLine(fields []string) ([]recipes.Bucket, error) {
	keys := map[string][2]string{"prefill": {"q", "c"}, "decode": {"b", "n"}}
	want, ok := keys[fields[0]]
	if !ok {
		return nil, fmt.Errorf("%q is not a phase; want prefill or decode", fields[0])
	}
	lists := map[string][]int{}
	for _, f := range fields[1:] {
		key, text, ok := strings.Cut(f, "=")
		if !ok || key != want[0] && key != want[1] {
			return nil, fmt.Errorf("%q: a %s line takes %s=… and %s=…", f, fields[0], want[0], want[1])
		}
		if lists[key] != nil {
			return nil, fmt.Errorf("%s is given twice", key)
		}
		for _, v := range strings.Split(text, ",") {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 || n > math.MaxInt32 {
				return nil, fmt.Errorf("%q in %s is not a count", v, f)
			}
			lists[key] = append(lists[key], n)
		}
	}
	if lists[want[0]] == nil || lists[want[1]] == nil {
		return nil, fmt.Errorf("a %s line needs both %s=… and %s=…", fields[0], want[0], want[1])
	}
	var bs []recipes.Bucket
	for _, x := range lists[want[0]] {
		for _, y := range lists[want[1]] {
			b := recipes.Bucket{Phase: recipes.Decode, Seqs: x, Blocks: y}
			if fields[0] == "prefill" {
				b = recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: x, Blocks: y}
			}
			if err := d.possible(b); err != nil {
				return nil, fmt.Errorf("%s: %w", b, err)
			}
			bs = append(bs, b)
		}
	}
	return bs, nil
}

// possible reports why a bucket can never be needed.
func (d *Deployment) possible(b recipes.Bucket) error {
	perSeq := ceilDiv(d.MaxModelLen, d.BlockSize)
	switch {
	case b.Phase == recipes.Prefill && b.Query < 1:
		return fmt.Errorf("q must be at least 1")
	case b.Phase == recipes.Prefill && b.Query > d.MaxBatchedTokens:
		return fmt.Errorf("q is more than a chunk can have, %d (max_batched_tokens, max_model_len)", d.MaxBatchedTokens)
	case b.Phase == recipes.Prefill && b.Blocks > perSeq:
		return fmt.Errorf("c is more than the %d blocks of max_model_len", perSeq)
	case b.Phase == recipes.Decode && (b.Seqs < 1 || b.Seqs > d.MaxNumSeqs):
		return fmt.Errorf("b is not from 1 to max_num_seqs %d", d.MaxNumSeqs)
	case b.Phase == recipes.Decode && (b.Blocks < b.Seqs || b.Blocks > b.Seqs*perSeq):
		return fmt.Errorf("n is not from b (a block each) to %d (max_model_len each)", b.Seqs*perSeq)
	}
	return nil
}

// covered reports an admissible step that no bucket can execute. A prefill
// chunk may be as short as one token, so every length of history needs a
// bucket; a decode step of s sequences needs one for all of them at full
// length.
func (d *Deployment) covered(bs []recipes.Bucket) error {
	perSeq := ceilDiv(d.MaxModelLen, d.BlockSize)
	needs := []recipes.Bucket{{Phase: recipes.Prefill, Seqs: 1, Query: 1, Blocks: ceilDiv(d.MaxModelLen-1, d.BlockSize)}}
	for s := 1; s <= d.MaxNumSeqs; s++ {
		needs = append(needs, recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: s * perSeq}, recipes.Bucket{Phase: recipes.Logits, Seqs: s})
	}
	for _, n := range needs {
		if !slices.ContainsFunc(bs, func(b recipes.Bucket) bool { return b.Covers(n) }) {
			return d.at("buckets", "no bucket covers %s, which max_model_len %d and max_num_seqs %d admit", n, d.MaxModelLen, d.MaxNumSeqs)
		}
	}
	return nil
}
