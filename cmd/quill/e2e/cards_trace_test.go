//go:build linux && amd64

package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dl/dltest"
	"quill/recipes/dump"
	"quill/recipes/target"
)

// call is a line of the simulated library's trace.
type call struct {
	N      int             `json:"n"`
	Name   string          `json:"call"`
	Args   json.RawMessage `json:"args"`
	Out    json.RawMessage `json:"out"`
	Status int             `json:"status"`
}

// callArgs are the arguments that the checkers look at.
type callArgs struct {
	DeviceType int        `json:"device_type"`
	Graph      uint64     `json:"graph"`
	Attributes []int      `json:"attributes"`
	Values     []int      `json:"values"`
	Section    uint64     `json:"section"`
	Tensor     uint64     `json:"tensor"`
	Name       string     `json:"name"`
	Type       int        `json:"type"`
	Dims       int        `json:"dims"`
	Geometry   int        `json:"geometry"`
	Sizes      []int64    `json:"sizes"`
	DataType   int        `json:"data_type"`
	Offset     int64      `json:"offset"`
	GUID       string     `json:"guid"`
	In         []uint64   `json:"in"`
	NodeOut    []uint64   `json:"out"`
	Params     string     `json:"params"`
	Blocking   []uint64   `json:"blocking"`
	Blocked    []uint64   `json:"blocked"`
	Path       string     `json:"path"`
	Recipe     uint64     `json:"recipe"`
	Size       any        `json:"size"`
	Direction  int        `json:"direction"`
	Dst        []uint64   `json:"dst"`
	Src        []uint64   `json:"src"`
	Tensors    []launched `json:"tensors"`
	Workspace  uint64     `json:"workspace"`
	Flags      int        `json:"flags"`
	Count      int64      `json:"count"`
	Op         int        `json:"op"`
	Send       uint64     `json:"send"`
	Recv       uint64     `json:"recv"`
}

type launched struct {
	Address uint64
	Type    int
	Sizes   []int64
	ID      int
}

// readTrace reads a trace, whose calls all succeeded.
func readTrace(t testing.TB, path string) []call {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var all []call
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var c call
		require.NoError(t, json.Unmarshal(in.Bytes(), &c))
		require.Zero(t, c.Status, "%s", in.Bytes())
		all = append(all, c)
	}
	require.NoError(t, in.Err())
	require.NotEmpty(t, all)
	return all
}

func (c *call) args(t testing.TB) callArgs {
	var a callArgs
	if len(c.Args) > 0 {
		require.NoError(t, json.Unmarshal(c.Args, &a), "%s", c.Args)
	}
	return a
}

func outOf[T any](t testing.TB, c *call) T {
	var v T
	require.NoError(t, json.Unmarshal(c.Out, &v), "%s: %s", c.Name, c.Out)
	return v
}

// graphForm is a graph as calls or a dump tell it, in one form.
type graphForm struct {
	Nodes   []nodeForm
	Tensors map[string]tensorForm
}

type nodeForm struct {
	Name, GUID string
	Params     []byte
	In, Out    []string
	After      []string
}

type tensorForm struct {
	Type    string
	Dims    []int64
	Section string // the first tensor by name that has it, "" for none
	Offset  int64
}

// normal names sections by their first tensor, and sorts what has no order.
func (g *graphForm) normal() *graphForm {
	first := map[string]string{}
	names := make([]string, 0, len(g.Tensors))
	for name := range g.Tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		x := g.Tensors[name]
		if x.Section == "" {
			continue
		}
		if first[x.Section] == "" {
			first[x.Section] = name
		}
		x.Section = first[x.Section]
		g.Tensors[name] = x
	}
	for i := range g.Nodes {
		slices.Sort(g.Nodes[i].After)
	}
	return g
}

// graphOfRecipe is what a graph of the recipe must be: its dump in the vendor's JSON
// format, less the tensors that no node has, which a compile leaves out.
func graphOfRecipe(t testing.TB, r *recipes.Recipe, profile *target.Profile) *graphForm {
	l := dump.Listing{Name: "x", Entries: []dump.Entry{{Recipe: r}}}
	text, err := l.JSON(profile)
	require.NoError(t, err)
	var file struct {
		Graphs []struct {
			Nodes []struct {
				Name, GUID string
				Params     []int
				Inputs     []string `json:"input_tensors"`
				Outputs    []string `json:"output_tensors"`
				Blocking   []string `json:"blocking_nodes"`
			}
			Tensors []struct {
				Name, DType string
				MaxShape    []int64 `json:"max_shape"`
				Section     []int   `json:"user_mem_section_index"`
				Offset      int64   `json:"user_mem_offset"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &file))
	g := &graphForm{Tensors: map[string]tensorForm{}}
	touched := map[string]bool{}
	for _, n := range file.Graphs[0].Nodes {
		form := nodeForm{Name: n.Name, GUID: n.GUID, In: n.Inputs, Out: n.Outputs, After: n.Blocking}
		for _, b := range n.Params {
			form.Params = append(form.Params, byte(b))
		}
		for _, name := range append(slices.Clone(n.Inputs), n.Outputs...) {
			touched[name] = true
		}
		g.Nodes = append(g.Nodes, form)
	}
	for _, x := range file.Graphs[0].Tensors {
		if !touched[x.Name] {
			continue
		}
		form := tensorForm{Type: x.DType, Dims: x.MaxShape, Offset: x.Offset}
		if len(x.Section) > 0 {
			form.Section = fmt.Sprint(x.Section[0])
		}
		g.Tensors[x.Name] = form
	}
	return g.normal()
}

// typeNames are element types by their numbers in calls.
var typeNames = map[int]string{1: "int8", 2: "bf16", 4: "float32", 16: "int32", 32: "uint8", 32768: "int64"}

// underway is a graph that calls build.
type underway struct {
	stage    int // what came last, see order
	sections map[uint64]*sectionCalls
	tensors  map[uint64]*tensorCalls
	names    map[string]bool
	nodes    map[uint64]int // by id
	g        graphForm
}

type sectionCalls struct{ persistent, grouped, used bool }

type tensorCalls struct {
	name     string
	max, min []int64
	dtype    int
	section  uint64
	offset   int64
	used     bool
}

// order is the stage of each call that builds a graph: later ones never come before
// earlier ones. Calls of one stage may mix.
var order = map[string]int{
	"synGraphSetAttributes": 1,
	"synSectionCreate":      2, "synSectionSetPersistent": 2, "synSectionSetGroup": 2,
	"synTensorHandleCreate": 3, "synTensorSetGeometry": 3, "synTensorSetDeviceDataType": 3, "synTensorAssignToSection": 3,
	"synNodeCreateWithId": 4, "synNodeDependencySet": 4,
	"synGraphCompile": 5, "synGraphCompileV2": 5,
}

// compileCalls reads the calls of a compile: the graphs that they build, and those that
// they have compiled.
type compileCalls struct {
	t                         testing.TB
	graphs, sections, tensors map[uint64]*underway // by handle
	done                      []*graphForm
}

// rebuild makes the graphs of a compile's calls. Calls that it does not know, orders and
// sizes that are not as they must be fail the test.
func rebuild(t testing.TB, trace []call) []*graphForm {
	r := compileCalls{t: t, graphs: map[uint64]*underway{}, sections: map[uint64]*underway{}, tensors: map[uint64]*underway{}}
	for i := range trace {
		c := &trace[i]
		a := c.args(t)
		u := r.underway(c, &a)
		switch order[c.Name] {
		case 0:
			r.other(c, &a, u)
		case 1:
			require.Equal(t, []int{0}, a.Attributes)
			require.Equal(t, []int{1}, a.Values)
		case 2:
			r.section(c, &a, u)
		case 3:
			r.tensor(c, &a, u)
		case 4:
			r.node(c, &a, u)
		case 5:
			require.NotEmpty(t, a.Name)
			for _, x := range u.tensors {
				require.True(t, x.used, "tensor %s is in no node", x.name)
			}
			r.done = append(r.done, u.g.normal())
		}
	}
	require.Empty(t, r.graphs, "graphs are left")
	return r.done
}

// underway is the graph that a call is about, and checks that it comes in its order.
func (r *compileCalls) underway(c *call, a *callArgs) *underway {
	u := r.graphs[a.Graph]
	switch c.Name {
	case "synSectionSetPersistent", "synSectionSetGroup":
		u = r.sections[a.Section]
	case "synTensorSetGeometry", "synTensorSetDeviceDataType", "synTensorAssignToSection":
		u = r.tensors[a.Tensor]
	}
	if stage := order[c.Name]; stage > 0 {
		require.NotNil(r.t, u, "call %d, %s, of a graph that is not there", c.N, c.Name)
		require.GreaterOrEqual(r.t, stage, u.stage, "call %d, %s, comes too late", c.N, c.Name)
		require.LessOrEqual(r.t, u.stage, 4, "call %d, %s, after the compile", c.N, c.Name)
		u.stage = stage
	}
	return u
}

// other takes the calls before and behind those that build a graph.
func (r *compileCalls) other(c *call, a *callArgs, u *underway) {
	switch c.Name {
	case "synInitialize", "synDestroy", "synRecipeSerialize", "synRecipeGetAttribute", "synRecipeDestroy":
	case "synGraphCreate":
		require.Equal(r.t, 4, a.DeviceType)
		r.graphs[outOf[uint64](r.t, c)] = &underway{
			sections: map[uint64]*sectionCalls{}, tensors: map[uint64]*tensorCalls{}, names: map[string]bool{}, nodes: map[uint64]int{},
			g: graphForm{Tensors: map[string]tensorForm{}},
		}
	case "synGraphDestroy":
		require.Equal(r.t, 5, u.stage)
		delete(r.graphs, a.Graph)
	default:
		r.t.Fatalf("call %d: %s is no call of a compile", c.N, c.Name)
	}
}

func (r *compileCalls) section(c *call, a *callArgs, u *underway) {
	if c.Name == "synSectionCreate" {
		h := outOf[uint64](r.t, c)
		u.sections[h], r.sections[h] = &sectionCalls{}, u
		return
	}
	s := u.sections[a.Section]
	require.False(r.t, s.used)
	if c.Name == "synSectionSetPersistent" {
		s.persistent = true
	} else {
		s.grouped = true
	}
}

func (r *compileCalls) tensor(c *call, a *callArgs, u *underway) {
	x := u.tensors[a.Tensor]
	switch c.Name {
	case "synTensorHandleCreate":
		require.Zero(r.t, a.Type)
		require.NotEmpty(r.t, a.Name)
		require.False(r.t, u.names[a.Name], "tensor %s is there twice", a.Name)
		u.names[a.Name] = true
		h := outOf[struct{ Tensor uint64 }](r.t, c).Tensor
		u.tensors[h], r.tensors[h] = &tensorCalls{name: a.Name}, u
	case "synTensorSetGeometry":
		require.Len(r.t, a.Sizes, a.Dims)
		if a.Geometry == 1 {
			x.max = a.Sizes
		} else {
			require.Zero(r.t, a.Geometry)
			x.min = a.Sizes
		}
	case "synTensorSetDeviceDataType":
		x.dtype = a.DataType
	case "synTensorAssignToSection":
		s := u.sections[a.Section]
		require.True(r.t, s.persistent && s.grouped, "call %d: the section is not ready", c.N)
		s.used = true
		x.section, x.offset = a.Section, a.Offset
	}
}

func (r *compileCalls) node(c *call, a *callArgs, u *underway) {
	if c.Name == "synNodeDependencySet" {
		for _, before := range a.Blocking {
			for _, behind := range a.Blocked {
				i, ok := u.nodes[behind]
				j, ok2 := u.nodes[before]
				require.True(r.t, ok && ok2 && j < i, "call %d: nodes %d and %d", c.N, before, behind)
				u.g.Nodes[i].After = append(u.g.Nodes[i].After, u.g.Nodes[j].Name)
			}
		}
		return
	}
	n := nodeForm{Name: a.Name, GUID: a.GUID, In: u.operands(r.t, a.In), Out: u.operands(r.t, a.NodeOut), After: []string{}}
	params, err := base64.StdEncoding.DecodeString(a.Params)
	require.NoError(r.t, err)
	if len(params) > 0 {
		n.Params = params
	}
	u.nodes[outOf[uint64](r.t, c)] = len(u.g.Nodes)
	u.g.Nodes = append(u.g.Nodes, n)
}

// operands names operands; their properties are final with their first node.
func (u *underway) operands(t testing.TB, list []uint64) []string {
	names := make([]string, len(list))
	for i, h := range list {
		if h == 0 {
			continue
		}
		x := u.tensors[h]
		require.NotNil(t, x)
		require.Equal(t, x.max, x.min, "tensor %s", x.name)
		require.NotEmpty(t, typeNames[x.dtype])
		x.used = true
		names[i] = x.name
		form := tensorForm{Type: typeNames[x.dtype], Dims: x.max, Offset: x.offset}
		if x.section != 0 {
			form.Section = fmt.Sprint(x.section)
		}
		u.g.Tensors[x.name] = form
	}
	return names
}

// command is the program itself, which the tests of cards run.
func command(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "quill")
	out, err := exec.Command("go", "build", "-o", path, "quill/cmd/quill").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// cardsBundle compiles a small model for simulated cards with the program. The traces of the
// compile's processes are in dir.
func cardsBundle(t testing.TB, quill, library, dir string, d deployment) (path string) {
	require.NoError(t, os.WriteFile(filepath.Join(dir, "buckets.txt"), []byte(d.buckets), 0o666))
	deployment := filepath.Join(dir, "cards.yaml")
	require.NoError(t, os.WriteFile(deployment, []byte(d.yaml("buckets.txt")), 0o666))
	path = filepath.Join(dir, "cards.quill")
	cmd := exec.Command(quill, "compile", deployment, "--native", "--synapse", library, "--no-cache", "-o", path)
	cmd.Env = append(os.Environ(), "SIMSYNAPSE_TRACE="+filepath.Join(dir, "compile-%d"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

func smallCards(tp int) deployment {
	d := nano("nano-small", tp, 8, "f32")
	d.more = "moe: gather\n"
	d.maxLen, d.maxSeqs, d.maxBatched = 64, 2, 16
	d.buckets = "prefill q=4,16 c=0,8\ndecode b=1 n=8\ndecode b=2 n=16\n"
	return d
}

// The calls of a compile are the recipes: rebuilt from the calls alone each is what its
// dump says, every byte of its parameters too. The calls of steps are the plans: every
// address, count and copy.
func TestCardsCallsAreTheRecipes(t *testing.T) {
	library := dltest.Simulated(t)
	dir, quill := t.TempDir(), command(t)
	d := smallCards(2)
	path := cardsBundle(t, quill, library, dir, d)
	b, err := recipes.ReadBundle(path)
	require.NoError(t, err)
	profile, err := target.Load(target.Default)
	require.NoError(t, err)
	var rebuilt []*graphForm
	traces, err := filepath.Glob(filepath.Join(dir, "compile-*"))
	require.NoError(t, err)
	for _, f := range traces {
		rebuilt = append(rebuilt, rebuild(t, readTrace(t, f))...)
	}
	require.Len(t, rebuilt, len(b.Recipes))
	for _, r := range b.Recipes {
		want := graphOfRecipe(t, r, profile)
		i := slices.IndexFunc(rebuilt, func(g *graphForm) bool { return sameForm(t, want, g) })
		require.GreaterOrEqual(t, i, 0, "no calls make recipe %s", r.Name)
		rebuilt = slices.Delete(rebuilt, i, i+1)
	}

	cmd := exec.Command(quill, "run", path, "--model", d.model, "--device", "hpu", "--synapse", library, "--tokens", "1,2,3,4,5,6", "--max-new", "5")
	cmd.Env = append(os.Environ(), "SIMSYNAPSE_DIR="+dir, "SIMSYNAPSE_TRACE="+filepath.Join(dir, "run-%d"))
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Run(), "%s", &said)
	traces, err = filepath.Glob(filepath.Join(dir, "run-*"))
	require.NoError(t, err)
	require.Len(t, traces, d.tp)
	var seen []string
	for _, f := range traces {
		buckets := replayed(t, b, readTrace(t, f))
		require.Equal(t, recipes.Prefill, buckets[0].Phase)
		text := fmt.Sprint(buckets)
		require.Equal(t, 4, strings.Count(text, "decode/"), text)
		require.Equal(t, 5, strings.Count(text, "logits/"), text)
		seen = append(seen, text)
	}
	require.Equal(t, seen[0], seen[1], "ranks ran different plans")
}

// sameForm compares graphs; it is equality that is quick to say no.
func sameForm(t testing.TB, a, b *graphForm) bool {
	if len(a.Nodes) != len(b.Nodes) || len(a.Tensors) != len(b.Tensors) {
		return false
	}
	x, err := json.Marshal(a)
	require.NoError(t, err)
	y, err := json.Marshal(b)
	require.NoError(t, err)
	return bytes.Equal(x, y)
}

// A program that is killed leaves no rank and no card behind.
func TestCardsOfAKilledProgram(t *testing.T) {
	library := dltest.Simulated(t)
	dir, quill := t.TempDir(), command(t)
	d := smallCards(2)
	path := cardsBundle(t, quill, library, dir, d)
	run := func(more ...string) *exec.Cmd {
		cmd := exec.Command(quill, append([]string{"run", path, "--model", d.model, "--device", "hpu", "--synapse", library, "--tokens", "1,2,3"}, more...)...)
		cmd.Env = append(os.Environ(), "SIMSYNAPSE_DIR="+dir)
		return cmd
	}
	ranks := func() (n int) {
		all, err := filepath.Glob("/proc/[0-9]*/environ")
		require.NoError(t, err)
		for _, f := range all {
			env, err := os.ReadFile(f)
			line, err2 := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
			if err == nil && err2 == nil && bytes.Contains(env, []byte("SIMSYNAPSE_DIR="+dir+"\x00")) && bytes.Contains(line, []byte("hpu-rank")) {
				n++
			}
		}
		return n
	}
	for range 5 {
		cmd := run("--max-new", "50")
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool { return ranks() == d.tp }, 20*time.Second, time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return ranks() == 0 }, 5*time.Second, 10*time.Millisecond, "ranks outlive the program")
	}
	out, err := run("--max-new", "2").CombinedOutput()
	require.NoError(t, err, "the cards cannot be used again: %s", out)
}
