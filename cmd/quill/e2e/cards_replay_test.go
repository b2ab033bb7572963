//go:build linux && amd64

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// rankCalls reads the calls of a rank: what it has loaded and allocated so far, and the
// plans that it ran.
type rankCalls struct {
	t      testing.TB
	bundle *recipes.Bundle
	set    *recipes.Set

	base      map[recipes.Buffer]uint64
	waiting   []recipes.Buffer // that have yet to be allocated
	workspace uint64
	order     []recipes.Hash               // in which recipes are loaded: that of their first launches
	recipes   map[uint64]recipes.Hash      // by handle
	tensors   map[uint64][]*recipes.Tensor // persistent ones of each recipe, by id
	launched  bool                         // until then copies are those of weights
	run       []call                       // since the last plan
	buckets   []recipes.Bucket             // of the plans
}

// replayed are the buckets of the plans that a rank's calls run.
func replayed(t testing.TB, b *recipes.Bundle, trace []call) []recipes.Bucket {
	r := rankCalls{
		t: t, bundle: b, set: &b.Sets[0],
		base: map[recipes.Buffer]uint64{}, recipes: map[uint64]recipes.Hash{}, tensors: map[uint64][]*recipes.Tensor{},
	}
	for _, buf := range recipes.Buffers() {
		if r.set.Info.Bytes[buf] > 0 {
			r.waiting = append(r.waiting, buf)
		}
	}
	for i := range r.set.Plans {
		for _, l := range launchesOf(&r.set.Plans[i]) {
			if !slices.Contains(r.order, l.Recipe) {
				r.order = append(r.order, l.Recipe)
			}
		}
	}
	for i := range trace {
		r.call(&trace[i])
	}
	require.Len(t, r.recipes, len(r.order))
	return r.buckets
}

// call takes the next call. One that a rank has no use for fails the test.
func (r *rankCalls) call(c *call) {
	switch c.Name {
	case "synRecipeDeSerialize", "synTensorRetrieveLaunchInfoById":
		r.load(c)
	case "synDeviceMalloc":
		r.allocate(c)
	case "synLaunch":
		r.launched = true
		r.run = append(r.run, *c)
	case "hcclAllReduce", "hcclAllGather":
		r.run = append(r.run, *c)
	case "synMemCopyAsync":
		if a := c.args(r.t); r.launched || a.Direction == 0 && r.inArena(a.Dst[0]) {
			r.run = append(r.run, *c)
		}
	case "synStreamSynchronize":
		if len(r.run) > 0 {
			r.buckets = append(r.buckets, r.plan())
		}
		r.run = nil
	case "synInitialize", "synDeviceAcquireByModuleId", "synStreamCreateGeneric", "synTensorRetrieveLaunchAmount", "synTensorRetrieveLaunchIds",
		"synWorkspaceGetSize", "synMemsetAsync", "synEventCreate", "synEventRecord", "synEventSynchronize", "synHostMap", "synHostMalloc", "synHostFree",
		"synHostUnmap", "hcclGetUniqueId", "hcclCommInitRank", "hcclCommFinalize", "hcclCommDestroy", "synEventDestroy", "synRecipeDestroy",
		"synDeviceFree", "synStreamDestroy", "synDeviceRelease", "synDestroy", "synEventQuery", "synDeviceGetMemoryInfo", "hcclCommGetAsyncError":
	default:
		r.t.Fatalf("call %d: %s is no call of a rank", c.N, c.Name)
	}
}

// load notes which recipe a handle is of, and which tensors its ids are.
func (r *rankCalls) load(c *call) {
	a := c.args(r.t)
	if c.Name == "synRecipeDeSerialize" {
		require.Less(r.t, len(r.recipes), len(r.order), "a recipe is loaded twice")
		r.recipes[outOf[uint64](r.t, c)] = r.order[len(r.recipes)]
		return
	}
	recipe := r.bundle.Recipes[r.recipes[a.Recipe]]
	for _, x := range outOf[[]struct{ Name string }](r.t, c) {
		i := slices.IndexFunc(recipe.Tensors, func(y recipes.Tensor) bool { return y.Name == x.Name })
		r.tensors[a.Recipe] = append(r.tensors[a.Recipe], &recipe.Tensors[i])
	}
}

// allocate notes where a buffer is, or the workspace, which comes last.
func (r *rankCalls) allocate(c *call) {
	if len(r.waiting) == 0 {
		require.Zero(r.t, r.workspace)
		r.workspace = outOf[uint64](r.t, c)
		return
	}
	buf := r.waiting[0]
	require.EqualValues(r.t, r.set.Info.Bytes[buf], c.args(r.t).Size)
	r.base[buf] = outOf[uint64](r.t, c)
	r.waiting = r.waiting[1:]
}

func (r *rankCalls) inArena(addr uint64) bool {
	arena := r.base[recipes.Arena]
	return addr >= arena && addr < arena+uint64(r.set.Info.Bytes[recipes.Arena])
}

// plan is the bucket of the plan that the calls since the last one run.
func (r *rankCalls) plan() recipes.Bucket {
	var why []string
	for i := range r.set.Plans {
		p := &r.set.Plans[i]
		err := r.runs(p)
		if err == nil {
			return p.Bucket
		}
		why = append(why, fmt.Sprintf("%v: %v", p.Bucket, err))
	}
	r.t.Fatalf("the calls from %d on are no plan:\n%s", r.run[0].N, strings.Join(why, "\n"))
	return recipes.Bucket{}
}

// runs says why the calls do not run a plan: copies of all its inputs, its steps, and
// copies of its output.
func (r *rankCalls) runs(p *recipes.Plan) error {
	copies := slices.IndexFunc(r.run, func(c call) bool { return c.Name != "synMemCopyAsync" || c.args(r.t).Direction != 0 })
	if copies < 0 {
		return fmt.Errorf("copies to the card alone")
	}
	if err := r.copyInputs(p, r.run[:copies]); err != nil {
		return err
	}
	steps := r.run[copies:]
	if len(steps) < len(p.Steps) {
		return fmt.Errorf("%d calls for %d steps", len(steps), len(p.Steps))
	}
	for i := range p.Steps {
		if err := r.step(&p.Steps[i], &steps[i]); err != nil {
			return fmt.Errorf("step %d (%s): call %d: %w", i, p.Steps[i].What(), steps[i].N, err)
		}
	}
	for _, c := range steps[len(p.Steps):] {
		if a := c.args(r.t); c.Name != "synMemCopyAsync" || a.Direction != 1 || a.Src[0] != r.base[recipes.Arena]+uint64(p.Outputs[0].Offset) {
			return fmt.Errorf("call %d, %s, is no copy of an output", c.N, c.Name)
		}
	}
	return nil
}

// copyInputs checks that copies bring every byte of a plan's inputs.
func (r *rankCalls) copyInputs(p *recipes.Plan, copies []call) error {
	covered := make(map[int64]bool) // bytes of the arena
	for i := range copies {
		a := copies[i].args(r.t)
		for n, dst := range a.Dst {
			from, size := int64(dst-r.base[recipes.Arena]), int64(a.Size.([]any)[n].(float64))
			for at := from; at < from+size; at++ {
				covered[at] = true
			}
		}
	}
	for i := range p.Inputs {
		io := &p.Inputs[i]
		for at := io.Offset; at < io.Offset+io.Bytes(); at++ {
			if !covered[at] {
				return fmt.Errorf("byte %d of input %s is not copied", at-io.Offset, io.Name)
			}
		}
	}
	return nil
}

// Numbers of the C interface in collectives.
const (
	hcclFloat32 = 7
	hcclSum     = 0
)

func (r *rankCalls) step(s *recipes.Step, c *call) error {
	if s.Launch != nil {
		return r.launch(s.Launch, c)
	}
	k, a, arena := s.Collective, c.args(r.t), r.base[recipes.Arena]
	name := "hcclAllReduce"
	if k.Kind == recipes.AllGather {
		name = "hcclAllGather"
	}
	if c.Name != name || a.Count != k.Count || a.Send != arena+uint64(k.In) || a.Recv != arena+uint64(k.Out) || a.DataType != hcclFloat32 || a.Op != hcclSum {
		return fmt.Errorf("it is %s %s", c.Name, c.Args)
	}
	return nil
}

func (r *rankCalls) launch(l *recipes.Launch, c *call) error {
	a := c.args(r.t)
	tensors := r.tensors[a.Recipe]
	if c.Name != "synLaunch" || r.recipes[a.Recipe] != l.Recipe || a.Workspace != r.workspace || a.Flags != 0 {
		return fmt.Errorf("it is %s of recipe %s with workspace %#x and flags %d", c.Name, r.recipes[a.Recipe], a.Workspace, a.Flags)
	}
	if len(a.Tensors) != len(tensors) {
		return fmt.Errorf("%d tensors, want %d", len(a.Tensors), len(tensors))
	}
	for _, x := range a.Tensors {
		w := tensors[x.ID]
		at := l.Bindings[w.Section]
		if want := r.base[at.Buffer] + uint64(at.Offset+w.Offset); x.Address != want {
			return fmt.Errorf("tensor %s is at %#x, want %#x", w.Name, x.Address, want)
		}
		sizes := slices.Clone(w.Dims)
		if len(sizes) == 1 {
			sizes = append(sizes, 1)
		}
		if !slices.Equal(sizes, x.Sizes) {
			return fmt.Errorf("tensor %s has sizes %v, want %v", w.Name, x.Sizes, sizes)
		}
	}
	return nil
}
