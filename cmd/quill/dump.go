package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/lower/synapse"
	"quill/recipes"
	"quill/recipes/dump"
	"quill/recipes/target"
)

type dumpOptions struct {
	bundle, bucket, precision, recipe, form, out, profile string
}

// dumpForms are what --form takes.
var dumpForms = []string{"text", "qir", "json", "dot", "native"}

func newDump() *cobra.Command {
	var o dumpOptions
	cmd := &cobra.Command{
		Use:   "dump BUNDLE.quill (--bucket BUCKET | --recipe ID)",
		Short: "Write the recipes of a bucket in full",
		Long: `Write what a bucket executes: its steps and each of its recipes once, in the order
of their first launch, or one recipe.

  --form text  a line a node: operands with type, dims (fastest first), address and,
               in the workspace, first and last node; parameters; order; the op of
               the model that it is from. Layers count from that of the launch.
  --form qir   the IR that the recipes were lowered from: the segments, and the
               function that calls them, which is left out with --recipe. The
               bundle's buckets are compiled again for it; a recipe that then is
               another one than the bundle's is noted.
  --form json  a collection of Synapse JSON graphs, one a recipe, which the tools of
               the target's software record and compile. Parameters are bytes, as
               the profile lays them out; quill target says more of profiles.
  --form dot   a picture: dot -Tsvg makes one of it.
  --form native  what the vendor's compiler made of one recipe (--recipe), as it wrote
               it, which quill recipe shows. The bundle must have been compiled with
               --native.

Buckets are called as quill inspect calls them. A recipe is named by the beginning of
its hash, or of its name and hash as dumps have it; without --bucket it is sought in
all buckets. Equal bundles give equal bytes.

The exit code is 0 if everything was written, 1 if not, and then nothing is, 2 on
wrong usage.`,
		Example: examples(
			"quill dump chat.quill --bucket decode/b=1,n=16",
			"quill dump chat.quill --bucket prefill/q=128,c=0 --form json --profile gaudi2.json -o graphs.json",
			"quill dump chat.quill --recipe 3fa2b1 --form dot | dot -Tsvg > recipe.svg",
			"quill dump chat.quill --bucket decode/b=1,n=16 --form qir -o decode.qir",
		),
		Args: oneArg("BUNDLE.quill"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.bundle = args[0]
			if err := o.check(cmd); err != nil {
				return err
			}
			text, err := o.run(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.out == "" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return os.WriteFile(o.out, text, 0o666)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.bucket, "bucket", "", "bucket to write, as quill inspect calls it")
	f.StringVar(&o.precision, "precision", "", "recipe set to use, bf16 or f32 (default: the bundle's first, or with --recipe alone all)")
	f.StringVar(&o.recipe, "recipe", "", "write this recipe alone: the beginning of its hash")
	f.StringVar(&o.form, "form", dumpForms[0], "form to write: "+strings.Join(dumpForms, ", "))
	f.StringVarP(&o.out, "output", "o", "", "file to write (default: the standard output)")
	f.StringVar(&o.profile, "profile", target.Default, "for --form json: the target profile, a name or a file")
	return cmd
}

func (o *dumpOptions) check(cmd *cobra.Command) error {
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	switch {
	case o.bucket == "" && o.recipe == "":
		return usagef("--bucket or --recipe is missing: what to write")
	case given("bucket") && o.bucket == "":
		return usagef("--bucket is empty")
	case given("recipe") && o.recipe == "":
		return usagef("--recipe is empty")
	case given("precision") && o.precision != "bf16" && o.precision != "f32":
		return usagef("--precision %q is neither bf16 nor f32", o.precision)
	case !slices.Contains(dumpForms, o.form):
		return usagef("--form %q: want %s", o.form, strings.Join(dumpForms, ", "))
	case o.form == "native" && o.recipe == "":
		return usagef("--form native is of one recipe: name it with --recipe")
	case given("profile") && o.form != "json":
		return usagef("--profile is for --form json")
	}
	if o.out != "" {
		return checkOutput("-o", o.out, o.bundle, o.profile)
	}
	return nil
}

// run makes the whole output.
func (o *dumpOptions) run(ctx context.Context, stderr io.Writer) ([]byte, error) {
	b, err := recipes.ReadBundle(o.bundle)
	if err != nil {
		return nil, err
	}
	l, err := o.listing(b)
	if err != nil {
		return nil, err
	}
	switch o.form {
	case "text":
		return l.Text(), nil
	case "dot":
		return l.Dot(), nil
	case "native":
		if b.Native == nil {
			return nil, fmt.Errorf("%s has no native recipes: quill compile --native makes them", o.bundle)
		}
		return b.Native.Recipe(l.Entries[0].Hash)
	case "qir":
		return o.qir(ctx, b, l, stderr)
	}
	p, err := loadProfile(o.profile)
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	text, err := l.JSON(p)
	if _, ok := errors.AsType[*target.MissingError](err); ok {
		err = fmt.Errorf("%w, which --profile takes", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.bundle, err)
	}
	return text, nil
}

// setOf is the set of a precision, the first one for "".
func setOf(b *recipes.Bundle, bundle, precision string) (*recipes.Set, error) {
	for i := range b.Sets {
		if precision == "" || b.Sets[i].Info.Precision == precision {
			return &b.Sets[i], nil
		}
	}
	return nil, fmt.Errorf("--precision: bundle %s has no set %s, it has %s", bundle, precision, strings.Join(precisions(b), ", "))
}

// listing is what is asked for.
func (o *dumpOptions) listing(b *recipes.Bundle) (*dump.Listing, error) {
	set, err := setOf(b, o.bundle, o.precision)
	if err != nil {
		return nil, err
	}
	if o.bucket == "" {
		sets := []*recipes.Set{set}
		if o.precision == "" {
			sets = nil
			for i := range b.Sets {
				sets = append(sets, &b.Sets[i])
			}
		}
		h, err := o.find(launchedBy(b, sets))
		if err != nil {
			return nil, err
		}
		return dump.OfRecipe(b, sets, h), nil
	}
	at := slices.IndexFunc(set.Plans, func(p recipes.Plan) bool { return p.Bucket.String() == o.bucket })
	if at < 0 {
		return nil, fmt.Errorf("--bucket: bundle %s has no bucket %s; it has %s", o.bundle, o.bucket, bucketList(set))
	}
	l := dump.OfPlan(b, set, &set.Plans[at])
	if o.recipe == "" {
		return l, nil
	}
	h, err := o.find(l.Entries)
	if err != nil {
		return nil, err
	}
	return l.Only(h), nil
}

func bucketList(s *recipes.Set) string {
	names := make([]string, len(s.Plans))
	for i := range s.Plans {
		names[i] = s.Plans[i].Bucket.String()
	}
	return strings.Join(names, " ")
}

// launchedBy are the recipes that plans of some sets launch, each once, by name and hash.
func launchedBy(b *recipes.Bundle, sets []*recipes.Set) []dump.Entry {
	var all []dump.Entry
	seen := map[recipes.Hash]bool{}
	for _, s := range sets {
		for i := range s.Plans {
			for _, e := range dump.OfPlan(b, s, &s.Plans[i]).Entries {
				if !seen[e.Hash] {
					seen[e.Hash] = true
					all = append(all, e)
				}
			}
		}
	}
	slices.SortFunc(all, func(x, y dump.Entry) int {
		return cmp.Or(cmp.Compare(x.Recipe.Name, y.Recipe.Name), bytes.Compare(x.Hash[:], y.Hash[:]))
	})
	return all
}

// find is the one recipe that --recipe begins.
func (o *dumpOptions) find(all []dump.Entry) (recipes.Hash, error) {
	var found []dump.Entry
	for _, e := range all {
		if h := e.Hash.String(); strings.HasPrefix(h, o.recipe) || strings.HasPrefix(e.Recipe.Name+"-"+h, o.recipe) {
			found = append(found, e)
		}
	}
	switch len(found) {
	case 0:
		return recipes.Hash{}, fmt.Errorf("--recipe: no recipe begins with %s; there are %s", o.recipe, candidates(all))
	case 1:
		return found[0].Hash, nil
	}
	return recipes.Hash{}, fmt.Errorf("--recipe: %s begin with %s: %s", count(len(found), "recipe"), o.recipe, candidates(found))
}

// mostCandidates is how many recipes an error lists.
const mostCandidates = 12

func candidates(list []dump.Entry) string {
	var names []string
	for i := range list {
		if i == mostCandidates {
			names = append(names, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		names = append(names, list[i].ID())
	}
	return strings.Join(names, ", ")
}

// qir compiles again and writes the segments that the recipes of a listing were made
// of, those of a plan with the function that calls them. A recipe that is not what is
// made now is noted.
func (o *dumpOptions) qir(ctx context.Context, b *recipes.Bundle, l *dump.Listing, stderr io.Writer) ([]byte, error) {
	first := l.Entries[0].Uses[0] // all are of one plan, or any plan will do
	made, err := o.recompile(ctx, b, &first, stderr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.bundle, err)
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "; %s, compiled again with the passes %s\n", l.Name, b.Manifest.Compiled.Passes)
	m := *made.Module
	m.Funcs = nil
	for i := range l.Entries {
		e := &l.Entries[i]
		s, h, ok := segmentAt(made, e.Uses[0].Step)
		if !ok {
			return nil, fmt.Errorf("%s: step %d of bucket %s is no launch when it is compiled again: this compiler makes another plan of it", o.bundle, e.Uses[0].Step, first.Plan.Bucket)
		}
		fmt.Fprintf(&text, "; @%s: recipe %s, hash %s", s.Name, e.ID(), e.Hash)
		if h != e.Hash {
			fmt.Fprintf(&text, "; made now: %s", h)
			note(stderr, "recipe %s is not what this compiler makes of its segment, which has hash %s; the IR is that of the latter", e.ID(), h)
		}
		text.WriteByte('\n')
		if !slices.Contains(m.Funcs, s.Fn) {
			m.Funcs = append(m.Funcs, s.Fn)
		}
	}
	if l.Plan != nil {
		m.Funcs = made.Module.Funcs
	}
	return append(text.Bytes(), m.String()...), nil
}

// recompile compiles the set of a launch again and gives its plan.
func (o *dumpOptions) recompile(ctx context.Context, b *recipes.Bundle, u *dump.Use, stderr io.Writer) (made *lower.Planned, err error) {
	m := newMeter(stderr, "compiling", func(n int64) string { return fmt.Sprint(n) })
	defer m.close()
	_, err = lower.Recompile(ctx, b, u.Set, lower.Options{
		Progress: func(s lower.Step) { m.update(int64(s.Done), int64(s.Total), s.What) },
		Planned: func(_ string, p *lower.Planned) {
			if p.Plan.Bucket == u.Plan.Bucket {
				made = p
			}
		},
	})
	return made, err
}

// segmentAt is the segment that a step of a plan launches, and the hash of its recipe.
func segmentAt(p *lower.Planned, step int) (*synapse.Segment, recipes.Hash, bool) {
	if step >= len(p.Plan.Steps) || p.Plan.Steps[step].Launch == nil {
		return nil, recipes.Hash{}, false
	}
	launches := 0
	for _, s := range p.Plan.Steps[:step] {
		if s.Launch != nil {
			launches++
		}
	}
	return p.Segments[launches], p.Plan.Steps[step].Launch.Recipe, true
}
