package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/recipes/store"
)

// keeping is how buckets are compiled and kept.
type keeping struct {
	jobs      int
	keepGoing bool
	cache     string
	none      bool
	events    string
	native    natively

	store *store.Store
	last  lower.Step
}

func (k *keeping) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&k.jobs, "jobs", 0, "buckets to compile at once (default: the processors there are)")
	cmd.Flags().BoolVar(&k.keepGoing, "keep-going", false, "go on after a bucket that cannot be compiled, and report all of them")
	cmd.Flags().StringVar(&k.cache, "cache", "", "folder of the store (default: $QUILL_CACHE, or quill in the user's folder of caches)")
	cmd.Flags().BoolVar(&k.none, "no-cache", false, "compile everything, and keep nothing for the next time")
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
	if opt.Jobs, opt.KeepGoing = k.jobs, k.keepGoing; k.jobs == 0 {
		opt.Jobs = runtime.GOMAXPROCS(0)
	}
	return k.native.check(cmd)
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
