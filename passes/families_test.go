package passes

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/recipes/dtype"
)

// captured gives the modules of all families of a model.
func captured(t *testing.T, model string, o inkling.Options) []*ir.Module {
	t.Helper()
	cfg, err := inkling.ReadConfig(filepath.Join("../testdata", model, "config.json"))
	require.NoError(t, err)
	var list []*ir.Module
	for _, fam := range cfg.Families(o) {
		m, err := inkling.Capture(cfg, o, fam)
		require.NoError(t, err)
		list = append(list, m)
	}
	return list
}

// On what capture builds, passes say truly whether they changed anything, whatever
// their order, and the default pipeline leaves nothing to do for the same passes.
func TestFamiliesReachAFixedPoint(t *testing.T) {
	for model, o := range map[string]inkling.Options{
		"nano-small":            {TP: 2, BlockSize: 16, Blocks: 16, MaxModelLen: 1024, MaxNumSeqs: 4, MaxBatchedTokens: 64, Precision: dtype.F32},
		"configs/inkling-small": {TP: 8, BlockSize: 128, Blocks: 2560, MaxModelLen: 262144, MaxNumSeqs: 16, MaxBatchedTokens: 2048, Precision: dtype.BF16, ShardedEmbedding: true},
	} {
		for i, m := range captured(t, model, o) {
			require.NoError(t, NewManager(Config{Pipeline: Passes().Random(uint64(i)), Honest: true}).Run(t.Context(), "", m.Clone()))
			family := Default().Stage(Family)
			require.NoError(t, NewManager(Config{Pipeline: family[:len(family)-1], Honest: true}).Run(t.Context(), "", m))
			text := m.String()
			require.NoError(t, Run(t.Context(), m, family[:len(family)-1]))
			require.Equal(t, text, m.String(), "%s of %s", m.Name, model)
			require.NoError(t, NewManager(Config{Pipeline: family[len(family)-1:], Honest: true}).Run(t.Context(), "", m))
			base := map[string]int64{}
			for _, s := range m.Syms {
				if s.Def == nil {
					base[s.Name] = s.Min
				}
			}
			bucket, err := ir.Specialise(m, base)
			require.NoError(t, err)
			require.NoError(t, NewManager(Config{Pipeline: Default().Stage(Bucket), Honest: true}).Run(t.Context(), "", bucket))
			for _, again := range []*ir.Module{m, bucket} {
				text := again.String()
				require.NoError(t, Run(t.Context(), again, pipelineOf(t, "outline-segments,canonicalize,cse,dce")))
				require.Equal(t, text, again.String(), "%s of %s", m.Name, model)
			}
		}
	}
}
