package inkling

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
)

// Inputs have the sizes of the graph, and lists of blocks mean positions.
func TestRandomSteps(t *testing.T) {
	cfg := load(t, "nano-small")
	o := nano(1, 8, dtype.F32)
	for fam, base := range map[Family]map[string]int64{
		PrefillNear: {"q": 5, "c": 2}, PrefillFar: {"q": 9, "c": 12}, DecodeFew: {"s": 3, "n": 4}, DecodeMany: {"s": 2, "n": 30},
	} {
		m, err := Capture(cfg, o, fam)
		require.NoError(t, err)
		env, err := m.Env(base)
		require.NoError(t, err)
		for seed := range uint64(20) {
			in, err := RandomStep(m, base, seed)
			require.NoError(t, err)
			for _, p := range m.Entry().Params {
				n, _ := p.Value.Type.Shape[0].Eval(env)
				if v, ok := in[p.Name]; ok {
					require.Len(t, v, int(n), p.Name)
				}
			}
			if fam == PrefillNear || fam == PrefillFar {
				end := int(in["ctx_start"][0]) + 8*len(in["ctx_blocks"])
				require.Equal(t, in["ctx_len"][0], in["positions"][0])
				require.Less(t, end-int(in["ctx_len"][0]), 8)
				require.GreaterOrEqual(t, end, int(in["ctx_len"][0]))
				require.NotContains(t, in, "window_blocks")
				continue
			}
			newest := map[int32]int32{}
			for i, start := range in["ref_start"] {
				if start < beyond-8 {
					newest[in["owners"][i]] = start
				}
			}
			for row, start := range newest {
				require.Contains(t, []int32{0, 1, 2, 3, 4, 5, 6, 7}, in["positions"][row]-start)
			}
		}
	}
	m, err := Capture(cfg, o, Prefill)
	require.NoError(t, err)
	in, err := RandomStep(m, map[string]int64{"q": 3}, 0)
	require.NoError(t, err)
	require.Equal(t, map[string][]int32{"positions": {0, 1, 2}, "q_len": {3}}, in, "there is no list of blocks")
	logits, err := Capture(cfg, o, Logits)
	require.NoError(t, err)
	in, err = RandomStep(logits, map[string]int64{"r": 3}, 0)
	require.NoError(t, err)
	require.Nil(t, in)
	_, err = RandomStep(m, map[string]int64{"q": 0}, 0)
	require.Error(t, err)
}
