package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/runtime"
	"quill/runtime/host"
)

// replay executes single plans of a bundle on a host device, without a session
// and thus without a whole checkpoint.
type replay struct {
	t      testing.TB
	bundle *recipes.Bundle
	set    *recipes.Set
	device *runtime.HostDevice
}

func newReplay(t testing.TB, b *recipes.Bundle, set *recipes.Set) *replay {
	t.Helper()
	device, err := runtime.NewHostDevice(host.Options{Ranks: b.Manifest.Deployment.TensorParallel, Bytes: set.Info.Bytes})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	return &replay{t, b, set, device}
}

// loadOnly fills constants and those weights that the checkpoint has.
func (r *replay) loadOnly(dir string) {
	ckpt, err := safetensors.OpenDir(dir)
	require.NoError(r.t, err)
	defer func() { require.NoError(r.t, ckpt.Close()) }()
	for i := range r.set.Weights {
		w := &r.set.Weights[i]
		x, ok := ckpt.Tensor(w.Tensor)
		if w.Tensor != "" && !ok {
			continue
		}
		for rank := range r.device.Ranks() {
			mem := r.device.Bytes(rank, recipes.Weights)[w.Offset:][:w.Bytes()]
			require.NoError(r.t, recipes.FillWeight(mem, w, &x, rank, r.device.Ranks()))
		}
	}
}

// run executes the steps of a plan whose inputs are in the arena.
func (r *replay) run(p *recipes.Plan) {
	replay, err := r.device.Bind(p, func(h recipes.Hash) *recipes.Recipe { return r.bundle.Recipes[h] })
	require.NoError(r.t, err)
	require.NoError(r.t, replay.Run(r.t.Context()))
}
