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

func odd(t *testing.T, as string) *Group {
	b := &recipes.Bundle{}
	b.Manifest.Deployment.TensorParallel = 2
	g, err := New(t.Context(), Options{
		Log: os.Stderr, Patience: 20 * time.Second,
		Command: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asRank+"="+as)
			return cmd
		},
	}, b, &recipes.Set{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

// What a rank says too late is no answer to another question.
func TestLateState(t *testing.T) {
	t.Parallel()
	g := odd(t, "late")
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
		err := odd(t, as).Clear(recipes.Arena)
		require.ErrorIs(t, err, runtime.ErrDeviceLost)
		require.ErrorContains(t, err, want)
	}
}

// Ranks that load are given up when one has failed.
func TestFailedWhileOthersLoad(t *testing.T) {
	t.Parallel()
	g := odd(t, "busy")
	start := time.Now()
	err := g.LoadWeights(t.Context(), nil)
	require.ErrorContains(t, err, "rank 1: no weights")
	require.Less(t, time.Since(start), 10*time.Second)
}

// A card has one rank.
func TestModulesTwice(t *testing.T) {
	b := &recipes.Bundle{}
	b.Manifest.Deployment.TensorParallel = 3
	_, err := New(t.Context(), Options{Modules: []uint32{4, 2, 4}}, b, &recipes.Set{})
	require.EqualError(t, err, "hpu: module 4 is for rank 0 and for rank 2: a card has one rank")
}
