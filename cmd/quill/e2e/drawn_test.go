package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower"
	"quill/passes"
	"quill/runtime"
)

// pick draws one of some values.
func pick[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

// drawnModel is a random configuration that some numbers of ranks divide.
func drawnModel(rng *rand.Rand, tp int) map[string]any {
	heads := func() (q, kv int) {
		kv = pick(rng, 1, 2, 4, 8)
		q = kv * pick(rng, 1, 1, 2, 3)
		for q%tp != 0 {
			q *= 2
		}
		return q, kv
	}
	c := maps.Clone(tiny)
	layers := 1 + rng.IntN(5)
	local := []int{}
	share := pick(rng, 0.0, 0.5, 1)
	for l := range layers {
		if rng.Float64() < share {
			local = append(local, l)
		}
	}
	c["num_hidden_layers"], c["local_layer_ids"] = layers, local
	c["hidden_size"] = pick(rng, 16, 24, 32, 64, 128)
	c["num_attention_heads"], c["num_key_value_heads"] = heads()
	c["swa_num_attention_heads"], c["swa_num_key_value_heads"] = heads()
	c["head_dim"], c["swa_head_dim"] = pick(rng, 4, 5, 8, 16, 32, 64), pick(rng, 4, 8, 16, 32, 64)
	c["sliding_window_size"] = pick(rng, 1, 2, 3, 4, 5, 6, 8, 9, 16, 30)
	c["rel_extent"] = pick(rng, 1, 2, 5, 6, 11, 30)
	c["d_rel"] = pick(rng, 1, 3, 4, 8)
	c["dense_mlp_idx"] = rng.IntN(layers + 1)
	c["dense_intermediate_size"] = 8 * pick(rng, 1, 3, 4)
	c["intermediate_size"] = 8 * pick(rng, 1, 2, 4)
	e := pick(rng, 1, 2, 3, 6, 9)
	c["n_routed_experts"], c["num_experts_per_tok"] = e, 1+rng.IntN(e)
	c["n_shared_experts"] = rng.IntN(4)
	return c
}

// drawnDeployment is a random deployment of a model.
func drawnDeployment(rng *rand.Rand, model string, tp, maxLen int) deployment {
	d := deployment{
		model: model, tp: tp, block: pick(rng, 1, 2, 3, 4, 5, 7, 8, 16), precision: pick(rng, "f32", "f32", "f32", "bf16"), maxLen: maxLen,
		maxSeqs: 3, maxBatched: 24, sharded: rng.IntN(2) == 0,
	}
	most := (d.maxLen + d.block - 1) / d.block
	d.buckets = fmt.Sprintf("prefill q=%s c=0,%d,%d\ndecode b=3 n=%d,%d\n", pick(rng, "4,24", "24", "1,5,24"), max(1, min(2, most-1)), most, max(3, most/2), 3*most)
	d.buckets += pick(rng, "", fmt.Sprintf("decode b=1 n=%d\n", most))
	d.more = pick(rng, "", "", "attention: plain\n", "attention: masked\n", "attention: banded\n")
	far := pick(rng, "", "", "far: mask\n", "far: exact\n", "far: tiled\n")
	if d.more == "" || d.more == "attention: banded\n" { // others have no band
		d.more += far
	}
	d.more += pick(rng, "", "", "sub_block_rows: 3\n", "sub_block_rows: 5\nmask_budget: 16KiB\n")
	d.more += pick(rng, "", "", "moe: fused\nmoe_experts_per_node: 1\n", "moe_experts_per_node: 2\n", "moe: gather\n")
	table := passes.Passes()
	family := passes.Default().Stage(passes.Family)
	if rng.IntN(2) == 0 {
		family = table.Random(rng.Uint64())
	}
	p := slices.Concat(family, passes.Default().Stage(passes.Bucket))
	var without []string
	for _, s := range p {
		if s.Pass.Optional && rng.IntN(6) == 0 && (s.Pass.Name != "expand-moe" || !strings.Contains(d.more, "gather")) {
			without = append(without, s.Pass.Name)
		}
	}
	p, err := p.Without(table, without...)
	if err != nil {
		panic(err)
	}
	d.pipeline = p.String()
	d.pipeline = strings.Replace(d.pipeline, "expand-moe", "expand-moe{"+pick(rng, "form=auto", "form=pairs,bytes=2KiB", "form=all,bytes=2KiB", "form=sorted,rows=3,bytes=2KiB", "form=sorted,rows=1")+"}", 1)
	return d
}

// Host and interpreter agree on random configurations, deployments, and orders of
// passes of which some are left out, for sequences of different lengths in one batch,
// with weights that are packed or not.
func TestDrawnConfigurations(t *testing.T) {
	n := 20
	if soak() {
		n = 500
	}
	for i := range n {
		seed := 1000*seed(t) + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 9))
			tp := pick(rng, 1, 1, 2, 2, 4, 8)
			model := drawnModel(rng, tp)
			d := drawnDeployment(rng, randomCheckpoint(t, model, seed), tp, 40)
			t.Logf("%v\n%s%s%s", model, d.yaml("buckets.txt"), d.buckets, d.pipeline)
			got, want := d.company(t, rng, int(seed%4))
			off := farthestRow(got, want)
			if d.precision == "bf16" {
				off = medianRow(got, want)
			}
			record(t, "drawn configurations, "+d.precision+" (relative)", off/scale(want...), varietyBounds[d.precision])
		})
	}
}

// What a step must not read has no influence on a drawn deployment either.
func TestPaddingChangesNoBitOfDrawnConfigurations(t *testing.T) {
	seeds := []uint64{2142, 2171, 2299} // sub-blocks of masks of which some rows begin at no address
	n := 10
	if soak() {
		n = 300
	}
	for i := range n {
		seeds = append(seeds, 2000*seed(t)+uint64(i))
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 9))
			tp := pick(rng, 1, 1, 2, 2, 4)
			model := drawnModel(rng, tp)
			d := drawnDeployment(rng, randomCheckpoint(t, model, seed), tp, 104)
			t.Logf("%v\n%s%s%s", model, d.yaml("buckets.txt"), d.buckets, d.pipeline)
			tokens := make([]int32, 121)
			for i := range tokens {
				tokens[i] = 1 + int32(rng.IntN(60)) // padding has token 0, and it alone
			}
			clean, dirty := newSpoiled(t, d, false), newSpoiled(t, d, true)
			want, got := clean.story(tokens), dirty.story(tokens)
			sameBits(t, want, got, "logits")
			dirty.zeroBlockIsUntouched()
		})
	}
}

// company feeds random tokens of three sequences, which decode together though they are of
// different lengths, to the host and to the interpreter. Weights are packed where pack is
// 2, or 3 for all of them.
func (d deployment) company(t *testing.T, rng *rand.Rand, pack int) (host, interp [][]float32) {
	s := &served{}
	if pack >= 2 {
		var err error
		s.path, err = d.file(t.Context())
		require.NoError(t, err)
		_, err = runtime.Pack(t.Context(), s.path, runtime.PackOptions{Model: d.model, Precision: d.precision, All: pack == 3, Quill: lower.Version})
		require.NoError(t, err)
	}
	require.NoError(t, s.start(t.Context(), d))
	defer func() { require.NoError(t, s.Close()) }()
	const together = 6
	starts := []int{1 + rng.IntN(3), d.maxLen - together, 1 + rng.IntN(d.maxLen-together)}
	var seqs []*runtime.Sequence
	tokens, rows, chunks := make([][]int32, len(starts)), make([][][]float32, len(starts)), make([][]int, len(starts))
	for i, n := range starts {
		for range n + together {
			tokens[i] = append(tokens[i], int32(rng.IntN(s.Info().Model.ValidVocab)))
		}
		q, err := s.NewSequence(len(tokens[i]))
		require.NoError(t, err)
		defer q.Close()
		seqs = append(seqs, q)
		for q.Len() < n {
			c := min(n-q.Len(), 1+rng.IntN(16))
			chunks[i] = append(chunks[i], c)
			require.NoError(t, s.PrefillAll(t.Context(), q, tokens[i][q.Len():q.Len()+c], func(_ int, logits []float32) error {
				rows[i] = append(rows[i], slices.Clone(logits))
				return nil
			}))
		}
	}
	order := rng.Perm(len(seqs))
	for step := range together {
		var batch []*runtime.Sequence
		var next []int32
		for _, i := range order {
			batch, next = append(batch, seqs[i]), append(next, tokens[i][starts[i]+step])
		}
		got, err := s.Decode(t.Context(), batch, next)
		require.NoError(t, err)
		for k, i := range order {
			rows[i] = append(rows[i], slices.Clone(got[k]))
		}
	}
	r := d.reference(t)
	for i := range starts {
		host = append(host, rows[i]...)
		interp = append(interp, r.feed(r.newText(len(tokens[i])), tokens[i], chunks[i], 1, rng)...)
	}
	return host, interp
}
