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
	"regexp"
	"strconv"
	"strings"
)

// ReadBundle reads and checks a bundle. A bundle comes from elsewhere and is
// not trusted: sizes are capped, every entry must have the hash that the manifest or
// its name says, and what Check finds is an error. Native recipes stay packed: that what
// is packed has its hash is checked, and their contents are when they are asked for. Errors name the file and the entry.
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
		if v := peekVersion(r, size); v != nil {
			return nil, v // whose files may have another layout
		}
		return nil, err
	}
	defer a.close()
	b := &Bundle{Recipes: make(map[Hash]*Recipe)}
	if err := a.manifest(b); err != nil {
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
	for _, e := range a.order {
		if err := a.recipe(e.name, b.Recipes); err != nil {
			return nil, err
		}
	}
	if b.Native != nil {
		if err := a.native(b.Native); err != nil {
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
func (a *archive) manifest(b *Bundle) error {
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
		return &VersionError{What: "format", Have: int64(v.Format), Want: FormatVersion, Quill: v.Quill}
	}
	var w writtenManifest
	if err := decode(manifestName, data, &w); err != nil {
		return err
	}
	if have := w.Compiled.Encoding; have != EncodingVersion {
		return &VersionError{What: "encoding version", Have: int64(have), Want: EncodingVersion, Quill: v.Quill}
	}
	b.Manifest, b.Native, a.hashes = w.Manifest, w.Native, w.Entries
	return nil
}

// peekVersion is the error of a file of another format, nil if it cannot be told that it
// is one. In all formats the manifest comes first, is not packed, and begins with these
// two fields.
func peekVersion(r io.ReaderAt, size int64) *VersionError {
	head := make([]byte, min(size, 1<<10))
	if readAt(r, head, 0) != nil || len(head) < headerLen || le.Uint32(head) != headerSign || le.Uint16(head[8:]) != zip.Store {
		return nil
	}
	name, extra := int(le.Uint16(head[26:])), int(le.Uint16(head[28:]))
	if headerLen+name+extra > len(head) || string(head[headerLen:][:name]) != manifestName {
		return nil
	}
	m := manifestHead.FindSubmatch(head[headerLen+name+extra:])
	if m == nil {
		return nil
	}
	format, err := strconv.Atoi(string(m[1]))
	if err != nil || format == FormatVersion {
		return nil
	}
	return &VersionError{What: "format", Have: int64(format), Want: FormatVersion, Quill: string(m[2])}
}

var manifestHead = regexp.MustCompile(`^\{\s*"format":\s*([0-9]+),\s*"quill":\s*"([ -!#-\[\]-~]*)"`)

// VersionError is that another version of quill wrote a bundle, in a way that this one
// does not read.
type VersionError struct {
	What       string // "format", "encoding version"
	Have, Want int64
	Quill      string // the version that wrote it, "" if it is not known
}

func (e *VersionError) Error() string {
	by := ""
	if e.Quill != "" {
		by = fmt.Sprintf(" (written by quill %q)", e.Quill)
	}
	return fmt.Sprintf("has %s %d%s, this quill reads %s %d: compile the deployment again with this quill, or use the other one", e.What, e.Have, by, e.What, e.Want)
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

// recipe adds the recipe of an entry; other names are passed over.
func (a *archive) recipe(name string, to map[Hash]*Recipe) error {
	hex, ok := strings.CutPrefix(name, recipeDir+"/")
	hex, suffix := strings.CutSuffix(hex, recipeSuffix)
	var h Hash
	if !ok || !suffix || h.UnmarshalText([]byte(hex)) != nil || name != recipeName(h) {
		return nil
	}
	data, err := a.unpack(name)
	if err != nil {
		return err
	}
	if to[h], err = DecodeRecipe(data, h); err != nil {
		return fmt.Errorf("%s %w", name, err)
	}
	return nil
}

// leftover refuses entries that nothing refers to.
func (a *archive) leftover() error {
	for _, e := range a.order {
		if !a.taken[e.name] {
			return fmt.Errorf("%q does not belong into a bundle", e.name)
		}
	}
	for name := range a.hashes {
		if a.files[name] == nil {
			return fmt.Errorf("%s is missing", name)
		}
	}
	return nil
}
