package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// bursts are 1, 2, 3 …, so that a window tells between which it was.
func counted() func(context.Context) (float64, error) {
	n := 0.0
	return func(context.Context) (float64, error) {
		n++
		return n, nil
	}
}

func runPaired(t require.TestingT, p *paired, times ...time.Duration) {
	for _, took := range times {
		require.NoError(t, p.call(context.Background(), func() (time.Duration, error) { return took, nil }))
	}
	require.NoError(t, p.finish(context.Background()))
}

func TestPairedWindows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why     string
		atLeast time.Duration
		times   []time.Duration
		want    []window
	}{
		{"no calls", 10, nil, nil},
		{"each call is a window", 0, []time.Duration{3, 4}, []window{{0, 1, 1, 2}, {1, 2, 2, 3}}},
		{"a window is full with the call that makes it long enough", 10, []time.Duration{4, 5, 6, 10}, []window{{0, 3, 1, 2}, {3, 4, 2, 3}}},
		{"what is left is a window", 10, []time.Duration{10, 5}, []window{{0, 1, 1, 2}, {1, 2, 2, 3}}},
		{"unless it is short", 10, []time.Duration{10, 2, 2}, []window{{0, 1, 1, 2}}},
		{"and there is another", 10, []time.Duration{2, 2}, []window{{0, 2, 1, 2}}},
	} {
		p := &paired{burst: counted(), atLeast: c.atLeast}
		runPaired(t, p, c.times...)
		require.Equal(t, c.want, p.windows, c.why)
		require.Equal(t, c.times, p.times, c.why)
	}
}

// Windows follow each other without a gap, and bursts are shared by neighbours.
func TestPairedWindowsAreConsecutive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := &paired{burst: counted(), atLeast: time.Duration(rapid.IntRange(0, 30).Draw(t, "at least"))}
		var times []time.Duration
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			times = append(times, time.Duration(rapid.IntRange(1, 20).Draw(t, "time")))
		}
		runPaired(t, p, times...)
		require.Equal(t, times, p.times)
		require.NotEmpty(t, p.windows)
		end := 0
		for i, w := range p.windows {
			require.Equal(t, end, w.first)
			require.Greater(t, w.end, w.first)
			require.InDelta(t, i+1, w.before, 0)
			require.InDelta(t, i+2, w.after, 0)
			end = w.end
		}
		var left time.Duration
		for _, rest := range times[end:] {
			left += rest
		}
		require.LessOrEqual(t, left, p.atLeast/2)
	})
}

func TestPairedFails(t *testing.T) {
	t.Parallel()
	failed := errors.New("no")
	call := func() (time.Duration, error) { return 1, nil }
	p := &paired{burst: func(context.Context) (float64, error) { return 0, failed }}
	require.ErrorIs(t, p.call(t.Context(), call), failed)
	require.Empty(t, p.times)

	p = &paired{burst: counted()}
	require.ErrorIs(t, p.call(t.Context(), func() (time.Duration, error) { return 0, failed }), failed)
	require.Empty(t, p.windows)
}

// The roof halves and so does the rate, so each share is the same: that is what
// pairs are for. Two calls of 2 s need 30 and 50 a call.
func TestPairedShares(t *testing.T) {
	t.Parallel()
	p := &paired{
		times:   []time.Duration{2 * time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, time.Second},
		windows: []window{{0, 2, 30, 50}, {2, 4, 20, 20}},
	}
	need := func(call int) float64 { return []float64{30, 50, 30, 50, 1e9}[call] }
	require.Equal(t, []float64{0.5, 0.5}, p.shares(need))
	require.Empty(t, (&paired{}).shares(need))
	p.windows = []window{{0, 1, 0, 0}}
	require.Equal(t, []float64{0}, p.shares(need)) // a roof that cannot be
}

func TestSpread(t *testing.T) {
	t.Parallel()
	require.Equal(t, spread{5, 0.1, 0.2, 0.3, 0.4, 0.5}, newSpread([]float64{0.4, 0.1, 0.5, 0.3, 0.2}))
	require.Equal(t, spread{1, 0.5, 0.5, 0.5, 0.5, 0.5}, newSpread([]float64{0.5}))
	require.Equal(t, spread{}, newSpread(nil))

	s := newSpread([]float64{0.4, 0.1, 0.5, 0.3, 0.2})
	require.Equal(t, " (quartiles 20.0 to 40.0%, 5 windows)", s.String())
	s = newSpread([]float64{0.5})
	require.Equal(t, " (1 window)", s.String())
	require.Empty(t, (&spread{}).String())
	require.Empty(t, (*spread)(nil).String())
}
