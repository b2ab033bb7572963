package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dl/dltest"
	"quill/recipes/native"
	"quill/runtime/hpu/simsynapse"
)

// buildLibrary builds the shared library with a tag; without one make has.
func buildLibrary(t *testing.T, tag string) string {
	t.Helper()
	if tag == "" {
		return dltest.Simulated(t)
	}
	dltest.Need(t)
	out := filepath.Join(t.TempDir(), "libsimsynapse.so")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-tags", tag, "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// smoke compiles the program in testdata.
func smoke(t *testing.T) string {
	t.Helper()
	dltest.Need(t)
	out := filepath.Join(t.TempDir(), "smoke")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	text, err := exec.Command(cc, "-Wall", "-Werror", "-O1", "-o", out, "testdata/smoke.c", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// accounts are those of the processes that used a folder.
func accounts(t *testing.T, dir string) []simsynapse.Account {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "account-*.json"))
	require.NoError(t, err)
	var list []simsynapse.Account
	for _, p := range paths {
		text, err := os.ReadFile(p)
		require.NoError(t, err)
		var a simsynapse.Account
		require.NoError(t, json.Unmarshal(text, &a))
		list = append(list, a)
	}
	return list
}

// A C program builds, compiles, writes, reads and launches, in the order of the vendor's
// examples; and ranks in processes of their own sum.
func TestCProgram(t *testing.T) {
	lib, program, dir := buildLibrary(t, ""), smoke(t), t.TempDir()
	kernels := filepath.Join(dir, "kernels.so")
	require.NoError(t, os.WriteFile(kernels, nil, 0o666))
	env := append(os.Environ(), "SIMSYNAPSE_DIR="+dir, "GC_KERNEL_PATH="+kernels, "SIMSYNAPSE_DRAM=16777216", "SIMSYNAPSE_TRACE="+filepath.Join(dir, "trace-%d"), "HABANA_LOGS="+dir)
	run := func(arg ...string) *exec.Cmd {
		cmd := exec.Command(program, append([]string{lib}, arg...)...)
		cmd.Env = env
		return cmd
	}
	path := filepath.Join(dir, "smoke.recipe")
	text, err := run("gemm", path).CombinedOutput()
	require.NoError(t, err, "%s", text)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	r, err := native.Decode(data)
	require.NoError(t, err)
	require.Equal(t, "smoke", r.Name)

	const ranks = 2
	var list []*exec.Cmd
	var out [ranks]bytes.Buffer
	for rank := range ranks {
		cmd := run("reduce", strconv.Itoa(rank), strconv.Itoa(ranks), filepath.Join(dir, "id"))
		cmd.Stdout, cmd.Stderr = &out[rank], &out[rank]
		require.NoError(t, cmd.Start())
		list = append(list, cmd)
	}
	for rank, cmd := range list {
		require.NoError(t, cmd.Wait(), "rank %d: %s", rank, out[rank].String())
	}
	all := accounts(t, dir)
	require.Len(t, all, 1+ranks)
	for _, a := range all {
		require.True(t, a.Clean() && a.Destroyed, "%+v", a)
	}
	traces, err := filepath.Glob(filepath.Join(dir, "trace-*"))
	require.NoError(t, err)
	require.Len(t, traces, 1+ranks)
}

// Releases differ in what they have.
func TestSymbols(t *testing.T) {
	program := smoke(t)
	names := []string{"synLaunch", "hcclCommInitRank", "synProfilerStart", "synTensorSetGeometryExt", "synGraphCompileV2", "hcclDeviceInit", "synGetLastErrorMessage", "hcclGetLastErrorMessage"}
	for tag, missing := range map[string][]string{
		"":       {"synTensorSetGeometryExt", "synGetLastErrorMessage", "hcclGetLastErrorMessage"},
		"syn116": {"synGraphCompileV2", "hcclDeviceInit", "synGetLastErrorMessage", "hcclGetLastErrorMessage"},
		"syn121": {"synTensorSetGeometryExt"},
	} {
		out, err := exec.Command(program, append([]string{buildLibrary(t, tag), "symbols"}, names...)...).Output()
		require.NoError(t, err)
		require.Equal(t, missing, strings.Fields(string(out)), "tag %q", tag)
	}
}

// A setting that is wrong ends the process, and says what is wrong with it.
func TestWrongSetting(t *testing.T) {
	cmd := exec.Command(smoke(t), buildLibrary(t, ""), "gemm", "x")
	cmd.Env = append(os.Environ(), "SIMSYNAPSE_FAULTS=launch=26")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `simsynapse: SIMSYNAPSE_FAULTS: "launch=26": want POINT:COUNT=ACTION, with a count from 1`)
}

// A planned crash is one of the process, as a fault in native code is; what it had is in
// its account.
func TestCrash(t *testing.T) {
	lib, program := buildLibrary(t, ""), smoke(t)
	for fault, want := range map[string]string{"sync:1=segv": "segmentation fault", "sync:1=abort": "aborted", "sync:1=exit": "exit status 3"} {
		dir := t.TempDir()
		kernels := filepath.Join(dir, "kernels.so")
		require.NoError(t, os.WriteFile(kernels, nil, 0o666))
		cmd := exec.Command(program, lib, "gemm", filepath.Join(dir, "r.recipe"))
		cmd.Env = append(os.Environ(), "SIMSYNAPSE_FAULTS="+fault, "SIMSYNAPSE_DIR="+dir, "GC_KERNEL_PATH="+kernels)
		require.ErrorContains(t, cmd.Run(), want)
		all := accounts(t, dir)
		require.Len(t, all, 1)
		a := all[0]
		require.Equal(t, simsynapse.Account{PID: a.PID, Module: 3, DeviceBytes: a.DeviceBytes, Allocations: 2, HostMapped: 1, Streams: 1, Recipes: 1}, a)
	}
}
