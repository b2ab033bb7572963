// A library that exports what quill calls of libSynapse.so. It writes down each call with
// its arguments and gives what the tests ask for; it computes nothing. Signatures are those of
// abi.json. -DOLD leaves out what software before 1.20 does not have, -DPARTIAL some of
// what every version has.

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t synStatus;
typedef int32_t hcclResult;
typedef void *handle;

typedef struct {
    const char *tensorName;
    uint64_t pTensorAddress;
    uint32_t tensorType;
    uint64_t tensorSize[25];
    uint64_t tensorId;
} synLaunchTensorInfo;

typedef struct {
    char tensorName[1024];
    uint64_t tensorId;
    uint32_t tensorType, tensorDataType, tensorDims;
    uint64_t tensorMaxSize[25], tensorMinSize[25];
    uint8_t tensorPermutation[25];
    uint32_t tensorSectionId;
    uint64_t tensorOffsetInSection;
    uint8_t isInput;
    uint32_t reserved[10];
} synRetrievedLaunchTensorInfo;

typedef struct {
    uint64_t sizes[25];
    uint32_t dims;
} synTensorGeometry;

typedef struct {
    uint8_t internal[1024];
    uint64_t length;
} hcclUniqueId;

// The sizes that abi.json has.
_Static_assert(sizeof(synLaunchTensorInfo) == 232, "synLaunchTensorInfo");
_Static_assert(sizeof(synRetrievedLaunchTensorInfo) == 1536, "synRetrievedLaunchTensorInfo");
_Static_assert(sizeof(synTensorGeometry) == 208, "synTensorGeometry");
_Static_assert(sizeof(hcclUniqueId) == 1032, "hcclUniqueId");

static char trace[1 << 20];
static size_t length;
static bool quiet;
static char failing[64], message[256];
static int32_t failure;
static uint64_t next = 0x1000;

static void put(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (length < sizeof trace) {
        length += (size_t)vsnprintf(trace + length, sizeof trace - length, format, args);
    }
    va_end(args);
}

static void text(const char *s) { s ? put(" \"%s\"", s) : put(" NULL"); }

// done ends a call: what it returns.
static int32_t done(const char *name) {
    if (!quiet) {
        put("\n");
    }
    return strcmp(name, failing) == 0 ? failure : 0;
}

#define N(x) if (!quiet) put(" %" PRIu64, (uint64_t)(x));
#define S(x) if (!quiet) text(x);
#define CALL(args) if (!quiet) put("%s", __func__); args; return (synStatus)done(__func__);
#define RESULT(args) if (!quiet) put("%s", __func__); args; return (hcclResult)done(__func__);

// What the tests call.

const char *fake_trace(void) {
    static char copy[sizeof trace];
    memcpy(copy, trace, sizeof trace);
    length = 0;
    trace[0] = 0;
    next = 0x1000;
    return copy;
}

void fake_quiet(bool on) { quiet = on; }

void fake_fail(const char *name, int32_t with, const char *say) {
    snprintf(failing, sizeof failing, "%s", name);
    snprintf(message, sizeof message, "%s", say);
    failure = with;
}

uint64_t fake_sum(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g;
}

static handle make(void) {
    next += 0x10;
    return (handle)(next - 0x10);
}

// Both sides.

synStatus synInitialize(void) { CALL() }
synStatus synDestroy(void) { CALL() }
synStatus synDriverGetVersion(char *buf, const int n) { CALL(N(n) snprintf(buf, (size_t)n, "1.21.0-test")) }

synStatus synStatusGetBriefDescription(uint32_t status, char *buf, size_t n) {
    snprintf(buf, n, "brief of %u", status);
    return 0;
}

synStatus synRecipeGetAttribute(uint64_t *values, const uint32_t *ids, const unsigned n, handle recipe) {
    for (unsigned i = 0; i < n; i++) {
        values[i] = 1000 + ids[i];
    }
    CALL(N(n) N(recipe))
}

synStatus synRecipeDestroy(handle recipe) { CALL(N(recipe)) }

// The compiler.

synStatus synGraphCreate(handle *graph, const uint32_t device) { CALL(N(device) N(*graph = make())) }

#ifndef PARTIAL
synStatus synGraphSetAttributes(handle graph, const uint32_t *ids, const uint64_t *values, const uint32_t n) {
    CALL(N(graph) N(ids[0]) N(values[0]) N(n))
}
synStatus synSectionCreate(handle *section, uint64_t descriptor, const handle graph) {
    CALL(N(descriptor) N(graph) N(*section = make()))
}
#endif

synStatus synSectionSetPersistent(handle section, bool on) { CALL(N(section) N(on)) }
synStatus synSectionSetGroup(handle section, uint64_t group) { CALL(N(section) N(group)) }
synStatus synTensorHandleCreate(handle *tensor, handle graph, uint32_t kind, const char *name) {
    CALL(N(graph) N(kind) S(name) N(*tensor = make()))
}
synStatus synTensorSetGeometry(handle tensor, const synTensorGeometry *g, uint32_t kind) {
    CALL(N(tensor) for (uint32_t i = 0; i < g->dims; i++) N(g->sizes[i]) N(kind))
}
synStatus synTensorSetDeviceDataType(handle tensor, uint32_t type) { CALL(N(tensor) N(type)) }
synStatus synTensorAssignToSection(handle tensor, handle section, uint64_t offset) {
    CALL(N(tensor) N(section) N(offset))
}
synStatus synNodeCreateWithId(const handle graph, const handle *in, const handle *out, const uint32_t nIn, const uint32_t nOut,
                              const void *params, const unsigned bytes, const char *guid, const char *name, uint64_t *id,
                              const char **inLayouts, const char **outLayouts) {
    static uint64_t ids = 3; // as the library's: not 0 first
    *id = ids++;
    CALL(N(graph) for (uint32_t i = 0; i < nIn; i++) N(in[i]) if (!quiet) put(" ->");
         for (uint32_t i = 0; i < nOut; i++) N(out[i]) if (!quiet) put(" [");
         for (unsigned i = 0; i < bytes; i++) N(((const uint8_t *)params)[i]) if (!quiet) put(" ]");
         S(guid) S(name) N(inLayouts) N(outLayouts))
}
synStatus synNodeDependencySet(const handle graph, const uint64_t *blocking, const uint64_t *blocked, const uint32_t n, const uint32_t m) {
    CALL(N(graph) for (uint32_t i = 0; i < n; i++) N(blocking[i] - blocked[0]) N(m)) // distances: ids go on
}
synStatus synGraphCompile(handle *recipe, const handle graph, const char *name, const char *log) {
    CALL(N(graph) S(name) S(log) N(*recipe = make()))
}
synStatus synGraphDestroy(const handle graph) { CALL(N(graph)) }
synStatus synRecipeSerialize(const handle recipe, const char *path) { CALL(N(recipe) S(path)) }

#ifndef OLD
synStatus synGraphCompileV2(handle *recipe, const handle graph, const char *name, const char *log, handle *error) {
    *error = strcmp(failing, __func__) == 0 ? message : NULL;
    CALL(N(graph) S(name) S(log) N(*recipe = make()))
}
synStatus synErrorGetMessageLength(handle error, size_t *n) {
    *n = strlen(error);
    CALL()
}
synStatus synErrorGetMessage(handle error, char *buf, size_t n) {
    snprintf(buf, n, "%s", (char *)error);
    CALL(N(n))
}
synStatus synErrorDestroy(handle error) { CALL(N(error == message)) }
const char *synGetLastErrorMessage(void) { return message[0] ? message : NULL; }
#endif

// The runtime.

synStatus synDeviceGetCount(uint32_t *n) { CALL(*n = 2) }
synStatus synDeviceGetModuleIDs(uint32_t *ids, uint32_t *n) { CALL(N(*n) ids[0] = 3; ids[1] = 6; *n = 2) }
synStatus synDeviceAcquireByModuleId(uint32_t *dev, const uint32_t module) { CALL(N(module) *dev = 77) }
synStatus synDeviceRelease(const uint32_t dev) { CALL(N(dev)) }
synStatus synDeviceGetMemoryInfo(const uint32_t dev, uint64_t *free, uint64_t *total) {
    CALL(N(dev) *free = 1ull << 36; *total = 1ull << 37)
}
synStatus synDeviceMalloc(const uint32_t dev, const uint64_t size, uint64_t wish, const uint32_t flags, uint64_t *addr) {
    CALL(N(dev) N(size) N(wish) N(flags) *addr = 0x1001000000000080)
}
synStatus synDeviceFree(const uint32_t dev, const uint64_t addr, const uint32_t flags) { CALL(N(dev) N(addr) N(flags)) }
synStatus synHostMalloc(const uint32_t dev, const uint64_t size, const uint32_t flags, void **buf) {
    CALL(N(dev) N(size) N(flags) *buf = calloc(1, size))
}
synStatus synHostFree(const uint32_t dev, const void *buf, const uint32_t flags) {
    free((void *)buf);
    CALL(N(dev) N(flags))
}
synStatus synHostMap(const uint32_t dev, const uint64_t size, const void *buf) { CALL(N(dev) N(size) N(((char *)buf)[0])) }
synStatus synHostUnmap(const uint32_t dev, const void *buf) { CALL(N(dev) N(((char *)buf)[0])) }
synStatus synStreamCreateGeneric(handle *stream, const uint32_t dev, const uint32_t flags) {
    CALL(N(dev) N(flags) N(*stream = make()))
}
synStatus synStreamDestroy(const handle stream) { CALL(N(stream)) }
synStatus synStreamSynchronize(const handle stream) { CALL(N(stream)) }
synStatus synEventCreate(handle *event, const uint32_t dev, const uint32_t flags) { CALL(N(dev) N(flags) N(*event = make())) }
synStatus synEventDestroy(handle event) { CALL(N(event)) }
synStatus synEventRecord(handle event, const handle stream) { CALL(N(event) N(stream)) }
synStatus synEventQuery(const handle event) { CALL(N(event)) }
synStatus synEventSynchronize(const handle event) { CALL(N(event)) }

// Copies of host memory are done at once, so a test sees that the right bytes are meant.
synStatus synMemCopyAsync(const handle stream, const uint64_t src, const uint64_t size, const uint64_t dst, const uint32_t dir) {
    CALL(N(stream) N(dir == 0 ? ((char *)src)[0] : src) N(size) N(dir == 1 ? ((char *)dst)[0] : dst) N(dir))
}
synStatus synMemsetD8Async(uint64_t addr, const unsigned char value, const size_t n, const handle stream) {
    CALL(N(addr) N(value) N(n) N(stream))
}
synStatus synLaunch(const handle stream, const synLaunchTensorInfo *t, const uint32_t n, uint64_t workspace, const handle recipe, uint32_t flags) {
    CALL(N(stream) for (uint32_t i = 0; i < n; i++) {
        if (!quiet) put(" {");
        N(t[i].tensorName) N(t[i].pTensorAddress) N(t[i].tensorType) N(t[i].tensorSize[0]) N(t[i].tensorSize[1]) N(t[i].tensorSize[24])
        N(t[i].tensorId) if (!quiet) put(" }");
    } N(n) N(workspace) N(recipe) N(flags))
}
synStatus synRecipeDeSerialize(handle *recipe, const char *path) { CALL(S(path) N(*recipe = make())) }
synStatus synWorkspaceGetSize(uint64_t *size, const handle recipe) { CALL(N(recipe) *size = 65792) }
synStatus synTensorRetrieveLaunchAmount(const handle recipe, uint32_t *n) { CALL(N(recipe) *n = 2) }
synStatus synTensorRetrieveLaunchIds(const handle recipe, uint64_t *ids, const uint32_t n) {
    CALL(N(recipe) N(n) ids[0] = 0; ids[1] = 1)
}
synStatus synTensorRetrieveLaunchInfoById(const handle recipe, const uint32_t n, synRetrievedLaunchTensorInfo *infos) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id = infos[i].tensorId;
        memset(&infos[i], 0xee, sizeof infos[i]); // what the caller must not look at
        snprintf(infos[i].tensorName, sizeof infos[i].tensorName, "tensor%u", i);
        infos[i].tensorId = id;
        infos[i].tensorType = 0;
        infos[i].tensorDataType = i == 0 ? 2 : 16;
        infos[i].tensorDims = i == 0 ? 1 : 3;
        for (uint32_t d = 0; d < infos[i].tensorDims; d++) {
            infos[i].tensorMaxSize[d] = infos[i].tensorMinSize[d] = 10 * i + d + 5;
        }
        infos[i].tensorSectionId = 4 + i;
        infos[i].tensorOffsetInSection = 128 * i;
        infos[i].isInput = i == 0;
    }
    CALL(N(recipe) N(n))
}

// Collectives.

hcclResult hcclGetUniqueId(hcclUniqueId *id) {
    for (int i = 0; i < 1024; i++) {
        id->internal[i] = (uint8_t)(7 * i + 1);
    }
    id->length = 1000;
    RESULT()
}
hcclResult hcclCommInitRank(handle *comm, int ranks, hcclUniqueId id, int rank) {
    uint64_t sum = 0; // of all bytes, by place
    for (int i = 0; i < 1024; i++) {
        sum += (uint64_t)(i + 1) * id.internal[i];
    }
    // Alignment of the stack shows where it is assumed.
    volatile _Alignas(16) char aligned[16];
    RESULT(N(ranks) N(sum) N(id.length) N(rank) N((uint64_t)aligned % 16) N(*comm = make()))
}
#ifndef OLD
hcclResult hcclCommFinalize(handle comm) { RESULT(N(comm)) }
const char *hcclGetLastErrorMessage(void) { return message[0] ? message : NULL; }
const char *hcclCommGetAsyncErrorMessage(handle comm) { return comm ? "peer 3 is gone" : NULL; }
#endif
hcclResult hcclCommDestroy(handle comm) { RESULT(N(comm)) }
hcclResult hcclCommAbort(handle comm) { RESULT(N(comm)) }
hcclResult hcclCommGetAsyncError(handle comm, int32_t *async) {
    *async = strcmp(failing, "async") == 0 ? failure : 0;
    RESULT(N(comm))
}
const char *hcclGetErrorString(int32_t result) { return result == 5 ? "system error" : "some error"; }
hcclResult hcclAllReduce(const void *send, void *recv, size_t n, uint32_t type, uint32_t op, handle comm, void *stream) {
    RESULT(N(send) N(recv) N(n) N(type) N(op) N(comm) N(stream))
}
hcclResult hcclAllGather(const void *send, void *recv, size_t n, uint32_t type, handle comm, void *stream) {
    RESULT(N(send) N(recv) N(n) N(type) N(comm) N(stream))
}
