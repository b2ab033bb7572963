package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
	"quill/runtime/host"
)

// served is a deployment that tests share: they take turns.
type served struct {
	mu               sync.Mutex
	*runtime.Session // nil while it is closed
	device           *runtime.HostDevice
	path             string // of the bundle, once it is compiled
	used             int    // when it was asked for last; guarded by shared
}

// shared has everything that was opened. Sessions that no test has at the
// moment stay open for the next one, if there are not too many: each takes some
// tens of megabytes.
var shared struct {
	sync.Mutex
	byDeployment map[deployment]*served
	clock        int
}

const maxIdle = 8

// open gives the test a deployment to itself until the test ends.
func (d deployment) open(t testing.TB) *served {
	t.Helper()
	s := d.entry()
	s.mu.Lock()
	t.Cleanup(s.mu.Unlock)
	if s.Session == nil {
		require.NoError(t, s.start(context.Background(), d), "%v", d)
	}
	require.NoError(t, closeIdle(maxIdle))
	return s
}

func (d deployment) entry() *served {
	shared.Lock()
	defer shared.Unlock()
	if shared.byDeployment == nil {
		shared.byDeployment = map[deployment]*served{}
	}
	s := shared.byDeployment[d]
	if s == nil {
		s = &served{}
		shared.byDeployment[d] = s
	}
	shared.clock++
	s.used = shared.clock
	return s
}

// start opens a deployment, compiled if it is not yet.
func (s *served) start(ctx context.Context, d deployment) error {
	var err error
	if s.path == "" {
		if s.path, err = d.file(ctx); err != nil {
			return err
		}
	}
	s.Session, err = runtime.Open(ctx, s.path, runtime.Options{
		Model: d.model,
		NewDevice: func(b *recipes.Bundle, set *recipes.Set) (runtime.Device, error) {
			s.device, err = runtime.NewHostDevice(host.Options{Ranks: b.Manifest.Deployment.TensorParallel, Bytes: set.Info.Bytes})
			return s.device, err
		},
	})
	return err
}

// closeIdle closes sessions that no test has, but for the given number that was
// used last.
func closeIdle(keep int) error {
	shared.Lock()
	defer shared.Unlock()
	newestFirst := slices.SortedFunc(maps.Values(shared.byDeployment), func(a, b *served) int { return cmp.Compare(b.used, a.used) })
	var errs []error
	for _, s := range newestFirst {
		if !s.mu.TryLock() {
			continue
		}
		if s.Session != nil {
			if keep--; keep < 0 {
				errs = append(errs, s.stop())
			}
		}
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// stop closes the session. By then its sequences are closed; nothing was compiled or
// allocated since it was opened, and every step had a bucket.
func (s *served) stop() error {
	err := errors.Join(unstatic(s.Session), s.Close())
	s.Session, s.device = nil, nil
	return err
}

// unstatic says what a session did that it must not have done, or left.
func unstatic(s *runtime.Session) error {
	n := s.Info().Counters
	err := n.Static()
	if n.Sequences != 0 {
		err = errors.Join(err, fmt.Errorf("%d sequences are open", n.Sequences))
	}
	return err
}

// score feeds tokens as opt says and returns the logits after each.
func (s *served) score(t testing.TB, tokens []int32, opt runtime.ScoreOptions) [][]float32 {
	t.Helper()
	var rows [][]float32
	require.NoError(t, s.Score(t.Context(), tokens, opt, func(pos int, logits []float32) error {
		if pos != len(rows) {
			return fmt.Errorf("logits of position %d after those of %d others", pos, len(rows))
		}
		rows = append(rows, slices.Clone(logits))
		return nil
	}))
	return rows
}
