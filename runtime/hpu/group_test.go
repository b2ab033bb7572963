//go:build linux && amd64

package hpu

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
)

// oddRanks are processes of ranks that are not as they should be.
var oddRanks = map[string]func() error{
	// It answers twice.
	"eager": func() error {
		return answer(func(r *oddRank, k kind) error {
			if k == askClear && r.rank == 0 {
				if err := r.send(sayDone); err != nil {
					return err
				}
			} else if k == askClear {
				return nil
			}
			return r.send(sayDone)
		})
	},
	// It says what it is at when it is asked for something else, which it does later.
	"late": func() error {
		return answer(func(r *oddRank, k kind) error {
			switch k {
			case askState:
				return nil
			case askClear:
				if err := r.sendState(State{Rank: r.rank}); err != nil {
					return err
				}
				time.Sleep(100 * time.Millisecond)
				r.place(r.rank).runs.Store(1)
			}
			return r.send(sayDone)
		})
	},
	// It says what no rank says.
	"strange": func() error {
		return answer(func(r *oddRank, k kind) error {
			if k == askClear {
				return r.send(sayState + 1)
			}
			return r.send(sayDone)
		})
	},
	// It goes on and on while the other has failed.
	"busy": func() error {
		return answer(func(r *oddRank, k kind) error {
			if k != askLoad {
				return r.send(sayDone)
			}
			if r.rank == 1 {
				return r.sendJSON(sayFailed, failure{Text: "no weights"})
			}
			go func() {
				for r.sendJSON(sayProgress, progress{1, 2}) == nil { // it is not given up
					time.Sleep(100 * time.Millisecond)
				}
			}()
			return nil
		})
	},
	// The second has no card, and the first takes its time.
	"cardless": func() error {
		return answer(func(r *oddRank, k kind) error {
			if k == askOpen && r.rank == 1 {
				return r.sendJSON(sayFailed, failure{Text: "no card"})
			}
			return nil
		})
	},
	// The second cannot do it, and the first waits for it.
	"weak": func() error {
		return answer(func(r *oddRank, k kind) error {
			switch {
			case k != askClear:
				return r.send(sayDone)
			case r.rank == 1:
				r.place(1).runs.Store(1)
				return r.sendJSON(sayFailed, failure{Text: "no memory"})
			}
			return nil
		})
	},
	// The second ends, which the first says before it is known.
	"mortal": func() error {
		return answer(func(r *oddRank, k kind) error {
			switch {
			case k != askClear:
				return r.send(sayDone)
			case r.rank == 0:
				return r.sendJSON(sayFailed, failure{Text: "the other is gone"})
			}
			time.Sleep(100 * time.Millisecond)
			os.Exit(7)
			return nil
		})
	},
	// The second says nothing.
	"silent": func() error {
		return answer(func(r *oddRank, k kind) error {
			if k == askClear && r.rank == 1 {
				return nil
			}
			return r.send(sayDone)
		})
	},
}

type oddRank struct {
	*conn
	*shared
	rank int
}

// answer is a rank that has no card.
func answer(to func(*oddRank, kind) error) error {
	c, err := newConn(os.NewFile(3, "group"))
	if err != nil {
		return err
	}
	mem, err := openShared(os.NewFile(4, "shared memory"))
	if err != nil {
		return err
	}
	r := &oddRank{conn: c, shared: mem}
	for {
		k, body, err := c.receive()
		if err != nil || k == askAbort {
			return nil
		}
		if k == askOpen {
			var o openRequest
			if err := json.Unmarshal(body, &o); err != nil {
				return err
			}
			r.rank = o.Rank
		}
		if err := to(r, k); err != nil || k == askClose {
			return err
		}
	}
}

func odd(t *testing.T, as string, patience time.Duration) *Group {
	g, err := openOdd(t, as, patience)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

func openOdd(t *testing.T, as string, patience time.Duration) (*Group, error) {
	b := &recipes.Bundle{Native: &recipes.Native{}}
	b.Manifest.Deployment.TensorParallel = 2
	return New(t.Context(), Options{
		Log: os.Stderr, Patience: patience,
		Command: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asRank+"="+as)
			return cmd
		},
	}, b, &recipes.Set{})
}

// patient is a patience that no answer takes.
const patient = 20 * time.Second

// What a rank says too late is no answer to another question.
func TestLateState(t *testing.T) {
	t.Parallel()
	g := odd(t, "late", patient)
	_, err := g.States()
	require.NoError(t, err)
	require.NoError(t, g.Clear(recipes.Arena))
	for rank := range 2 {
		require.Equal(t, int64(1), g.shared.place(rank).runs.Load(), "rank %d has not done it yet", rank)
	}
}

// The answers of one rank are not those of two, and what is no answer is none.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	for as, want := range map[string]string{
		"eager":   "rank 0 sent packet 13, for which nobody asked",
		"strange": "sent packet 17, for which nobody asked",
	} {
		err := odd(t, as, patient).Clear(recipes.Arena)
		require.ErrorIs(t, err, runtime.ErrDeviceLost)
		require.ErrorContains(t, err, want)
	}
}

// Ranks that load are given up when one has failed.
func TestFailedWhileOthersLoad(t *testing.T) {
	t.Parallel()
	g := odd(t, "busy", patient)
	start := time.Now()
	err := g.LoadWeights(t.Context(), nil)
	require.EqualError(t, err, "load weights: rank 1: no weights")
	require.NotErrorIs(t, err, runtime.ErrDeviceLost, "nothing was in the cards")
	require.Less(t, time.Since(start), 10*time.Second)
}

// A rank that has no card is the error, not those that were still taking theirs.
func TestCardlessRank(t *testing.T) {
	t.Parallel()
	_, err := openOdd(t, "cardless", patient)
	require.EqualError(t, err, "hpu: open: rank 1: no card")
}

// An error names the rank at which it began, and why.
func TestErrorsNameTheCause(t *testing.T) {
	t.Parallel()
	for as, want := range map[string]string{
		"weak": "clear arena: the device is lost: rank 1: no memory\n" +
			"  rank 0 has run nothing\n" +
			"  rank 1: plan , run 1: 0 of 0 steps enqueued, it does not answer",
		"mortal": "clear arena: the device is lost: rank 1: the process of the rank is gone: exit status 7, after rank 0: the other is gone",
		"silent": "clear arena: the device is lost: 1 of 2 ranks (1) did not answer within 5s",
	} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			err := odd(t, as, 5*time.Second).Clear(recipes.Arena)
			require.ErrorIs(t, err, runtime.ErrDeviceLost)
			require.EqualError(t, err, want)
		})
	}
}

// Without native recipes no process is started.
func TestNoNativeRecipes(t *testing.T) {
	b := &recipes.Bundle{}
	b.Manifest.Deployment.TensorParallel = 1
	_, err := New(t.Context(), Options{}, b, &recipes.Set{})
	require.ErrorIs(t, err, errNative)
}

// A card has one rank.
func TestModulesTwice(t *testing.T) {
	b := &recipes.Bundle{}
	b.Manifest.Deployment.TensorParallel = 3
	_, err := New(t.Context(), Options{Modules: []uint32{4, 2, 4}}, b, &recipes.Set{})
	require.EqualError(t, err, "hpu: module 4 is for rank 0 and for rank 2: a card has one rank")
}
