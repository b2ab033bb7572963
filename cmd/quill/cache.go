package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/recipes/store"
)

// cacheDir is the folder that --cache names, or the default one.
type cacheDir string

func newCache() *cobra.Command {
	var dir cacheDir
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Show and tidy what is kept of compiling",
		Long: `Show and tidy the store of compiled results, in a folder that all compiles share.

An action is a piece of work, such as compiling one bucket. Its key is all that its
result depends on, as named fields; if each of them is the same, the result is taken
from the store. A result is data of its own, such as a plan, and blobs, such as
recipes, which actions share.

The store is in the folder that --cache names, else $QUILL_CACHE, else quill in the
user's folder of caches. It may be deleted at any time. Several processes may use it
at once, these commands too.`,
		Example: examples(
			"quill cache stats",
			"quill cache explain 3fa2b1 77c0",
			"quill cache gc --max-bytes 2GiB --older 30d",
		),
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help()
			return usagef("no command given")
		},
	}
	cmd.PersistentFlags().StringVar((*string)(&dir), "cache", "", "folder of the store (default: $QUILL_CACHE, or quill in the user's folder of caches)")
	cmd.AddCommand(newCacheLs(&dir), newCacheStats(&dir), newCacheExplain(&dir), newCacheVerify(&dir), newCacheGC(&dir))
	return cmd
}

// open opens the store, which must be there.
func (d *cacheDir) open(cmd *cobra.Command, o store.Options) (*store.Store, error) {
	if *d == "" {
		if cmd.Flags().Changed("cache") {
			return nil, usagef("--cache is empty")
		}
		dir, err := store.DefaultDir()
		if err != nil {
			return nil, err
		}
		*d = cacheDir(dir)
	}
	o.Existing = true
	return store.Open(string(*d), o)
}

// contents is what the store holds; what cannot be used of it is noted.
func (d *cacheDir) contents(cmd *cobra.Command) (*store.Contents, error) {
	s, err := d.open(cmd, store.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	c, err := s.Contents(cmd.Context())
	if err != nil {
		return nil, err
	}
	for _, f := range c.Faults {
		note(cmd.ErrOrStderr(), "%v", f)
	}
	return c, nil
}

// shownDigits is how many digits of a key's hash lists have; a key is named by fewer, if
// no other begins with them.
const shownDigits = 12

// findAction is the one action whose hash begins with a text.
func findAction(all []store.Action, prefix string) (*store.Action, error) {
	var found []*store.Action
	for i := range all {
		if strings.HasPrefix(all[i].Hash.String(), prefix) {
			found = append(found, &all[i])
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var names []string
	for i, a := range found {
		if i == mostCandidates {
			names = append(names, fmt.Sprintf("and %d more", len(found)-i))
			break
		}
		names = append(names, a.Hash.String()[:shownDigits]+" "+shortFields(a.Key))
	}
	if names == nil {
		return nil, fmt.Errorf("no key begins with %s; quill cache ls lists them", prefix)
	}
	return nil, fmt.Errorf("%s begin with %s: %s", count(len(found), "key"), prefix, strings.Join(names, ", "))
}

// mostShort is the longest text of a field that lists show.
const mostShort = 32

// shortFields are the fields of a key that have a short text.
func shortFields(k store.Key) string {
	var parts []string
	for _, f := range k {
		if f.Text != "" && len(f.Text) <= mostShort && plain(f.Text) && !strings.Contains(f.Text, " ") {
			parts = append(parts, f.Name+"="+f.Text)
		}
	}
	return strings.Join(parts, " ")
}

// actionJSON is an action as --json has it.
type actionJSON struct {
	Hash      recipes.Hash   `json:"hash"`
	Used      time.Time      `json:"used"`
	Bytes     int64          `json:"bytes"`      // of its own file
	BlobBytes int64          `json:"blob_bytes"` // of those of its blobs, which others may share
	Blobs     []recipes.Hash `json:"blobs"`
	Key       store.Key      `json:"key"`
}

func newActionJSON(c *store.Contents, a *store.Action) actionJSON {
	j := actionJSON{Hash: a.Hash, Used: a.Used.UTC().Round(time.Second), Bytes: a.Bytes, Blobs: append([]recipes.Hash{}, a.Blobs...), Key: a.Key}
	for _, b := range a.Blobs {
		j.BlobBytes += c.Blobs[b]
	}
	return j
}

func newCacheLs(dir *cacheDir) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the actions whose results are kept",
		Long: `List the actions whose results are kept, used last first: when they were used, the
bytes of their files with those of their blobs, which actions may share, how many
blobs, and the fields of their keys that are short. The first column is what quill
cache explain takes.`,
		Example: examples("quill cache ls", "quill cache ls --json | jq -r '.[].hash'"),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := dir.contents(cmd)
			if err != nil {
				return err
			}
			list := make([]actionJSON, len(c.Actions))
			for i := range c.Actions {
				list[i] = newActionJSON(c, &c.Actions[i])
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), list)
			}
			t := table(cmd.OutOrStdout())
			fmt.Fprintln(t, "KEY\tUSED\tBYTES\tBLOBS\tFIELDS")
			for _, a := range list {
				fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", a.Hash.String()[:shownDigits], a.Used.Local().Format(time.DateTime), size(a.Bytes+a.BlobBytes), len(a.Blobs), shortFields(a.Key))
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// cacheStats is how much a store holds.
type cacheStats struct {
	Dir string `json:"dir"`
	store.Usage
	UnusedBlobs int        `json:"unused_blobs"`
	UnusedBytes int64      `json:"unused_bytes"`
	Faults      int        `json:"faults"`
	Oldest      *time.Time `json:"oldest"` // use of an action
	Newest      *time.Time `json:"newest"`
}

func newCacheStats(dir *cacheDir) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show how much is kept",
		Long: `Show how many actions and blobs are kept, the bytes of their files, and what of it is
of no use: blobs that no action needs, which quill cache gc removes.`,
		Example: examples("quill cache stats", "quill cache stats --json | jq .bytes"),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := dir.contents(cmd)
			if err != nil {
				return err
			}
			unused := c.Unused()
			s := cacheStats{Dir: string(*dir), Usage: c.Usage(), UnusedBlobs: unused.Blobs, UnusedBytes: unused.Bytes, Faults: len(c.Faults)}
			if n := len(c.Actions); n > 0 {
				s.Oldest, s.Newest = &c.Actions[n-1].Used, &c.Actions[0].Used
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			return s.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func (s *cacheStats) print(w io.Writer) error {
	t := table(w)
	fmt.Fprintf(t, "store\t%s\n", s.Dir)
	fmt.Fprintf(t, "bytes\t%s\n", size(s.Bytes))
	fmt.Fprintf(t, "actions\t%d\n", s.Actions)
	fmt.Fprintf(t, "blobs\t%d, of which no action needs %d (%s)\n", s.Blobs, s.UnusedBlobs, size(s.UnusedBytes))
	if s.Oldest != nil {
		fmt.Fprintf(t, "used\t%s to %s\n", s.Oldest.Local().Format(time.DateTime), s.Newest.Local().Format(time.DateTime))
	}
	return t.Flush()
}
