package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/safetensors"
)

// checkpointLike writes a directory with another model's config.json in which
// some keys of text_config are changed, without towers and MTP heads, and the
// given tensors.
func checkpointLike(t testing.TB, model string, eos int, changed map[string]any, tensors []safetensors.Tensor) (dir string) {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(modelDir(model), "config.json"))
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(src, &config))
	maps.Copy(config["text_config"].(map[string]any), changed)
	config["eos_token_id"] = eos
	for _, part := range []string{"audio_config", "vision_config", "mtp_config"} {
		delete(config, part)
	}
	out, err := json.Marshal(config)
	require.NoError(t, err)
	dir, err = os.MkdirTemp(scratch, "checkpoint-")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), out, 0o666))
	require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil))
	return dir
}
