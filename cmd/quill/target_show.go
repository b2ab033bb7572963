package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"quill/recipes/target"
)

type targetShow struct {
	guid, structure string
	json            bool
}

func newTargetShow() *cobra.Command {
	var o targetShow
	cmd := &cobra.Command{
		Use:   "show [PROFILE]",
		Short: "Show what a profile has and what it misses",
		Long: `Show what a profile has: limits, nodes with their operands, parameter structures,
and which of those have no layout. PROFILE is a name of quill target list or a file;
without it, the default profile is shown. Entries that are not sure end in why.

Operands are shown as name:types:ranks. dt is the type that the GUID ends in; an
operand in brackets may be absent; one with dots is there as often as it takes.
Dimensions count from the fastest.

With --guid, one node and its parameters; the GUID may have its suffix. With
--struct, one structure, byte by byte. --json prints the same as JSON, in the form
of profile files.

The exit code is 0, 1 if there is no such profile, GUID or structure, 2 on wrong
usage. A structure without a layout is shown with what is known, and is no error.`,
		Example: examples(
			"quill target show",
			"quill target show gaudi2-1.21 --guid topk",
			"quill target show --struct ns_Sdpa::Params",
			"quill target show --json | jq -r '.structs[] | select(.missing) | .name'",
		),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("one PROFILE is wanted, there are %d arguments: %s", len(args), strings.Join(args, " "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.guid != "" && o.structure != "" {
				return usagef("--guid and --struct exclude each other")
			}
			p, err := loadProfile(append(args, target.Default)[0])
			if err != nil {
				return err
			}
			return o.show(cmd.OutOrStdout(), p)
		},
	}
	cmd.Flags().StringVar(&o.guid, "guid", "", "show one node")
	cmd.Flags().StringVar(&o.structure, "struct", "", "show one parameter structure")
	cmd.Flags().BoolVar(&o.json, "json", false, "print as JSON")
	return cmd
}

func (o *targetShow) show(w io.Writer, p *target.Profile) error {
	switch {
	case o.guid != "":
		return o.node(w, p)
	case o.structure != "":
		s := p.Struct(o.structure)
		if s == nil {
			return fmt.Errorf("profile %s has no structure %s; quill target show lists those that it has", p.Name, o.structure)
		}
		if o.json {
			return writeJSON(w, s)
		}
		return printStruct(w, p, s)
	case o.json:
		data, err := p.Format()
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	return printProfile(w, p)
}

func (o *targetShow) node(w io.Writer, p *target.Profile) error {
	n := nodeOf(p, o.guid)
	if n == nil {
		_, _, err := p.Node(o.guid)
		return fmt.Errorf("%w; quill target show lists those that it has", err)
	}
	if o.json {
		return writeJSON(w, n)
	}
	t := table(w)
	printNode(t, n)
	if err := t.Flush(); err != nil {
		return err
	}
	printNote(w, p, n.Note)
	if n.Params == "" {
		_, err := fmt.Fprintln(w, "\nno parameters")
		return err
	}
	fmt.Fprintln(w)
	return printStruct(w, p, p.Struct(n.Params))
}

// nodeOf finds a node by its GUID, with its suffix or without; nil if there is none.
func nodeOf(p *target.Profile, guid string) *target.Node {
	if i := slices.IndexFunc(p.Nodes, func(n target.Node) bool { return n.GUID == guid }); i >= 0 {
		return &p.Nodes[i]
	}
	n, _, err := p.Node(guid)
	if err != nil {
		return nil
	}
	return n
}

func printProfile(w io.Writer, p *target.Profile) error {
	fmt.Fprintf(w, "profile %s: %s, software %s\n\nSOURCES\n", p.Name, p.Device, p.Software)
	t := table(w)
	for _, s := range p.Sources {
		fmt.Fprintf(t, "%s\t%s\n", s.ID, s.What)
	}
	fmt.Fprintln(t, "\nLIMIT\tVALUE\tUNIT\tSOURCE\tOF WHAT")
	for _, l := range p.Limits {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", l.Name, l.Value, l.Unit, l.Source, l.What+unsure(l.Note))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w)
	fmt.Fprintln(t, "\nTYPE\tNUMBER\tBYTES")
	for _, y := range p.Types {
		fmt.Fprintf(t, "%s\t%d\t%d\n", y.Suffix, y.Number, y.Bytes)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w)
	fmt.Fprintln(t, "\nGUID\tSUFFIXES\tPARAMETERS\tOPERANDS → RESULTS\tSOURCE")
	for i := range p.Nodes {
		n := &p.Nodes[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s → %s\t%s\n", n.GUID, dash(strings.Join(n.Suffixes, " ")), dash(n.Params), operands(n.In), operands(n.Out), n.Source+unsure(n.Note))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w)
	fmt.Fprintln(t, "\nREFUSED\tINSTEAD\tSOURCE\tWHY")
	for _, f := range p.Refused {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.GUID, f.Instead, f.Source, f.Why+unsure(f.Note))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = table(w)
	fmt.Fprintln(t, "\nSTRUCTURE\tBYTES\tALIGNMENT\tHEADER\tSOURCE")
	for i := range p.Structs {
		if s := &p.Structs[i]; s.Missing == "" {
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\n", s.Name, s.Size, s.Align, s.Header, s.Source+unsure(s.Note))
		}
	}
	fmt.Fprintln(t, "\nMISSING STRUCTURE\tHEADER\tWHY")
	for i := range p.Structs {
		if s := &p.Structs[i]; s.Missing != "" {
			fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, s.Header, s.Missing)
		}
	}
	return t.Flush()
}

func unsure(n target.Note) string {
	if n.Unverified == "" {
		return ""
	}
	return "; unverified: " + n.Unverified
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func operands(list []target.Operand) string {
	parts := make([]string, len(list))
	for i := range list {
		parts[i] = operand(&list[i])
	}
	return strings.Join(parts, ", ")
}

// operand spells name:types:ranks.
func operand(o *target.Operand) string {
	s := o.Name
	if o.Types != nil {
		s += ":" + strings.Join(o.Types, "|")
	}
	switch {
	case o.MinRank != 0 && o.MinRank == o.MaxRank:
		s += ":" + strconv.Itoa(o.MinRank)
	case o.MaxRank != 0:
		s += fmt.Sprintf(":%d-%d", max(o.MinRank, 1), o.MaxRank)
	case o.MinRank != 0:
		s += fmt.Sprintf(":%d-", o.MinRank)
	}
	if o.Repeated {
		s += "…"
	}
	if o.Optional {
		s = "[" + s + "]"
	}
	return s
}

func printNode(w io.Writer, n *target.Node) {
	fmt.Fprintf(w, "guid\t%s\nsuffixes\t%s\noperands\t%s\nresults\t%s\n", n.GUID, dash(strings.Join(n.Suffixes, " ")), dash(operands(n.In)), operands(n.Out))
	fmt.Fprintf(w, "engine\t%s\nin place\t%s\n", cmp.Or(string(n.Engine), "vector"), dash(n.InPlace))
}

func printNote(w io.Writer, p *target.Profile, n target.Note) {
	for _, s := range p.Sources {
		if s.ID == n.Source {
			fmt.Fprintf(w, "source: %s\n", s.What)
		}
	}
	if n.Unverified != "" {
		fmt.Fprintf(w, "unverified: %s\n", n.Unverified)
	}
}

func printStruct(w io.Writer, p *target.Profile, s *target.Struct) error {
	name := strings.Join(append([]string{s.Name}, s.Aliases...), " = ")
	if s.Missing != "" {
		fmt.Fprintf(w, "%s: no layout, %s defines it\nmissing: %s\n", name, s.Header, s.Missing)
	} else {
		fmt.Fprintf(w, "%s: %d bytes, alignment %d, of %s\n", name, s.Size, s.Align, s.Header)
	}
	printNote(w, p, s.Note)
	if len(s.Fields) == 0 {
		return nil
	}
	t := table(w)
	fmt.Fprintln(t, "\nBYTE\tFIELD\tTYPE\tDEFAULT\tIN RECIPES")
	for i := range s.Fields {
		f := &s.Fields[i]
		at, typ := strconv.Itoa(f.Offset), f.Type
		if s.Missing != "" {
			at = "?"
		}
		if f.Count > 0 {
			typ += fmt.Sprintf("[%d]", f.Count)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", at, f.Name, dash(typ), dash(strings.Trim(fmt.Sprint(f.Default), "[]")), inRecipes(f))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return printEnums(w, p, s)
}

// inRecipes says how recipes have a field.
func inRecipes(f *target.Field) string {
	if f.Reserved {
		return "never"
	}
	text := f.Key()
	if f.As != "" {
		text += " as " + string(f.As)
	}
	if f.Flags != "" {
		text += ", a set of " + f.Flags
	}
	if f.Union != "" {
		text += ", or another of the union"
	}
	if f.Used != "" {
		text += ", as many as " + f.Used
	}
	for _, symbol := range slices.Sorted(maps.Keys(f.Symbols)) {
		text += fmt.Sprintf(", %s for %s", symbol, f.Symbols[symbol])
	}
	return text
}

func printEnums(w io.Writer, p *target.Profile, s *target.Struct) error {
	shown := map[string]bool{}
	for i := range s.Fields {
		for _, name := range []string{s.Fields[i].Type, s.Fields[i].Flags} {
			e := p.Enum(name)
			if e == nil || shown[name] {
				continue
			}
			shown[name] = true
			if _, err := fmt.Fprintf(w, "\n%s, held in %s: %s\n", e.Name, e.Type, e); err != nil {
				return err
			}
			printNote(w, p, e.Note)
		}
	}
	return nil
}
