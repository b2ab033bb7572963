//go:build unix

package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/store"
	"quill/recipes/target"
)

// Variables of the processes of tests, which are this program again.
const (
	workerVariable = "QUILL_TEST_WORKER" // the program compiles
	loadVariable   = "QUILL_TEST_LOAD"   // what is wrong with its library
	traceVariable  = "QUILL_TEST_TRACE"  // folder for what was compiled: a file a try
	openVariable   = "QUILL_TEST_OPEN"   // the program opens a compiler, and waits to be killed
)

func TestMain(m *testing.M) {
	if os.Getenv(openVariable) != "" {
		waitInFolder()
	}
	if os.Getenv(workerVariable) != "" {
		if err := Serve(fakeBackend{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// fakeBackend compiles as the names of recipes say.
type fakeBackend struct{}

func (fakeBackend) Load(synapse string) (string, []string, error) {
	switch os.Getenv(loadVariable) {
	case "fails":
		return "", nil, fmt.Errorf("cannot load %q", synapse)
	case "dies":
		die(syscall.SIGKILL)
	case "hangs":
		select {}
	case "changes":
		return "1.22.0", nil, nil
	}
	return "1.21.0", []string{os.Getenv(kernelsVariable)}, nil
}

func die(s syscall.Signal) {
	_ = syscall.Kill(os.Getpid(), s)
	select {}
}

func serialized(h recipes.Hash) []byte { return []byte("serialized " + h.String()) }

func (fakeBackend) Compile(r *recipes.Recipe, _ *target.Profile, out string) (workspace, programs int64, err error) {
	kind, _, _ := strings.Cut(r.Name, "-")
	trace := os.Getenv(traceVariable)
	earlier, _ := filepath.Glob(filepath.Join(trace, r.Name+"-*"))
	if err := os.WriteFile(filepath.Join(trace, fmt.Sprintf("%s-%d", r.Name, len(earlier))), nil, 0o666); err != nil {
		return 0, 0, err
	}
	switch {
	case kind == "rejected":
		return 0, 0, errors.New("the library says: no kernel")
	case kind == "segv":
		fmt.Println("about to read address 0")
		die(syscall.SIGSEGV)
	case kind == "killed", kind == "once" && len(earlier) == 0:
		die(syscall.SIGKILL)
	case kind == "hangs":
		select {}
	case kind == "exits":
		log := "[12:00:00][GC ][error] out of registers\n"
		if err := os.WriteFile(filepath.Join(os.Getenv(logsVariable), "graph_compiler.log"), []byte(log), 0o666); err != nil {
			return 0, 0, err
		}
		os.Exit(3)
	case kind == "garbage":
		_, _ = os.NewFile(answersFile, "answers").WriteString("\x05\x00\x00\x00hello")
		select {}
	case kind == "long":
		_, _ = os.NewFile(answersFile, "answers").WriteString("\xff\xff\xff\xff")
		select {}
	case kind == "silent":
		return 1, 1, nil
	case kind == "empty":
		return 1, 1, os.WriteFile(out, nil, 0o666)
	case kind == "prints":
		fmt.Println(strings.Repeat("noise ", 1<<16))
	}
	return 1000, 2000, os.WriteFile(out, serialized(r.Hash()), 0o666)
}

// someRecipe adds two tensors.
func someRecipe(name string) *recipes.Recipe {
	tensor := func(name string, at int64) recipes.Tensor {
		return recipes.Tensor{Name: name, DType: dtype.BF16, Dims: []int64{64}, Section: 0, Offset: at}
	}
	return &recipes.Recipe{
		Name:     name,
		Sections: []recipes.Section{{Name: "a", Buffer: recipes.Arena, Size: 384}},
		Tensors:  []recipes.Tensor{tensor("x", 0), tensor("y", 128), tensor("z", 256)},
		Nodes:    []recipes.Node{{Name: "sum", GUID: "add_fwd_bf16", In: []int{0, 1}, Out: []int{2}}},
	}
}

// someBundle launches recipes of these names, each in a bucket of its own, and the first
// in one more.
func someBundle(names ...string) *recipes.Bundle {
	b := &recipes.Bundle{Recipes: map[recipes.Hash]*recipes.Recipe{}}
	s := recipes.Set{Info: recipes.SetInfo{Precision: "bf16"}}
	for i, name := range append(names, names[0]) {
		r := someRecipe(name)
		b.Recipes[r.Hash()] = r
		s.Plans = append(s.Plans, recipes.Plan{
			Bucket: recipes.Bucket{Phase: recipes.Logits, Seqs: i + 1},
			Steps:  []recipes.Step{{Launch: &recipes.Launch{Recipe: r.Hash(), Label: "layer " + fmt.Sprint(i)}}},
		})
	}
	b.Sets = []recipes.Set{s}
	return b
}

// bench is what a test compiles with.
type bench struct {
	t     *testing.T
	opt   Options
	trace string
	steps []Step
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, trace: t.TempDir()}
	kernels := filepath.Join(t.TempDir(), "libkernels.so")
	require.NoError(t, os.WriteFile(kernels, []byte("kernels"), 0o666))
	t.Setenv(kernelsVariable, kernels)
	t.Setenv(workerVariable, "1")
	t.Setenv(traceVariable, b.trace)
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	s, err := store.Open(filepath.Join(t.TempDir(), "store"), store.Options{Warn: func(e *store.Error) { t.Error(e) }})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	var mu sync.Mutex
	b.opt = Options{
		Profile: p, Jobs: 3, Deadline: 20 * time.Second, Store: s, Failures: filepath.Join(t.TempDir(), "failures"),
		Program: func() *exec.Cmd { return exec.Command(os.Args[0]) },
		Progress: func(s Step) {
			require.True(t, mu.TryLock(), "calls overlap")
			defer mu.Unlock()
			b.steps = append(b.steps, s)
		},
	}
	return b
}

func (b *bench) compile(of *recipes.Bundle) (*recipes.Native, error) {
	c, err := Open(b.t.Context(), b.opt)
	require.NoError(b.t, err)
	defer c.Close()
	return c.Compile(b.t.Context(), of)
}

// tried are the tries since the last call, by name and number.
func (b *bench) tried() (names []string) {
	files, err := os.ReadDir(b.trace)
	require.NoError(b.t, err)
	for _, f := range files {
		names = append(names, f.Name())
		require.NoError(b.t, os.Remove(filepath.Join(b.trace, f.Name())))
	}
	return names
}

func (b *bench) whole(of *recipes.Bundle, n *recipes.Native) {
	require.Equal(b.t, "1.21.0", n.Driver)
	require.Len(b.t, n.Recipes, len(of.Recipes))
	for h := range of.Recipes {
		data, err := n.Recipe(h)
		require.NoError(b.t, err)
		require.Equal(b.t, serialized(h), data)
		require.Equal(b.t, int64(1000), n.Recipes[h].WorkspaceBytes)
		require.Equal(b.t, int64(2000), n.Recipes[h].ProgramBytes)
	}
}

func TestCompileAndAgain(t *testing.T) {
	b := newBench(t)
	of := someBundle("good-0", "good-1", "prints-2", "good-3", "good-4")
	n, err := b.compile(of)
	require.NoError(t, err)
	b.whole(of, n)
	require.Equal(t, []string{"good-0-0", "good-1-0", "good-3-0", "good-4-0", "prints-2-0"}, b.tried())
	last := b.steps[len(b.steps)-1]
	require.Equal(t, [3]int{5, 5, 0}, [3]int{last.Done, last.Total, last.Kept})

	again, err := b.compile(of)
	require.NoError(t, err)
	require.Equal(t, n, again)
	require.Empty(t, b.tried(), "nothing is left to compile")
	require.Equal(t, 5, b.steps[len(b.steps)-1].Kept)

	of = someBundle("good-0", "good-9")
	n, err = b.compile(of)
	require.NoError(t, err)
	b.whole(of, n)
	require.Equal(t, []string{"good-9-0"}, b.tried())
}

func TestCompileWithoutStore(t *testing.T) {
	b := newBench(t)
	b.opt.Store = nil
	of := someBundle("good-0")
	for range 2 {
		n, err := b.compile(of)
		require.NoError(t, err)
		b.whole(of, n)
		require.Equal(t, []string{"good-0-0"}, b.tried())
	}
}

// Whatever a recipe does to its process, it is the one that is named, all others are
// compiled, and the next time only it is tried.
func TestFaultsCostOneRecipe(t *testing.T) {
	for _, c := range []struct {
		kind, want string
		twice      bool
	}{
		{"rejected", "the library says: no kernel", false},
		{"segv", "ended without an answer (exit status 2); it printed: about to read address 0 | SIGSEGV: segmentation violation", true},
		{"killed", "was killed, by the system if it ran out of memory", true},
		{"hangs", "did not answer in 1.5s and was ended", true},
		{"exits", "ended without an answer (exit status 3); the library's logs: graph_compiler.log: [12:00:00][GC ][error] out of registers", true},
		{"garbage", "was ended: its answer cannot be read: invalid character 'h'", true},
		{"long", "was ended: its answer cannot be read: a message of 4294967295 bytes", true},
		{"silent", "says that it wrote a file: stat ", false},
		{"empty", "a serialized recipe of 0 bytes: want 1 to", false},
	} {
		t.Run(c.kind, func(t *testing.T) {
			b := newBench(t)
			if c.kind == "hangs" {
				b.opt.Deadline = 1500 * time.Millisecond
			}
			bad := c.kind + "-bad"
			of := someBundle("good-0", bad, "good-1", "good-2", "good-3")
			want := []string{bad + "-0"}
			if c.twice {
				want = append(want, bad+"-1")
			}
			for _, names := range [][]string{{"good-0-0", "good-1-0", "good-2-0", "good-3-0"}, nil} {
				n, err := b.compile(of)
				require.Nil(t, n)
				e, ok := errors.AsType[*FailedError](err)
				require.True(t, ok, "%v", err)
				require.Len(t, e.Failures, 1)
				f := &e.Failures[0]
				require.ErrorContains(t, f.Err, c.want)
				require.Contains(t, err.Error(), "1 of 5 recipes were not compiled")
				require.Contains(t, err.Error(), "recipe "+bad+"-")
				require.Contains(t, err.Error(), `launched as "layer 1" in bf16 logits/r=2: `)
				require.Contains(t, err.Error(), "nodes: 1 add_fwd_bf16\n")
				require.Contains(t, err.Error(), "tensors: x bf16[64] in arena, y bf16[64] in arena")
				require.Equal(t, c.twice, strings.Contains(err.Error(), "it was tried twice"))
				require.ElementsMatch(t, append(names, want...), b.tried())
				require.Equal(t, 5, b.steps[len(b.steps)-1].Done)
				b.reproduces(f, someRecipe(bad))
			}
		})
	}
}

// reproduces checks what a failure left.
func (b *bench) reproduces(f *Failure, r *recipes.Recipe) {
	t := b.t
	require.NoError(t, f.Fault)
	data, err := os.ReadFile(filepath.Join(f.Folder, recipeFile))
	require.NoError(t, err)
	back, err := recipes.DecodeRecipe(data, r.Hash())
	require.NoError(t, err)
	require.Equal(t, r.Name, back.Name)
	graph, err := os.ReadFile(filepath.Join(f.Folder, graphFile))
	require.NoError(t, err)
	require.Contains(t, string(graph), `"add_fwd_bf16"`)
	report, err := os.ReadFile(filepath.Join(f.Folder, reportFile))
	require.NoError(t, err)
	require.Contains(t, string(report), f.Err.Error())
	require.Contains(t, string(report), kernelsVariable+"="+recipes.Sum([]byte("kernels")).String())
	profile, err := os.ReadFile(filepath.Join(f.Folder, profileFile))
	require.NoError(t, err)
	_, err = target.Parse(profile)
	require.NoError(t, err)
	output, err := os.ReadFile(filepath.Join(f.Folder, processDir, "output"))
	require.NoError(t, err)
	if strings.HasPrefix(r.Name, "segv") {
		require.Contains(t, string(output), "about to read address 0")
	}
	if strings.HasPrefix(r.Name, "exits") {
		require.FileExists(t, filepath.Join(f.Folder, processDir, "logs", "graph_compiler.log"))
	}
	require.Contains(t, f.Command, "quill native-worker "+filepath.Join(f.Folder, recipeFile))
}

// All failures are told, in the order of the plans.
func TestAllFailuresAreTold(t *testing.T) {
	b := newBench(t)
	b.opt.Synapse = "/opt/a b/libSynapse.so"
	_, err := b.compile(someBundle("segv-0", "good-1", "rejected-2", "killed-3"))
	e, ok := errors.AsType[*FailedError](err)
	require.True(t, ok, "%v", err)
	require.Len(t, e.Failures, 3)
	for i, name := range []string{"segv-0", "rejected-2", "killed-3"} {
		require.Contains(t, e.Failures[i].Recipe, name+"-")
		require.Contains(t, e.Failures[i].Command, "--synapse '/opt/a b/libSynapse.so'")
	}
	require.Equal(t, []string{"bf16 logits/r=1", "bf16 logits/r=5"}, e.Failures[0].Buckets)
	require.Contains(t, err.Error(), "3 of 4 recipes were not compiled")
}

// A recipe that dies beside others and compiles alone is compiled.
func TestDeathBesideOthers(t *testing.T) {
	b := newBench(t)
	of := someBundle("good-0", "once-1", "good-2")
	n, err := b.compile(of)
	require.NoError(t, err)
	b.whole(of, n)
	require.Equal(t, []string{"good-0-0", "good-2-0", "once-1-0", "once-1-1"}, b.tried())
	require.Equal(t, 3, b.steps[len(b.steps)-1].Done)
}

func TestReproducerThatCannotBeWritten(t *testing.T) {
	b := newBench(t)
	b.opt.Failures = filepath.Join(os.Args[0], "no") // in a file
	_, err := b.compile(someBundle("rejected-0"))
	require.ErrorContains(t, err, "no kernel")
	require.ErrorContains(t, err, "what reproduces it could not be written: ")
}

func TestOpenSaysAllThatIsWrong(t *testing.T) {
	b := newBench(t)
	b.opt.Synapse = "/none/libSynapse.so"
	b.opt.Deadline = 1500 * time.Millisecond
	for load, want := range map[string]string{
		"fails": `the vendor's library does not load: cannot load "/none/libSynapse.so"`,
		"dies":  "the vendor's library does not load: the process that compiles was killed",
		"hangs": "the vendor's library does not load: the process that compiles did not answer in 1.5s",
	} {
		t.Setenv(loadVariable, load)
		t.Setenv(kernelsVariable, "/none/libtpc_kernels.so")
		_, err := Open(t.Context(), b.opt)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "names kernel libraries that are not there: ")
	}
	b.opt.Program = func() *exec.Cmd { return exec.Command("/none/quill") }
	_, err := Open(t.Context(), b.opt)
	require.ErrorContains(t, err, "cannot start a process that compiles: ")
}

// A library that is replaced in between is no recipe's fault: nothing is tried with it.
func TestDriverThatChanges(t *testing.T) {
	b := newBench(t)
	c, err := Open(t.Context(), b.opt)
	require.NoError(t, err)
	defer c.Close()
	t.Setenv(loadVariable, "changes")
	_, err = c.Compile(t.Context(), someBundle("good-0", "good-1"))
	require.ErrorContains(t, err, "the driver has version 1.22.0, it had 1.21.0 when compiling began")
	require.Empty(t, b.tried())
}

// Parameters that the profile cannot lay out are found before anything is compiled.
func TestMissingLayouts(t *testing.T) {
	b := newBench(t)
	of := someBundle("good-0")
	r := moeRecipe(t, b.opt.Profile)
	of.Recipes[r.Hash()] = r
	c, err := Open(t.Context(), b.opt)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Compile(t.Context(), of)
	require.ErrorContains(t, err, "1 of 2 recipes have parameters ns_MoeKernel::ParamsV2: ")
	require.ErrorContains(t, err, "quill target import ")
	require.ErrorContains(t, err, "which --native-profile takes")
	require.Empty(t, b.tried())
}

// An interrupt ends what is being compiled; what was compiled before is kept.
func TestInterrupt(t *testing.T) {
	b := newBench(t)
	b.opt.Jobs = 1
	ctx, cancel := context.WithCancel(t.Context())
	progress := b.opt.Progress
	b.opt.Progress = func(s Step) {
		progress(s)
		if s.Done == 2 {
			time.AfterFunc(300*time.Millisecond, cancel)
		}
	}
	c, err := Open(ctx, b.opt)
	require.NoError(t, err)
	defer c.Close()
	begun := time.Now()
	of := someBundle("good-0", "good-1", "hangs-2", "good-3")
	_, err = c.Compile(ctx, of)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(begun), b.opt.Deadline)
	require.Equal(t, []string{"good-0-0", "good-1-0", "hangs-2-0"}, b.tried())

	_, err = b.compile(someBundle("good-0", "good-1", "good-3"))
	require.NoError(t, err)
	require.Equal(t, []string{"good-3-0"}, b.tried())
}

// A process whose master is gone ends, though it compiles.
func TestProcessWithoutMaster(t *testing.T) {
	b := newBench(t)
	c, err := Open(t.Context(), b.opt)
	require.NoError(t, err)
	defer c.Close()
	p, err := c.start(t.Context(), 7)
	require.NoError(t, err)
	if score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.cmd.Process.Pid)); err == nil {
		require.Equal(t, oomScore+"\n", string(score), "what the system is to kill first")
	}
	require.NoError(t, send(p.requests, &request{Recipe: someRecipe("hangs-0").Encode(), Out: os.DevNull}))
	require.NoError(t, p.requests.Close())
	require.NoError(t, p.cmd.Wait())
}
