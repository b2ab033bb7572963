package recipes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A section has moved if the launch of the recipe before had it elsewhere: in another
// buffer or at another byte. The first launch of a step follows the last one of the step
// before, and other recipes in between do not count.
func TestMovedSections(t *testing.T) {
	t.Parallel()
	b := &Bundle{Recipes: map[Hash]*Recipe{
		{1}: {Sections: []Section{{Buffer: Arena}, {Buffer: Weights}}},
		{2}: {Sections: []Section{{Buffer: KV}}},
	}}
	layer := func(arena, weights int64) Step {
		return Step{Launch: &Launch{Recipe: Hash{1}, Bindings: []Binding{{Arena, arena}, {Weights, weights}}}}
	}
	other := func(buffer Buffer, at int64) Step {
		return Step{Launch: &Launch{Recipe: Hash{2}, Bindings: []Binding{{buffer, at}}}}
	}
	for _, c := range []struct {
		what  string
		moved int
		steps []Step
	}{
		{"one launch stays where it is", 0, []Step{layer(0, 0), other(KV, 128)}},
		{"weights of two layers, there and back", 2, []Step{layer(0, 0), layer(0, 128)}},
		{"weights of three layers", 3, []Step{layer(0, 0), other(KV, 0), layer(0, 128), other(KV, 0), layer(0, 256)}},
		{"a value that lies elsewhere once moves twice", 5, []Step{layer(0, 0), layer(512, 128), layer(0, 256)}},
		{"the same byte of another buffer", 2, []Step{other(KV, 0), {Collective: &Collective{}}, other(Conv, 0)}},
	} {
		require.Equal(t, c.moved, (&Plan{Steps: c.steps}).moved(), c.what)
		require.Equal(t, c.moved, b.Work(&Plan{Steps: c.steps}).Moved, c.what)
	}
}
