package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"quill/recipes/safetensors"
)

// parseTokens reads a list of ids as --tokens takes it. Whether the ids exist
// is known only when the bundle is open.
func parseTokens(list string) ([]int32, error) {
	if strings.TrimSpace(list) == "" {
		return nil, usagef("--tokens is empty: want ids with commas between them, such as 1,2,3")
	}
	var ids []int32
	for i, field := range strings.Split(list, ",") {
		field = strings.TrimSpace(field)
		id, err := strconv.ParseInt(field, 10, 32)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return nil, fmt.Errorf("--tokens: the id %s at position %d is no 32-bit number", field, i)
		case err != nil:
			return nil, usagef("--tokens: %q at position %d is no id: want ids with commas between them, such as 1,2,3", field, i)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// checkTokens checks ids against those that exist.
func checkTokens(ids []int32, vocab int) error {
	for i, id := range ids {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("token %d at position %d does not exist: the model has the ids 0 to %d", id, i, vocab-1)
		}
	}
	return nil
}

// readTokens reads the ids of a tensor, named as --tokens-from takes it.
func readTokens(from string) (ids []int32, err error) {
	err = readTensor("--tokens-from", from, func(t *safetensors.Tensor) error {
		ids, err = tokenIDs(t)
		return err
	})
	return ids, err
}

// readTensor reads a tensor that a flag names as FILE:TENSOR.
func readTensor(flag, from string, read func(t *safetensors.Tensor) error) error {
	path, name, err := splitTensor(flag, from)
	if err != nil {
		return err
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	t, ok := f.Tensor(name)
	if !ok {
		return fmt.Errorf("%s: %s has no tensor %q; it has %s", flag, path, name, tensorNames(f.Tensors()))
	}
	if err := read(&t); err != nil {
		return fmt.Errorf("%s: %s: tensor %s: %w", flag, path, name, err)
	}
	return nil
}

// splitTensor splits FILE:TENSOR at the colon that follows the file's
// extension, or else at the last one: both names may hold colons.
func splitTensor(flag, from string) (path, name string, err error) {
	const ext = ".safetensors:"
	at := strings.LastIndex(from, ":")
	if i := strings.Index(from, ext); i >= 0 {
		at = i + len(ext) - 1
	}
	if at < 1 || at == len(from)-1 {
		return "", "", usagef("%s %q: want FILE.safetensors:TENSOR", flag, from)
	}
	return from[:at], from[at+1:], nil
}

// tokenIDs are the elements of a list of integers.
func tokenIDs(t *safetensors.Tensor) ([]int32, error) {
	if len(t.Shape) != 1 {
		return nil, fmt.Errorf("it has %d dimensions, want 1", len(t.Shape))
	}
	if t.Shape[0] == 0 {
		return nil, errors.New("it is empty")
	}
	switch t.DType {
	case "I32":
		return t.I32()
	case "I64":
		return narrow(t.Data)
	}
	return nil, fmt.Errorf("it is %s, want I32 or I64", t.DType)
}

// narrow reads 64-bit ids.
func narrow(data []byte) ([]int32, error) {
	ids := make([]int32, len(data)/8)
	for i := range ids {
		v := int64(binary.LittleEndian.Uint64(data[8*i:]))
		if v < math.MinInt32 || v > math.MaxInt32 {
			return nil, fmt.Errorf("the id %d at position %d is no 32-bit number", v, i)
		}
		ids[i] = int32(v)
	}
	return ids, nil
}

// maxListed is how many names an error lists.
const maxListed = 20

func tensorNames(ts []safetensors.Tensor) string {
	var names []string
	for i := range ts {
		if i == maxListed {
			names = append(names, fmt.Sprintf("%d more", len(ts)-maxListed))
			break
		}
		names = append(names, strconv.Quote(ts[i].Name))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
