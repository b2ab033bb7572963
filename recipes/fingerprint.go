package recipes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// fingerprintKeys are the parts of config.json that a compile depends on.
var fingerprintKeys = []string{"eos_token_id", "model_type", "text_config"}

// Fingerprint identifies the architecture that a config.json describes: the SHA-256, in
// hexadecimal, of Architecture.
func Fingerprint(configJSON []byte) (string, error) {
	arch, err := Architecture(configJSON)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(arch)
	return hex.EncodeToString(sum[:]), nil
}

// Architecture is what a compile depends on of a config.json: the canonical JSON of
// model_type, eos_token_id and text_config, a config.json again. Canonical is one line
// with sorted keys and shortest numbers as float64 (1e-06 and 0.000001 are one number,
// so are 16.0 and 16), without HTML escapes.
func Architecture(configJSON []byte) ([]byte, error) {
	var config map[string]any
	if err := json.Unmarshal(configJSON, &config); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	arch := make(map[string]any, len(fingerprintKeys))
	for _, key := range fingerprintKeys {
		v, ok := config[key]
		if !ok {
			return nil, fmt.Errorf("config.json has no %s", key)
		}
		arch[key] = v
	}
	var canonical bytes.Buffer
	enc := json.NewEncoder(&canonical)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(arch); err != nil { // sorts the keys of maps
		return nil, fmt.Errorf("config.json: %w", err)
	}
	return bytes.TrimSuffix(canonical.Bytes(), []byte("\n")), nil
}

// CheckModel compares the architecture of the model directory with the one
// that the bundle was compiled for.
func (b *Bundle) CheckModel(dir string) error {
	if dir == "" {
		return errors.New("no model directory: name the checkpoint's")
	}
	config, err := ReadConfig(dir)
	if err != nil {
		return fmt.Errorf("model directory: %w", err)
	}
	have, err := Fingerprint(config)
	if err != nil {
		return fmt.Errorf("model directory %s: %w", dir, err)
	}
	if want := b.Manifest.Model.Fingerprint; have != want {
		return fmt.Errorf("the config.json of %s has fingerprint %s, the bundle was compiled for %s: name the model that it was compiled for, or compile a bundle for this one",
			dir, have, want)
	}
	return nil
}
