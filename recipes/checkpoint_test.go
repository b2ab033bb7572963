package recipes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/safetensors"
)

func checkpointOf(t *testing.T, tensors ...safetensors.Tensor) *safetensors.Checkpoint {
	dir := t.TempDir()
	require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil))
	c, err := safetensors.OpenDir(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func zeros(name string, shape ...int64) safetensors.Tensor {
	n, _ := elems(shape)
	return safetensors.FromF32(name, shape, make([]float32, n))
}

func TestCheckCheckpointListsEverything(t *testing.T) {
	have := checkpointOf(t, zeros("fine", 2), zeros("shape", 4, 4), zeros("dtype", 3), zeros("both", 1), zeros("extra", 5),
		zeros("eye.a", 2), zeros("eye.b", 3), zeros("head", 7, 1), zeros("odd\x1b[2J", 1))
	notes, err := CheckCheckpoint([]CheckpointTensor{
		{Name: "shape", DType: "F32", Shape: []int64{4, 8}, Part: TextPart},
		{Name: "missing", DType: "BF16", Shape: []int64{16}},
		{Name: "fine", DType: "F32", Shape: []int64{2}, Part: TextPart},
		{Name: "dtype", DType: "BF16", Shape: []int64{3}, Part: TextPart},
		{Name: "both", DType: "BF16", Shape: []int64{2}, Part: TextPart},
		{Name: "ear", DType: "BF16", Shape: []int64{2}, Part: AudioPart},
		{Name: "head", DType: "BF16", Shape: []int64{2}, Part: MTPPart},
		{Name: "eye.a", DType: "F32", Shape: []int64{2}, Part: VisionPart},
		{Name: "eye.b", DType: "F32", Shape: []int64{3}, Part: VisionPart},
	}, have)
	require.EqualError(t, err, "checkpoint "+have.Dir()+` is not the one the bundle was compiled for, 6 tensors differ:
  both has shape [1], want [2] and is F32, want BF16
  dtype is F32, want BF16
  extra is unknown to the bundle (F32 [5])
  missing is missing, want BF16 [16]
  "odd\x1b[2J" is unknown to the bundle (F32 [1])
  shape has shape [4, 4], want [4, 8]`)
	require.Equal(t, []string{"2 vision tensors (20 bytes) are not used", "1 mtp tensors (28 bytes) are not used"}, notes)

	notes, err = CheckCheckpoint([]CheckpointTensor{{Name: "x", DType: "F32", Shape: []int64{1}}}, checkpointOf(t, zeros("x", 1)))
	require.NoError(t, err)
	require.Empty(t, notes)
}

func TestCheckCheckpointIsCapped(t *testing.T) {
	var want []CheckpointTensor
	for i := range 70 {
		want = append(want, CheckpointTensor{Name: fmt.Sprint("w", i), DType: "F32", Shape: []int64{1}})
	}
	_, err := CheckCheckpoint(want, checkpointOf(t))
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, 1+maxMismatches+1)
	require.Equal(t, "  and 20 more", lines[len(lines)-1])
}

func TestFingerprint(t *testing.T) {
	of := func(s string) string {
		f, err := Fingerprint([]byte(s))
		require.NoError(t, err)
		return f
	}
	base := of(`{"model_type":"m","eos_token_id":6,"text_config":{"eps":1e-06,"scale":16.0,"ids":[1,2],"a":null}}`)
	// printf '{"eos_token_id":6,"model_type":"m","text_config":{"a":null,"eps":0.000001,"ids":[1,2],"scale":16}}' | sha256sum
	require.Equal(t, "6df36449905974f292394c52e5a155ce2e8fbf68c4b476095bbf635a03c934d6", base)
	require.Equal(t, base, of(`{ "text_config":{"scale":16,"a":null,"ids":[1,2],"eps":0.000001},"eos_token_id":6.0,"model_type":"m","architectures":["X"]}`))
	for _, other := range []string{
		`{"model_type":"m","eos_token_id":7,"text_config":{"eps":1e-06,"scale":16.0,"ids":[1,2],"a":null}}`,
		`{"model_type":"n","eos_token_id":6,"text_config":{"eps":1e-06,"scale":16.0,"ids":[1,2],"a":null}}`,
		`{"model_type":"m","eos_token_id":6,"text_config":{"eps":1e-06,"scale":16.0,"ids":[2,1],"a":null}}`,
		`{"model_type":"m","eos_token_id":6,"text_config":{"eps":1e-06,"scale":16.0,"ids":[1,2]}}`,
	} {
		require.NotEqual(t, base, of(other))
	}
	for _, c := range []struct{ in, want string }{
		{`{`, "config.json: unexpected end"},
		{`[]`, "config.json: json: cannot unmarshal"},
		{`{"model_type":"m","eos_token_id":6}`, "config.json has no text_config"},
		{`{"model_type":"m","eos_token_id":1e999,"text_config":{}}`, "1e999"},
	} {
		_, err := Fingerprint([]byte(c.in))
		require.ErrorContains(t, err, c.want)
	}
}

// All published configurations have fingerprints, all different.
func TestFingerprintOfConfigs(t *testing.T) {
	files, err := filepath.Glob("../testdata/*/config.json")
	require.NoError(t, err)
	more, err := filepath.Glob("../testdata/configs/*/config.json")
	require.NoError(t, err)
	files = append(files, more...)
	require.NotEmpty(t, files)
	seen := make(map[string]string)
	for _, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		f, err := Fingerprint(data)
		require.NoError(t, err)
		require.Empty(t, seen[f], path)
		seen[f] = path
	}
}
