package kern

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReader(t *testing.T) {
	r := NewReader(2)
	require.EqualValues(t, readBytes, r.Bytes())
	for _, atLeast := range []time.Duration{0, 30 * time.Millisecond} {
		start := time.Now()
		require.Positive(t, r.Burst(atLeast))
		require.GreaterOrEqual(t, time.Since(start), atLeast)
	}
	rate, err := r.Bandwidth(t.Context())
	require.NoError(t, err)
	require.Positive(t, rate)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.Bandwidth(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
