// Loads the library and does what a program does with it, end to end, and checks each value.
//
//   smoke LIB gemm RECIPE             build, compile, write, read, launch: y = a·b + c
//   smoke LIB reduce RANK RANKS FILE  ranks meet over a unique id in FILE, and sum
//   smoke LIB symbols NAME...         says which of the names are missing
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../abi.h"

static void* lib;

static void* symbol(const char* name) {
    void* f = dlsym(lib, name);
    if (!f) { fprintf(stderr, "%s is missing\n", name); exit(1); }
    return f;
}

// CALL calls a function of the library, whose arguments it declares, and wants a status.
#define WANT(want, name, types, ...) do { \
    int st = ((int (*) types)symbol(#name)) (__VA_ARGS__); \
    if (st != (want)) { fprintf(stderr, "%s:%d: %s gives %d, want %d\n", __FILE__, __LINE__, #name, st, want); exit(1); } \
} while (0)
#define CALL(name, types, ...) WANT(0, name, types, __VA_ARGS__)

enum { BF16 = 2, F32 = 4 };

static uint16_t bf16(float f) { uint32_t u; memcpy(&u, &f, 4); return (uint16_t)(u >> 16); } // of numbers that fit
static float wide(uint16_t h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }

static void* graph;

static void* tensor(const char* name, void* section, uint64_t n0, uint64_t n1) {
    void* t = NULL;
    CALL(synTensorHandleCreate, (void**, void*, int, const char*), &t, graph, 0, name);
    simTensorGeometry g = {{n0, n1}, 2};
    CALL(synTensorSetGeometry, (void*, const simTensorGeometry*, int), t, &g, 1);
    CALL(synTensorSetDeviceDataType, (void*, int), t, BF16);
    if (section) CALL(synTensorAssignToSection, (void*, void*, uint64_t), t, section, 0);
    return t;
}

static void* section(void) {
    void* s = NULL;
    CALL(synSectionCreate, (void**, uint64_t, void*), &s, 0, graph);
    CALL(synSectionSetPersistent, (void*, uint8_t), s, 1);
    return s;
}

// compile makes y = a·b + c of a {8,4}, b {2,8}, c {2,4}, sizes fastest first.
static void compile(const char* path) {
    CALL(synGraphCreate, (void**, int), &graph, 4);
    void *a = tensor("a", section(), 8, 4), *b = tensor("b", section(), 2, 8), *c = tensor("c", section(), 2, 4);
    void *t = tensor("t", NULL, 2, 4), *y = tensor("y", section(), 2, 4);
    void* clash = NULL;
    WANT(21, synTensorHandleCreate, (void**, void*, int, const char*), &clash, graph, 0, "a");
    uint64_t id = 0, before = 0;
    uint8_t transpose[2] = {0, 0};
    void *in1[] = {a, b}, *out1[] = {t}, *in2[] = {t, c}, *out2[] = {y};
    #define NODE (void*, void**, void**, uint32_t, uint32_t, const void*, uint32_t, const char*, const char*, uint64_t*, const char**, const char**)
    WANT(26, synNodeCreateWithId, NODE, graph, in1, out1, 2, 1, NULL, 0, "nothing_bf16", "x", &id, NULL, NULL);
    CALL(synNodeCreateWithId, NODE, graph, in1, out1, 2, 1, transpose, 2, "gemm", "product", &before, NULL, NULL);
    CALL(synNodeCreateWithId, NODE, graph, in2, out2, 2, 1, NULL, 0, "add_fwd_bf16", "sum", &id, NULL, NULL);
    CALL(synNodeDependencySet, (void*, uint64_t*, uint64_t*, uint32_t, uint32_t), graph, &before, &id, 1, 1);
    void* recipe = NULL;
    CALL(synGraphCompile, (void**, void*, const char*, const char*), &recipe, graph, "smoke", NULL);
    WANT(26, synGraphCompile, (void**, void*, const char*, const char*), &recipe, graph, "smoke", NULL);
    CALL(synGraphDestroy, (void*), graph);
    CALL(synRecipeSerialize, (void*, const char*), recipe, path);
    CALL(synRecipeDestroy, (void*), recipe);
}

static void gemm(const char* path) {
    char version[256];
    CALL(synDriverGetVersion, (char*, int), version, sizeof version);
    if (!strstr(version, "simsynapse")) { fprintf(stderr, "version %s\n", version); exit(1); }
    WANT(28, synGraphCreate, (void**, int), &graph, 4);
    CALL(synInitialize, (void));
    compile(path);

    void *recipe = NULL, *stream = NULL;
    uint32_t dev = 99, amount = 0;
    CALL(synRecipeDeSerialize, (void**, const char*), &recipe, path);
    CALL(synDeviceAcquireByModuleId, (uint32_t*, uint32_t), &dev, 3);
    CALL(synStreamCreateGeneric, (void**, uint32_t, uint32_t), &stream, dev, 0);
    uint64_t workspace = 0, space = 0;
    CALL(synWorkspaceGetSize, (uint64_t*, void*), &workspace, recipe);
    CALL(synDeviceMalloc, (uint32_t, uint64_t, uint64_t, uint32_t, uint64_t*), dev, workspace, 0, 0, &space);
    CALL(synTensorRetrieveLaunchAmount, (void*, uint32_t*), recipe, &amount);
    if (amount != 4) { fprintf(stderr, "%u tensors\n", amount); exit(1); }
    uint64_t ids[4];
    CALL(synTensorRetrieveLaunchIds, (void*, uint64_t*, uint32_t), recipe, ids, 4);
    simRetrievedLaunchTensorInfo* infos = calloc(4, sizeof *infos);
    for (int i = 0; i < 4; i++) infos[i].tensorId = ids[i];
    CALL(synTensorRetrieveLaunchInfoById, (void*, uint32_t, simRetrievedLaunchTensorInfo*), recipe, 4, infos);

    uint16_t* host = NULL;
    CALL(synHostMalloc, (uint32_t, uint64_t, uint32_t, void**), dev, 4096, 0, (void**)&host);
    simLaunchTensorInfo launch[4];
    memset(launch, 0, sizeof launch);
    uint64_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t n = infos[i].tensorMaxSize[0] * infos[i].tensorMaxSize[1], at = 0;
        CALL(synDeviceMalloc, (uint32_t, uint64_t, uint64_t, uint32_t, uint64_t*), dev, 2 * n, 0, 0, &at);
        for (uint64_t k = 0; k < n; k++) {
            switch (infos[i].tensorName[0]) {
            case 'a': host[k] = bf16((float)k); break;
            case 'b': host[k] = bf16(k % 2 ? 1 : 2); break;
            case 'c': host[k] = bf16(0.5f); break;
            default: host[k] = 0;
            }
        }
        CALL(synMemCopyAsync, (void*, uint64_t, uint64_t, uint64_t, int), stream, (uint64_t)host, 2 * n, at, 0);
        CALL(synStreamSynchronize, (void*), stream);
        launch[i].tensorId = infos[i].tensorId;
        launch[i].pTensorAddress = at;
        launch[i].tensorSize[0] = 1;
        if (infos[i].tensorName[0] == 'y') result = at;
    }
    #define LAUNCH (void*, const simLaunchTensorInfo*, uint32_t, uint64_t, void*, uint32_t)
    WANT(1, synLaunch, LAUNCH, stream, launch, 3, space, recipe, 0);
    launch[0].tensorType = 1;
    WANT(39, synLaunch, LAUNCH, stream, launch, 4, space, recipe, 0);
    launch[0].tensorType = 0;
    CALL(synLaunch, LAUNCH, stream, launch, 4, space, recipe, 0);
    uint16_t stack[8];
    WANT(34, synMemCopyAsync, (void*, uint64_t, uint64_t, uint64_t, int), stream, result, 16, (uint64_t)stack, 1);
    CALL(synMemCopyAsync, (void*, uint64_t, uint64_t, uint64_t, int), stream, result, 16, (uint64_t)host, 1);
    WANT(22, synStreamDestroy, (void*), stream);
    CALL(synStreamSynchronize, (void*), stream);
    for (int row = 0; row < 4; row++) for (int col = 0; col < 2; col++) {
        float sum = 0;
        for (int k = 0; k < 8; k++) sum += (float)(8 * row + k) * (col ? 1 : 2);
        float want = wide(bf16(wide(bf16(sum)) + 0.5f)), have = wide(host[2 * row + col]);
        if (have != want) { fprintf(stderr, "y[%d][%d] is %g, want %g\n", row, col, have, want); exit(1); }
    }
    for (int i = 0; i < 4; i++) CALL(synDeviceFree, (uint32_t, uint64_t, uint32_t), dev, launch[i].pTensorAddress, 0);
    CALL(synDeviceFree, (uint32_t, uint64_t, uint32_t), dev, space, 0);
    CALL(synHostFree, (uint32_t, void*, uint32_t), dev, host, 0);
    CALL(synRecipeDestroy, (void*), recipe);
    CALL(synStreamDestroy, (void*), stream);
    CALL(synDeviceRelease, (uint32_t), dev);
    WANT(18, synTensorGetName, (void*, uint64_t, char*), NULL, 0, NULL);
    CALL(synDestroy, (void));
    WANT(28, synDestroy, (void));
}

static void reduce(int rank, int ranks, const char* path) {
    simUniqueId id;
    memset(&id, 0, sizeof id);
    CALL(synInitialize, (void));
    uint32_t dev = 0;
    CALL(synDeviceAcquireByModuleId, (uint32_t*, uint32_t), &dev, (uint32_t)rank);
    char made[4096];
    snprintf(made, sizeof made, "%s.new", path);
    if (rank == 0) {
        CALL(hcclGetUniqueId, (simUniqueId*), &id);
        FILE* f = fopen(made, "wb");
        if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename(made, path)) { perror(path); exit(1); }
    } else {
        FILE* f = NULL;
        for (int i = 0; i < 1000 && !(f = fopen(path, "rb")); i++) usleep(10000);
        if (!f || fread(&id, sizeof id, 1, f) != 1) { perror(path); exit(1); }
    }
    void *comm = NULL, *stream = NULL;
    CALL(hcclCommInitRank, (void**, int, simUniqueId, int), &comm, ranks, id, rank);
    CALL(synStreamCreateGeneric, (void**, uint32_t, uint32_t), &stream, dev, 0);
    enum { N = 1000 };
    float* host = calloc(N, 4);
    CALL(synHostMap, (uint32_t, uint64_t, void*), dev, 4 * N, host);
    uint64_t at = 0;
    CALL(synDeviceMalloc, (uint32_t, uint64_t, uint64_t, uint32_t, uint64_t*), dev, 4 * N, 0, 0, &at);
    for (int i = 0; i < N; i++) host[i] = (float)(i * (rank + 1));
    CALL(synMemCopyAsync, (void*, uint64_t, uint64_t, uint64_t, int), stream, (uint64_t)host, 4 * N, at, 0);
    CALL(hcclAllReduce, (uint64_t, uint64_t, uint64_t, int, int, void*, void*), at, at, N, 7, 0, comm, stream);
    CALL(hcclBarrier, (void*, void*), comm, stream);
    CALL(synMemCopyAsync, (void*, uint64_t, uint64_t, uint64_t, int), stream, at, 4 * N, (uint64_t)host, 1);
    CALL(synStreamSynchronize, (void*), stream);
    for (int i = 0; i < N; i++) {
        float want = (float)(i * ranks * (ranks + 1) / 2);
        if (host[i] != want) { fprintf(stderr, "rank %d: sum %d is %g, want %g\n", rank, i, host[i], want); exit(1); }
    }
    CALL(hcclCommFinalize, (void*), comm);
    CALL(hcclCommDestroy, (void*), comm);
    CALL(synDeviceFree, (uint32_t, uint64_t, uint32_t), dev, at, 0);
    CALL(synHostUnmap, (uint32_t, void*), dev, host);
    CALL(synStreamDestroy, (void*), stream);
    CALL(synDeviceRelease, (uint32_t), dev);
    CALL(synDestroy, (void));
}

int main(int argc, char** argv) {
    if (argc < 4 || !(lib = dlopen(argv[1], RTLD_NOW))) { fprintf(stderr, "%s\n", argc < 4 ? "LIB and a command are wanted" : dlerror()); return 2; }
    if (!strcmp(argv[2], "gemm")) gemm(argv[3]);
    else if (!strcmp(argv[2], "symbols")) for (int i = 3; i < argc; i++) { if (!dlsym(lib, argv[i])) puts(argv[i]); }
    else if (argc == 6) reduce(atoi(argv[3]), atoi(argv[4]), argv[5]);
    fflush(stdout);
    _exit(0);
}
