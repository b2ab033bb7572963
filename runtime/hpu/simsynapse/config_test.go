package simsynapse

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes/target"
)

func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"SIMSYNAPSE_DIR": "d", "SIMSYNAPSE_TRACE": "t-%d", "SIMSYNAPSE_PROFILE": "p", "SIMSYNAPSE_FAULTS": "f", "SIMSYNAPSE_DRAM": "4096", "SIMSYNAPSE_MODULES": "2",
		"SIMSYNAPSE_THREADS": "3", "SIMSYNAPSE_LAG": "5ms", "SIMSYNAPSE_POISON": "0", "SIMSYNAPSE_VERSION": "1.21.0", "HABANA_LOGS": "l", "GC_KERNEL_PATH": "k", "HCCL_COMM_ID": "c",
	} {
		t.Setenv(name, value)
	}
	c, err := FromEnv()
	require.NoError(t, err)
	require.Equal(t, Config{
		Dir: "d", Trace: "t-%d", Profile: "p", Faults: "f", DRAM: 4096, Modules: 2, Threads: 3, Lag: 5 * time.Millisecond, NoPoison: true,
		Version: "1.21.0", Logs: "l", Kernels: "k", CommID: "c",
	}, c)
	c.defaults()
	require.False(t, strings.Contains(c.Trace, "%"))

	t.Setenv("SIMSYNAPSE_LAG", "0s")
	c, err = FromEnv()
	require.NoError(t, err)
	c.defaults()
	require.Less(t, c.Lag, time.Microsecond, "no lag is not the default one")

	for name, value := range map[string]string{"SIMSYNAPSE_DRAM": "0", "SIMSYNAPSE_MODULES": "x", "SIMSYNAPSE_LAG": "5"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			_, err := FromEnv()
			require.ErrorContains(t, err, name+" is")
		})
	}
}

// Profiles are named, or files, or what a header adds.
func TestProfiles(t *testing.T) {
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	text, err := p.Format()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "mine.json")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	for name, missing := range map[string]bool{"": true, target.Default: true, path: true, "../../../recipes/dump/testdata/standin.h": false} {
		l, err := New(Config{Profile: name})
		require.NoError(t, err)
		require.Equal(t, missing, l.profile.Struct("ns_MoeKernel::ParamsV2").Missing != "", name)
	}
	for _, name := range []string{"nothing", "nothing.json", "nothing.h", "config_test.go"} {
		_, err := New(Config{Profile: name})
		require.ErrorContains(t, err, "SIMSYNAPSE_PROFILE: ")
	}
	_, err = New(Config{Dir: "nothing"})
	require.ErrorContains(t, err, "SIMSYNAPSE_DIR: nothing is no folder")
	_, err = New(Config{Trace: "nothing/there"})
	require.ErrorContains(t, err, "SIMSYNAPSE_TRACE: ")
}

// Logs are where the real library has them.
func TestLogs(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Logs: dir})
	is(t, InvalidArgument, l.StreamSynchronize(3))
	s := newSketch(t, l)
	is(t, Fail, second(s.node("nothing_f32", nil, nil)))
	for file, want := range map[string]string{"synapse_runtime.log": "synInvalidArgument: stream 0x3 is not there", "graph_compiler.log": "synFail: node "} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		require.Contains(t, string(text), want)
	}
}
