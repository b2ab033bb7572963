package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/recipes/native"
)

func newRecipe() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "recipe FILE",
		Short: "Show what a compiled Synapse recipe holds",
		Long: `Show what a file of a recipe holds that Intel's Synapse library compiled and wrote
(synRecipeSerialize): what it was compiled for and when, its persistent tensors and the
sections they are in, its workspaces, its programs, and where addresses are patched in
at launch.

The layout is that of release 1.16; no later one is public. Nothing is shown unless the
file's checksum is right and its fields end exactly where that begins, so a file of
another layout is an error, which says where reading ended. Dims are fastest first; a
file has 12 of them in full.

Section 0 is the scratch workspace, 1 the program data, 2 the program code; those of
the caller begin at 4.`,
		Example: examples(
			"quill recipe layer.recipe",
			"quill recipe layer.recipe --json | jq '.tensors[] | select(.section == 4)'",
		),
		Args: oneArg("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := recipes.ReadSmall(args[0], recipes.MaxNative)
			if err != nil {
				return err
			}
			r, err := native.Decode(data)
			if at, ok := errors.AsType[*native.Error](err); ok {
				return fmt.Errorf("%s: %w; the file is cut short, of another layout, or not of the vendor's compiler (quill inspect shows bundles)", args[0], at)
			} else if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			report := newRecipeReport(args[0], len(data), r)
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), report)
			}
			return report.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// recipeReport is what is printed of a recipe's file.
type recipeReport struct {
	File      string `json:"file"`
	FileBytes int    `json:"file_bytes"`
	Version   string `json:"version"`
	Name      string `json:"name"`
	Device    string `json:"device"`
	Compiled  string `json:"compiled"` // RFC 3339, "" if the file does not say
	Nodes     int    `json:"nodes"`
	Static    bool   `json:"static"` // sizes do not change from launch to launch
	Sections  uint32 `json:"sections"`

	Tensors []tensorReport `json:"tensors"`
	Consts  []constReport  `json:"const_sections"`

	Workspaces map[string]uint64 `json:"workspace_bytes"`
	Buffers    map[string]int    `json:"buffer_bytes"`

	Blobs    map[string]int `json:"blobs"`
	Programs int            `json:"programs"`
	Jobs     []jobReport    `json:"arc_jobs"`
	Patches  []patchReport  `json:"patch_points"`
}

type tensorReport struct {
	Name    string   `json:"name"`
	Section uint16   `json:"section"`
	Offset  uint64   `json:"offset"`
	Bytes   uint64   `json:"bytes"`
	DType   string   `json:"dtype"`
	Rank    uint32   `json:"rank"`
	Dims    []uint64 `json:"dims"`
	Input   bool     `json:"input"`
}

type constReport struct {
	Section uint16 `json:"section"`
	Bytes   uint64 `json:"bytes"`
	Inside  bool   `json:"inside"` // the file has its data
}

type jobReport struct {
	Engine string `json:"engine"`
	Jobs   int    `json:"jobs"`
	Bytes  int    `json:"bytes"` // of commands
}

type patchReport struct {
	Type    string `json:"type"`
	Section int    `json:"section"` // −1 where there is none
	Count   int    `json:"count"`
}

// workspaceNames are what workspaces hold, in the order of the file.
var workspaceNames = []string{"scratch", "program data", "program code"}

func newRecipeReport(path string, bytes int, r *native.Recipe) *recipeReport {
	p := &recipeReport{
		File: path, FileBytes: bytes, Version: fmt.Sprintf("%d.%d", r.Major, r.Minor), Name: r.Name, Device: "unknown",
		Nodes: len(r.Nodes), Static: r.Shapes == 0, Sections: r.Sections, Programs: len(r.Programs),
		Tensors: []tensorReport{}, Consts: []constReport{}, Jobs: []jobReport{}, Patches: []patchReport{},
		Workspaces: map[string]uint64{},
		Buffers: map[string]int{
			"execution blobs": len(r.Execution), "patching blobs": len(r.Patching), "dynamic blobs": len(r.Dynamic),
			"program data": len(r.ProgramData),
		},
		Blobs: map[string]int{},
	}
	if d, ok := r.ConfValue(native.ConfDeviceType); ok {
		p.Device = native.DeviceName(d)
	}
	if s, ok := r.ConfValue(native.ConfCompileTime); ok && s < 1<<40 {
		p.Compiled = time.Unix(int64(s), 0).UTC().Format(time.RFC3339)
	}
	for i := range r.Tensors {
		t := &r.Tensors[i]
		p.Tensors = append(p.Tensors, tensorReport{t.Name, t.Section, t.Offset, t.Size, native.TypeName(t.DType), t.Rank, t.Dims(), t.IsInput != 0})
	}
	for _, s := range r.ConstSections {
		p.Consts = append(p.Consts, constReport{s.Section, s.Size, s.HasData})
	}
	for i, n := range r.Workspaces {
		name := fmt.Sprintf("workspace %d", i)
		if i < len(workspaceNames) {
			name = workspaceNames[i]
		}
		p.Workspaces[name] = n
	}
	p.programs(r)
	return p
}

// programs counts blobs by kind, jobs by engine, and patch points by type and section.
func (p *recipeReport) programs(r *native.Recipe) {
	kinds := map[uint8]string{native.PatchingBlob: "patching", native.ExecutionBlob: "execution", native.DynamicBlob: "dynamic"}
	for _, b := range r.Blobs {
		name, ok := kinds[b.Kind]
		if !ok {
			name = fmt.Sprintf("kind %d", b.Kind)
		}
		p.Blobs[name]++
	}
	for _, j := range r.ArcJobs {
		name := native.EngineName(j.Engine)
		i := slices.IndexFunc(p.Jobs, func(r jobReport) bool { return r.Engine == name })
		if i < 0 {
			i, p.Jobs = len(p.Jobs), append(p.Jobs, jobReport{Engine: name})
		}
		p.Jobs[i].Jobs++
		p.Jobs[i].Bytes += len(j.Static.Bytes) + len(j.Dynamic.Bytes)
	}
	for _, pp := range r.PatchPoints {
		name, section := native.PatchTypeName(pp.Type), int(pp.Section)
		if pp.Type == native.SyncObject {
			section = -1
		}
		i := slices.IndexFunc(p.Patches, func(r patchReport) bool { return r.Type == name && r.Section == section })
		if i < 0 {
			i, p.Patches = len(p.Patches), append(p.Patches, patchReport{Type: name, Section: section})
		}
		p.Patches[i].Count++
	}
}

func (p *recipeReport) print(w io.Writer) error {
	var text bytes.Buffer
	t := table(&text)
	sizes := "static"
	if !p.Static {
		sizes = "dynamic"
	}
	fmt.Fprintf(t, "recipe\t%s, %s, format %s\n", p.File, size(int64(p.FileBytes)), p.Version)
	fmt.Fprintf(t, "name\t%s\n", p.Name)
	fmt.Fprintf(t, "compiled\tfor %s, %s, %s sizes\n", p.Device, orUnknown(p.Compiled), sizes)
	fmt.Fprintf(t, "contents\t%s, %s, %s, %s\n", count(p.Nodes, "node"), count(p.Programs, "program"), count(len(p.Tensors), "persistent tensor"), count(int(p.Sections), "section"))
	for _, name := range sortedKeys(p.Workspaces) {
		fmt.Fprintf(t, "%s\t%d bytes of workspace\n", name, p.Workspaces[name])
	}
	for _, name := range sortedKeys(p.Buffers) {
		fmt.Fprintf(t, "%s\t%d bytes in the file\n", name, p.Buffers[name])
	}
	for _, name := range sortedKeys(p.Blobs) {
		fmt.Fprintf(t, "%s\t%s\n", name, count(p.Blobs[name], "blob"))
	}
	fmt.Fprintln(t, "\nTENSOR\tSECTION\tOFFSET\tBYTES\tTYPE\tDIMS\tINPUT")
	for _, x := range p.Tensors {
		dims := fmt.Sprint(x.Dims)
		if int(x.Rank) > len(x.Dims) {
			dims += fmt.Sprintf(" and %d more", int(x.Rank)-len(x.Dims))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", x.Name, x.Section, x.Offset, x.Bytes, x.DType, dims, yesNo(x.Input))
	}
	if len(p.Consts) > 0 {
		fmt.Fprintln(t, "\nCONST SECTION\tBYTES\tIN THE FILE")
		for _, s := range p.Consts {
			fmt.Fprintf(t, "%d\t%d\t%s\n", s.Section, s.Bytes, yesNo(s.Inside))
		}
	}
	if len(p.Jobs) > 0 {
		fmt.Fprintln(t, "\nENGINE\tJOBS\tCOMMAND BYTES")
		for _, j := range p.Jobs {
			fmt.Fprintf(t, "%s\t%d\t%d\n", j.Engine, j.Jobs, j.Bytes)
		}
	}
	if len(p.Patches) > 0 {
		fmt.Fprintln(t, "\nPATCH POINTS\tSECTION\tCOUNT")
		for _, c := range p.Patches {
			section := "none"
			if c.Section >= 0 {
				section = fmt.Sprint(c.Section)
			}
			fmt.Fprintf(t, "%s\t%s\t%d\n", c.Type, section, c.Count)
		}
	}
	_ = t.Flush() // a Buffer takes everything
	_, err := w.Write(text.Bytes())
	return err
}

func orUnknown(when string) string {
	if when == "" {
		return "at an unknown time"
	}
	return "at " + when
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
