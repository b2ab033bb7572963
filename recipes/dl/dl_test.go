package dl_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dl"
)

type fnType uintptr

func TestBind(t *testing.T) {
	var tab struct {
		Other  int
		One    fnType `sym:"one"`
		Two    fnType `sym:"two"`
		Three  fnType `sym:"three,optional"`
		Four   fnType `sym:"four"`
		Lookup fnType `sym:"five,optional"`
	}
	lib := dl.NewLibrary("libtest.so", "", "two", "five")
	err := lib.Bind(&tab)
	require.EqualError(t, err, "libtest.so does not export one, four; help: it is not libSynapse.so of software 1.16 or later, or not all of it")
	require.Zero(t, tab, "a table that cannot be filled is left alone")

	lib = dl.NewLibrary("libtest.so", "", "one", "two", "four")
	require.NoError(t, lib.Bind(&tab))
	require.Equal(t, []fnType{1, 2, 0, 3, 0}, []fnType{tab.One, tab.Two, tab.Three, tab.Four, tab.Lookup})
	require.EqualValues(t, 2, lib.Symbol("two"))
	require.Zero(t, lib.Symbol("three"))

	require.ErrorContains(t, lib.Bind(tab), "a pointer to a struct, not")
	require.ErrorContains(t, lib.Bind(&struct {
		One string `sym:"one"`
	}{}), "field One of *struct { One string \"sym:\\\"one\\\"\" } is for symbol one: want an exported func or uintptr, have string")
	require.ErrorContains(t, lib.Bind(&struct {
		one fnType `sym:"one"`
	}{}), "want an exported func")
}

func TestErrorText(t *testing.T) {
	lib := dl.NewLibrary("libtest.so", "")
	err := error(lib.Fail("synDeviceAcquireByModuleId", dl.NoDeviceFound, "module 3"))
	require.EqualError(t, err, "module 3: synDeviceAcquireByModuleId: status 8 (synNoDeviceFound): no such device; "+
		"help: hl-smi and quill doctor list the devices, --modules chooses them; another process may hold it, or the driver is not loaded")
	require.ErrorIs(t, err, dl.NoDeviceFound)
	require.NotErrorIs(t, err, dl.Busy)
	e, ok := errors.AsType[*dl.Error](fmt.Errorf("rank 0: %w", err))
	require.True(t, ok)
	require.Equal(t, "synDeviceAcquireByModuleId", e.Call)

	require.EqualError(t, lib.Fail("synX", dl.Status(99), ""), "synX: status 99, which no public header has")
	require.EqualError(t, lib.Fail("hcclX", dl.Result(-1), ""), "hcclX: result -1 (hcclUninitialized): the communicator is not initialised")
	require.EqualError(t, lib.Fail("hcclX", dl.Result(-7), ""), "hcclX: result -7, which no public header has")
	err = lib.Fail("hcclAllReduce", dl.Result(12), "rank 1")
	require.EqualError(t, err, "rank 1: hcclAllReduce: result 12 (hcclBusy): busy")
	require.ErrorIs(t, err, dl.Result(12))
	require.NotErrorIs(t, err, dl.Status(12), "a result is no status")
}

// Where the library has no words of its own, its logs are read: lines of errors that
// came since it was loaded.
func TestErrorTellsLogs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "3"), 0o700))
	write("graph_compiler.log", "[10:00:00.000001][GC      ][error][tid:1] of another run\n")
	write("other.log", "[10:00:00.000001][GC      ][error][tid:1] of another run, longer than what follows, since the file is begun anew\n")
	lib := dl.NewLibrary("libtest.so", dir)
	require.Empty(t, lib.Fail("synGraphCompile", dl.StatusFail, "").Detail)

	write("graph_compiler.log", "[10:00:01.000001][GC      ][error][tid:1] no kernel nop\n[10:00:01.000002][GC      ][info][tid:1] idle\n")
	write("3/synapse_runtime.log", "[10:00:01.000003][SYN_API ][critical][tid:1] the end\n")
	write("notes.txt", "[10:00:01.000003][SYN_API ][error][tid:1] no log\n")
	detail := lib.Fail("synGraphCompile", dl.StatusFail, "").Detail
	require.True(t, strings.HasPrefix(detail, "the library says: "))
	require.Contains(t, detail, "graph_compiler.log: [10:00:01.000001][GC      ][error][tid:1] no kernel nop")
	require.Contains(t, detail, "synapse_runtime.log: [10:00:01.000003][SYN_API ][critical][tid:1] the end")
	for _, not := range []string{"another run", "idle", "no log"} {
		require.NotContains(t, detail, not)
	}

	require.NoError(t, os.WriteFile(filepath.Join(dir, "other.log"), []byte("[10:00:02][GC][error][tid:1] anew\n"), 0o600))
	require.Contains(t, lib.Fail("synGraphCompile", dl.StatusFail, "").Detail, "anew")

	// However much is logged, little is told.
	write("graph_compiler.log", strings.Repeat("[10:00:03][GC][error][tid:1] "+strings.Repeat("x\xff", 4000)+"\n", 100))
	detail = lib.Fail("synGraphCompile", dl.StatusFail, "").Detail
	require.Less(t, len(detail), 4500)
	require.Equal(t, detail, strings.ToValidUTF8(detail, ""))
}

func TestOpenMissing(t *testing.T) {
	_, err := dl.Open("libnone1.so", "libnone2.so")
	if errors.Is(err, dl.ErrUnavailable) {
		return // this build has no loader, and says so
	}
	require.ErrorContains(t, err, "cannot load a library: tried libnone1.so (cannot open shared object file")
	require.ErrorContains(t, err, "libnone2.so (cannot open shared object file")

	t.Setenv("QUILL_SYNAPSE", "/nowhere/libSynapse.so")
	_, err = dl.OpenSynapse("")
	require.ErrorContains(t, err, "tried /nowhere/libSynapse.so (cannot open shared object file: No such file or directory); help: install the Intel Gaudi software")
	_, err = dl.OpenSynapse("/flag/libSynapse.so")
	require.ErrorContains(t, err, "/flag/libSynapse.so (")
	require.NotContains(t, err.Error(), "/nowhere")
	require.NotContains(t, err.Error(), "\n")

	bad := filepath.Join(t.TempDir(), "libbad.so")
	require.NoError(t, os.WriteFile(bad, []byte("no ELF file"), 0o600))
	_, err = dl.OpenSynapse(bad)
	require.ErrorContains(t, err, bad+" (")
}
