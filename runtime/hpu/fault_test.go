//go:build linux && amd64

package hpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
	"quill/runtime/devicetest"
)

// Whatever goes wrong ends in right results or in an error, within the deadlines; no
// process is left, and the cards can be used again.
func TestFaults(t *testing.T) {
	seeds := 50
	if os.Getenv("QUILL_SOAK") != "" {
		seeds = 1000
	}
	first := 0
	if text := os.Getenv("QUILL_SEED"); text != "" { // one seed that failed
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		first, seeds = n, 1
	}
	simulate(t, "") // skips
	work := devicetest.NewWork(t, subject(nil), 3)
	var failed, lost atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for n := first; n < first+seeds; n++ {
			t.Run(fmt.Sprintf("seed=%d", n), func(t *testing.T) {
				t.Parallel()
				err := faulty(t, work, fmt.Sprintf("seed=%d/3", n))
				if err != nil {
					failed.Add(1)
				}
				if errors.Is(err, runtime.ErrDeviceLost) {
					lost.Add(1)
				}
			})
		}
	})
	t.Logf("%d of %d seeds failed, %d of them with the loss of the cards", failed.Load(), seeds, lost.Load())
	if seeds > 1 {
		require.Greater(t, failed.Load(), int64(seeds/4), "faults that nothing meets prove nothing")
		require.Greater(t, lost.Load(), int64(seeds/10))
	}
}

// Faults of one kind each, and what their errors say.
func TestFaultsAreNamed(t *testing.T) {
	simulate(t, "") // skips
	work := devicetest.NewWork(t, subject(nil), 3)
	for _, c := range []struct{ faults, want string }{
		{"acquire:1=20", `hpu: open: rank \d: .*synDeviceAlreadyAcquired`},
		{"alloc:2@0=4", `rank 0: buffer \w+: .*synOutOfDeviceMemory.*; \d+ of \d+ bytes of the card are free`},
		{"load:2@2=19", `rank 2: plan .*: launch ".*": recipe \w+: .*synWrongParamsFile`},
		{"launch:5@1=26", `rank 1: recipe \w+-[0-9a-f]{12}: synLaunch: status 26`},
		{"sync:9@1=lost", `the device is lost: rank 1: .*synDeviceReset`},
		{"launch:7@2=exit", `the device is lost: rank 2: the process of the rank is gone: exit status 3`},
		{"launch:7@2=segv", `the device is lost: rank 2: the process of the rank is gone`},
		{"reduce:4@1=stuck", `the device is lost: [123] of 3 ranks( \(\d(, \d)*\))? did not answer within 1s(.|\n)*rank 0: plan prefill/q=\d,c=0, run \d+: 4 of 4 steps enqueued`},
		{"launch:9@0=hang", `the device is lost: [123] of 3 ranks( \(\d(, \d)*\))? did not answer within 1s(.|\n)*rank 0: plan prefill/q=\d,c=0, run \d+: \d of 4 steps enqueued`},
		{"join:1@2=exit", `join the communicator: the device is lost: rank 2: the process of the rank is gone: exit status 3`},
	} {
		t.Run(c.faults, func(t *testing.T) {
			t.Parallel()
			err := faulty(t, work, c.faults)
			require.Error(t, err)
			require.Regexp(t, c.want, err.Error())
			if !strings.Contains(c.want, "did not answer") {
				require.NotContains(t, err.Error(), "did not answer", "that follows from the cause")
			}
		})
	}
}

// Work that takes long without failing is no fault.
func TestLateWork(t *testing.T) {
	simulate(t, "") // skips
	work := devicetest.NewWork(t, subject(nil), 2)
	for _, faults := range []string{"launch:3=late", "copy:5@1=late", "reduce:4@0=late", "gather:2=late"} {
		require.NoError(t, faulty(t, work, faults), faults)
	}
}

// faulty works on cards with faults, and checks how it ends. It returns the error that
// the faults made, nil if none did.
func faulty(t *testing.T, w *devicetest.Work, faults string) error {
	s := simulate(t, faults)
	o := s.options(w.Bundle, w.Model)
	o.Deadline, o.Patience, o.Log = time.Second, 10*time.Second, nil
	start := time.Now()
	g, err := New(t.Context(), o, w.Compiled, w.Set)
	if err == nil {
		job := w.On(g)
		err = job.Do(t.Context())
		lost := errors.Is(err, runtime.ErrDeviceLost)
		if lost {
			// Once more, on cards that work now.
			s.env = append(s.env, "SIMSYNAPSE_FAULTS=")
			require.NoError(t, g.Restart(t.Context(), nil), "after %v", err)
			require.NoError(t, job.Again(t.Context()), "after %v", err)
		}
		if e := g.Close(); err == nil {
			err = e
		} else if lost {
			require.NoError(t, e)
		}
	}
	require.Less(t, time.Since(start), 2*o.Patience+5*abortLimit, "it took too long: %v", err)
	require.NotErrorIs(t, err, devicetest.ErrWrong, "results are wrong")
	noneLeft(t, s.dir)
	s.nothingKept(t)
	return err
}

// Cards that cannot be had again are the error, not that the rank waited for them.
func TestRestartWithoutCards(t *testing.T) {
	s := simulate(t, "sync:5@0=lost")
	w := devicetest.NewWork(t, subject(nil), 2)
	o := s.options(w.Bundle, w.Model)
	o.Patience, o.Log = 4*time.Second, nil
	g, err := New(t.Context(), o, w.Compiled, w.Set)
	require.NoError(t, err)
	require.ErrorIs(t, w.On(g).Do(t.Context()), runtime.ErrDeviceLost)
	s.env = append(s.env, "SIMSYNAPSE_FAULTS=", "SIMSYNAPSE_MODULES=1")
	require.ErrorContains(t, g.Restart(t.Context(), nil), "rank 1: device of module 1: synDeviceAcquireByModuleId: status 8")
	require.NoError(t, g.Close())
	noneLeft(t, s.dir)
}

// After a restart that failed the cards are lost still, and can be started again.
func TestRestartFails(t *testing.T) {
	s := simulate(t, "sync:5@0=lost")
	w := devicetest.NewWork(t, subject(nil), 2)
	o := s.options(w.Bundle, w.Model)
	o.Log = nil
	g, err := New(t.Context(), o, w.Compiled, w.Set)
	require.NoError(t, err)
	job := w.On(g)
	require.ErrorIs(t, job.Do(t.Context()), runtime.ErrDeviceLost)
	s.env = append(s.env, "SIMSYNAPSE_FAULTS=copy:1=26") // of the weights
	err = g.Restart(t.Context(), nil)
	require.ErrorContains(t, err, "restart: load weights: rank ")
	require.ErrorContains(t, g.Clear(recipes.Arena), "load weights: rank ")
	s.env = append(s.env, "SIMSYNAPSE_FAULTS=")
	require.NoError(t, g.Restart(t.Context(), nil))
	require.NoError(t, job.Again(t.Context()))
	require.NoError(t, g.Close())
	noneLeft(t, s.dir)
}

// Of ranks that are ended while their library reads a recipe no file is left.
func TestNoRecipeIsLeft(t *testing.T) {
	s := simulate(t, "load:2=hang")
	w := devicetest.NewWork(t, subject(nil), 2)
	o := s.options(w.Bundle, w.Model)
	o.Patience = time.Second
	tmp := t.TempDir()
	s.env = append(s.env, "TMPDIR="+tmp)
	start := time.Now()
	_, err := New(t.Context(), o, w.Compiled, w.Set)
	require.ErrorIs(t, err, runtime.ErrDeviceLost)
	for _, dir := range []string{tmp, "/dev/shm"} {
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, f := range files {
			info, err := f.Info()
			if err == nil && strings.HasSuffix(f.Name(), ".recipe") {
				require.Less(t, info.ModTime(), start, "%s is left in %s", f.Name(), dir)
			}
		}
	}
}

// noneLeft checks that no process of the simulated machine is left.
func noneLeft(t *testing.T, dir string) {
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, f := range all {
		env, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(env), asRank+"=1\x00") && strings.Contains(string(env), "SIMSYNAPSE_DIR="+dir+"\x00") {
			t.Errorf("a rank is left: %s", f)
		}
	}
}
