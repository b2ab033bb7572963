//go:build linux && amd64

package hpu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/lower/native/nativetest"
	"quill/recipes"
	"quill/recipes/dl/dltest"
	"quill/recipes/target"
	"quill/runtime"
	"quill/runtime/devicetest"
	"quill/runtime/hpu/simsynapse"
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
	s := &simulated{library: dltest.Simulated(t), dir: t.TempDir()}
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

// subject is a group of ranks on simulated cards.
func subject(s *simulated) devicetest.Subject {
	return devicetest.Subject{
		Prepare: func(t testing.TB, b *recipes.Bundle) {
			profile, err := target.Load(target.Default)
			require.NoError(t, err)
			nativetest.Compile(t, dltest.Simulated(t), profile, b)
		},
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

// noLeaks checks the accounts of all processes, which were as many.
func (s *simulated) noLeaks(t testing.TB, processes int) {
	ended := s.accounts(t)
	require.Len(t, ended, processes)
	for _, a := range ended {
		require.True(t, a.Destroyed && a.Clean(), "%+v", a)
	}
}

// nothingKept checks that processes that ended in order kept no memory of their cards; the
// system takes back what others had. Recipes cannot be destroyed on a card that is lost.
func (s *simulated) nothingKept(t testing.TB) {
	for _, a := range s.accounts(t) {
		require.True(t, !a.Destroyed || a.DeviceBytes == 0 && a.Allocations == 0 && a.HostMapped == 0, "%+v", a)
	}
}

func (s *simulated) accounts(t testing.TB) (all []simsynapse.Account) {
	files, err := filepath.Glob(filepath.Join(s.dir, "account-*"))
	require.NoError(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		var a simsynapse.Account
		if json.Unmarshal(data, &a) != nil {
			a = simsynapse.Account{} // it ended while it wrote
		}
		all = append(all, a)
	}
	return all
}
