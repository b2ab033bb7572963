package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/recipes/target"
	"quill/recipes/target/header"
)

type targetImport struct {
	out, profile string
	all          bool
}

func newTargetImport() *cobra.Command {
	var o targetImport
	cmd := &cobra.Command{
		Use:   "import HEADER.h",
		Short: "Add layouts of a vendor's header to a profile",
		Long: `Read the parameter structures of a C++ header, such as perf_lib_layer_params.h or
synapse_common_types.hpp of the target's software, and print a profile that has
their layouts. Structures that the profile misses get theirs; those that it has are
compared, and a difference is an error. Where they agree the header becomes their
source, and they are sure. Other structures are added with --all.

Layouts are those of x86-64 Linux: members lie at multiples of their size, base
structures first. As gcc and clang have it, what is derived from a structure uses
the padding at its end, unless the structure is plain: without bases, constructors,
destructors, assignment operators and default values, with public members only.
Default values are taken from members and from the constructor that needs no
arguments. Files that are included are read if they are beside the header, and
otherwise passed over. A structure that needs what is not there, or has bit-fields,
virtual functions or members that are no numbers, is left out with a note. Packed
structures are an error.

The exit code is 0 if the profile was written, 1 if the header cannot be read or
does not agree with the profile, 2 on wrong usage.`,
		Example: examples(
			"quill target import /usr/include/habanalabs/perf_lib_layer_params.h -o gaudi2.json",
			"quill target import synapse_common_types.hpp --profile gaudi2.json -o gaudi2-all.json --all",
			"quill target import perf_lib_layer_params.h -o gaudi2.json && quill target show gaudi2.json --struct ns_MoeKernel::ParamsV2",
		),
		Args: oneArg("HEADER.h"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	cmd.Flags().StringVarP(&o.out, "output", "o", "", "file to write (default: the standard output)")
	cmd.Flags().StringVar(&o.profile, "profile", target.Default, "the profile to extend, a name or a file")
	cmd.Flags().BoolVar(&o.all, "all", false, "add all structures of the header, not only those that the profile lists")
	return cmd
}

func (o *targetImport) run(cmd *cobra.Command, path string) error {
	if o.out != "" {
		if err := checkOutput("-o", o.out, path); err != nil {
			return err
		}
	}
	p, err := loadProfile(o.profile)
	if err != nil {
		return err
	}
	src, err := recipes.ReadSmall(path, header.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; headers come with the Intel Gaudi software, which installs %s: a copy of it will do", err, vendorHeader)
	} else if err != nil {
		return err
	}
	h, err := header.Parse(path, src, beside(filepath.Dir(path)))
	if err != nil {
		return err
	}
	m, err := h.Merge(p, fmt.Sprintf("%s, sha256 %x", filepath.Base(path), sha256.Sum256(src)), o.all)
	if err != nil {
		return err
	}
	data, err := p.Format()
	if err != nil {
		return err
	}
	if o.out == "" {
		if _, err := cmd.OutOrStdout().Write(data); err != nil {
			return err
		}
	} else if err := os.WriteFile(o.out, data, 0o666); err != nil {
		return err
	}
	noteMerged(cmd.ErrOrStderr(), m)
	return nil
}

// beside gives files of a folder, and nothing of what lies elsewhere.
func beside(dir string) func(string) []byte {
	return func(name string) []byte {
		if !filepath.IsLocal(name) {
			return nil
		}
		b, err := recipes.ReadSmall(filepath.Join(dir, name), header.MaxBytes)
		if err != nil {
			return nil // what it would define is missed where it is needed
		}
		return b
	}
}

// noteMerged says what became of the profile's structures.
func noteMerged(w io.Writer, m *header.Merged) {
	for _, s := range m.Skipped {
		note(w, "%s is left out: %v", s.Name, s.Err)
	}
	list := func(what string, names []string) {
		if len(names) > 0 {
			note(w, "%s %s: %s", count(len(names), "type"), what, strings.Join(names, ", "))
		}
	}
	list("added", m.Added)
	list("alike in header and profile", m.Checked)
	list("still without a layout", m.Missing)
}
