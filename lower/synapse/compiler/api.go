package compiler

import "quill/recipes/dl"

// Numbers of the C interface. The tests compare them with recipes/dl/testdata/abi.json.
const (
	deviceGaudi2       = 4 // synDeviceGaudi2
	attributeInference = 0 // GRAPH_ATTRIBUTE_INFERENCE
	dataTensor         = 0 // DATA_TENSOR
	geometryMin        = 0 // synGeometryMinSizes
	geometryMax        = 1 // synGeometryMaxSizes
	maxDims            = 25
	workspaceSize      = 0 // RECIPE_ATTRIBUTE_WORKSPACE_SIZE
	deviceMemorySize   = 6 // RECIPE_ATTRIBUTE_DEVICE_MEMORY_SIZE
)

// functions are those that build and compile graphs.
type functions struct {
	GraphCreate           func(graph *dl.Handle, device uint32) dl.Status                                                                                                                `sym:"synGraphCreate"`
	GraphSetAttributes    func(graph dl.Handle, ids *uint32, values *uint64, n uint32) dl.Status                                                                                         `sym:"synGraphSetAttributes"`
	GraphDestroy          func(graph dl.Handle) dl.Status                                                                                                                                `sym:"synGraphDestroy"`
	GraphCompile          func(recipe *dl.Handle, graph dl.Handle, name string, log *byte) dl.Status                                                                                     `sym:"synGraphCompile"`
	SectionCreate         func(section *dl.Handle, descriptor uint64, graph dl.Handle) dl.Status                                                                                         `sym:"synSectionCreate"`
	SectionSetPersistent  func(section dl.Handle, persistent bool) dl.Status                                                                                                             `sym:"synSectionSetPersistent"`
	SectionSetGroup       func(section dl.Handle, group uint64) dl.Status                                                                                                                `sym:"synSectionSetGroup"`
	TensorHandleCreate    func(tensor *dl.Handle, graph dl.Handle, kind uint32, name string) dl.Status                                                                                   `sym:"synTensorHandleCreate"`
	TensorSetGeometry     func(tensor dl.Handle, g *geometry, kind uint32) dl.Status                                                                                                     `sym:"synTensorSetGeometry"`
	TensorSetDeviceType   func(tensor dl.Handle, dtype uint32) dl.Status                                                                                                                 `sym:"synTensorSetDeviceDataType"`
	TensorAssignToSection func(tensor, section dl.Handle, offset uint64) dl.Status                                                                                                       `sym:"synTensorAssignToSection"`
	NodeCreateWithID      func(graph dl.Handle, in, out *dl.Handle, nIn, nOut uint32, params *byte, bytes uint32, guid, name string, id *uint64, inLayouts, outLayouts **byte) dl.Status `sym:"synNodeCreateWithId"`
	NodeDependencySet     func(graph dl.Handle, blocking, blocked *uint64, nBlocking, nBlocked uint32) dl.Status                                                                         `sym:"synNodeDependencySet"`
	RecipeSerialize       func(recipe dl.Handle, path string) dl.Status                                                                                                                  `sym:"synRecipeSerialize"`
	RecipeGetAttribute    func(values *uint64, ids *uint32, n uint32, recipe dl.Handle) dl.Status                                                                                        `sym:"synRecipeGetAttribute"`
	RecipeDestroy         func(recipe dl.Handle) dl.Status                                                                                                                               `sym:"synRecipeDestroy"`

	// Since software 1.20: compiling that says why it fails.
	GraphCompileV2        func(recipe *dl.Handle, graph dl.Handle, name string, log *byte, e *dl.Handle) dl.Status `sym:"synGraphCompileV2,optional"`
	ErrorGetMessageLength func(e dl.Handle, n *uint64) dl.Status                                                   `sym:"synErrorGetMessageLength,optional"`
	ErrorGetMessage       func(e dl.Handle, buf *byte, n uint64) dl.Status                                         `sym:"synErrorGetMessage,optional"`
	ErrorDestroy          func(e dl.Handle) dl.Status                                                              `sym:"synErrorDestroy,optional"`
}

// explains reports whether the library says why a graph does not compile.
func (f *functions) explains() bool {
	return f.GraphCompileV2 != nil && f.ErrorGetMessageLength != nil && f.ErrorGetMessage != nil && f.ErrorDestroy != nil
}

// geometry are the sizes of a tensor, fastest first (synTensorGeometry).
type geometry struct {
	sizes [maxDims]uint64 `c:"sizes"`
	dims  uint32          `c:"dims"`
	_     uint32
}
