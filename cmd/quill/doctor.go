package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"quill/lower/synapse/compiler"
	"quill/recipes/dl"
	"quill/recipes/target"
	"quill/runtime/hpu/launch"
)

// symptom is one thing that doctor looked at.
type symptom struct {
	What  string `json:"what"`
	State string `json:"state"`          // good, bad, missing, unknown
	Text  string `json:"text"`           // what there is
	Help  string `json:"help,omitempty"` // what to do, or the command that settles it
}

const (
	good    = "good"
	bad     = "bad"
	missing = "missing" // and needed for cards, not for the CPU
	unknown = "unknown"
)

type doctorOptions struct {
	library, profile string
	header           string
	card             int
	json             bool
}

// vendorHeader is where the vendor's packages put the header of parameter structures.
const vendorHeader = "/usr/include/habanalabs/perf_lib_layer_params.h"

func newDoctor() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say whether this machine can compile for cards and run on them",
		Long: `Look at what quill needs of the vendor's software: the library and what it exports,
kernel libraries, the layouts of parameter structures, cards, settings of the system.
Then list what no public source tells and nobody has tried, each with the command that
settles it on a machine with a card.

No card is taken, unless --card names one by its module id: then memory is copied to it
and back, and what comes too early or wrong is found. Nothing of this is needed for the
CPU device. The exit code is 1 if cards could not be used.`,
		Example: examples("quill doctor", "quill doctor --synapse /usr/lib/habanalabs/libSynapse.so --card 0", "quill doctor --json | jq -r '.[] | select(.state != \"good\") | .help'"),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("card") && (o.card < 0 || o.card > maxModule) {
				return usagef("--card %d: want a module id, from 0 to %d", o.card, maxModule)
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.library, "synapse", "", synapseUsage)
	f.StringVar(&o.profile, "profile", target.Default, "target profile: a name, or a file that quill target import made")
	f.StringVar(&o.header, "header", vendorHeader, "the vendor's header of parameter structures")
	f.IntVar(&o.card, "card", -1, "module id of a card to try (default: none)")
	f.Lookup("card").DefValue = "0" // which is not shown
	f.BoolVar(&o.json, "json", false, "print what was found as JSON")
	return cmd
}

func (o *doctorOptions) run(ctx context.Context, w io.Writer) error {
	profile, err := loadProfile(o.profile)
	if err != nil {
		return err
	}
	found := o.software(profile)
	found = append(found, o.layouts(profile)...)
	found = append(found, settings()...)
	failed := slices.ContainsFunc(found, func(f symptom) bool { return f.State == bad || f.State == missing })
	found = append(found, unproved(profile, o.header)...)
	if err := ctx.Err(); err != nil {
		return err
	}
	if o.json {
		if err := writeJSON(w, found); err != nil {
			return err
		}
	} else {
		t := table(w)
		for _, f := range found {
			fmt.Fprintf(t, "%s\t%s\t%s\n", f.State, f.What, f.Text)
			if f.Help != "" {
				fmt.Fprintf(t, "\t\t→ %s\n", f.Help)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if failed {
		return errors.New("cards cannot be used on this machine as it is; the CPU can")
	}
	return nil
}

// software looks at the library, its kernels and the cards.
func (o *doctorOptions) software(profile *target.Profile) []symptom {
	lib, err := dl.OpenSynapse(o.library)
	if err != nil {
		return []symptom{{"library", missing, what(err), remedy(err)}}
	}
	found := []symptom{{"library", good, lib.String(), ""}}
	c, err := compiler.Load(lib)
	if err != nil {
		return append(found, symptom{"compiler", bad, what(err), remedy(err)})
	}
	defer c.Close() // it was only asked
	version, err := c.Version()
	switch {
	case err != nil:
		found = append(found, symptom{"software", bad, what(err), remedy(err)})
	case !strings.HasPrefix(version, profile.Software):
		found = append(found, symptom{
			"software", unknown, fmt.Sprintf("version %s, the profile %s is of %s", version, profile.Name, profile.Software),
			"quill target import " + o.header + " -o mine.json compares the layouts and adds new ones",
		})
	default:
		found = append(found, symptom{"software", good, "version " + version, ""})
	}
	if err := compiler.CheckKernels(); err != nil {
		found = append(found, symptom{"kernels", missing, what(err), remedy(err)})
	} else {
		found = append(found, symptom{"kernels", good, os.Getenv("GC_KERNEL_PATH"), ""})
	}
	return append(found, o.cards(lib)...)
}

// cards looks at the cards, and tries one if it was named.
func (o *doctorOptions) cards(lib *dl.Library) []symptom {
	rt, err := launch.Load(lib)
	if err != nil {
		return []symptom{{"runtime", bad, what(err), remedy(err)}}
	}
	defer rt.Close() // what was done with a card is over
	n, err := rt.Count()
	switch {
	case err != nil:
		return []symptom{{"cards", bad, what(err), remedy(err)}}
	case n == 0:
		return []symptom{{"cards", missing, "none", "compiling needs none; to run, load the driver (habanalabs) and give containers the devices"}}
	}
	ids, err := rt.ModuleIDs()
	if err != nil {
		return []symptom{{"cards", bad, what(err), remedy(err)}}
	}
	found := []symptom{{"cards", good, fmt.Sprintf("%d, modules %s", n, strings.Trim(fmt.Sprint(ids), "[]")), ""}}
	if o.card < 0 {
		return append(found, symptom{"copies", unknown, "no card was tried", "quill doctor --card 0"})
	}
	if err := tryCard(rt, uint32(o.card)); err != nil {
		return append(found, symptom{"copies", bad, what(err), remedy(err)})
	}
	return append(found, symptom{"copies", good, fmt.Sprintf("%d copies to module %d and back", tries, o.card), ""})
}

// tries is how often a card is written and read. Copies that are reported done before
// they are show within a few hundred.
const tries = 400

// tryCard copies patterns to a card and back. Where completion does not reach the host
// in order, which kernels without iommu=pt were seen to do, what is read is old.
func tryCard(rt *launch.Runtime, module uint32) (err error) {
	dev, err := rt.Acquire(module)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Release()) }()
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Destroy()) }()
	const size = 1 << 20
	addr, err := dev.Malloc(size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Free(addr)) }()
	mem, err := dev.HostMalloc(2 * size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.HostFree(mem)) }()
	out, in := mem[:size], mem[size:]
	for n := range tries {
		for i := range out {
			out[i], in[i] = byte(i*7+n), 0
		}
		if err := errors.Join(stream.CopyToDevice(addr, out), stream.CopyToHost(in, addr), stream.Synchronize()); err != nil {
			return err
		}
		for i := range out {
			if in[i] != out[i] {
				return fmt.Errorf("copy %d: byte %d is %#x, want %#x; help: boot with iommu=pt, without which the end of copies is told too early", n, i, in[i], out[i])
			}
		}
	}
	return nil
}

// layouts looks at structures that the profile has no layout of.
func (o *doctorOptions) layouts(p *target.Profile) []symptom {
	var names []string
	for i := range p.Structs {
		if p.Structs[i].Missing != "" {
			names = append(names, p.Structs[i].Name)
		}
	}
	if len(names) == 0 {
		return []symptom{{"layouts", good, "all structures of " + p.Name, ""}}
	}
	f := symptom{"layouts", unknown, fmt.Sprintf("%s has none of %s", p.Name, strings.Join(names, ", ")), ""}
	command := fmt.Sprintf("quill target import %s -o mine.json, and quill compile --native --native-profile mine.json; or moe: gather in the deployment, which needs none", o.header)
	if _, err := os.Stat(o.header); err != nil {
		f.Help = "on a machine with the vendor's headers: " + command
	} else {
		f.Help = command
	}
	return []symptom{f}
}

// settings looks at what the system is told.
func settings() []symptom {
	var found []symptom
	if drivers, _ := filepath.Glob("/sys/class/accel/accel*"); len(drivers) > 0 {
		line, err := os.ReadFile("/proc/cmdline")
		switch {
		case err != nil:
			found = append(found, symptom{"iommu", unknown, what(err), ""})
		case slices.Contains(strings.Fields(string(line)), "iommu=pt"):
			found = append(found, symptom{"iommu", good, "iommu=pt", ""})
		default:
			found = append(found, symptom{"iommu", bad, "the kernel was booted without iommu=pt", "boot with iommu=pt; without it the end of copies was seen to be told too early, and collectives to fail"})
		}
	}
	if dir := os.Getenv("HABANA_LOGS"); dir == "" {
		found = append(found, symptom{"logs", unknown, "HABANA_LOGS is not set", "set HABANA_LOGS to a folder: before software 1.20 reasons of errors are in its files alone"})
	} else if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		found = append(found, symptom{"logs", bad, "HABANA_LOGS is no folder: " + dir, "mkdir -p " + dir})
	} else if err := writable(dir); err != nil {
		found = append(found, symptom{"logs", bad, "nothing can be written to HABANA_LOGS: " + what(err), "chmod u+w " + dir + ", or set HABANA_LOGS to another folder"})
	} else {
		found = append(found, symptom{"logs", good, dir, ""})
	}
	if os.Getenv("HCCL_SOCKET_IFNAME") == "" {
		found = append(found, symptom{"network", unknown, "HCCL_SOCKET_IFNAME is not set", "set it to the interface that ranks meet on; the default is the first that is not lo or docker, which may be a virtual one"})
	} else {
		found = append(found, symptom{"network", good, os.Getenv("HCCL_SOCKET_IFNAME"), ""})
	}
	return found
}

// writable is an error if no file can be made in a folder.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, "quill-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// unproved is what no public source tells and nobody has tried, with what settles it.
func unproved(p *target.Profile, header string) []symptom {
	const score = "quill score B.quill --model M --tokens-from T --device hpu --against L, with logits L of --device host; "
	list := []symptom{
		{"attention's mask", unknown, "masks that differ by head were accepted on cards, but those that were tried were equal", score + "attention: plain if they differ"},
		{"attention's statistics", unknown, "far keys need the row's maximum and sum, which only the training form of the node gives", score + "far: tiled if they differ"},
		{"graphs for inference", unknown, "the attribute is set; with statistics of attention it was not tried", score + "the recipe that fails is named"},
		{"writes in place", unknown, "index_copy_fwd with its operand's section should move the written rows only", "DUMP_POST_GRAPHS=post.json quill compile D.yaml --native --no-cache -o B.quill, and look for memcpy"},
		{"recipe files", unknown, "their layout is that of software 1.16", "quill recipe FILE, which checks itself"},
		{"sums over ranks", unknown, "their order is the network's, so ranks agree but the CPU need not", score + "errors within the precision's"},
	}
	reasons := make(map[string][]string) // structures by why their layout is not sure
	for i := range p.Structs {
		if s := &p.Structs[i]; s.Unverified != "" && s.Missing == "" {
			reasons[s.Unverified] = append(reasons[s.Unverified], s.Name)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		list = append(list, symptom{"layouts", unknown, strings.Join(reasons[why], ", ") + ": " + why, "quill target import " + header + " -o mine.json, which compares them"})
	}
	return list
}

// what is an error without what helps.
func what(err error) string {
	text, _, _ := strings.Cut(err.Error(), "; help: ")
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// remedy is what an error says to do.
func remedy(err error) string {
	_, text, _ := strings.Cut(err.Error(), "; help: ")
	return text
}
