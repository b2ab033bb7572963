package recipes

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// The entries of a bundle. Sets lie in folders named by their precision.
const (
	manifestName     = "manifest.json"
	architectureName = "config.json"
	checkpointName   = "checkpoint.json"
	weightsName      = "weights.json"
	planDir          = "plans"
	planSuffix       = ".plan"
	recipeDir        = "recipes"
	recipeSuffix     = ".recipe"
	nativeDir        = "native"
)

// zstdLevel is the compression of all entries but the manifest. The module
// pins the compressor, so equal bundles are equal bytes whatever Go builds them.
const zstdLevel = zstd.SpeedBetterCompression

// writtenManifest is the manifest as it is written.
type writtenManifest struct {
	Manifest
	// Entries has the SHA-256 of the content of every other entry; recipes are named by
	// theirs.
	Entries map[string]Hash `json:"entries"`
	// Native has those of serialized recipes, if there are some.
	Native *Native `json:"native,omitempty"`
}

// WriteBundle writes a bundle, a ZIP file:
//
//	manifest.json                    first, and not compressed
//	config.json                      the model's architecture, canonical
//	checkpoint.json                  the tensors of the checkpoint
//	<precision>/weights.json         one folder a set
//	<precision>/plans/<bucket>.plan  prefill-q=128,c=4.plan; canonical bytes
//	recipes/<hash>.recipe            shared by the sets; canonical bytes
//	native/<hash>                    what the vendor's compiler made of that recipe, if it was asked
//
// Equal bundles give equal bytes: entries have no date. The file appears under path
// whole or not at all: on an error, or when ctx ends, whatever was there before is still
// there. The manifest's versions of format and encoding are those of this code, its Sets
// those of b.Sets.
func WriteBundle(ctx context.Context, path string, b *Bundle) error {
	if err := b.Check(); err != nil {
		return fmt.Errorf("bundle %s: %w", path, err)
	}
	if err := replace(ctx, path, func(w io.Writer) error { return writeZip(w, b) }); err != nil {
		return fmt.Errorf("bundle %s: %w", path, err)
	}
	return nil
}

// packed is an entry to be written.
type packed struct {
	header zip.FileHeader
	data   []byte // compressed
}

// packer compresses entries, and keeps the hashes of their contents.
type packer struct {
	zstd    *zstd.Encoder
	entries []packed
	hashes  map[string]Hash
}

func writeZip(w io.Writer, b *Bundle) error {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstdLevel), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	p := packer{zstd: enc, hashes: map[string]Hash{}}
	if err := p.bundle(b); err != nil {
		return err
	}
	return p.write(w)
}

// write makes the file of the entries.
func (p *packer) write(w io.Writer) error {
	if n := p.bytes(); n > maxFile {
		return fmt.Errorf("it would have %d bytes, a bundle has at most %d: fewer buckets have fewer recipes", n, int64(maxFile))
	}
	z := zip.NewWriter(w)
	for i := range p.entries {
		to, err := z.CreateRaw(&p.entries[i].header)
		if err == nil {
			_, err = to.Write(p.entries[i].data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.entries[i].header.Name, err)
		}
	}
	return z.Close()
}

// bytes is an upper bound of those of the file.
func (p *packer) bytes() int64 {
	n := int64(bigEndLen)
	for i := range p.entries {
		e := &p.entries[i]
		n += int64(headerLen+directoryLen+2*len(e.header.Name)) + int64(len(e.data))
	}
	return n
}

// bundle packs all entries. The manifest, which is the first, is known last.
func (p *packer) bundle(b *Bundle) error {
	p.entries = make([]packed, 1)
	if err := p.hashed(architectureName, b.Architecture); err != nil {
		return err
	}
	if err := p.json(checkpointName, b.Checkpoint); err != nil {
		return err
	}
	for i := range b.Sets {
		if err := p.set(&b.Sets[i]); err != nil {
			return err
		}
	}
	for _, h := range sortedHashes(b.Recipes) {
		if err := p.add(recipeName(h), b.Recipes[h].Encode()); err != nil {
			return err
		}
	}
	if b.Native != nil {
		p.native(b.Native)
	}
	return p.manifest(b)
}

func (p *packer) manifest(b *Bundle) error {
	m := writtenManifest{b.Manifest, p.hashes, b.Native}
	m.Format, m.Compiled.Encoding = FormatVersion, EncodingVersion
	m.Sets = make([]SetInfo, len(b.Sets))
	for i := range b.Sets {
		m.Sets[i] = b.Sets[i].Info
	}
	text, err := readable(manifestName, m)
	if err != nil {
		return err
	}
	if err := p.add(manifestName, text); err != nil {
		return err
	}
	last := len(p.entries) - 1
	p.entries[0] = p.entries[last]
	p.entries = p.entries[:last]
	return nil
}

func (p *packer) set(s *Set) error {
	if err := p.json(s.Info.Precision+"/"+weightsName, s.Weights); err != nil {
		return err
	}
	for i := range s.Plans {
		if err := p.hashed(planName(s.Info.Precision, s.Plans[i].Bucket), s.Plans[i].Encode()); err != nil {
			return err
		}
	}
	return nil
}

// planName is the entry of a plan.
func planName(precision string, b Bucket) string {
	return precision + "/" + planDir + "/" + strings.ReplaceAll(b.String(), "/", "-") + planSuffix
}

func recipeName(h Hash) string { return recipeDir + "/" + h.String() + recipeSuffix }

// readable is JSON to be read by people too.
func readable(name string, v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b.Bytes(), nil
}

func (p *packer) json(name string, v any) error {
	text, err := readable(name, v)
	if err != nil {
		return err
	}
	return p.hashed(name, text)
}

// hashed adds an entry whose hash is in the manifest.
func (p *packer) hashed(name string, data []byte) error {
	p.hashes[name] = Sum(data)
	return p.add(name, data)
}

// add refuses what ReadBundle would.
func (p *packer) add(name string, data []byte) error {
	if len(data) > maxEntry {
		return fmt.Errorf("%s: %d bytes are more than the %d an entry may have", name, len(data), maxEntry)
	}
	e := packed{zip.FileHeader{
		Name: name, Method: methodOf(name), CRC32: crc32.ChecksumIEEE(data), UncompressedSize64: uint64(len(data)),
	}, data}
	if e.header.Method != zip.Store {
		e.data = p.zstd.EncodeAll(data, nil)
	}
	e.header.CompressedSize64 = uint64(len(e.data))
	p.entries = append(p.entries, e)
	return nil
}

// replace makes write's output the file at path. What was there stays until all
// of the new file is on the disk: a crash leaves the one or the other.
func replace(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	f, err := createTemp(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Neither can help any more; Close fails if it was closed already.
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriter(&interruptible{ctx, f})
	if err = write(w); err != nil {
		return err
	}
	if err = w.Flush(); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = ctx.Err(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// interruptible is a writer that fails once its context has ended.
type interruptible struct {
	ctx context.Context
	w   io.Writer
}

func (i *interruptible) Write(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.w.Write(p)
}

// createTemp creates a new file in dir with the mode of any other new file,
// which os.CreateTemp does not.
func createTemp(dir string) (f *os.File, err error) {
	for range 100 {
		name := filepath.Join(dir, fmt.Sprintf(".quill-%016x.tmp", rand.Uint64()))
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return f, err
}
