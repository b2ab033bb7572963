package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/ops"
)

// What is generated from the table is up to date; go generate ./ir mends it.
func TestGeneratedFilesAreUpToDate(t *testing.T) {
	src, err := goSource()
	require.NoError(t, err)
	for path, want := range map[string][]byte{"../../ops_gen.go": src, "../../../docs/ops.md": reference()} {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s is out of date; run go generate ./ir", path)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{"kv_read": "KVRead", "rms_norm": "RMSNorm", "moe": "MoE", "reduce_sum": "ReduceSum", "add": "Add"} {
		require.Equal(t, want, camel(name))
	}
	require.Equal(t, "dt", local("dtype"))
	require.Equal(t, "transB", local("trans_b"))
}

// Every type of attribute and operand that the table uses has a name here.
func TestEveryTypeIsKnown(t *testing.T) {
	for i := range ops.Table {
		o := &ops.Table[i]
		for _, a := range o.Attrs {
			require.NotPanics(t, func() {
				goType(a.Type)
				attrField(a.Type)
			})
			require.NotEmpty(t, attrDoc[a.Type], a.Name)
		}
		for _, x := range o.Operands {
			require.NotEmpty(t, elemDoc[x.Elem], x.Name)
		}
	}
}
