package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// Whatever differs between two bundles is named, and nothing else.
func TestDiffNamesWhatDiffers(t *testing.T) {
	t.Parallel()
	path, _ := checkedBundle(t)
	read := func() *recipes.Bundle {
		b, err := recipes.ReadBundle(path)
		require.NoError(t, err)
		return b
	}
	// recipe changes a copy of the recipe of the first launch, in all launches.
	recipe := func(change func(r *recipes.Recipe)) func(b *recipes.Bundle) {
		return func(b *recipes.Bundle) {
			old := b.Sets[0].Plans[0].Steps[0].Launch.Recipe
			r := *b.Recipes[old]
			r.Nodes, r.Tensors, r.Sections = slices.Clone(r.Nodes), slices.Clone(r.Tensors), slices.Clone(r.Sections)
			change(&r)
			delete(b.Recipes, old)
			b.Recipes[r.Hash()] = &r
			for i := range b.Sets[0].Plans {
				for _, s := range b.Sets[0].Plans[i].Steps {
					if s.Launch != nil && s.Launch.Recipe == old {
						s.Launch.Recipe = r.Hash()
					}
				}
			}
		}
	}
	for _, c := range []struct {
		name   string
		change func(b *recipes.Bundle)
		want   string
	}{
		{"version", func(b *recipes.Bundle) { b.Manifest.Quill = "0.2.0" }, "manifest:\n  quill: 0.1.0 / 0.2.0\n"},
		{"a limit", func(b *recipes.Bundle) { b.Manifest.Deployment.MaxNumSeqs = 1 }, "manifest:\n  deployment.max_num_seqs: 2 / 1\n"},
		{"a parameter", func(b *recipes.Bundle) { b.Manifest.Compiled.Params[1] = "attention=plain" }, "manifest:\n  compiled.params.attention: banded / plain\n"},
		{"a field that is left out", func(b *recipes.Bundle) { b.Manifest.Model.Window = 0 }, "manifest:\n  model.window: 16 / none\n"},
		{"architecture", func(b *recipes.Bundle) { b.Architecture = []byte("{}") }, "architecture: config.json differs\n"},
		{"a tensor's type", func(b *recipes.Bundle) { b.Checkpoint[0].DType = "F64" }, ": BF16 ["},
		{"a tensor that is missing", func(b *recipes.Bundle) { b.Checkpoint = b.Checkpoint[:len(b.Checkpoint)-1] }, " / none\n"},
		{"the order of tensors", func(b *recipes.Bundle) { slices.Reverse(b.Checkpoint) }, "checkpoint:\n"},
		{"a set", func(b *recipes.Bundle) { b.Sets = b.Sets[:1] }, "f32: only in a\n"},
		{"the order of sets", func(b *recipes.Bundle) { slices.Reverse(b.Sets); slices.Reverse(b.Manifest.Sets) }, "manifest:\n  precisions: bf16, f32 / f32, bf16\n"},
		{"a buffer", func(b *recipes.Bundle) { b.Sets[0].Info.Bytes[recipes.KV]++ }, "bf16:\n  memory:\n    kv: 245760 / 245761\n"},
		{"the workspace", func(b *recipes.Bundle) { b.Sets[0].Info.WorkspaceBytes = 1 }, "    workspace: "},
		{"a weight's place", func(b *recipes.Bundle) { b.Sets[0].Weights[2].Offset++ }, "bf16:\n  weights:\n    slot 000002: "},
		{"a weight's order", func(b *recipes.Bundle) { b.Sets[0].Weights[2].Perm = []int{1, 0} }, "in order [1 0]\n"},
		{"a bucket", func(b *recipes.Bundle) {
			s := &b.Sets[0]
			s.Plans, s.Info.Plans = s.Plans[1:], s.Info.Plans[1:]
		}, "bf16:\n  buckets only in a: prefill/q=16,c=0\n"},
		{"the order of buckets", func(b *recipes.Bundle) {
			slices.Reverse(b.Sets[0].Plans)
			slices.Reverse(b.Sets[0].Info.Plans)
		}, "bf16:\n  the same buckets in another order\n"},
		{"a plan's arena", func(b *recipes.Bundle) { b.Sets[0].Plans[0].ArenaBytes = 7 }, "  plan prefill/q=16,c=0: steps that differ: 0\n    arena: "},
		{"a plan's input", func(b *recipes.Bundle) { b.Sets[0].Plans[0].Inputs[0].Offset++ }, "  plan prefill/q=16,c=0: steps that differ: 0\n    input "},
		{"a label", func(b *recipes.Bundle) { b.Sets[0].Plans[0].Steps[2].Launch.Label = "x" }, "  plan prefill/q=16,c=0: steps that differ: 1\n"},
		{"a binding", func(b *recipes.Bundle) { b.Sets[0].Plans[0].Steps[2].Launch.Bindings[0].Offset++ }, "  plan prefill/q=16,c=0: steps that differ: 1\n"},
		{"a collective", func(b *recipes.Bundle) { b.Sets[0].Plans[0].Steps[1].Collective.Count++ }, "  plan prefill/q=16,c=0: steps that differ: 1\n"},
		{"a step", func(b *recipes.Bundle) {
			b.Sets[0].Plans[0].Steps = b.Sets[0].Plans[0].Steps[:2]
		}, "    launches: "},
		{"a parameter of a node", recipe(func(r *recipes.Recipe) {
			for i := range r.Nodes {
				if p := r.Nodes[i].Params; p != nil && p.Struct != "" && len(p.Fields) > 0 {
					other := *p
					other.Fields = append(slices.Clone(p.Fields), recipes.Field{Name: "more", Type: recipes.F32, Float: 0.5})
					r.Nodes[i].Params = &other
					return
				}
			}
		}), " more=0.5\n"},
		{"a node", recipe(func(r *recipes.Recipe) { r.Nodes = r.Nodes[1:] }), "    nodes:\n      "},
		{"a GUID", recipe(func(r *recipes.Recipe) { r.Nodes[0].GUID = "other" }), " = other("},
		{"a section", recipe(func(r *recipes.Recipe) { r.Sections[0].Size++ }), "    sections:\n      section 000 "},
		{"a place", recipe(func(r *recipes.Recipe) { r.Tensors[0].Offset++ }), "    the same nodes, with other names, places or operands\n"},
		{"order of nodes", recipe(func(r *recipes.Recipe) { r.Nodes[0], r.Nodes[1] = r.Nodes[1], r.Nodes[0] }), "    the same nodes, with other names, places or operands\n"},
		{"a recipe that no plan has", func(b *recipes.Bundle) { b.Recipes[recipes.Hash{}] = &recipes.Recipe{} }, "recipes: 0 only in a, 1 only in b, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := read(), read()
			c.change(b)
			d, err := newBundleDiff("a", "b", a, b)
			require.NoError(t, err)
			require.False(t, d.Equal)
			var text bytes.Buffer
			require.NoError(t, d.print(&text))
			require.Contains(t, text.String(), c.want)
			back, err := newBundleDiff("b", "a", b, a)
			require.NoError(t, err)
			require.False(t, back.Equal)
		})
	}
	d, err := newBundleDiff("a", "b", read(), read())
	require.NoError(t, err)
	require.True(t, d.Equal)
	var text bytes.Buffer
	require.NoError(t, d.print(&text))
	require.Empty(t, text.String())
}

// The same deployment compiled twice is the same file, and diff says so.
func TestDiffOfTwoCompiles(t *testing.T) {
	t.Parallel()
	first, deployment := checkedBundle(t)
	second := filepath.Join(t.TempDir(), "second.quill")
	run(t, exitOK, t.Context(), "compile", deployment, "-o", second)
	a, err := os.ReadFile(first)
	require.NoError(t, err)
	b, err := os.ReadFile(second)
	require.NoError(t, err)
	require.True(t, bytes.Equal(a, b))
	require.Empty(t, run(t, exitOK, t.Context(), "diff", first, second))
}
