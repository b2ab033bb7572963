package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/recipes"
	"quill/recipes/safetensors"
)

type checkOptions struct {
	bundle     string
	deployment string
	model      string
	synapse    string
	json       bool
}

func newCheck() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check BUNDLE.quill",
		Short: "Judge a bundle without a device and without weights",
		Long: `Read a bundle, verify all of it, and compare it with what this quill would compile:
by itself, with a deployment (--against) and with a model directory (--model), of which
config.json and the headers of the checkpoint are read, but no weights. Nothing is
compiled, so what only compiling would show is not found. Native recipes are unpacked,
and compared with the version of the vendor's software, if it is installed.

The state is the worst of all findings, and the exit code:

  0  optimal                what this quill would compile, as far as can be told
  3  runs, rebuild advised  of an older compiler, other passes or target profile, or
                            with other forms, buckets or higher limits than wanted
  4  unsupported            of another format, architecture or target, not covering what
                            the deployment admits, or contradicting itself
  5  unknown                cannot be judged, such as a bundle of a newer quill

A file that is no whole bundle is an error, as a deployment is that does not compile:
the exit code is 1 then, 2 after wrong usage. Each finding has both sides, and the
command that rebuilds the bundle is shown.`,
		Example: examples(
			"quill check chat.quill",
			"quill check chat.quill --against chat.yaml || quill compile chat.yaml",
			"quill check chat.quill --model models/chat --json | jq -r .state",
		),
		Args: oneArg("BUNDLE.quill"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.bundle = args[0]
			for _, name := range []string{"against", "model", "synapse"} {
				if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
					return usagef("--%s is empty", name)
				}
			}
			v, err := o.verdict(cmd.Context())
			if err != nil {
				return err
			}
			if o.json {
				err = writeJSON(cmd.OutOrStdout(), v)
			} else {
				err = v.print(cmd.OutOrStdout())
			}
			if err == nil && v.State != lower.Optimal {
				return outcome(v.ExitCode)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.deployment, "against", "", "deployment that the bundle should be for")
	cmd.Flags().StringVar(&o.model, "model", "", "directory of the checkpoint that it should serve (default: its weights are not looked at, its config.json is where the deployment says)")
	cmd.Flags().StringVar(&o.synapse, "synapse", "", "path of libSynapse.so, whose version native recipes are compared with (default: $QUILL_SYNAPSE, or what the dynamic linker finds)")
	cmd.Flags().BoolVar(&o.json, "json", false, "print as JSON")
	return cmd
}

// verdict is what check found. As JSON it is for machines: fields are only ever added.
type verdict struct {
	Bundle   string      `json:"bundle"`
	State    lower.State `json:"state"`
	ExitCode int         `json:"exit_code"`
	Quill    string      `json:"quill"`   // this one
	Against  []string    `json:"against"` // what the bundle was compared with
	Findings []finding   `json:"findings"`
	Notes    []string    `json:"notes"` // what does not change the state
	native   bool        // the bundle has native recipes
}

type finding struct {
	lower.Finding
	// Rebuild is the command that makes a bundle without this finding, "" where none does.
	Rebuild string `json:"rebuild"`
}

// verdict judges the bundle.
func (o *checkOptions) verdict(ctx context.Context) (*verdict, error) {
	v := &verdict{Bundle: o.bundle, Quill: lower.Version, Against: []string{"quill " + lower.Version}, Findings: []finding{}, Notes: []string{}}
	var d *lower.Deployment
	if o.deployment != "" {
		var err error
		if d, err = lower.ReadDeployment(o.deployment); err != nil {
			return nil, err
		}
		v.Against = append(v.Against, o.deployment)
	}
	b, err := recipes.ReadBundle(o.bundle)
	if e, ok := errors.AsType[*recipes.VersionError](err); ok {
		v.add(o, []lower.Finding{ofVersion(e)})
		v.Against = v.Against[:1]
		return v, nil
	} else if err != nil {
		return nil, err
	}
	found, err := lower.Judge(b, d, o.model)
	if err != nil {
		return nil, err
	}
	v.native = b.Native != nil
	v.add(o, found)
	if err := v.judgeNative(ctx, o, b); err != nil {
		return nil, err
	}
	if o.model != "" {
		v.Against = append(v.Against, o.model)
		if found, err = judgeModel(b, o.model); err != nil {
			return nil, err
		}
		v.add(o, found)
	}
	return v, nil
}

// ofVersion is the finding of a bundle that this quill does not read.
func ofVersion(e *recipes.VersionError) lower.Finding {
	f := lower.Finding{
		State: lower.Unsupported, What: e.What, Bundle: fmt.Sprint(e.Have), Against: lower.ThisQuill, Other: fmt.Sprint(e.Want),
		Why: "an older quill wrote it, in a way that this one does not read",
	}
	if e.Have > e.Want {
		f.State, f.Why = lower.Unknown, "a newer quill wrote it, in a way that this one does not read"
	}
	if e.Quill != "" {
		f.Why += fmt.Sprintf(": quill %s", e.Quill)
	}
	return f
}

// add adds findings, the worst first, with the command that rebuilds.
func (v *verdict) add(o *checkOptions, found []lower.Finding) {
	for _, f := range found {
		v.Findings = append(v.Findings, finding{f, o.rebuild(&f, v.native)})
		v.State = max(v.State, f.State)
	}
	slices.SortStableFunc(v.Findings, func(a, b finding) int { return cmp.Compare(b.State, a.State) })
	v.ExitCode = map[lower.State]int{
		lower.Optimal: exitOK, lower.Rebuild: exitRebuild, lower.Unknown: exitUnknown, lower.Unsupported: exitUnsupported,
	}[v.State]
}

// tensorPrefix begins what findings of checkpoints are about.
const tensorPrefix = "checkpoint "

// rebuild is the command that compiles the bundle again; another checkpoint does not
// need one.
func (o *checkOptions) rebuild(f *lower.Finding, native bool) string {
	if strings.HasPrefix(f.What, tensorPrefix) {
		return ""
	}
	deployment := "DEPLOY.yaml"
	if o.deployment != "" {
		deployment = shellQuote(o.deployment)
	}
	command := fmt.Sprintf("quill compile %s -o %s", deployment, shellQuote(o.bundle))
	if native {
		command += " --native"
	}
	return command
}

var shellSafe = regexp.MustCompile(`^[\w./=,:@%+][\w./=,:@%+-]*$`)

// shellQuote spells a word as shells read it.
func shellQuote(word string) string {
	if shellSafe.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// judgeModel compares a bundle with a model directory: its architecture, and names,
// shapes and types of its tensors.
func judgeModel(b *recipes.Bundle, dir string) (found []lower.Finding, err error) {
	config, err := recipes.ReadConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	}
	have, err := recipes.Fingerprint(config)
	if err != nil {
		return nil, fmt.Errorf("--model %s: %w", dir, err)
	}
	if want := b.Manifest.Model.Fingerprint; have != want {
		return []lower.Finding{{
			State: lower.Unsupported, What: "model.fingerprint", Bundle: want, Against: lower.ThisModel, Other: have,
			Why: "it is of another architecture than " + filepath.Join(dir, "config.json"),
		}}, nil
	}
	if !hasWeights(dir) {
		return []lower.Finding{{
			State: lower.Unknown, What: tensorPrefix + dir, Bundle: fmt.Sprintf("%d tensors", len(b.Checkpoint)), Against: lower.ThisModel, Other: "none",
			Why: "the directory holds no weights, so their shapes cannot be compared",
		}}, nil
	}
	ckpt, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ckpt.Close()) }()
	_, bad := recipes.CompareCheckpoint(b.Checkpoint, ckpt)
	for _, t := range bad {
		found = append(found, lower.Finding{
			State: lower.Unsupported, What: tensorPrefix + t.Tensor, Bundle: orNone(t.Want), Against: lower.ThisModel, Other: orNone(t.Have),
			Why: "the checkpoint is not what its config.json says: name another directory",
		})
	}
	return found, nil
}

func orNone(text string) string { return cmp.Or(text, "none") }

// shownFindings is how many findings are printed for people.
const shownFindings = 12

// print writes the verdict for people.
func (v *verdict) print(w io.Writer) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s: %v (compared with %s)\n", v.Bundle, v.State, strings.Join(v.Against, ", "))
	rebuild := ""
	for i, f := range v.Findings {
		if i == shownFindings {
			fmt.Fprintf(&text, "  and %d more, which --json has\n", len(v.Findings)-i)
			break
		}
		fmt.Fprintf(&text, "  %s: %v\n    the bundle: %s\n    %s: %s\n    %s\n", printable(f.What), f.State, printable(f.Bundle), f.Against, printable(f.Other), printable(f.Why))
	}
	for _, n := range v.Notes {
		fmt.Fprintf(&text, "  note: %s\n", n)
	}
	for _, f := range v.Findings {
		if rebuild == "" {
			rebuild = f.Rebuild
		}
	}
	if rebuild != "" {
		fmt.Fprintf(&text, "rebuild: %s\n", rebuild)
	}
	_, err := w.Write(text.Bytes())
	return err
}

// printable is text from a file that does nothing to a terminal but be read.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
