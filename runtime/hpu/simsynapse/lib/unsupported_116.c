//go:build syn116

// What later releases do not have.
#include "_cgo_export.h"

#define SYN(name) int32_t name(void) { return simUnsupported(#name); }

SYN(synTensorSetGeometryExt)
SYN(synTensorGetGeometryExt)
SYN(synLaunchExt)
SYN(synEventMapTensorExt)
