// Package native reads and writes the file in which Intel's Synapse library keeps a
// compiled recipe (synRecipeSerialize): little-endian fields one behind the other, without
// a magic, a table or alignment, and a checksum at the end.
//
// The layout is that of the library's sources of release 1.16 (recipe.h and the recipe
// serializer in the public repository HabanaAI/Intel_Gaudi3_Software). No later layout is
// public, so a file is trusted only if the checksum is right and the fields end exactly
// where it begins.
package native

import "fmt"

// Recipe holds every field of a file, in its order. Encode gives the bytes that Decode
// read.
type Recipe struct {
	Major, Minor uint32 // of the format

	// Buffers of blobs: commands of the engines.
	Execution, Patching, Dynamic []byte

	Blobs        []Blob
	Programs     [][]uint64 // each a list of blobs
	Activate     []Job
	Execute      []Job
	ArcJobs      []ArcJob
	Tensors      []Tensor // the persistent ones
	H2D          uint32   // number of intermediate host-to-device tensors
	PermuteViews []Tensor

	ProgramData   []byte // kernels
	ConstSections []ConstSection
	ProgramBlobs  []ProgramBlob

	ActivatePatchPoints uint32 // how many of the first patch points
	PatchPoints         []PatchPoint
	Groups              []Group
	SyncObjects         Group
	SectionBlobs        []SectionBlobs
	Nodes               []NodeProgram

	Sections   uint32
	Workspaces []uint64 // bytes: scratch, program data, program code

	Debug      Debug
	LegacySync bool // the older form of Sync, which alone has the last two fields
	Sync       []SyncInfo
	Conf       []Conf

	NopOffset, NopSection uint64
	NopValid              uint8

	Discard, Degrade uint16 // most identifiers of cache lines in use

	Name string
	// Shapes is 0 for a static recipe; otherwise ShapePlane holds what follows it,
	// undecoded.
	Shapes     uint64
	ShapePlane []byte
}

// Kinds of blobs, bits of Blob.Kind.
const (
	PatchingBlob  = 1 << 0
	ExecutionBlob = 1 << 1
	DynamicBlob   = 1 << 2
)

// Blob is a part of the buffer of its kind.
type Blob struct {
	Kind   uint8
	Size   uint32
	Offset uint64
}

// Job gives a program to an engine.
type Job struct{ Engine, Program uint32 }

// ArcJob is what the schedulers of one kind of engine execute.
type ArcJob struct {
	Engine          uint8
	Filter          uint32
	Static, Dynamic Commands
}

// Commands are one list of a scheduler.
type Commands struct {
	EngineOffset uint32
	Bytes        []byte
}

// EngineName is the name of a kind of engines in ArcJob.
func EngineName(e uint8) string {
	names := []string{"TPC", "MME", "DMA", "ROT", "CME"}
	if int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprintf("engine %d", e)
}

// maxDims is how many sizes of a tensor a file has in full; of the next one it has the
// lower half, since the library copies 4 bytes for each of 25 sizes of 8 bytes.
const maxDims = 12

// Tensor is a tensor that lies in memory of the caller.
type Tensor struct {
	Name        string
	Section     uint16
	Offset      uint64 // bytes from the section's start
	Size        uint64 // bytes
	DType       uint32 // synDataType
	ZeroPoint   float64
	Scale       float64
	Rank        uint32
	Sizes       [maxDims]uint64 // elements, fastest first
	HalfSize    uint32          // of the size behind them
	Permutation [25]uint8
	Batch       uint32
	IsInput     uint8
	IsExternal  uint8
	Order       uint32 // of external tensors, all ones for none
	SectionType uint8
	TensorType  uint8
	Layout      []byte
	Views       []uint32
}

// Dims are the sizes that the file has, fastest first: all but those from the thirteenth
// on.
func (t *Tensor) Dims() []uint64 { return t.Sizes[:min(t.Rank, maxDims)] }

// ConstSection is a section of constants. Data is nil where the file does not have it.
type ConstSection struct {
	Size    uint64
	Section uint16
	HasData bool
	Data    []byte
}

// ProgramBlob is a part of the program data that goes to a section.
type ProgramBlob struct {
	Size, BufferOffset, SectionOffset uint64
	Section                           uint16
}

// Types of patch points.
const (
	LowWord    = 0
	HighWord   = 1
	DoubleWord = 2
	SyncObject = 3
)

// PatchTypeName is the name of a type of patch points.
func PatchTypeName(t uint8) string {
	return [...]string{"low word", "high word", "double word", "sync object"}[t&3]
}

// PatchPoint is a word of a blob into which the library writes an address at launch.
type PatchPoint struct {
	Type    uint8
	Blob    uint32
	Word    uint32 // offset in the blob, in words of 4 bytes
	Address uint64 // offset in the section; not for sync objects
	Section uint16 // not for sync objects
	Tensor  uint32 // of sync objects only
	Node    uint32
}

// Group lists the patch points of a group of sections.
type Group struct {
	Group       uint8
	PatchPoints []uint32
}

// SectionBlobs lists the blobs that a section's address is patched into.
type SectionBlobs struct {
	Section uint16
	Blobs   []uint32
}

// NodeProgram says how far patch points and each program's blobs are, up to and with a
// node.
type NodeProgram struct {
	PatchPoints uint32
	Blobs       []uint32 // by program
}

// Debug is what profilers are told.
type Debug struct {
	Major, Minor  uint32
	RecipeID      uint16
	Nodes         []DebugNode
	Printf        []uint64
	PrintfSection uint64
}

// DebugNode describes a node of the compiled program.
type DebugNode struct {
	Device                    uint32
	Context                   uint16
	FullContext               uint32
	Descriptors               uint32
	KernelBlob                uint32
	Name, Operation, DataType string
	WorkingEngines            []uint8
}

// SyncInfo says what a node signals.
type SyncInfo struct {
	Engine          uint8
	Node            uint32
	PipeLevel       uint16
	Signal          uint16
	Object, Engines uint16 // of the older form only
}

// Numbers of Conf.
const (
	ConfDeviceType  = 0
	ConfCompileTime = 1 // seconds since 1970
	ConfTPCMask     = 2
	ConfMMEs        = 3
	ConfDMAMask     = 4
	ConfRotators    = 6
)

// Conf is a fact of the compile, by number.
type Conf struct {
	ID    uint8
	Value uint64
}

// ConfValue is a fact of the compile; ok is false if the file does not have it.
func (r *Recipe) ConfValue(id uint8) (v uint64, ok bool) {
	for _, c := range r.Conf {
		if c.ID == id {
			return c.Value, true
		}
	}
	return 0, false
}

// typeNames are element types by their numbers (synDataType), as GUIDs end in them where
// they do.
var typeNames = map[uint32]string{
	1: "i8", 2: "bf16", 4: "f32", 8: "i16", 16: "i32", 32: "u8", 64: "i4", 128: "u4", 256: "f16", 512: "u16",
	1024: "u32", 2048: "tf32", 8192: "hf8", 16384: "f8", 32768: "i64", 65536: "u64",
}

// TypeName is the name of an element type.
func TypeName(t uint32) string {
	if n, ok := typeNames[t]; ok {
		return n
	}
	return fmt.Sprintf("type %d", t)
}

// DeviceName is the name of a device type (synDeviceType).
func DeviceName(t uint64) string {
	names := map[uint64]string{2: "Gaudi", 4: "Gaudi 2", 5: "Gaudi 3"}
	if n, ok := names[t]; ok {
		return n
	}
	return fmt.Sprintf("device type %d", t)
}
