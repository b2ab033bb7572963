package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	goruntime "runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/passes"
	"quill/recipes/store"
	"quill/runtime"
)

// keeping is how buckets are compiled and kept.
type keeping struct {
	jobs      int
	keepGoing bool
	cache     string
	none      bool
	events    string
	native    nativeOptions
	memory    string

	store *store.Store
	last  lower.Step
}

func (k *keeping) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&k.jobs, "jobs", 0, "buckets to compile at once (default: the processors there are)")
	cmd.Flags().BoolVar(&k.keepGoing, "keep-going", false, "go on after a bucket that cannot be compiled, and report all of them")
	cmd.Flags().StringVar(&k.cache, "cache", "", "folder of the store (default: $QUILL_CACHE, or quill in the user's folder of caches)")
	cmd.Flags().BoolVar(&k.none, "no-cache", false, "compile everything, and keep nothing for the next time")
	cmd.Flags().StringVar(&k.memory, "memory", "", "most memory to hold at once, such as 2GiB: near it fewer buckets are compiled at once (default: three quarters of what is available)")
	cmd.Flags().StringVar(&k.events, "events", "", "json: one JSON object a bucket on the standard error, instead of progress")
	k.native.add(cmd)
}

func (k *keeping) options(cmd *cobra.Command, opt *lower.Options) error {
	switch {
	case k.jobs < 0 || cmd.Flags().Changed("jobs") && k.jobs == 0:
		return usagef("--jobs is %d, want 1 or more", k.jobs)
	case k.none && cmd.Flags().Changed("cache"):
		return usagef("--cache and --no-cache exclude each other")
	case cmd.Flags().Changed("cache") && k.cache == "":
		return usagef("--cache is empty")
	case k.events != "" && k.events != "json":
		return usagef("--events is %q, want json", k.events)
	}
	opt.Memory = runtime.AvailableMemory() / 4 * 3
	if cmd.Flags().Changed("memory") {
		var err error
		if opt.Memory, err = passes.ParseBytes(k.memory); err != nil || opt.Memory < 1 {
			return usagef("--memory %q: want a number from 1, with KiB, MiB or GiB behind it or nothing for bytes", k.memory)
		}
	}
	if opt.Jobs, opt.KeepGoing = k.jobs, k.keepGoing; k.jobs == 0 {
		opt.Jobs = goruntime.GOMAXPROCS(0)
	}
	return k.native.check(cmd)
}

// collectAt is by how many percent the heap grows before it is collected while buckets
// are compiled: most of what passes make is dead soon, and collecting as often as usual
// takes a quarter of the time.
const collectAt = 300

// bound has the collector keep to the memory that compiling may hold. What the user's
// environment says of the collector stays.
func bound(memory int64) (undo func()) {
	undo = func() {}
	if os.Getenv("GOGC") == "" {
		old := debug.SetGCPercent(collectAt)
		undo = func() { debug.SetGCPercent(old) }
	}
	if old := debug.SetMemoryLimit(-1); memory > 0 && old == math.MaxInt64 {
		percent := undo
		debug.SetMemoryLimit(memory / 16 * 15) // the program itself takes memory too
		undo = func() { debug.SetMemoryLimit(old); percent() }
	}
	return undo
}

// mostKept bounds the store. What was used least recently is removed beyond it.
const mostKept = 4 << 30

// open opens the store. Without one everything is compiled, which a note says.
func (k *keeping) open(opt *lower.Options, stderr io.Writer) {
	if k.none || opt.Planned != nil && !k.native.on {
		return
	}
	var err error
	dir := k.cache
	if dir == "" {
		dir, err = store.DefaultDir()
	}
	if err == nil {
		opt.Build, err = buildID()
	}
	if err != nil {
		note(stderr, "nothing is kept for the next time: %v", err)
		return
	}
	k.store, err = store.Open(dir, store.Options{
		MaxBytes: mostKept,
		Warn:     func(e *store.Error) { note(stderr, "%v", e) },
		Wait:     func(_ store.Key, o store.Owner) { note(stderr, "waiting for %v, which compiles the same", o) },
	})
	if err != nil {
		note(stderr, "nothing is kept for the next time: %v", err)
	}
	opt.Store = k.store
}

// buildID tells compilers apart: the SHA-256 of the program.
func buildID() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("which compiler this is: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("which compiler this is: %w", err)
	}
	defer f.Close() // it is only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// compileEvent is what --events json writes of a bucket or a native recipe. Fields are only
// ever added.
type compileEvent struct {
	Event   string  `json:"event"`  // "bucket" or "native"
	Bucket  string  `json:"bucket"` // or the recipe
	Done    int     `json:"done"`
	Total   int     `json:"total"`
	Kept    int     `json:"kept"`
	Running int     `json:"running"`
	Seconds float64 `json:"seconds"`
}

func (k *keeping) event(w io.Writer, s lower.Step) {
	compileEvent{"bucket", s.What, s.Done, s.Total, s.Kept, s.Running, s.Took.Seconds()}.write(w)
}

func (e compileEvent) write(w io.Writer) {
	line, err := json.Marshal(e)
	if err == nil { // numbers and texts always are JSON
		fmt.Fprintf(w, "%s\n", line)
	}
}
