package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/recipes/target"
)

func newTarget() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Show and extend what is known of targets",
		Long: `Show and extend target profiles: what the software of a target takes. A profile
has the nodes that recipes may have, with operands, types and ranks, limits, and the
byte layout of parameter structures. Entries say where they are from, and why they
are not sure if they are not.

Profiles are built in for versions of the software; others are JSON files that
quill target import makes. Where a profile is wanted, a name or such a file is given.`,
		Example: examples(
			"quill target list",
			"quill target show",
			"quill target import /usr/include/habanalabs/perf_lib_layer_params.h -o gaudi2.json",
		),
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help()
			return usagef("no command given")
		},
	}
	cmd.AddCommand(newTargetList(), newTargetShow(), newTargetImport())
	return cmd
}

// maxProfile bounds a profile's file; built-in ones have some ten kilobytes.
const maxProfile = 16 << 20

// loadProfile reads a profile by name, or from a file.
func loadProfile(name string) (*target.Profile, error) {
	if !strings.ContainsAny(name, `/\`) && filepath.Ext(name) != ".json" {
		return target.Load(name)
	}
	data, err := recipes.ReadSmall(name, maxProfile)
	if err != nil {
		return nil, err
	}
	p, err := target.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func newTargetList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the built-in profiles",
		Long: `List the built-in profiles: the software that each is of, how many nodes and
structures it has, how many of those have no layout, and how many entries are not
sure. The first column is what --profile and quill target show take.`,
		Example: examples("quill target list", "quill target list --json | jq -r '.[].name'"),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []profileLine
			for _, name := range target.Names() {
				p, err := target.Load(name)
				if err != nil {
					return err
				}
				list = append(list, newProfileLine(p))
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), list)
			}
			t := table(cmd.OutOrStdout())
			fmt.Fprintln(t, "NAME\tDEVICE\tSOFTWARE\tNODES\tSTRUCTURES\tMISSING\tUNVERIFIED")
			for _, l := range list {
				fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\n", l.Name, l.Device, l.Software, l.Nodes, l.Structs, l.Missing, l.Unverified)
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// profileLine is a profile in the list.
type profileLine struct {
	Name       string `json:"name"`
	Device     string `json:"device"`
	Software   string `json:"software"`
	Nodes      int    `json:"nodes"`
	Structs    int    `json:"structures"`
	Missing    int    `json:"missing"` // structures without a layout
	Unverified int    `json:"unverified"`
}

func newProfileLine(p *target.Profile) profileLine {
	l := profileLine{Name: p.Name, Device: p.Device, Software: p.Software, Nodes: len(p.Nodes), Structs: len(p.Structs)}
	note := func(n target.Note) {
		if n.Unverified != "" {
			l.Unverified++
		}
	}
	for i := range p.Limits {
		note(p.Limits[i].Note)
	}
	for i := range p.Nodes {
		note(p.Nodes[i].Note)
	}
	for i := range p.Enums {
		note(p.Enums[i].Note)
	}
	for i := range p.Structs {
		note(p.Structs[i].Note)
		if p.Structs[i].Missing != "" {
			l.Missing++
		}
	}
	return l
}
