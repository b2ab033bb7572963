package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/recipes/store"
)

func newCacheExplain(dir *cacheDir) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain KEY [KEY]",
		Short: "Show what a result depends on, or how two differ in that",
		Long: `Show the fields of an action's key, one a line: all that its result depends on. Of two
keys the fields that differ are shown, so it says why a result was not taken from the
store: those of the first with -, those of the second with +. Texts that are not one
plain line are quoted.

A key is named by the beginning of its hash, as quill cache ls shows it.`,
		Example: examples(
			"quill cache explain 3fa2b1",
			"quill cache explain 3fa2b1 77c0",
			"quill cache explain 3fa2b1 --json | jq -r '.key[] | select(.name == \"architecture\").text'",
		),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("one KEY or two are wanted, there are %d arguments", len(args))
			}
			for _, a := range args {
				if a == "" || strings.Trim(a, "0123456789abcdef") != "" {
					return usagef("KEY %q is not the beginning of a hash: want digits and letters from a to f", a)
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dir.contents(cmd)
			if err != nil {
				return err
			}
			var found []*store.Action
			for _, arg := range args {
				a, err := findAction(c.Actions, arg)
				if err != nil {
					return err
				}
				found = append(found, a)
			}
			out := cmd.OutOrStdout()
			switch {
			case len(found) == 2 && asJSON:
				return writeJSON(out, compareKeys(found[0], found[1]))
			case len(found) == 2:
				_, err = out.Write(compareKeys(found[0], found[1]).text())
			case asJSON:
				return writeJSON(out, newActionJSON(c, found[0]))
			default:
				_, err = out.Write(keyText(found[0].Key))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// plain reports whether a text is one line that can be printed as it is.
func plain(text string) bool {
	quoted := strconv.Quote(text)
	return quoted[1:len(quoted)-1] == strings.ReplaceAll(text, `"`, `\"`)
}

// oneLine is a field's text in one line.
func oneLine(text string) string {
	if text == "" || !plain(text) {
		return strconv.Quote(text)
	}
	return text
}

func keyText(k store.Key) []byte {
	var text bytes.Buffer
	t := table(&text)
	for _, f := range k {
		fmt.Fprintf(t, "%s\t%s\n", f.Name, oneLine(f.Text))
	}
	_ = t.Flush() // a Buffer takes everything
	return text.Bytes()
}

// keyDiff is how two keys differ.
type keyDiff struct {
	Keys   [2]recipes.Hash `json:"keys"`
	Fields []fieldDiff     `json:"differ"`
	Order  bool            `json:"order_differs"` // of fields that are in both
}

// fieldDiff is a field that two keys do not have alike; nil is none.
type fieldDiff struct {
	Name  string     `json:"name"`
	Texts [2]*string `json:"texts"`
}

func compareKeys(a, b *store.Action) *keyDiff {
	d := &keyDiff{Keys: [2]recipes.Hash{a.Hash, b.Hash}, Fields: []fieldDiff{}}
	last := -1
	for _, f := range a.Key {
		at := fieldAt(b.Key, f.Name)
		switch {
		case at < 0:
			d.Fields = append(d.Fields, fieldDiff{f.Name, [2]*string{&f.Text, nil}})
			continue
		case b.Key[at].Text != f.Text:
			d.Fields = append(d.Fields, fieldDiff{f.Name, [2]*string{&f.Text, &b.Key[at].Text}})
		}
		d.Order = d.Order || at < last
		last = at
	}
	for _, f := range b.Key {
		if fieldAt(a.Key, f.Name) < 0 {
			d.Fields = append(d.Fields, fieldDiff{f.Name, [2]*string{nil, &f.Text}})
		}
	}
	return d
}

func fieldAt(k store.Key, name string) int {
	for i, f := range k {
		if f.Name == name {
			return i
		}
	}
	return -1
}

func (d *keyDiff) text() []byte {
	var text bytes.Buffer
	for _, f := range d.Fields {
		fmt.Fprintln(&text, f.Name)
		for i, sign := range "-+" {
			if f.Texts[i] != nil {
				fmt.Fprintf(&text, "%c %s\n", sign, oneLine(*f.Texts[i]))
			}
		}
	}
	switch {
	case d.Keys[0] == d.Keys[1]:
		fmt.Fprintln(&text, "both are one key")
	case d.Order:
		fmt.Fprintln(&text, "the order of the fields differs")
	}
	return text.Bytes()
}
