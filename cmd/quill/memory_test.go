package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower"
	"quill/recipes"
	"quill/recipes/target"
	"quill/runtime/host"
)

// nanoBundles compiles every small model in both precisions.
func nanoBundles(t *testing.T) map[string]*recipes.Bundle {
	t.Helper()
	root, err := filepath.Abs("../../testdata")
	require.NoError(t, err)
	out := map[string]*recipes.Bundle{}
	for _, model := range []string{"nano-small", "nano-big", "nano-dense", "nano-chat"} {
		path := filepath.Join(t.TempDir(), "d.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil,
			"model: %s/%s\ntensor_parallel: 2\nmax_model_len: 128\nmax_num_seqs: 2\nblock_size: 32\nmax_batched_tokens: 64\nprecision: both\n", root, model), 0o644))
		d, err := lower.ReadDeployment(path)
		require.NoError(t, err)
		out[model], _, err = lower.Compile(t.Context(), d, nil)
		require.NoError(t, err)
	}
	return out
}

// What is said of memory holds for every plan: addresses are aligned, the workspace is
// that of the largest recipe, the peak is no more than what is placed, and every tensor
// of it that the device makes has an origin.
func TestMemoryOfNanoBundles(t *testing.T) {
	t.Parallel()
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	require.EqualValues(t, recipes.Alignment, p.Limit("alignment"))
	for model, b := range nanoBundles(t) {
		for i := range b.Sets {
			s := &b.Sets[i]
			for j := range s.Plans {
				checkPlanMemory(t, b, s, &s.Plans[j], fmt.Sprintf("%s, %s, %s", model, s.Info.Precision, s.Plans[j].Bucket))
			}
			checkHostWorkspace(t, b, s, model)
			checkWeightLayout(t, b, s)
		}
	}
}

func checkPlanMemory(t *testing.T, b *recipes.Bundle, s *recipes.Set, p *recipes.Plan, what string) {
	t.Helper()
	var workspace int64
	for i := range p.Steps {
		l := p.Steps[i].Launch
		if l == nil {
			continue
		}
		for k, at := range l.Bindings {
			require.Zero(t, at.Offset%recipes.Alignment, "%s: launch %s binds section %d to %+v", what, l.Label, k, at)
		}
		workspace = max(workspace, b.Recipes[l.Recipe].PlaceWorkspace().Bytes)
	}
	require.Equal(t, workspace, p.WorkspaceBytes, what)
	require.LessOrEqual(t, p.WorkspaceBytes, s.Info.WorkspaceBytes, what)
	m := b.Memory(p)
	require.Equal(t, m.Peak, m.ArenaBytes+m.WorkspaceBytes, what)
	require.LessOrEqual(t, m.ArenaBytes, p.ArenaBytes, what)
	require.LessOrEqual(t, m.WorkspaceBytes, p.WorkspaceBytes, what)
	require.Positive(t, m.Peak, what)
	var sum int64
	for i := range m.Tensors {
		x := &m.Tensors[i]
		require.True(t, x.Where == "inputs" || x.Origin != "", "%s: %+v", what, x)
		if x.Where != "carry" {
			sum += x.Bytes
		}
	}
	require.Equal(t, m.Peak, sum, what)
}

// layerNumber is the number of the layer in the name of a tensor.
var layerNumber = regexp.MustCompile(`\.layers\.\d+\.`)

// Launches of one recipe find weights of the same names but for the layer, of the same
// shapes, at the same places of their sections, each at an aligned address or part of a
// run that begins at one.
func checkWeightLayout(t *testing.T, b *recipes.Bundle, s *recipes.Set) {
	t.Helper()
	for i := range s.Weights {
		if w := &s.Weights[i]; w.Part <= 1 {
			require.Zero(t, w.Offset%recipes.Alignment, "%+v", w)
		}
	}
	type section struct {
		recipe recipes.Hash
		number int
	}
	layouts := map[section]string{}
	seen := map[recipes.Hash]map[string]bool{} // by recipe: launches of how many layers
	for i := range s.Plans {
		for j := range s.Plans[i].Steps {
			l := s.Plans[i].Steps[j].Launch
			if l == nil {
				continue
			}
			if seen[l.Recipe] == nil {
				seen[l.Recipe] = map[string]bool{}
			}
			seen[l.Recipe][l.Label] = true
			for k, at := range l.Bindings {
				if at.Buffer != recipes.Weights {
					continue
				}
				layout := ""
				for w := range s.Weights {
					x := &s.Weights[w]
					if size := b.Recipes[l.Recipe].Sections[k].Size; at.Offset <= x.Offset && x.Offset < at.Offset+size {
						layout += fmt.Sprintln(x.Offset-at.Offset, layerNumber.ReplaceAllString(x.Tensor, ".layers.N."), x.DType, x.Shape, x.Part)
					}
				}
				key := section{l.Recipe, k}
				if first, ok := layouts[key]; ok {
					require.Equal(t, first, layout, "%s, section %d", l.Label, k)
				}
				layouts[key] = layout
			}
		}
	}
	shared := 0
	for _, labels := range seen {
		if len(labels) > 1 {
			shared++
		}
	}
	require.Positive(t, shared, "no layers share a recipe")
}

// estimateFactor is how far the estimate of a workspace may be from what the host device
// takes for a set's largest recipe. The device keeps rows of fused nodes to threads,
// and has scratch memory.
const estimateFactor = 3

func checkHostWorkspace(t *testing.T, b *recipes.Bundle, s *recipes.Set, model string) {
	t.Helper()
	for _, unfused := range []bool{false, true} {
		dev, err := host.New(host.Options{Ranks: 1, Bytes: s.Info.Bytes, Threads: 2, Unfused: unfused})
		require.NoError(t, err)
		var most int64
		for i := range s.Plans {
			for j := range s.Plans[i].Steps {
				if l := s.Plans[i].Steps[j].Launch; l != nil {
					p, err := dev.Load(b.Recipes[l.Recipe])
					require.NoError(t, err)
					most = max(most, p.Workspace())
				}
			}
		}
		require.NoError(t, dev.Close())
		t.Logf("%s, %s, unfused %v: estimate %d, host device %d: %.2f", model, s.Info.Precision, unfused, s.Info.WorkspaceBytes, most,
			float64(s.Info.WorkspaceBytes)/float64(most))
		require.LessOrEqual(t, s.Info.WorkspaceBytes, estimateFactor*most)
		require.LessOrEqual(t, most, estimateFactor*s.Info.WorkspaceBytes)
	}
}
