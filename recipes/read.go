package recipes

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Bounds on what reading a bundle may take, whatever its directory claims: an
// entry, the number of entries, and all of them together in relation to the
// file (entries as quill writes them shrink by a factor of 3 to 40).
const (
	maxEntry    = 64 << 20
	maxEntries  = 1 << 17
	maxUnpacked = 4 << 30
	baseBudget  = 16 << 20
	maxRatio    = 256
)

// ReadBundle reads and checks a bundle. A bundle comes from elsewhere and is
// not trusted: sizes are capped, every entry must have the hash that the manifest or
// its name says, and what Check finds is an error. Errors name the file and the entry.
func ReadBundle(path string) (*Bundle, error) {
	f, err := os.Open(path)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, fmt.Errorf("bundle %s: %w", path, e.Err) // the rest of e says open and path again
	} else if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("bundle %s: this is no regular file", path)
	}
	b, err := readBundle(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", path, err)
	}
	return b, nil
}

func readBundle(r io.ReaderAt, size int64) (*Bundle, error) {
	a, err := openArchive(r, size)
	if err != nil {
		return nil, err
	}
	b := &Bundle{Recipes: make(map[Hash]*Recipe)}
	if err := a.manifest(&b.Manifest); err != nil {
		return nil, err
	}
	if b.Architecture, _, err = a.read(architectureName); err != nil {
		return nil, err
	}
	if err := a.json(checkpointName, &b.Checkpoint); err != nil {
		return nil, err
	}
	for _, info := range b.Manifest.Sets {
		s, err := a.set(info)
		if err != nil {
			return nil, err
		}
		b.Sets = append(b.Sets, s)
	}
	for _, f := range a.order {
		if err := a.recipe(f, b.Recipes); err != nil {
			return nil, err
		}
	}
	if err := a.leftover(); err != nil {
		return nil, err
	}
	if err := b.Check(); err != nil {
		return nil, err
	}
	return b, nil
}

// archive is a ZIP file whose entries are taken one by one.
type archive struct {
	order  []*zip.File
	files  map[string]*zip.File
	hashes map[string]Hash // of entries that are not named by theirs
	taken  map[string]bool
	budget int64 // bytes that may still be unpacked
}

func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("not a bundle, or cut short: %w", err)
	}
	if len(z.File) > maxEntries {
		return nil, fmt.Errorf("%d entries, at most %d are read", len(z.File), maxEntries)
	}
	z.RegisterDecompressor(zstd.ZipMethodWinZip, zstd.ZipDecompressor(zstd.WithDecoderMaxMemory(2*maxEntry), zstd.WithDecoderLowmem(true)))
	a := &archive{
		order:  z.File,
		files:  make(map[string]*zip.File, len(z.File)),
		taken:  make(map[string]bool, len(z.File)),
		budget: min(maxUnpacked, baseBudget+maxRatio*size),
	}
	for _, f := range z.File {
		if a.files[f.Name] != nil {
			return nil, fmt.Errorf("%q is there twice", f.Name)
		}
		a.files[f.Name] = f
	}
	return a, nil
}

// unpack gives the content of an entry, with its checksum verified.
func (a *archive) unpack(name string) ([]byte, error) {
	f := a.files[name]
	if f == nil {
		return nil, fmt.Errorf("%s is missing", name)
	}
	a.taken[name] = true
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer r.Close()
	limit := min(maxEntry, a.budget)
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s unpacks to more than %d bytes", name, limit)
	}
	a.budget -= int64(len(data))
	return data, nil
}

// read gives the content of an entry of which the manifest has the hash.
func (a *archive) read(name string) ([]byte, Hash, error) {
	want, listed := a.hashes[name]
	data, err := a.unpack(name)
	if err != nil {
		return nil, want, err
	}
	if !listed {
		return nil, want, fmt.Errorf("%s has no hash in %s", name, manifestName)
	}
	if sum := Sum(data); sum != want {
		return nil, want, fmt.Errorf("%s is damaged: its content has hash %v, %s says %v", name, sum, manifestName, want)
	}
	return data, want, nil
}

func (a *archive) json(name string, v any) error {
	data, _, err := a.read(name)
	if err != nil {
		return err
	}
	return decode(name, data, v)
}

// decode is strict: a field that this code does not know has a meaning that it
// would ignore.
func decode(name string, data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one JSON value", name)
	}
	return nil
}

// manifest checks the format before the rest, which another version may spell
// differently.
func (a *archive) manifest(m *Manifest) error {
	data, err := a.unpack(manifestName)
	if err != nil {
		return err
	}
	var v struct {
		Format int    `json:"format"`
		Quill  string `json:"quill"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("%s: %w", manifestName, err)
	}
	if v.Format != FormatVersion {
		return fmt.Errorf("has format %d (written by quill %q), this quill reads format %d: compile the deployment again with this quill, or use the other one",
			v.Format, v.Quill, FormatVersion)
	}
	var w writtenManifest
	if err := decode(manifestName, data, &w); err != nil {
		return err
	}
	*m, a.hashes = w.Manifest, w.Entries
	return nil
}

func (a *archive) set(info SetInfo) (Set, error) {
	s := Set{Info: info}
	if err := a.json(info.Precision+"/"+weightsName, &s.Weights); err != nil {
		return s, err
	}
	for _, bucket := range info.Plans {
		name := planName(info.Precision, bucket)
		data, hash, err := a.read(name)
		if err != nil {
			return s, err
		}
		p, err := DecodePlan(data, hash)
		if err != nil {
			return s, fmt.Errorf("%s %w", name, err)
		}
		s.Plans = append(s.Plans, *p)
	}
	return s, nil
}

// recipe adds the recipe of an entry; other entries are passed over.
func (a *archive) recipe(f *zip.File, to map[Hash]*Recipe) error {
	hex, ok := strings.CutPrefix(f.Name, recipeDir+"/")
	hex, suffix := strings.CutSuffix(hex, recipeSuffix)
	var h Hash
	if !ok || !suffix || h.UnmarshalText([]byte(hex)) != nil || f.Name != recipeName(h) {
		return nil
	}
	data, err := a.unpack(f.Name)
	if err != nil {
		return err
	}
	if to[h], err = DecodeRecipe(data, h); err != nil {
		return fmt.Errorf("%s %w", f.Name, err)
	}
	return nil
}

// leftover refuses entries that nothing refers to.
func (a *archive) leftover() error {
	for _, f := range a.order {
		if !a.taken[f.Name] {
			return fmt.Errorf("%q does not belong into a bundle", f.Name)
		}
	}
	for name := range a.hashes {
		if a.files[name] == nil {
			return fmt.Errorf("%s is missing", name)
		}
	}
	return nil
}
