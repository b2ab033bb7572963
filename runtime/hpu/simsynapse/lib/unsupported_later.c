//go:build !syn116

// What releases 1.17 to 1.20 added.
#include "_cgo_export.h"

#define SYN(name) int32_t name(void) { return simUnsupported(#name); }
#define HCCL(name) int32_t name(void) { return simUnsupportedHCCL(#name); }

SYN(synDumpStateAndTerminate)
SYN(synNodeSetUserProgrammability)
SYN(synTensorSetMinimalLatency)
SYN(synTensorGetMinimalLatency)
SYN(synUpdateMemoryConsumption)
SYN(synErrorGetStatus)
SYN(synTensorSetMemoryReuse)
HCCL(hcclDeviceInit)
