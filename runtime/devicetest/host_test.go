package devicetest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
	"quill/runtime/devicetest"
	"quill/runtime/host"
)

func TestHost(t *testing.T) {
	devicetest.Run(t, devicetest.Subject{
		Open: func(t testing.TB, _, _ string, b *recipes.Bundle, set *recipes.Set) runtime.Device {
			d, err := runtime.NewHostDevice(host.Options{Ranks: b.Manifest.Deployment.TensorParallel, Bytes: set.Info.Bytes})
			require.NoError(t, err)
			return d
		},
	})
}
