package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/recipes"
)

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Print the version of quill, the bundle format it reads, and what it was built with and from.",
		Example: examples(
			"quill version",
			"quill version --json",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), v)
			}
			return v.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// version says what this program is. What the build did not record is empty.
type version struct {
	Version  string `json:"version"`
	Format   int    `json:"bundle_format"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Revision string `json:"revision"`
	Time     string `json:"time"`     // of the revision
	Modified bool   `json:"modified"` // there were changes beside the revision
}

func buildVersion() *version {
	v := &version{Version: lower.Version, Format: recipes.FormatVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v *version) print(w io.Writer) error {
	text := fmt.Sprintf("quill %s\nbundle format %d\n%s %s\n", v.Version, v.Format, v.Go, v.Platform)
	if v.Revision != "" {
		text += "revision " + v.Revision
		if v.Time != "" {
			text += " of " + v.Time
		}
		if v.Modified {
			text += ", with changes"
		}
		text += "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
