package launch

import (
	"fmt"

	"quill/recipes/dl"
	"quill/recipes/dtype"
)

// dataTypes are quill's types by their numbers in the C interface (synDataType).
var dataTypes = map[uint32]dtype.Type{1: dtype.I8, 2: dtype.BF16, 4: dtype.F32, 16: dtype.I32, 32: dtype.U8, 32768: dtype.I64}

// Recipe is a compiled recipe. It may be launched on any stream of the device, several
// times at once.
type Recipe struct {
	rt     *Runtime
	handle dl.Handle
	name   string // for errors
}

// LoadRecipe reads a file of a recipe that the compiler serialized; errors call it by
// name. It must be of the installed software's version: the file has no mark that tells
// otherwise.
func (r *Runtime) LoadRecipe(path, name string) (*Recipe, error) {
	defer dl.Lock()()
	x := &Recipe{rt: r, name: name}
	if err := r.check("synRecipeDeSerialize", r.fn.RecipeDeSerialize(&x.handle, path), name); err != nil {
		return nil, err
	}
	return x, nil
}

// Destroy frees the recipe. No launch of it may be pending.
func (x *Recipe) Destroy() error {
	defer dl.Lock()()
	return x.rt.check("synRecipeDestroy", x.rt.fn.RecipeDestroy(x.handle), x.name)
}

// Workspace is the number of bytes of scratch memory that a launch needs. Recipes that
// run one after another on a stream may share it.
func (x *Recipe) Workspace() (bytes uint64, err error) {
	defer dl.Lock()()
	err = x.rt.check("synWorkspaceGetSize", x.rt.fn.WorkspaceGetSize(&bytes, x.handle), x.name)
	return bytes, err
}

// Tensor is a persistent tensor of a recipe, which launches bind.
type Tensor struct {
	Name    string
	ID      uint64 // for launches, with the type in the top byte
	Section uint32 // equal for those that lie in one range of memory
	Offset  uint64 // bytes from the section's start
	Type    uint32 // synTensorType; 0 is data
	DType   dtype.Type
	Dims    []uint64 // fastest first
}

// Bind is the tensor at an address of the device, which is its section's base and
// [Tensor.Offset].
func (t *Tensor) Bind(address uint64) Binding {
	b := Binding{Address: address, Type: t.Type, ID: t.ID}
	copy(b.Size[:], t.Dims)
	if len(t.Dims) == 1 {
		b.Size[1] = 1 // what runs on cards passes [n,1]
	}
	return b
}

// Tensors are all persistent tensors, in the library's order.
func (x *Recipe) Tensors() ([]Tensor, error) {
	defer dl.Lock()()
	fn := &x.rt.fn
	var n uint32
	if err := x.rt.check("synTensorRetrieveLaunchAmount", fn.LaunchAmount(x.handle, &n), x.name); err != nil || n == 0 {
		return nil, err
	}
	ids := make([]uint64, n)
	if err := x.rt.check("synTensorRetrieveLaunchIds", fn.LaunchIDs(x.handle, &ids[0], n), x.name); err != nil {
		return nil, err
	}
	infos := make([]retrieved, n)
	for i, id := range ids {
		infos[i].id = id
	}
	if err := x.rt.check("synTensorRetrieveLaunchInfoById", fn.LaunchInfo(x.handle, n, &infos[0]), x.name); err != nil {
		return nil, err
	}
	tensors := make([]Tensor, n)
	for i := range infos {
		t, err := infos[i].tensor()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
		tensors[i] = t
	}
	return tensors, nil
}

func (i *retrieved) tensor() (Tensor, error) {
	t := Tensor{
		Name: dl.CString(i.name[:]), ID: i.id, Section: i.section, Offset: i.offset,
		Type: i.kind, DType: dataTypes[i.dtype],
	}
	if t.DType == dtype.Invalid {
		return t, fmt.Errorf("tensor %s has element type %d, which quill does not have; help: it is not a recipe that quill compiled", t.Name, i.dtype)
	}
	if i.dims > maxDims {
		return t, fmt.Errorf("tensor %s has %d dims, more than %d", t.Name, i.dims, maxDims)
	}
	t.Dims = append(t.Dims, i.maxSize[:i.dims]...)
	return t, nil
}
