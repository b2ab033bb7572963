// Package safetensors reads and writes the checkpoint files of a model.
//
// One file holds any number of named tensors:
//
//	byte 0        8                 8+N                        end of file
//	┌─────────────┬─────────────────┬──────────┬──────────┬────┐
//	│ N, 64-bit   │ header: N bytes │ tensor   │ tensor   │ …  │
//	│ little-     │ of JSON, padded │ [0, a)   │ [a, b)   │    │
//	│ endian      │ with spaces     │          │          │    │
//	└─────────────┴─────────────────┴──────────┴──────────┴────┘
//	                                └── data section ──────────┘
//
//	{"__metadata__":{"format":"pt"},
//	 "embed.weight":{"dtype":"BF16","shape":[384,96],"data_offsets":[0,73728]}}
//
// Offsets are in bytes from the start of the data section, first and one past
// the last. Elements are little-endian, row-major and packed. Tensors neither
// overlap nor leave gaps, so a file is exactly as large as its header says.
//
// A checkpoint is a directory of such files, the shards, with
// model.safetensors.index.json to say which tensor is in which shard; or one
// model.safetensors without an index. mtp.safetensors, the weights of the
// multi-token prediction head, may lie beside either.
//
// Files come from the network and are not trusted: everything in a header or
// an index is checked before it is used, and what is wrong is an error, never
// a panic. The values of the elements are not checked: NaN and infinities may
// be among them.
//
// The format is that of https://github.com/huggingface/safetensors, in the
// section "Format" of its README.
package safetensors
