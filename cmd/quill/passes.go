package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"quill/passes"
)

func newPasses() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "passes",
		Short: "List the passes of the compiler",
		Long: `List the passes of the compiler and the pipeline that compile runs by default.

A pipeline is names separated by commas, with options in braces where they are
not the default: canonicalize,cse{scope=function},dce. Up to outline-segments it
runs once for each phase family, with symbolic sizes; what follows runs once for
each bucket, with concrete sizes. Passes of stage "any" may run in both.`,
		Example: examples(
			"quill passes",
			"quill passes --json | jq -r '.passes[].name'",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := newPassList()
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), l)
			}
			return l.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// passList is what the command shows.
type passList struct {
	Pipeline string     `json:"pipeline"` // what compile runs by default
	Passes   []passInfo `json:"passes"`
}

type passInfo struct {
	Name     string       `json:"name"`
	Summary  string       `json:"summary"`
	Stage    string       `json:"stage"` // family, bucket or any
	Optional bool         `json:"optional"`
	Exact    bool         `json:"exact"` // keeps every bit of results
	After    []passOrder  `json:"after"`
	Options  []passOption `json:"options"`
}

type passOrder struct {
	Pass string `json:"pass"`
	Why  string `json:"why"`
}

type passOption struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Default string   `json:"default"`
	Choices []string `json:"choices,omitempty"`
	Doc     string   `json:"doc"`
}

func newPassList() *passList {
	l := &passList{Pipeline: passes.Default().String()}
	for _, p := range passes.Passes() {
		info := passInfo{
			Name: p.Name, Summary: p.Summary, Stage: p.Stages.String(), Optional: p.Optional, Exact: !p.Inexact,
			After: []passOrder{}, Options: []passOption{},
		}
		for _, o := range p.After {
			info.After = append(info.After, passOrder(o))
		}
		for _, o := range p.Options {
			info.Options = append(info.Options, passOption{o.Name, o.Kind.String(), o.Default, o.Choices, o.Doc})
		}
		l.Passes = append(l.Passes, info)
	}
	return l
}

func (l *passList) print(w io.Writer) error {
	t := table(w)
	word := map[bool]string{true: "yes", false: "no"}
	fmt.Fprintln(t, "PASS\tSTAGE\tOPTIONAL\tEXACT\tSUMMARY")
	for i := range l.Passes {
		p := &l.Passes[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", p.Name, p.Stage, word[p.Optional], word[p.Exact], p.Summary)
		for _, o := range p.After {
			fmt.Fprintf(t, "\t\t\t\tafter %s: %s\n", o.Pass, o.Why)
		}
		for _, o := range p.Options {
			kind := o.Kind
			if len(o.Choices) > 0 {
				kind = strings.Join(o.Choices, "|")
			}
			fmt.Fprintf(t, "\t\t\t\t%s=%s (default %s): %s\n", o.Name, kind, o.Default, o.Doc)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\ndefault pipeline: %s\n", l.Pipeline)
	return err
}
