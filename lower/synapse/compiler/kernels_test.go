package compiler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckKernels(t *testing.T) {
	dir := t.TempDir()
	have := filepath.Join(dir, "libtpc_kernels.so")
	require.NoError(t, os.WriteFile(have, nil, 0o600))
	for _, c := range []struct{ path, want string }{
		{"", "GC_KERNEL_PATH is not set, so the graph compiler has no kernels; help: set GC_KERNEL_PATH=/usr/lib/habanalabs/libtpc_kernels.so"},
		{have, ""},
		{have + ":" + have, ""},
		{have + ":", "an empty name; help"},
		{dir + "/none.so:" + have, "none.so: no such file or directory; help"},
		{dir, "is no file; help"},
		{strings.Repeat(have+":", 15) + have, "names 16 libraries, of which the graph compiler opens 15"},
	} {
		t.Setenv("GC_KERNEL_PATH", c.path)
		if err := CheckKernels(); c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
}
