package recipes

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Native is what the vendor's compiler made of a bundle's recipes, each as the file that
// the vendor's runtime loads. A bundle has all of its recipes so, or none.
type Native struct {
	// Driver is the version of the vendor's software that compiled them, as in "1.21.0". It
	// takes the same one to load them.
	Driver string `json:"driver"`
	// Library is the SHA-256 of the vendor's library.
	Library Hash `json:"library"`
	// Environment has the variables that the vendor's compiler obeyed, each NAME=value,
	// sorted. GC_KERNEL_PATH has hashes of the kernel libraries in the place of their paths.
	Environment []string              `json:"environment"`
	Recipes     map[Hash]NativeRecipe `json:"recipes"` // by the hash of the recipe
}

// NativeRecipe is a recipe that the vendor's compiler serialized. It stays packed until
// it is asked for: what does not run on a card has no use for it.
type NativeRecipe struct {
	Content Hash  `json:"content"` // SHA-256 of its bytes
	Packed  Hash  `json:"packed"`  // SHA-256 of them as they lie in the bundle
	Bytes   int64 `json:"bytes"`
	// WorkspaceBytes is the scratch memory that a launch needs, and ProgramBytes what the
	// vendor's runtime keeps on the device: programs and their data.
	WorkspaceBytes int64 `json:"workspace_bytes"`
	ProgramBytes   int64 `json:"program_bytes"`

	packed []byte
	crc    uint32 // of the bytes
}

// MaxNative is the most bytes of a serialized recipe.
const MaxNative = 256 << 20

// PackNative packs a serialized recipe, as bundles hold it.
func PackNative(content []byte, workspaceBytes, programBytes int64) (NativeRecipe, error) {
	r := NativeRecipe{
		Content: Sum(content), Bytes: int64(len(content)), crc: crc32.ChecksumIEEE(content),
		WorkspaceBytes: workspaceBytes, ProgramBytes: programBytes,
	}
	if len(content) == 0 || len(content) > MaxNative {
		return r, fmt.Errorf("a serialized recipe of %d bytes: want 1 to %d", len(content), MaxNative)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstdLevel), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return r, err
	}
	r.packed = enc.EncodeAll(content, nil)
	r.Packed = Sum(r.packed)
	return r, nil
}

// Recipe unpacks the serialized form of a recipe. Its bytes have the hash that the
// manifest says.
func (n *Native) Recipe(h Hash) ([]byte, error) {
	r, ok := n.Recipes[h]
	if !ok {
		return nil, fmt.Errorf("the bundle has no native recipe %v", h)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxNative),
		zstd.WithDecoderMaxWindow(MaxNative), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	data, err := dec.DecodeAll(r.packed, make([]byte, 0, r.Bytes))
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", nativeName(h), err)
	}
	if sum := Sum(data); sum != r.Content || crc32.ChecksumIEEE(data) != r.crc {
		return nil, fmt.Errorf("%s is damaged: its content has hash %v, %s says %v", nativeName(h), sum, manifestName, r.Content)
	}
	return data, nil
}

// Verify unpacks all of them, one after the other.
func (n *Native) Verify() error {
	for _, h := range sortedHashes(n.Recipes) {
		if _, err := n.Recipe(h); err != nil {
			return err
		}
	}
	return nil
}

// check compares with the recipes of the bundle. Contents are not unpacked for it: the
// hashes of what is packed say that it is what was written.
func (n *Native) check(recipes map[Hash]*Recipe) error {
	if n.Driver == "" {
		return errors.New("no version of the driver")
	}
	if !slices.IsSorted(n.Environment) {
		return fmt.Errorf("the environment is not sorted: %q", n.Environment)
	}
	for i, text := range n.Environment {
		name, _, ok := strings.Cut(text, "=")
		if !ok || name == "" || i > 0 && strings.HasPrefix(n.Environment[i-1], name+"=") {
			return fmt.Errorf("the environment has %q: want each variable once, as NAME=value", text)
		}
	}
	for _, h := range sortedHashes(recipes) {
		if _, ok := n.Recipes[h]; !ok {
			return fmt.Errorf("recipe %s, %v, is missing: all recipes are there or none", recipes[h].Name, h)
		}
	}
	for _, h := range sortedHashes(n.Recipes) {
		if recipes[h] == nil {
			return fmt.Errorf("the bundle has no recipe %v", h)
		}
		r := n.Recipes[h]
		if err := r.check(); err != nil {
			return fmt.Errorf("recipe %s, %v: %w", recipes[h].Name, h, err)
		}
	}
	return nil
}

func (r *NativeRecipe) check() error {
	switch sum := Sum(r.packed); {
	case r.Bytes < 1 || r.Bytes > MaxNative:
		return fmt.Errorf("it has %d bytes, want 1 to %d", r.Bytes, MaxNative)
	case r.WorkspaceBytes < 0 || r.WorkspaceBytes > maxBytes:
		return fmt.Errorf("its workspace has %d bytes", r.WorkspaceBytes)
	case r.ProgramBytes < 0 || r.ProgramBytes > maxBytes:
		return fmt.Errorf("its programs have %d bytes", r.ProgramBytes)
	case sum != r.Packed:
		return fmt.Errorf("it is damaged: packed it has hash %v, %s says %v", sum, manifestName, r.Packed)
	}
	if err := oneFrame(r.packed); err != nil {
		return fmt.Errorf("it is damaged: %w", err)
	}
	return nil
}

func nativeName(h Hash) string { return nativeDir + "/" + h.String() }

// isNative reports whether an entry is a serialized recipe.
func isNative(name string) bool { return strings.HasPrefix(name, nativeDir+"/") }

// native packs the entries of serialized recipes, which are packed already.
func (p *packer) native(n *Native) {
	for _, h := range sortedHashes(n.Recipes) {
		r := n.Recipes[h]
		e := packed{data: r.packed}
		e.header.Name, e.header.Method, e.header.CRC32 = nativeName(h), methodOf(nativeName(h)), r.crc
		e.header.CompressedSize64, e.header.UncompressedSize64 = uint64(len(r.packed)), uint64(r.Bytes)
		p.entries = append(p.entries, e)
	}
}

// native takes the entries of serialized recipes as they are.
func (a *archive) native(n *Native) error {
	for _, h := range sortedHashes(n.Recipes) {
		name := nativeName(h)
		e := a.files[name]
		if e == nil {
			return fmt.Errorf("%s is missing", name)
		}
		r := n.Recipes[h]
		if e.size != r.Bytes {
			return fmt.Errorf("%s has %d bytes, %s says %d", name, e.size, manifestName, r.Bytes)
		}
		var err error
		if r.packed, err = a.raw(e); err != nil {
			return err
		}
		r.crc = e.crc
		n.Recipes[h] = r
	}
	return nil
}
