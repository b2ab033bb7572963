//go:build syn121

// What release 1.21 added.
#include "_cgo_export.h"

#define SYN(name) int32_t name(void) { return simUnsupported(#name); }
#define HCCL(name) int32_t name(void) { return simUnsupportedHCCL(#name); }

SYN(synGetLastError)
SYN(synGetErrorString)
HCCL(hcclCommGetAsyncErrorMessage)
