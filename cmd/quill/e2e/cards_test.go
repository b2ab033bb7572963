//go:build linux && amd64

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower/native/nativetest"
	"quill/recipes"
	"quill/recipes/dl/dltest"
	"quill/recipes/target"
	"quill/recipes/target/header"
	"quill/runtime"
	"quill/runtime/hpu"
)

// asRank makes the test binary the process of a rank.
const asRank = "QUILL_TEST_RANK"

func init() {
	if os.Getenv(asRank) == "" {
		return
	}
	if err := hpu.Serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// standIn is the profile with a layout of the experts' parameters that is made up, since
// the vendor's is not public. The simulated library reads the same header.
func standIn(t testing.TB) *target.Profile {
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	path := os.Getenv("SIMSYNAPSE_PROFILE")
	text, err := os.ReadFile(path)
	require.NoError(t, err, "SIMSYNAPSE_PROFILE: the header that stands in for the vendor's")
	h, err := header.Parse(path, text, nil)
	require.NoError(t, err)
	_, err = h.Merge(p, filepath.Base(path), false)
	require.NoError(t, err)
	return p
}

// onCards opens a bundle on simulated cards.
func onCards(t testing.TB, library, bundle, model string) (s *runtime.Session, g *hpu.Group) {
	dir := t.TempDir()
	s, err := runtime.Open(t.Context(), bundle, runtime.Options{
		Model: model,
		NewDevice: func(b *recipes.Bundle, set *recipes.Set) (_ runtime.Device, err error) {
			g, err = hpu.New(t.Context(), hpu.Options{
				Bundle: bundle, Model: model, Library: library, Log: os.Stderr,
				Command: func() *exec.Cmd {
					cmd := exec.Command(os.Args[0])
					cmd.Env = append(os.Environ(), asRank+"=1", "SIMSYNAPSE_DIR="+dir, "SIMSYNAPSE_LAG=0s")
					return cmd
				},
			}, b, set)
			return g, err
		},
	})
	require.NoError(t, err)
	return s, g
}

// moved is how many sections rank 0 has moved in its launch tables.
func moved(t testing.TB, g *hpu.Group) int64 {
	states, err := g.States()
	require.NoError(t, err)
	return states[0].Moved
}

// Cards compute what the CPU does, bit for bit, in every bucket, and what is expected.
func TestCardsAreTheHost(t *testing.T) {
	library := dltest.Simulated(t)
	for _, c := range []struct {
		model string
		tp    int
		more  string
	}{
		{"nano-small", 1, "moe: gather\n"},
		{"nano-small", 2, "moe: gather\n"},
		{"nano-small", 8, "moe: gather\n"},
		{"nano-small", 2, "moe: fused\n"},
		{"nano-big", 1, "moe: gather\n"},
		{"nano-big", 2, "moe: fused\nattention: plain\n"},
		{"nano-big", 4, "moe: fused\n"},
		{"nano-big", 8, "moe: gather\n"},
	} {
		for _, precision := range []string{"f32", "bf16"} {
			d := nano(c.model, c.tp, 8, precision)
			d.more = c.more
			d.maxBatched = 64
			d.buckets = "prefill q=16,64 c=0,4,32\ndecode b=1 n=8,32\ndecode b=4 n=32,128\n"
			t.Run(d.String()+" "+strings.ReplaceAll(c.more, "\n", " "), func(t *testing.T) { cardsAreTheHost(t, library, c.model, d) })
		}
	}
}

func cardsAreTheHost(t *testing.T, library, model string, d deployment) {
	b, err := d.compile(t.Context())
	require.NoError(t, err)
	nativetest.Compile(t, library, standIn(t), b)
	path := filepath.Join(t.TempDir(), "cards.quill")
	require.NoError(t, recipes.WriteBundle(t.Context(), path, b))
	cpu, err := runtime.Open(t.Context(), path, runtime.Options{Model: d.model})
	require.NoError(t, err)
	defer func() { require.NoError(t, cpu.Close()) }()
	cards, group := onCards(t, library, path, d.model)
	defer func() { require.NoError(t, cards.Close()) }()

	g := goldenOf(t, model, 200)
	score := func(s *runtime.Session, opt runtime.ScoreOptions) (rows [][]float32) {
		require.NoError(t, s.Score(t.Context(), g.tokens, opt, func(_ int, logits []float32) error {
			rows = append(rows, slices.Clone(logits))
			return nil
		}))
		return rows
	}
	for i, opt := range []runtime.ScoreOptions{
		{Chunk: 64, DecodeFrom: 200},
		{Chunk: 16, DecodeFrom: 40},
		{Chunk: 24, DecodeFrom: 72, NoiseSeqs: 3},
	} {
		want, have := score(cpu, opt), score(cards, opt)
		sameBits(t, want, have, fmt.Sprintf("cards, %+v", opt))
		if d.precision == "f32" && i == 0 {
			record(t, "cards, f32 logits", farthestRow(g.logits, have), f32Bound)
		}
	}
	if d.tp > 1 {
		// From launch to launch of a recipe few sections move: weights, keys and values,
		// and what launches take of values of all layers. lower's tests say which.
		before := moved(t, group)
		opt := runtime.ScoreOptions{DecodeFrom: 0}
		steps := int64(len(score(cards, opt)))
		perLayer := float64(moved(t, group)-before) / float64(steps*int64(cards.Info().Model.Layers))
		t.Logf("%.2f sections move a layer and step", perLayer)
		require.LessOrEqual(t, perLayer, 6.0)
	}
	c := cards.Info().Counters
	for _, bucket := range b.Sets[0].Info.Plans {
		require.NotZero(t, c.Used[bucket], "bucket %v was not used", bucket)
	}
	require.NoError(t, c.Static())
}
