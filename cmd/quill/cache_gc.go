package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quill/passes"
	"quill/recipes/store"
)

func newCacheGC(dir *cacheDir) *cobra.Command {
	var maxBytes, older string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what is of no use, or beyond a bound",
		Long: `Remove blobs that no action needs, actions that are damaged, and what processes left
that were killed. With --max-bytes and --older actions are removed, too, those that
were used least recently first, with the blobs that only they need.

It waits while other processes read or write a result, and they while it removes.`,
		Example: examples(
			"quill cache gc",
			"quill cache gc --max-bytes 2GiB --older 30d",
			"quill cache gc --older 12h --json",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var o store.GCOptions
			var err error
			if cmd.Flags().Changed("max-bytes") {
				if o.MaxBytes, err = passes.ParseBytes(maxBytes); err != nil || o.MaxBytes < 1 {
					return usagef("--max-bytes %q: want a number from 1, with KiB, MiB or GiB behind it or nothing for bytes", maxBytes)
				}
			}
			if cmd.Flags().Changed("older") {
				if o.Older, err = parseAge(older); err != nil {
					return usagef("--older %q: want an age such as 30d, 12h or 90m", older)
				}
			}
			s, err := dir.open(cmd, store.Options{Warn: func(e *store.Error) { note(cmd.ErrOrStderr(), "%v", e) }})
			if err != nil {
				return err
			}
			defer s.Close()
			r, err := s.GC(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s and %s removed, %s; %s and %s left, %s\n", *dir,
				count(r.Actions+r.Damaged, "action"), count(r.Blobs, "blob"), size(r.Bytes),
				count(r.Left.Actions, "action"), count(r.Left.Blobs, "blob"), size(r.Left.Bytes))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&maxBytes, "max-bytes", "", "most bytes that the files may have together, such as 2GiB")
	f.StringVar(&older, "older", "", "remove actions that were not used for so long, such as 30d")
	f.BoolVar(&asJSON, "json", false, "print what was removed and what is left as JSON")
	return cmd
}

const day = 24 * time.Hour

// parseAge reads a time that has passed: a duration as Go writes it, or days.
func parseAge(text string) (time.Duration, error) {
	age, err := time.ParseDuration(text)
	if n, ok := strings.CutSuffix(text, "d"); ok {
		var days uint64
		days, err = strconv.ParseUint(n, 10, 16) // so that it fits a Duration
		age = time.Duration(days) * day
	}
	if err == nil && age <= 0 {
		err = fmt.Errorf("%q is no age", text)
	}
	return age, err
}

// verifiedCache is what a check of a store found.
type verifiedCache struct {
	Dir     string       `json:"dir"`
	Whole   store.Usage  `json:"whole"`
	Faults  []cacheFault `json:"faults"`
	Dropped int          `json:"dropped"`
}

type cacheFault struct {
	Path  string `json:"path"`
	Fault string `json:"fault"`
}

func newCacheVerify(dir *cacheDir) *cobra.Command {
	var o store.VerifyOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read everything that is kept, and say what is damaged",
		Long: `Read all files of the store, compare them with their checksums and names, and list
those that are damaged, with the actions that need them. Compiling does so with what
it reads, and makes again what is damaged.

The exit code is 0 if everything is whole or was removed with --drop, 1 if not, 2 on
wrong usage.`,
		Example: examples("quill cache verify", "quill cache verify --drop", "quill cache verify --json | jq '.faults'"),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := dir.open(cmd, store.Options{})
			if err != nil {
				return err
			}
			defer s.Close()
			m := newMeter(cmd.ErrOrStderr(), "checking the store", size)
			o.Progress = func(done, total int64) { m.update(done, total, "") }
			r, err := s.Verify(cmd.Context(), o)
			m.close()
			if err != nil {
				return err
			}
			v := verifiedCache{Dir: string(*dir), Whole: r.Whole, Faults: []cacheFault{}, Dropped: r.Dropped}
			for _, f := range r.Faults {
				v.Faults = append(v.Faults, cacheFault{f.Path, f.Err.Error()})
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), v)
			} else {
				_, err = fmt.Fprint(cmd.OutOrStdout(), &v)
			}
			if left := len(v.Faults) - v.Dropped; err == nil && left > 0 {
				return fmt.Errorf("store %s: %s cannot be used: quill cache verify --drop removes those that are damaged", *dir, count(left, "file"))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&o.Drop, "drop", false, "remove what is damaged")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was found as JSON")
	return cmd
}

func (v *verifiedCache) String() string {
	var text strings.Builder
	for _, f := range v.Faults {
		fmt.Fprintf(&text, "%s: %s\n", f.Path, f.Fault)
	}
	fmt.Fprintf(&text, "%s: %s and %s are whole, %s", v.Dir, count(v.Whole.Actions, "action"), count(v.Whole.Blobs, "blob"), size(v.Whole.Bytes))
	if v.Dropped > 0 {
		fmt.Fprintf(&text, "; %s removed", count(v.Dropped, "file"))
	}
	return text.String() + "\n"
}
