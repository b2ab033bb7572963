package passes

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/recipes/dtype"
)

// deep is the decode family of Inkling-Small on 8 ranks with another number of
// layers.
func deep(t *testing.T, layers int) *ir.Module {
	t.Helper()
	c, err := inkling.ReadConfig(filepath.FromSlash("../testdata/configs/inkling-small/config.json"))
	require.NoError(t, err)
	c.Layers = layers
	c.IsLocal = make([]bool, layers)
	for l := range c.IsLocal {
		c.IsLocal[l] = (l+1)%6 != 0
	}
	m, err := inkling.Capture(c, inkling.Options{
		TP: 8, BlockSize: 128, Blocks: 2560, MaxModelLen: 262144, MaxNumSeqs: 16, MaxBatchedTokens: 8192, Precision: dtype.BF16,
	}, inkling.DecodeMany)
	require.NoError(t, err)
	return m
}

// A decode step has two reductions a layer and nothing else between its launches,
// and as many distinct segments whatever the number of layers.
func TestDecodeOfAnyDepth(t *testing.T) {
	segments := 0
	for _, layers := range []int{42, 84, 168} {
		m := deep(t, layers)
		require.NoError(t, Run(t.Context(), m, Default().Stage(Family)))
		calls, reduces, gathers := 0, 0, 0
		for _, o := range m.Entry().Ops {
			switch o.Name() {
			case "call":
				calls++
			case "all_reduce":
				reduces++
			case "all_gather":
				gathers++
			}
		}
		require.Equal(t, 2*layers, reduces)
		require.Equal(t, 2*layers+1, calls)
		require.Zero(t, gathers, "that of the logits is in a plan of their own")
		if segments == 0 {
			segments = len(m.Funcs) - 1
			require.LessOrEqual(t, segments, 10)
		}
		require.Equal(t, segments, len(m.Funcs)-1, "%d layers", layers)
	}
}

// The pipeline's time grows with the number of ops, not faster.
func TestPipelineIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	// Whatever else the machine does only adds, so the least of several times counts.
	depths := []int{42, 84, 168}
	mods, least := make([]*ir.Module, len(depths)), make([]float64, len(depths))
	for i, n := range depths {
		mods[i] = deep(t, n)
	}
	const most = 2.5
	for round := range 12 {
		for i, m := range mods {
			n := m.Clone()
			start := time.Now()
			require.NoError(t, Run(t.Context(), n, Default().Stage(Family)))
			if took := time.Since(start).Seconds(); round == 0 || took < least[i] {
				least[i] = took
			}
		}
		if round >= 3 && least[2]/least[1] <= most {
			break
		}
	}
	t.Logf("%v layers take %.3f s: ratios %.2f and %.2f", depths, least, least[1]/least[0], least[2]/least[1])
	require.LessOrEqual(t, least[2]/least[1], most)
}
