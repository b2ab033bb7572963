package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

func TestOpenLoadsWeights(t *testing.T) {
	l := small()
	bundle, model := simBundle(t, l)
	var seen [][2]int64
	var dev *simDevice
	s, err := Open(ctx, bundle, Options{
		Model:     model,
		Precision: "f32",
		Progress:  func(done, total int64) { seen = append(seen, [2]int64{done, total}) },
		NewDevice: l.device(&dev),
	})
	require.NoError(t, err)
	want := safetensors.FromF32("w", nil, []float32{1, 2, 3, 4, 5, 6}).Data
	require.Equal(t, want, dev.mem[0][recipes.Weights])
	require.Equal(t, want, dev.mem[1][recipes.Weights])
	require.Equal(t, [][2]int64{{24, 48}, {48, 48}}, seen)
	require.NoError(t, s.Close())
	require.Equal(t, 1, dev.closed)
}

func TestOpenNotesUnusedParts(t *testing.T) {
	l := small()
	bundle, model := simBundle(t, l)
	b, err := recipes.ReadBundle(bundle)
	require.NoError(t, err)
	b.Checkpoint = append(b.Checkpoint, recipes.CheckpointTensor{Name: "eye", DType: "F32", Shape: []int64{1}, Part: recipes.VisionPart})
	require.NoError(t, recipes.WriteBundle(t.Context(), bundle, b))
	w := safetensors.FromF32("w", []int64{2, 3}, make([]float32, 6))
	eye := safetensors.FromF32("eye", []int64{1}, []float32{1})
	require.NoError(t, safetensors.Write(filepath.Join(model, "model.safetensors"), []safetensors.Tensor{w, eye}, nil))
	s, _ := simSessionOf(t, bundle, model, l, Options{})
	require.Equal(t, []string{"1 vision tensors (4 bytes) are not used"}, s.Info().Notes)
	require.NoError(t, s.Close())
}

// What Open refuses, it refuses with a cause, and the device is closed.
func TestOpenRefuses(t *testing.T) {
	l := small()
	prefill := func(b *recipes.Bundle) *recipes.Plan { return &b.Sets[0].Plans[0] }
	logits := func(b *recipes.Bundle) *recipes.Plan { return &b.Sets[0].Plans[len(b.Sets[0].Plans)-1] }
	for _, c := range []struct {
		name  string
		opt   Options
		model func(t *testing.T, dir string)
		edit  func(b *recipes.Bundle)
		want  string
	}{
		{name: "precision", opt: Options{Precision: "fp8"}, want: `no precision "fp8" in the bundle, it has f32`},
		{name: "chunk", opt: Options{PrefillChunk: -1}, want: "prefill chunk is -1"},
		{name: "no config", model: func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "config.json")))
		}, want: "config.json: no such file"},
		{name: "broken config", model: func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o666))
		}, want: "config.json has no eos_token_id"},
		{name: "another model", edit: func(b *recipes.Bundle) {
			b.Architecture = []byte(`{"eos_token_id":1,"model_type":"other","text_config":{}}`)
			b.Manifest.Model.Fingerprint, _ = recipes.Fingerprint(b.Architecture)
		}, want: "the bundle was compiled for d175b2b8"},
		{name: "no weights", model: func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
		}, want: "download the checkpoint again"},
		{name: "other weights", model: func(t *testing.T, dir string) {
			w := safetensors.FromF32("w", []int64{3, 2}, make([]float32, 6))
			require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{w}, nil))
		}, want: "w has shape [3, 2], want [2, 3]"},
		{name: "unconvertible weights", edit: func(b *recipes.Bundle) {
			for i := range b.Sets[0].Weights {
				b.Sets[0].Weights[i].DType = dtype.I32
			}
		}, want: "of 2: cannot make i32 of F32"},
		{
			name: "unknown input", edit: func(b *recipes.Bundle) { prefill(b).Inputs[0].Name = "seeds" },
			want: `plan prefill/q=1,c=0: this runtime knows no input "seeds"`,
		},
		{name: "input of another phase", edit: func(b *recipes.Bundle) { prefill(b).Inputs[0].Name = "rows" }, want: `no input "rows"`},
		{name: "input size", edit: func(b *recipes.Bundle) {
			in := &prefill(b).Inputs[0]
			in.Dims = []int64{0}
		}, want: "is i32 [0], this runtime makes"},
		{name: "input type", edit: func(b *recipes.Bundle) { prefill(b).Inputs[0].DType = dtype.I8 }, want: "is i8 ["},
		{name: "no logits", edit: func(b *recipes.Bundle) { logits(b).Outputs[0].Name = "ids" }, want: "plan logits/r=3: no output logits"},
		{name: "logits dims", edit: func(b *recipes.Bundle) {
			p := logits(b)
			p.Outputs[0].Dims = []int64{3, simValid}
			r, l := simLaunch(p)
			b.Recipes[r.Hash()] = r
			p.Steps = []recipes.Step{{Launch: l}}
		}, want: "output logits is f32 [3 11], want f32 [11 3]"},
		{name: "no logits bucket", edit: func(b *recipes.Bundle) {
			s := &b.Sets[0]
			s.Plans, s.Info.Plans = s.Plans[:1], s.Info.Plans[:1]
		}, want: "no logits bucket"},
		{name: "unloadable recipe", edit: func(b *recipes.Bundle) {
			r := &recipes.Recipe{Name: "what"}
			b.Recipes[r.Hash()] = r
			prefill(b).Steps[0].Launch.Recipe = r.Hash()
		}, want: `plan prefill/q=1,c=0: step 0: no such recipe what`},
	} {
		t.Run(c.name, func(t *testing.T) {
			bundle, model := simBundle(t, l)
			if c.edit != nil {
				b, err := recipes.ReadBundle(bundle)
				require.NoError(t, err)
				c.edit(b)
				require.NoError(t, recipes.WriteBundle(t.Context(), bundle, b))
			}
			if c.model != nil {
				c.model(t, model)
			}
			var dev *simDevice
			c.opt.Model, c.opt.NewDevice = model, l.device(&dev)
			_, err := Open(ctx, bundle, c.opt)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, bundle)
			if dev != nil {
				require.Equal(t, 1, dev.closed)
			}
		})
	}
	bundle, _ := simBundle(t, l)
	_, err := Open(ctx, bundle, Options{})
	require.ErrorContains(t, err, "no model directory")
	_, err = Open(ctx, filepath.Join(t.TempDir(), "none"), Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestOpenDevice(t *testing.T) {
	l := small()
	bundle, model := simBundle(t, l)
	broken := errors.New("out of memory")
	_, err := Open(ctx, bundle, Options{Model: model, NewDevice: func(*recipes.Bundle, *recipes.Set) (Device, error) { return nil, broken }})
	require.ErrorIs(t, err, broken)
	require.EqualError(t, err, "open "+bundle+": out of memory")

	_, err = Open(ctx, bundle, Options{
		Model: model, Check: func(b *recipes.Bundle) error { return fmt.Errorf("%d ranks", b.Manifest.Deployment.TensorParallel) },
		NewDevice: func(*recipes.Bundle, *recipes.Set) (Device, error) { panic("a bundle that is refused needs no device") },
	})
	require.EqualError(t, err, "open "+bundle+": 2 ranks")

	var dev *simDevice
	_, err = Open(ctx, bundle, Options{Model: model, NewDevice: func(b *recipes.Bundle, set *recipes.Set) (Device, error) {
		fewer := *b
		fewer.Manifest.Deployment.TensorParallel = 1
		return l.device(&dev)(&fewer, set)
	}})
	require.ErrorContains(t, err, "the device has 1 ranks, the bundle was compiled for 2")
	require.Equal(t, 1, dev.closed)

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = Open(cancelled, bundle, Options{Model: model, NewDevice: l.device(&dev)})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, dev.closed)

	late, cancel := context.WithCancel(ctx)
	_, err = Open(late, bundle, Options{Model: model, NewDevice: l.device(&dev), Progress: func(int64, int64) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "load weights")
}
