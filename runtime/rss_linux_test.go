package runtime

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// openEnv tells the test binary to be the process whose memory is measured.
const openEnv = "QUILL_TEST_OPEN"

// opening is what such a process is to open and what it found.
type opening struct {
	Bundle, Model, Weights string
	Packed                 string // file to pack instead

	Memory     Memory
	Base, Peak int64 // bytes, before and after
}

// large writes a bundle with weights of some 300 MiB, all of which must be
// rearranged or converted, and a checkpoint of as many bytes.
func large(t *testing.T) (bundle, model string, bytes int64) {
	bundle, model, embed, head := bigram(t)
	b, err := recipes.ReadBundle(bundle)
	require.NoError(t, err)
	flat := func(rows [][]float32) (all []float32) {
		for _, r := range rows {
			all = append(all, r...)
		}
		return all
	}
	shape := []int64{vocabulary, hidden}
	tensors := []safetensors.Tensor{safetensors.FromF32("embed", shape, flat(embed)), safetensors.FromF32("head", shape, flat(head))}
	set := &b.Sets[0]
	const f, h = 4096, 4096
	data := make([]byte, 2*f*h)
	for i := range data {
		data[i] = byte(i * 7)
	}
	at := set.Info.Bytes[recipes.Weights]
	for i, w := range []recipes.Weight{
		{Reshape: []int64{f / 2, 2, h}, Perm: []int{1, 0, 2}, Axis: 1, Ways: ranks, DType: dtype.BF16, Shape: []int64{2, f / 2 / ranks, h}},
		{Axis: 1, Ways: ranks, DType: dtype.BF16, Shape: []int64{f, h / ranks}},
		{Reshape: []int64{f / 2, 2, h}, Perm: []int{1, 0, 2}, Axis: 1, Ways: ranks, DType: dtype.BF16, Shape: []int64{2, f / 2 / ranks, h}},
		{Axis: 1, Ways: ranks, DType: dtype.BF16, Shape: []int64{f, h / ranks}},
		{Reshape: []int64{f / 2, 2, h}, Perm: []int{1, 0, 2}, Axis: 1, Ways: ranks, DType: dtype.BF16, Shape: []int64{2, f / 2 / ranks, h}},
		{Axis: 1, Ways: ranks, DType: dtype.BF16, Shape: []int64{f, h / ranks}},
		{Ways: 1, DType: dtype.F32, Shape: []int64{f, h}}, // shared by the ranks
		{Ways: ranks, DType: dtype.F32, Shape: []int64{f / ranks, h}},
	} {
		w.Tensor, w.Offset = fmt.Sprintf("large.%d", i), at
		at += w.Bytes()
		bytes += w.Bytes() * int64(w.Copies(ranks))
		set.Weights = append(set.Weights, w)
		b.Checkpoint = append(b.Checkpoint, recipes.CheckpointTensor{Name: w.Tensor, DType: "BF16", Shape: []int64{f, h}, Part: recipes.TextPart})
		tensors = append(tensors, safetensors.Tensor{Name: w.Tensor, DType: "BF16", Shape: []int64{f, h}, Data: data})
	}
	set.Info.Bytes[recipes.Weights] = at
	require.NoError(t, recipes.WriteBundle(ctx, bundle, b))
	require.NoError(t, safetensors.Write(filepath.Join(model, "model.safetensors"), tensors, nil))
	return bundle, model, bytes
}

// Loading takes hardly more memory than the weights, although all of the
// checkpoint is read; packing takes hardly any, and neither do packed weights.
func TestPeakMemory(t *testing.T) {
	if text := os.Getenv(openEnv); text != "" {
		measureOpening(t, text)
		return
	}
	if testing.Short() {
		t.Skip("writes and reads 600 MiB")
	}
	if _, err := peakResident(); err != nil {
		t.Skipf("the system does not say what memory a process has: %v", err)
	}
	bundle, model, bytes := large(t)
	tenth := bytes / 10

	o := measured(t, opening{Bundle: bundle, Model: model})
	require.InDelta(t, bytes, o.Memory.Copied, float64(tenth)/100)
	require.Greater(t, o.Peak-o.Base, bytes*9/10, "the measure itself is wrong")
	require.Less(t, o.Peak-o.Base, bytes+tenth)
	t.Logf("weights %d MiB, copied: peak %d MiB above %d MiB", bytes>>20, (o.Peak-o.Base)>>20, o.Base>>20)

	packed := PackedPath(bundle, "f32")
	o = measured(t, opening{Bundle: bundle, Model: model, Packed: packed})
	require.Less(t, o.Peak-o.Base, tenth)
	t.Logf("packing: peak %d MiB above %d MiB", (o.Peak-o.Base)>>20, o.Base>>20)
	o = measured(t, opening{Bundle: bundle, Model: model, Weights: packed})
	require.Zero(t, o.Memory.Copied)
	require.Less(t, o.Peak-o.Base, tenth)
	t.Logf("packed: peak %d MiB above %d MiB", (o.Peak-o.Base)>>20, o.Base>>20)
}

// measured has a process of its own do it.
func measured(t *testing.T, o opening) opening {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPeakMemory$", "-test.v")
	cmd.Env = append(os.Environ(), openEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, found, ok := strings.Cut(string(out), "measured:")
	require.True(t, ok, "%s", out)
	require.NoError(t, json.NewDecoder(strings.NewReader(found)).Decode(&o))
	return o
}

// measureOpening is that process.
func measureOpening(t *testing.T, text string) {
	var o opening
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	_, err := recipes.ReadBundle(o.Bundle) // what it takes is not counted
	require.NoError(t, err)
	o.Base, err = peakResident()
	require.NoError(t, err)
	if o.Packed != "" {
		_, err = Pack(ctx, o.Bundle, PackOptions{Model: o.Model, Output: o.Packed})
		require.NoError(t, err)
	} else {
		s, err := Open(ctx, o.Bundle, Options{Model: o.Model, Weights: o.Weights})
		require.NoError(t, err)
		o.Memory = s.Memory()
		defer func() { require.NoError(t, s.Close()) }()
	}
	o.Peak, err = peakResident()
	require.NoError(t, err)
	out, err := json.Marshal(o)
	require.NoError(t, err)
	fmt.Printf("measured:%s\n", out)
}

// peakResident is the most memory that this process has had, in bytes.
func peakResident() (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		return 0, fmt.Errorf("no VmHWM: %w", err)
	}
	return kib << 10, nil
}
