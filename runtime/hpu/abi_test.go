//go:build linux && amd64

package hpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/lower/synapse/syn"
	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/target"
	"quill/runtime"
	"quill/runtime/devicetest"
)

// asRank makes the test binary the process of a rank.
const asRank = "QUILL_TEST_RANK"

func TestMain(m *testing.M) {
	if as := os.Getenv(asRank); as != "" {
		serve := func() error { return Serve(context.Background()) }
		if odd := oddRanks[as]; odd != nil {
			serve = odd
		}
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// simulated is the library that simulates cards, which make test-abi builds, and the
// environment that it needs.
type simulated struct {
	library, dir string
	env          []string
	started      atomic.Int64 // processes of ranks
}

// simulate skips the test unless it runs for make test-abi.
func simulate(t testing.TB, faults string, more ...string) *simulated {
	if os.Getenv("QUILL_ABI") == "" {
		t.Skip("needs the simulated library: make test-abi")
	}
	s := &simulated{library: os.Getenv("QUILL_ABI_LIB"), dir: t.TempDir()}
	require.NotEmpty(t, s.library, "QUILL_ABI_LIB: the simulated library")
	s.env = append(more, "SIMSYNAPSE_DIR="+s.dir, "SIMSYNAPSE_FAULTS="+faults, "SIMSYNAPSE_DRAM=67108864", "SIMSYNAPSE_LAG=100us", "GC_KERNEL_PATH="+s.library)
	return s
}

// command starts the test binary as a rank.
func (s *simulated) command() *exec.Cmd {
	s.started.Add(1)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(s.env, asRank+"=1")...)
	return cmd
}

// options are those of a group on simulated cards.
func (s *simulated) options(bundle, model string) Options {
	return Options{
		Bundle: bundle, Model: model, Library: s.library, Command: s.command, Log: os.Stderr,
		Deadline: 10 * time.Second, Patience: 20 * time.Second,
	}
}

// compileNative compiles all recipes of a bundle with the library, in this process.
func compileNative(t testing.TB, b *recipes.Bundle) {
	lib := loadOnce(t)
	c, err := syn.Load(lib)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	version, err := c.Version()
	require.NoError(t, err)
	profile, err := target.Load(target.Default)
	require.NoError(t, err)
	b.Native = &recipes.Native{Driver: version, Recipes: make(map[recipes.Hash]recipes.NativeRecipe)}
	for h, r := range b.Recipes {
		g, err := c.Build(r, profile)
		require.NoError(t, err)
		x, err := g.Compile(r.Name)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "recipe")
		require.NoError(t, x.Serialize(path))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		b.Native.Recipes[h], err = recipes.PackNative(data, 0, 0)
		require.NoError(t, err)
		require.NoError(t, errors.Join(x.Destroy(), g.Destroy()))
	}
}

var loaded struct {
	sync.Once
	lib *dl.Library
	err error
}

func loadOnce(t testing.TB) *dl.Library {
	loaded.Do(func() {
		loaded.lib, loaded.err = dl.OpenSynapse(os.Getenv("QUILL_ABI_LIB"))
	})
	require.NoError(t, loaded.err)
	return loaded.lib
}

// subject is a group of ranks on simulated cards.
func subject(s *simulated) devicetest.Subject {
	return devicetest.Subject{
		Prepare: compileNative,
		Open: func(t testing.TB, bundle, model string, b *recipes.Bundle, set *recipes.Set) runtime.Device {
			g, err := New(t.Context(), s.options(bundle, model), b, set)
			require.NoError(t, err)
			return g
		},
	}
}

// A group of ranks does what every device must do.
func TestDevice(t *testing.T) {
	s := simulate(t, "")
	devicetest.Run(t, subject(s))
	s.noLeaks(t, int(s.started.Load()))
}

// account is what a process had when it ended.
type account struct {
	PID       int   `json:"pid"`
	Destroyed bool  `json:"destroyed"`
	Module    int   `json:"module"` // −1 for none
	Bytes     int64 `json:"device_bytes"`
	Mapped    int   `json:"host_mapped"`
	Streams   int   `json:"streams"`
	Events    int   `json:"events"`
	Recipes   int   `json:"recipes"`
	Graphs    int   `json:"graphs"`
	Comms     int   `json:"comms"`
}

// noLeaks checks the accounts of all processes, which were as many.
func (s *simulated) noLeaks(t testing.TB, processes int) {
	files, err := filepath.Glob(filepath.Join(s.dir, "account-*"))
	require.NoError(t, err)
	require.Len(t, files, processes)
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		var a account
		require.NoError(t, json.Unmarshal(data, &a))
		require.Equal(t, account{PID: a.PID, Destroyed: true, Module: -1}, a)
	}
}
