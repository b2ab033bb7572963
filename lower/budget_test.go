package lower

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeHeap is a budget of 800 bytes for objects and what its heap holds; collecting
// leaves what is live.
func fakeHeap() (*budget, *heap) {
	h := &heap{}
	b := newBudget(8 * 100)
	b.limit = 800
	b.heap = func() heap { return *h }
	b.collect = func() { h.objects = h.live }
	return b, h
}

func began(t *testing.T, b *budget) int64 {
	t.Helper()
	from, err := b.begin()
	require.NoError(t, err)
	return from
}

// Buckets are begun as long as there is room for what the largest one allocated, dead
// objects apart; else they wait for one that ends.
func TestBudgetHoldsBucketsBack(t *testing.T) {
	b, h := fakeHeap()
	*h = heap{live: 100, objects: 100}
	first := began(t, b)
	h.allocated += 200
	require.NoError(t, b.end(first)) // a bucket takes 200
	require.EqualValues(t, 200, b.need)
	h.objects = 750
	one, two, three := began(t, b), began(t, b), began(t, b) // 100 + 3·200 after collecting
	require.EqualValues(t, 100, h.objects)
	fourth := make(chan int64)
	go func() {
		from, _ := b.begin()
		fourth <- from
	}()
	select {
	case <-fourth:
		t.Error("begun without room")
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, b.end(one))
	four := <-fourth
	for _, from := range []int64{two, three, four} {
		require.NoError(t, b.end(from))
	}
	require.Zero(t, b.running)
}

// One bucket is always begun, however little there is, unless what is held without it is
// too much; one that takes too much alone is an error too.
func TestBudgetThatIsTooSmall(t *testing.T) {
	b, h := fakeHeap()
	*h = heap{live: 790, objects: 900}
	from := began(t, b)
	h.live, h.objects = 801, 801
	err := b.end(from)
	var memory *MemoryError
	require.ErrorAs(t, err, &memory)
	require.Equal(t, MemoryError{801, 800, 1}, *memory)
	_, err = b.begin()
	require.ErrorAs(t, err, &memory)
	require.ErrorContains(t, err, "the results of 1 buckets included")
	h.live, h.objects = 0, 0
	one, two := began(t, b), began(t, b)
	h.live = 900
	require.NoError(t, b.end(one), "it was not alone")
	require.Error(t, b.end(two))
}

func TestNoBudget(t *testing.T) {
	b := newBudget(0)
	for range 100 {
		began(t, b)
	}
	h := readHeap()
	require.Positive(t, h.objects)
	require.Positive(t, h.allocated)
}
