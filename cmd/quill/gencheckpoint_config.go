package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"quill/ir/inkling"
	"quill/recipes"
)

// configPath is the config.json that an argument names, itself or by its
// directory.
func configPath(arg string) string {
	if info, err := os.Stat(arg); err == nil && info.IsDir() {
		return filepath.Join(arg, "config.json")
	}
	return arg
}

// readConfig reads the configuration, cut to the wanted layers: as text, which
// keeps everything else as it was, and parsed.
func (o *genOptions) readConfig() ([]byte, *inkling.Config, error) {
	path := configPath(o.config)
	text, err := recipes.ReadSmall(path, recipes.MaxConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the model's configuration: %w", err)
	}
	config, err := inkling.ParseConfig(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	if o.layers == 0 || o.layers == config.Layers {
		return text, config, nil
	}
	if o.layers > config.Layers {
		return nil, nil, fmt.Errorf("--layers %d: %s has num_hidden_layers %d, and a model can only be cut", o.layers, path, config.Layers)
	}
	if text, err = cutLayers(text, config, o.layers); err == nil {
		config, err = inkling.ParseConfig(text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("--layers %d: %s: %w", o.layers, path, err)
	}
	return text, config, nil
}

// cutLayers cuts a configuration that was parsed without an error: it replaces
// the number of layers, that of dense ones, and the list of local ones.
func cutLayers(text []byte, c *inkling.Config, layers int) ([]byte, error) {
	local := []int{}
	for l, is := range c.IsLocal[:layers] {
		if is {
			local = append(local, l)
		}
	}
	return setValue(text, "text_config", func(inner []byte) ([]byte, error) {
		for _, e := range []struct {
			key   string
			value any
		}{
			{"num_hidden_layers", layers},
			{"dense_mlp_idx", min(c.DenseLayers, layers)},
			{"local_layer_ids", local},
		} {
			var err error
			if inner, err = setValue(inner, e.key, func([]byte) ([]byte, error) { return json.Marshal(e.value) }); err != nil {
				return nil, err
			}
		}
		return inner, nil
	})
}

// setValue replaces the value of a key in the text of a JSON object and leaves
// every other byte as it is.
func setValue(object []byte, key string, change func(old []byte) ([]byte, error)) ([]byte, error) {
	begin, end, err := valueOf(object, key)
	if err != nil {
		return nil, err
	}
	value, err := change(object[begin:end])
	if err != nil {
		return nil, err
	}
	return slices.Concat(object[:begin], value, object[end:]), nil
}

// valueOf finds the value of a key in the text of a JSON object.
func valueOf(object []byte, key string) (begin, end int, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil { // the opening brace
		return 0, 0, err
	}
	for dec.More() {
		k, err := dec.Token()
		if err != nil {
			return 0, 0, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return 0, 0, err
		}
		if k == key {
			end := int(dec.InputOffset())
			return end - len(value), end, nil
		}
	}
	return 0, 0, fmt.Errorf("no key %s", key)
}
