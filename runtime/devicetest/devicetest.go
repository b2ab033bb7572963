// Package devicetest holds what every device must do: one suite for the CPU and for
// cards. It has a bundle of its own, small enough to be computed by hand.
package devicetest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
)

// Subject is a kind of device.
type Subject struct {
	// Prepare makes a bundle ready for the device, before it is written; nil if there
	// is nothing to do.
	Prepare func(t testing.TB, b *recipes.Bundle)
	// Open makes a device for the set of a bundle, which is at a path as well.
	Open func(t testing.TB, bundle, model string, b *recipes.Bundle, set *recipes.Set) runtime.Device
}

// Run runs the suite with 1, 2 and 3 ranks.
func Run(t *testing.T, s Subject) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s *Subject, ranks int)
	}{
		{"Memory", testMemory},
		{"Ranges", testRanges},
		{"Replay", testReplay},
		{"Repeat", testRepeat},
		{"Cancelled", testCancelled},
		{"Threads", testThreads},
		{"Refuses", testRefuses},
		{"Closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, ranks := range []int{1, 2, 3} {
				t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) { c.test(t, &s, ranks) })
			}
		})
	}
}

// Buffers begin zeroed, keep what is written, and are each cleared alone.
func testMemory(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	require.Equal(t, ranks, d.Ranks())
	buffers := []recipes.Buffer{recipes.KV, recipes.Conv, recipes.Arena, recipes.Carry}
	read := func(rank int, b recipes.Buffer) []byte {
		data := make([]byte, d.set.Info.Bytes[b])
		require.NoError(t, d.Read(rank, b, 0, data))
		return data
	}
	for rank := range ranks {
		for i, b := range buffers {
			size := int(d.set.Info.Bytes[b])
			require.Equal(t, make([]byte, size), read(rank, b), "buffer %s of rank %d at the start", b, rank)
			for j := range size {
				require.NoError(t, d.Write(rank, b, int64(j), []byte{byte(1 + rank + i + j)}))
				if j > 64 { // the rest at once
					rest := make([]byte, size-j)
					for k := range rest {
						rest[k] = byte(1 + rank + i + j + k)
					}
					require.NoError(t, d.Write(rank, b, int64(j), rest))
					break
				}
			}
		}
		weights := read(rank, recipes.Weights)
		require.Equal(t, matrix[:], floats(weights[:4*cols*cols]))
		require.Equal(t, []float32{float32(rank + 1)}, floats(weights[pad:pad+4]))
	}
	require.NoError(t, d.Clear(recipes.KV))
	for rank := range ranks {
		for i, b := range buffers {
			for j, v := range read(rank, b) {
				want := byte(1 + rank + i + j)
				if b == recipes.KV {
					want = 0
				}
				require.Equal(t, want, v, "byte %d of buffer %s of rank %d", j, b, rank)
			}
		}
	}
}

// What is not all in a buffer is refused, and nothing is written then.
func testRanges(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	size := d.set.Info.Bytes[recipes.Conv]
	for _, c := range []struct {
		rank   int
		b      recipes.Buffer
		offset int64
		n      int
	}{
		{0, recipes.Conv, size, 1},
		{0, recipes.Conv, size - 1, 2},
		{0, recipes.Conv, -1, 1},
		{0, recipes.Conv, math.MaxInt64, 1},
		{0, recipes.Conv, math.MinInt64, 1},
		{ranks, recipes.Conv, 0, 1},
		{-1, recipes.Conv, 0, 1},
		{0, "other", 0, 1},
	} {
		data := make([]byte, c.n)
		require.Error(t, d.Write(c.rank, c.b, c.offset, data), "write %+v", c)
		require.Error(t, d.Read(c.rank, c.b, c.offset, data), "read %+v", c)
	}
	require.NoError(t, d.Write(0, recipes.Conv, size, nil))
	data := make([]byte, size)
	require.NoError(t, d.Read(0, recipes.Conv, 0, data))
	require.Equal(t, make([]byte, size), data)
}

// Plans that share recipes at different addresses and a state compute what they
// should, in any order, and so does the plan that reads what they carried.
func testReplay(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	var l law
	for n, plan := range []int{near, far, far, near, near, far} {
		d.run(t, plan, &l, n, inputs(n))
		if n%2 == 1 {
			require.NoError(t, d.replays[carried].Run(t.Context()))
			for i, v := range floats(d.out[carried]) {
				require.Equal(t, 2*l.flat()[i], v, "element %d of what was carried", i)
			}
		}
	}
	// The state is every rank's.
	for rank := range ranks {
		data := make([]byte, cellBytes)
		require.NoError(t, d.Read(rank, recipes.KV, 2*pad, data))
		require.Equal(t, l.flat(), floats(data))
	}
	require.NoError(t, d.Clear(recipes.KV))
	l = law{}
	d.run(t, near, &l, 1, inputs(9))
}

// A thousand replays give what one does, and the serving process allocates nothing.
func testRepeat(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	var l law
	for n := range 1000 {
		x := inputs(n)
		for i := range x {
			x[i] *= float32(1 - 2*(n/2%2)) // so that the state stays small
		}
		d.run(t, n%2, &l, 0, x)
	}
	programs, allocations := d.Made()
	require.Positive(t, programs)
	require.Positive(t, allocations)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := d.replays[near].Run(context.Background()); err != nil {
			panic(err)
		}
	}))
	afterPrograms, after := d.Made()
	require.Equal(t, programs, afterPrograms)
	require.Equal(t, allocations, after)
}

// A step that was cancelled before it begins does nothing.
func testCancelled(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.put(near, inputs(1), orders[0])
	require.ErrorIs(t, d.replays[near].Run(ctx), context.Canceled)
	var l law
	d.run(t, near, &l, 2, inputs(2)) // the state was untouched
}

// Several goroutines may replay; their steps follow each other.
func testThreads(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	d.put(near, inputs(1), orders[0])
	d.put(far, inputs(1), orders[0])
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 25 {
				if err := d.replays[i%2].Run(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var l law
	for range 100 {
		l.step(ranks, inputs(1), orders[0])
	}
	data := make([]byte, cellBytes)
	require.NoError(t, d.Read(ranks-1, recipes.KV, 2*pad, data))
	require.Equal(t, l.flat(), floats(data))
}

// Ranges of the arena that are not there are refused when a plan is bound.
func testRefuses(t *testing.T, s *Subject, ranks int) {
	f := newFixture(t, s, ranks)
	d := f.open(t, s)
	r, err := d.Bind(&f.set.Plans[near], f.recipe)
	require.NoError(t, err)
	size := f.set.Info.Bytes[recipes.Arena]
	for _, c := range [][2]int64{{-1, 4}, {0, size + 1}, {size, 1}, {4, -1}, {math.MaxInt64, 8}} {
		_, err := r.Stage(c[0], c[1])
		require.Error(t, err, "stage %v", c)
		_, err = r.Fetch(c[0], c[1])
		require.Error(t, err, "fetch %v", c)
	}
}

// A closed device says so, and can be closed again.
func testClosed(t *testing.T, s *Subject, ranks int) {
	d := newFixture(t, s, ranks).open(t, s)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	for _, r := range d.replays {
		require.ErrorContains(t, r.Run(t.Context()), "closed")
	}
}
