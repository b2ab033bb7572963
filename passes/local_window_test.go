package passes

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/recipes/dtype"
)

// capture captures a family of a model of testdata.
func capture(t *testing.T, name string, o inkling.Options, fam inkling.Family) (*inkling.Config, *ir.Module) {
	t.Helper()
	cfg, err := inkling.ReadConfig(filepath.Join("..", "testdata", filepath.FromSlash(name), "config.json"))
	require.NoError(t, err)
	m, err := inkling.Capture(cfg, o, fam)
	require.NoError(t, err)
	return cfg, m
}

// All local layers of Inkling-Small are narrowed, and no other: a window of 512
// tokens without its newest lies in 5 blocks of 128 however it does. Nothing else changes.
func TestWindowsOfInklingSmall(t *testing.T) {
	o := inkling.Options{TP: 8, BlockSize: 128, Blocks: 2560, MaxModelLen: 262144, MaxNumSeqs: 16, MaxBatchedTokens: 2048, Precision: dtype.BF16}
	for fam, want := range map[inkling.Family]struct{ global, local string }{
		inkling.Prefill:     {},
		inkling.PrefillNear: {"c", "min(c, 5)"},
		inkling.PrefillFar:  {"c", "5"},
	} {
		cfg, m := capture(t, "configs/inkling-small", o, fam)
		mgr := NewManager(Config{Pipeline: pipelineOf(t, "local-window"), Honest: true, Remark: func(r Remark) { t.Error(r) }})
		require.NoError(t, mgr.Run(t.Context(), "", m))
		require.Empty(t, mgr.Stats()[0].Ops)
		sizes := map[string]string{}
		for _, s := range m.Syms {
			if s.Name == "window" {
				sizes[s.Name] = fmt.Sprintf("%s(%s, %s)", s.Def.Fn, s.Def.X, s.Def.Y)
			}
		}
		reads := map[string]int{}
		for _, op := range m.Entry().Ops {
			if op.Name() != "kv_read" {
				continue
			}
			size := op.Results[0].Type.Shape[0].String()
			if text, ok := sizes[size]; ok {
				size = text
			}
			reads[fmt.Sprint(cfg.IsLocal[op.Loc.Layer], " ", size)]++
		}
		if fam == inkling.Prefill {
			require.Empty(t, reads)
			require.Zero(t, mgr.Stats()[0].Rewrites)
			continue
		}
		require.Equal(t, 35, mgr.Stats()[0].Rewrites)
		require.Equal(t, map[string]int{"true " + want.local: 2 * 35, "false " + want.global: 2 * 7}, reads, fam)
	}
}

// Whole graphs compute the same bits, and are narrowed in whatever form earlier
// passes leave them.
func TestWindowsKeepBits(t *testing.T) {
	before := []string{"", "canonicalize,", "fold,canonicalize,cse,dce,", "cse{scope=function},", "hoist-step-invariant,cse,dce,"}
	for i, run := range []struct {
		model string
		tp    int
		block int
		typ   dtype.Type
	}{{"nano-small", 2, 4, dtype.F32}, {"nano-dense", 1, 8, dtype.F32}, {"nano-dense", 2, 1, dtype.BF16}, {"nano-big", 1, 16, dtype.F32}} {
		o := inkling.Options{TP: run.tp, BlockSize: run.block, Blocks: 300, MaxModelLen: 256, MaxNumSeqs: 4, MaxBatchedTokens: 64, Precision: run.typ}
		for _, fam := range []inkling.Family{inkling.PrefillNear, inkling.PrefillFar} {
			t.Run(fmt.Sprintf("%s/b%d/%s", run.model, run.block, fam), func(t *testing.T) {
				t.Parallel()
				cfg, m := capture(t, run.model, o, fam)
				local := 0
				for _, is := range cfg.IsLocal {
					if is {
						local++
					}
				}
				for j, first := range before {
					p := pipelineOf(t, first+"local-window")
					mgr := NewManager(Config{Pipeline: p, Honest: true, Remark: func(r Remark) {
						if r.Pass == "local-window" {
							t.Error(r)
						}
					}})
					after := m.Clone()
					require.NoError(t, mgr.Run(t.Context(), "", after))
					require.Equal(t, local, mgr.Stats()[len(p)-1].Rewrites, first)
					if j == i {
						require.NoError(t, sameOnce(t.Context(), m, after, uint64(i), 0, false))
					}
				}
			})
		}
	}
}
