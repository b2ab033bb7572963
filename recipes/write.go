package recipes

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/flate"
)

// The entries of a bundle. Sets lie in folders named by their precision.
const (
	manifestName   = "manifest.json"
	checkpointName = "checkpoint.json"
	weightsName    = "weights.json"
	planDir        = "plans"
	recipeDir      = "recipes"
)

// flateLevel is the compression of all entries but the manifest. The module
// pins the compressor, so equal bundles are equal bytes whatever Go builds them.
const flateLevel = 6

// epoch is the date of every entry, the first that a ZIP can hold: equal bundles
// are equal bytes whenever they are made.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// WriteBundle writes a bundle, a ZIP file that any unzip reads:
//
//	manifest.json                   first, and not compressed
//	checkpoint.json                 the tensors of the checkpoint
//	<precision>/weights.json        one folder a set
//	<precision>/plans/<name>.json   prefill-q=128,c=4.json
//	recipes/<hash>.json             shared by the sets; canonical bytes
//
// Equal bundles give equal bytes. The file appears under path whole or not at
// all: on an error, or when ctx ends, whatever was there before is still there.
// The manifest's Format and Sets are taken from this code and from b.Sets.
func WriteBundle(ctx context.Context, path string, b *Bundle) error {
	if err := b.Check(); err != nil {
		return fmt.Errorf("bundle %s: %w", path, err)
	}
	if err := replace(ctx, path, func(w io.Writer) error { return writeZip(w, b) }); err != nil {
		return fmt.Errorf("bundle %s: %w", path, err)
	}
	return nil
}

func writeZip(w io.Writer, b *Bundle) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, flateLevel)
	})
	if err := writeEntries(z, b); err != nil {
		return err
	}
	return z.Close()
}

func writeEntries(z *zip.Writer, b *Bundle) error {
	if err := writeJSON(z, manifestName, zip.Store, b.manifest()); err != nil {
		return err
	}
	if err := writeJSON(z, checkpointName, zip.Deflate, b.Checkpoint); err != nil {
		return err
	}
	for i := range b.Sets {
		if err := writeSet(z, &b.Sets[i]); err != nil {
			return err
		}
	}
	for _, h := range sortedHashes(b.Recipes) {
		enc, err := b.Recipes[h].Encode()
		if err != nil {
			return err
		}
		if err := writeEntry(z, recipeName(h), zip.Deflate, enc); err != nil {
			return err
		}
	}
	return nil
}

// manifest is the manifest as it is written.
func (b *Bundle) manifest() *Manifest {
	m := b.Manifest
	m.Format = FormatVersion
	m.Sets = make([]SetInfo, len(b.Sets))
	for i := range b.Sets {
		m.Sets[i] = b.Sets[i].Info
	}
	return &m
}

func writeSet(z *zip.Writer, s *Set) error {
	if err := writeJSON(z, s.Info.Precision+"/"+weightsName, zip.Deflate, s.Weights); err != nil {
		return err
	}
	for i := range s.Plans {
		if err := writeJSON(z, planName(s.Info.Precision, s.Plans[i].Bucket), zip.Deflate, &s.Plans[i]); err != nil {
			return err
		}
	}
	return nil
}

// planName is the entry of a plan.
func planName(precision string, b Bucket) string {
	return precision + "/" + planDir + "/" + strings.ReplaceAll(b.String(), "/", "-") + ".json"
}

func recipeName(h Hash) string { return recipeDir + "/" + h.String() + ".json" }

// writeJSON writes an entry to be read by people too.
func writeJSON(z *zip.Writer, name string, method uint16, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return writeEntry(z, name, method, b.Bytes())
}

// writeEntry refuses what ReadBundle would.
func writeEntry(z *zip.Writer, name string, method uint16, data []byte) error {
	if len(data) > maxEntry {
		return fmt.Errorf("%s: %d bytes are more than the %d an entry may have", name, len(data), maxEntry)
	}
	w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method, Modified: epoch})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
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
