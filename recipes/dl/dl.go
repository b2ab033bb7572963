// Package dl loads the vendor's library, libSynapse.so, and calls it without cgo.
//
//	Open ──→ Library ──Bind──→ tables of functions (compiler, runtime)
//	            └── Start, Version, Stop, Fail (errors with the library's words)
//
// A table is a struct whose fields name the C functions they stand for. A field of func
// type is called as it is, and each call allocates; a field of a type that is a uintptr
// has a method Call, which goes through [Call] and allocates nothing. Both have Go
// types in the place of C ones: they are compared with testdata/abi.json by the tests of
// the packages that have tables.
//
// A program with this package needs the dynamic linker. With the build tag nohpu, and
// on systems other than Linux on x86-64, it does not: then Open is an error.
package dl

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
)

// Handle is an opaque pointer of the library. It is never looked into.
type Handle uintptr

// ErrUnavailable says that this program was built without a loader.
var ErrUnavailable = errors.New("this program cannot load libSynapse.so: it was built with the tag nohpu, or not for Linux on x86-64; " +
	"help: build it for linux/amd64 without that tag")

// synapseNames are what the dynamic linker is asked for, in order. Installations have
// the first; some containers only the second.
var synapseNames = []string{"libSynapse.so", "libSynapse.so.1"}

// Library is a loaded library. It stays loaded until the process ends. Its methods may
// be called by several goroutines.
type Library struct {
	name string
	// lookup is the address of a symbol, 0 if there is none.
	lookup func(name string) uintptr

	said said // what tells of errors
	logs logMark

	mu    sync.Mutex
	uses  int // Start without Stop
	bound bool
	base  base
}

// Open loads the first library of names that the dynamic linker finds. The error says
// what it has against each of them.
func Open(names ...string) (*Library, error) {
	var tried []string
	for _, n := range names {
		handle, err := open(n)
		if errors.Is(err, ErrUnavailable) {
			return nil, err
		}
		if err != nil {
			tried = append(tried, strings.TrimPrefix(err.Error(), n+": "))
			tried[len(tried)-1] = n + " (" + tried[len(tried)-1] + ")"
			continue
		}
		l := &Library{name: n, lookup: func(s string) uintptr { return symbol(handle, s) }, logs: markLogs(logFolder())}
		return l, l.Bind(&l.said)
	}
	return nil, fmt.Errorf("cannot load a library: tried %s", strings.Join(tried, ", "))
}

// OpenSynapse loads the vendor's library: the file of that path, if it is not empty,
// else that of $QUILL_SYNAPSE, else what the dynamic linker finds.
func OpenSynapse(path string) (*Library, error) {
	names := synapseNames
	if path == "" {
		path = os.Getenv("QUILL_SYNAPSE")
	}
	if path != "" {
		names = []string{path}
	}
	l, err := Open(names...)
	if err != nil && !errors.Is(err, ErrUnavailable) {
		return nil, fmt.Errorf("%w; help: install the Intel Gaudi software, have its folder (/usr/lib/habanalabs) in LD_LIBRARY_PATH, "+
			"or put the path of libSynapse.so in QUILL_SYNAPSE", err)
	}
	return l, err
}

// String is the name by which the library was loaded.
func (l *Library) String() string { return l.name }

// Bind fills a table: a pointer to a struct, of which the fields with a tag
// `sym:"synLaunch"` or `sym:"synGraphCompileV2,optional"` are funcs or uintptrs. The
// error names all symbols that are missing and not optional; then the table is as it
// was. Fields of optional ones that are missing stay zero.
func (l *Library) Bind(table any) error {
	v := reflect.ValueOf(table)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("a table of symbols is a pointer to a struct, not %T", table)
	}
	v = v.Elem()
	var missing []string
	found := make([]uintptr, v.NumField())
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, optional := Tag(f)
		if name == "" {
			continue
		}
		if k := f.Type.Kind(); k != reflect.Func && k != reflect.Uintptr || !f.IsExported() {
			return fmt.Errorf("field %s of %T is for symbol %s: want an exported func or uintptr, have %s", f.Name, table, name, f.Type)
		}
		if found[i] = l.lookup(name); found[i] == 0 && !optional {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s does not export %s; help: it is not libSynapse.so of software 1.16 or later, or not all of it",
			l.name, strings.Join(missing, ", "))
	}
	for i, fn := range found {
		switch f := v.Field(i); {
		case fn == 0:
		case f.Kind() == reflect.Func:
			register(f.Addr().Interface(), fn)
		default:
			f.SetUint(uint64(fn))
		}
	}
	return nil
}

// Tag is the symbol that a field of a table is for, "" if it is for none.
func Tag(f reflect.StructField) (name string, optional bool) {
	name, option, _ := strings.Cut(f.Tag.Get("sym"), ",")
	return name, option == "optional"
}
