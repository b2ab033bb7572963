// The structures that cross the C interface of Synapse, written from public tables of sizes
// and offsets (x86-64, System V; HabanaAI/Intel_Gaudi3_Software and HabanaAI/HCL). They are
// checked below, and share nothing with what calls this library.
#ifndef SIMSYNAPSE_ABI_H
#define SIMSYNAPSE_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char*    tensorName;
    uint64_t pTensorAddress;
    uint32_t tensorType;
    uint64_t tensorSize[25];
    uint64_t tensorId;
} simLaunchTensorInfo;

typedef struct {
    char     tensorName[1024];
    uint64_t tensorId;
    uint32_t tensorType;
    uint32_t tensorDataType;
    uint32_t tensorDims;
    uint64_t tensorMaxSize[25];
    uint64_t tensorMinSize[25];
    uint8_t  tensorPermutation[25];
    uint32_t tensorSectionId;
    uint64_t tensorOffsetInSection;
    uint8_t  isInput;
    uint32_t reserved[10];
} simRetrievedLaunchTensorInfo;

typedef struct {
    char*    tensorName;
    uint32_t elementType;
    double   zp;
    double   scale;
    uint32_t dimensions;
    uint64_t dimensionsSize[25];
    uint64_t roiSizeInBytes;
    uint16_t batchSize;
    uint8_t  isInput;
    char     layout[20];
    uint32_t sectionId;
    uint64_t offsetInSection;
} simTensorMetadataInfo;

typedef struct {
    uint64_t sizes[25];
    uint32_t dims;
} simTensorGeometry;

typedef struct {
    uint32_t strides[25];
    uint32_t deviceDataType;
} simTensorDeviceFullLayout;

typedef struct {
    uint8_t permutation[25];
    uint8_t dims;
} simTensorPermutation;

typedef struct {
    uint64_t sramBaseAddress;
    uint64_t dramBaseAddress;
    uint32_t sramSize;
    uint64_t dramSize;
    uint64_t tpcEnabledMask;
    uint8_t  dramEnabled;
    uint32_t deviceId;
    int32_t  fd;
    uint32_t deviceType;
    uint8_t  deviceIndex;
    uint64_t reserved;
} simDeviceInfoV2; // synDeviceInfo is its first 56 bytes

typedef struct {
    uint8_t  internal[1024];
    uint64_t length;
} simUniqueId;

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == offset, #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == size, #type)

SIZE(simLaunchTensorInfo, 232);
AT(simLaunchTensorInfo, pTensorAddress, 8);
AT(simLaunchTensorInfo, tensorType, 16);
AT(simLaunchTensorInfo, tensorSize, 24);
AT(simLaunchTensorInfo, tensorId, 224);

SIZE(simRetrievedLaunchTensorInfo, 1536);
AT(simRetrievedLaunchTensorInfo, tensorId, 1024);
AT(simRetrievedLaunchTensorInfo, tensorType, 1032);
AT(simRetrievedLaunchTensorInfo, tensorDataType, 1036);
AT(simRetrievedLaunchTensorInfo, tensorDims, 1040);
AT(simRetrievedLaunchTensorInfo, tensorMaxSize, 1048);
AT(simRetrievedLaunchTensorInfo, tensorMinSize, 1248);
AT(simRetrievedLaunchTensorInfo, tensorPermutation, 1448);
AT(simRetrievedLaunchTensorInfo, tensorSectionId, 1476);
AT(simRetrievedLaunchTensorInfo, tensorOffsetInSection, 1480);
AT(simRetrievedLaunchTensorInfo, isInput, 1488);
AT(simRetrievedLaunchTensorInfo, reserved, 1492);

SIZE(simTensorMetadataInfo, 288);
AT(simTensorMetadataInfo, elementType, 8);
AT(simTensorMetadataInfo, zp, 16);
AT(simTensorMetadataInfo, scale, 24);
AT(simTensorMetadataInfo, dimensions, 32);
AT(simTensorMetadataInfo, dimensionsSize, 40);
AT(simTensorMetadataInfo, roiSizeInBytes, 240);
AT(simTensorMetadataInfo, batchSize, 248);
AT(simTensorMetadataInfo, isInput, 250);
AT(simTensorMetadataInfo, layout, 251);
AT(simTensorMetadataInfo, sectionId, 272);
AT(simTensorMetadataInfo, offsetInSection, 280);

SIZE(simTensorGeometry, 208);
AT(simTensorGeometry, dims, 200);
SIZE(simTensorDeviceFullLayout, 104);
AT(simTensorDeviceFullLayout, deviceDataType, 100);
SIZE(simTensorPermutation, 26);
AT(simTensorPermutation, dims, 25);

SIZE(simDeviceInfoV2, 72);
AT(simDeviceInfoV2, dramBaseAddress, 8);
AT(simDeviceInfoV2, sramSize, 16);
AT(simDeviceInfoV2, dramSize, 24);
AT(simDeviceInfoV2, tpcEnabledMask, 32);
AT(simDeviceInfoV2, dramEnabled, 40);
AT(simDeviceInfoV2, deviceId, 44);
AT(simDeviceInfoV2, fd, 48);
AT(simDeviceInfoV2, deviceType, 52);
AT(simDeviceInfoV2, deviceIndex, 56);
AT(simDeviceInfoV2, reserved, 64);

SIZE(simUniqueId, 1032);
AT(simUniqueId, length, 1024);

#undef AT
#undef SIZE
#endif
