package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/lower/synapse"
	"quill/recipes"
	"quill/runtime"
	"quill/runtime/host"
)

// experiment runs a recipe on a device of its own and its segment in the
// interpreter, on the same inputs.
type experiment struct {
	t      *testing.T
	mod    *ir.Module
	call   *ir.Op
	bucket recipes.Bucket
	recipe *recipes.Recipe
	opt    inkling.Options
	cfg    *inkling.Config
	// lowered is what the recipe was made of.
	lowered *synapse.Segment
	// made are results of calls before it, for experiments of one plan.
	made map[*ir.Op][]map[string]*interp.Tensor
	// bound is what results may be off by, relative to the largest element.
	bound float64
	// spoil, if it is not nil, changes what the device gets of a parameter.
	spoil func(outer *ir.Value, x *interp.Tensor) *interp.Tensor

	device  *runtime.HostDevice
	binding []recipes.Binding
}

// segment is the called function.
func (e *experiment) segment() *ir.Func { return e.call.Attr("callee").Func }

// run returns the largest difference, relative to the largest element of each result,
// and what the interpreter took from the device on its way. It is an error if it cannot:
// if a router's choice is neither its own nor a near tie.
func (e *experiment) run() (worst float64, by *guide, err error) {
	e.place()
	defer func() { require.NoError(e.t, e.device.Close()) }()
	fn := e.segment()
	args := e.arguments()
	by = &guide{}
	if ops := slices.Concat(routersOf(fn), streamsOf(fn)); len(ops) > 0 {
		e.fill(args)
		by = e.guide(ops)
	}
	e.fill(args)
	e.launch()
	want, err := interp.Run(e.t.Context(), e.mod, fn, nil, args, interp.Options{Replace: by.replace})
	if err != nil {
		return 0, by, err
	}
	for i, res := range fn.Results {
		for rank := range want {
			x := want[rank][res.Name]
			got := e.read(rank, e.result(i), x)
			off, err := interp.MaxAbsDiff(got, x)
			require.NoError(e.t, err)
			if off = off / max(scale(x.F), 1e-6); !(off <= worst) {
				worst = off
			}
		}
	}
	return worst, by, nil
}

// fill writes the arguments to the device.
func (e *experiment) fill(args []map[string]*interp.Tensor) {
	for i, p := range e.segment().Params {
		for rank := range args {
			x := args[rank][p.Name]
			if e.spoil != nil {
				x = e.spoil(e.call.Args[i], x)
			}
			e.write(rank, &e.recipe.Tensors[i], x)
		}
	}
}

// arguments are values of all parameters for each rank.
func (e *experiment) arguments() []map[string]*interp.Tensor {
	args := make([]map[string]*interp.Tensor, e.mod.TP)
	for rank := range args {
		args[rank] = map[string]*interp.Tensor{}
	}
	for i, p := range e.segment().Params {
		for rank, x := range e.argument(i, p) {
			args[rank][p.Name] = x
		}
	}
	return args
}

func (e *experiment) launch() {
	prog, err := e.device.Load(e.recipe)
	require.NoError(e.t, err)
	launch, err := e.device.Device.Bind(prog, e.binding)
	require.NoError(e.t, err)
	require.NoError(e.t, launch.Run(e.t.Context()))
}

// place gives every section of the recipe a range of its own.
func (e *experiment) place() {
	const align = 128
	sizes := map[recipes.Buffer]int64{}
	for _, s := range e.recipe.Sections {
		e.binding = append(e.binding, recipes.Binding{Buffer: s.Buffer, Offset: sizes[s.Buffer]})
		sizes[s.Buffer] += (s.Size + align - 1) / align * align
	}
	var err error
	e.device, err = runtime.NewHostDevice(host.Options{Ranks: e.mod.TP, Bytes: sizes})
	require.NoError(e.t, err)
}

// result is the tensor that holds a result: the last one at its place, which is the
// parameter's for a state.
func (e *experiment) result(i int) *recipes.Tensor {
	at := e.lowered.Results[i]
	for j := range slices.Backward(e.recipe.Tensors) {
		x := &e.recipe.Tensors[j]
		if x.Section == at.Section && x.Offset == at.Offset && x.Elems() == e.values(i) {
			return x
		}
	}
	require.Fail(e.t, "no tensor", "of result %d of @%s", i, e.segment().Name)
	return nil
}

// values is the number of elements of a result.
func (e *experiment) values(i int) int64 {
	n, ok := e.segment().Results[i].Type.Elems().Const()
	require.True(e.t, ok)
	return n
}

func (e *experiment) write(rank int, at *recipes.Tensor, x *interp.Tensor) {
	b := e.binding[at.Section]
	require.NoError(e.t, e.device.Write(rank, b.Buffer, b.Offset+at.Offset, bytesOf(x)))
}

func (e *experiment) read(rank int, at *recipes.Tensor, like *interp.Tensor) *interp.Tensor {
	b := e.binding[at.Section]
	data := make([]byte, at.Bytes())
	require.NoError(e.t, e.device.Read(rank, b.Buffer, b.Offset+at.Offset, data))
	return tensorFrom(data, like)
}
