package recipes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// fingerprintKeys are the parts of config.json that a compile depends on.
var fingerprintKeys = []string{"eos_token_id", "model_type", "text_config"}

// Fingerprint identifies the architecture that a config.json describes: the
// SHA-256, in hexadecimal, of the canonical JSON of model_type, eos_token_id
// and text_config. Canonical is one line with sorted keys and shortest numbers
// as float64 (1e-06 and 0.000001 are one number, so are 16.0 and 16), without
// HTML escapes.
func Fingerprint(configJSON []byte) (string, error) {
	var config map[string]any
	if err := json.Unmarshal(configJSON, &config); err != nil {
		return "", fmt.Errorf("config.json: %w", err)
	}
	arch := make(map[string]any, len(fingerprintKeys))
	for _, key := range fingerprintKeys {
		v, ok := config[key]
		if !ok {
			return "", fmt.Errorf("config.json has no %s", key)
		}
		arch[key] = v
	}
	var canonical bytes.Buffer
	enc := json.NewEncoder(&canonical)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(arch); err != nil { // sorts the keys of maps
		return "", fmt.Errorf("config.json: %w", err)
	}
	sum := sha256.Sum256(bytes.TrimSuffix(canonical.Bytes(), []byte("\n")))
	return hex.EncodeToString(sum[:]), nil
}
