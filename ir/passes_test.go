package ir_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir"
	"quill/ir/ops"
	"quill/passes"
)

// Random modules compute the same bits after the passes that promise it, in any
// order, and a pass says truly whether it changed anything. It is here since the
// modules are drawn from this package's insides.
func TestPassesKeepWhatRandomModulesCompute(t *testing.T) {
	exact := []string{"canonicalize", "fold", "cse", "cse{scope=function}", "dce"}
	t.Setenv("TMPDIR", t.TempDir()) // for reproducers
	drawn, compared, changed := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		before := ir.DrawModule(t)
		drawn++
		after := before.Clone()
		list := exact
		if before.Level == ops.Plan {
			list = slices.DeleteFunc(slices.Clone(exact), func(s string) bool { return s == "fold" }) // it is for whole graphs
		}
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(list), 1, 6).Draw(t, "passes"), ",")
		if before.Level != ops.Plan && rapid.Bool().Draw(t, "outlined") {
			text += ",outline-segments,canonicalize,cse,dce"
		}
		p, err := passes.Parse(text)
		require.NoError(t, err)
		mgr := passes.NewManager(passes.Config{Pipeline: p, Honest: true})
		require.NoError(t, mgr.Run(t.Context(), "", after))
		if before.String() != after.String() {
			changed++
		}

		env := map[string]int64{"q": rapid.Int64Range(2, 4).Draw(t, "q"), "sym": rapid.Int64Range(1, 3).Draw(t, "sym")}
		if !same(t, before, after, env, 0) {
			return
		}
		compared++
	})
	t.Logf("%d modules, %d changed, %d interpreted", drawn, changed, compared)
	if !t.Failed() {
		require.Greater(t, 3*compared, drawn, "most modules can be interpreted")
	}
}
