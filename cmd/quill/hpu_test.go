package main

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/runtime"
)

// restarts is a device whose restarts end so, one after the other.
type restarts []error

func (r *restarts) Restart(context.Context, func(done, total int64)) error {
	err := (*r)[0]
	*r = (*r)[1:]
	return err
}

// Cards that are lost again while they are started are started again, as often as was
// asked for.
func TestLasting(t *testing.T) {
	lost := runtime.ErrDeviceLost
	for _, c := range []struct {
		restarts int
		ends     restarts
		done     []error
		want     error
	}{
		{2, nil, []error{nil}, nil},
		{2, nil, []error{io.EOF}, io.EOF},
		{2, restarts{nil}, []error{lost, nil}, nil},
		{2, restarts{lost, nil}, []error{lost, nil}, nil},
		{2, restarts{io.EOF}, []error{lost}, io.EOF},
		{2, restarts{lost, lost}, []error{lost}, lost},
		{2, restarts{nil, nil}, []error{lost, lost, lost}, lost},
		{0, nil, []error{lost}, lost},
	} {
		o := deviceFlags{restarts: c.restarts}
		err := o.lasting(t.Context(), &c.ends, io.Discard, func() error {
			err := c.done[0]
			c.done = c.done[1:]
			return err
		})
		require.Equal(t, c.want, err)
		require.Empty(t, c.ends)
		require.Empty(t, c.done)
	}
}
