package host

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// withProgram loads a recipe whose sections are each a buffer from its start,
// and calls f with a function that runs it.
func withProgram(t testing.TB, ranks int, r *recipes.Recipe, f func(d *Device, run func() error)) {
	t.Helper()
	bytes := make(map[recipes.Buffer]int64)
	for _, s := range r.Sections {
		bytes[s.Buffer] = max(bytes[s.Buffer], s.Size)
	}
	d, err := newDevice(ranks, bytes, 0)
	require.NoError(t, err)
	defer d.Close()
	p, err := d.Load(r)
	require.NoError(t, err)
	l, err := d.Bind(p, bindings(r))
	require.NoError(t, err)
	f(d, func() error { return l.Run(context.Background()) })
}

func bindings(r *recipes.Recipe) []recipes.Binding {
	b := make([]recipes.Binding, len(r.Sections))
	for i, s := range r.Sections {
		b[i].Buffer = s.Buffer
	}
	return b
}

func newDevice(ranks int, bytes map[recipes.Buffer]int64, threads int) (*Device, error) {
	return New(Options{Ranks: ranks, Bytes: bytes, Threads: threads})
}

// launchOnce binds and runs a program.
func (d *Device) launchOnce(ctx context.Context, p *Program, b []recipes.Binding) error {
	l, err := d.Bind(p, b)
	if err != nil {
		return err
	}
	return l.Run(ctx)
}
