//go:build cgo

package main

/*
#include "abi.h"
*/
import "C"

import (
	"slices"
	"unsafe"

	"quill/runtime/hpu/simsynapse"
)

const (
	success = C.int(simsynapse.Success)
	invalid = C.int(simsynapse.InvalidArgument)
)

//export simUnsupported
func simUnsupported(name *C.char) C.int { return C.int(library().Unsupported(text(name))) }

//export synInitialize
func synInitialize() C.int { return C.int(library().Initialize()) }

//export synDestroy
func synDestroy() C.int { return C.int(library().Destroy()) }

//export synDriverGetVersion
func synDriverGetVersion(buf *C.char, n C.int) C.int {
	return store(buf, int(n), library().DriverVersion())
}

//export synStatusGetBriefDescription
func synStatusGetBriefDescription(status C.int, buf *C.char, n C.uint64_t) C.int {
	return store(buf, int(n), simsynapse.Status(status).String())
}

//export synConfigurationSet
func synConfigurationSet(name, value *C.char) C.int {
	return C.int(library().ConfigurationSet(text(name), text(value)))
}

//export synConfigurationGet
func synConfigurationGet(name, buf *C.char, n C.uint64_t) C.int {
	v, st := library().ConfigurationGet(text(name))
	if st != simsynapse.Success {
		return C.int(st)
	}
	return store(buf, int(n), v)
}

// Devices.

//export synDeviceGetCount
func synDeviceGetCount(to *C.uint32_t) C.int {
	n, st := library().DeviceCount()
	return put(to, C.uint32_t(n), st)
}

//export synDeviceGetCountByDeviceType
func synDeviceGetCountByDeviceType(to *C.uint32_t, deviceType C.int) C.int {
	counts, st := library().DeviceCounts()
	if deviceType < 0 || int(deviceType) >= len(counts) {
		return invalid
	}
	return put(to, C.uint32_t(counts[deviceType]), st)
}

//export synDeviceCount
func synDeviceCount(to *C.uint32_t) C.int {
	counts, st := library().DeviceCounts()
	if to == nil {
		return invalid
	}
	for i, n := range counts {
		list(to, len(counts))[i] = C.uint32_t(n)
	}
	return C.int(st)
}

//export synDeviceGetModuleIDs
func synDeviceGetModuleIDs(ids, size *C.uint32_t) C.int {
	if ids == nil || size == nil {
		return invalid
	}
	found, st := library().ModuleIDs(uint32(*size))
	if st == simsynapse.Success {
		for i, id := range found {
			list(ids, len(found))[i] = C.uint32_t(id)
		}
		*size = C.uint32_t(len(found))
	}
	return C.int(st)
}

//export synDeviceAcquireByDeviceType
func synDeviceAcquireByDeviceType(to *C.uint32_t, deviceType C.int) C.int {
	id, st := library().DeviceAcquire(int32(deviceType))
	return put(to, C.uint32_t(id), st)
}

//export synDeviceAcquireByModuleId
func synDeviceAcquireByModuleId(to *C.uint32_t, module C.uint32_t) C.int {
	id, st := library().DeviceAcquireByModule(uint32(module))
	return put(to, C.uint32_t(id), st)
}

//export synDeviceAcquire
func synDeviceAcquire(to *C.uint32_t, bus *C.char) C.int {
	if bus != nil {
		return C.int(library().Unsupported("synDeviceAcquire"))
	}
	return synDeviceAcquireByDeviceType(to, 7)
}

//export synDeviceRelease
func synDeviceRelease(id C.uint32_t) C.int { return C.int(library().DeviceRelease(uint32(id))) }

//export synDeviceSynchronize
func synDeviceSynchronize(id C.uint32_t) C.int { return C.int(library().DeviceSynchronize(uint32(id))) }

//export synDeviceGetInfo
func synDeviceGetInfo(id C.uint32_t, to unsafe.Pointer) C.int {
	var x C.simDeviceInfoV2
	st := synDeviceGetInfoV2(id, &x)
	if st == success && to != nil {
		copy(unsafe.Slice((*byte)(to), 56), unsafe.Slice((*byte)(unsafe.Pointer(&x)), 56))
	}
	return st
}

//export synDeviceGetInfoV2
func synDeviceGetInfoV2(id C.uint32_t, to *C.simDeviceInfoV2) C.int {
	x, st := library().DeviceInfo(uint32(id))
	return put(to, C.simDeviceInfoV2{
		dramBaseAddress: C.uint64_t(x.DRAMBase), dramSize: C.uint64_t(x.DRAMSize), tpcEnabledMask: C.uint64_t(x.TPCMask),
		dramEnabled: 1, deviceId: id, fd: -1, deviceType: C.uint32_t(x.DeviceType), deviceIndex: C.uint8_t(x.Module),
	}, st)
}

//export synDeviceGetMemoryInfo
func synDeviceGetMemoryInfo(id C.uint32_t, free, total *C.uint64_t) C.int {
	m, st := library().DeviceMemory(uint32(id))
	if st := put(free, C.uint64_t(m.Free), st); st != success {
		return st
	}
	return put(total, C.uint64_t(m.Total), st)
}

func attributes(to *C.uint64_t, wanted *C.int, n C.uint32_t, id int64) C.int {
	if to == nil || wanted == nil {
		return invalid
	}
	values, st := library().DeviceAttributes(id, copied[int32](wanted, int(n)))
	for i, v := range values {
		list(to, int(n))[i] = C.uint64_t(v)
	}
	return C.int(st)
}

//export synDeviceGetAttribute
func synDeviceGetAttribute(to *C.uint64_t, wanted *C.int, n, id C.uint32_t) C.int {
	return attributes(to, wanted, n, int64(id))
}

//export synDeviceTypeGetAttribute
func synDeviceTypeGetAttribute(to *C.uint64_t, wanted *C.int, n C.uint32_t, deviceType C.int) C.int {
	if deviceType != 4 {
		return C.int(library().Unsupported("synDeviceTypeGetAttribute"))
	}
	return attributes(to, wanted, n, -1)
}

//export synDeviceMalloc
func synDeviceMalloc(id C.uint32_t, size, request C.uint64_t, flags C.uint32_t, to *C.uint64_t) C.int {
	at, st := library().DeviceMalloc(uint32(id), uint64(size), uint64(request), uint32(flags))
	return put(to, C.uint64_t(at), st)
}

//export synDeviceFree
func synDeviceFree(id C.uint32_t, address C.uint64_t, flags C.uint32_t) C.int {
	return C.int(library().DeviceFree(uint32(id), uint64(address)))
}

//export synHostMalloc
func synHostMalloc(id C.uint32_t, size C.uint64_t, flags C.uint32_t, to *unsafe.Pointer) C.int {
	p, st := library().HostMalloc(uint32(id), uint64(size))
	return put(to, p, st)
}

//export synHostFree
func synHostFree(id C.uint32_t, p unsafe.Pointer, flags C.uint32_t) C.int {
	return C.int(library().HostFree(uint32(id), p))
}

//export synHostMap
func synHostMap(id C.uint32_t, size C.uint64_t, p unsafe.Pointer) C.int {
	return C.int(library().HostMap(uint32(id), uint64(size), p))
}

//export synHostUnmap
func synHostUnmap(id C.uint32_t, p unsafe.Pointer) C.int {
	return C.int(library().HostUnmap(uint32(id), p))
}

// Streams and events.

//export synStreamCreateGeneric
func synStreamCreateGeneric(to unsafe.Pointer, id, flags C.uint32_t) C.int {
	h, st := library().StreamCreate(uint32(id), uint32(flags))
	return give(to, h, st)
}

//export synStreamDestroy
func synStreamDestroy(s unsafe.Pointer) C.int { return C.int(library().StreamDestroy(of(s))) }

//export synStreamSynchronize
func synStreamSynchronize(s unsafe.Pointer) C.int { return C.int(library().StreamSynchronize(of(s))) }

//export synStreamQuery
func synStreamQuery(s unsafe.Pointer) C.int { return C.int(library().StreamQuery(of(s))) }

//export synStreamWaitEvent
func synStreamWaitEvent(s, e unsafe.Pointer, flags C.uint32_t) C.int {
	return C.int(library().StreamWaitEvent(of(s), of(e), uint32(flags)))
}

//export synEventCreate
func synEventCreate(to unsafe.Pointer, id, flags C.uint32_t) C.int {
	h, st := library().EventCreate(uint32(id), uint32(flags))
	return give(to, h, st)
}

//export synEventDestroy
func synEventDestroy(e unsafe.Pointer) C.int { return C.int(library().EventDestroy(of(e))) }

//export synEventRecord
func synEventRecord(e, s unsafe.Pointer) C.int { return C.int(library().EventRecord(of(e), of(s))) }

//export synEventQuery
func synEventQuery(e unsafe.Pointer) C.int { return C.int(library().EventQuery(of(e))) }

//export synEventSynchronize
func synEventSynchronize(e unsafe.Pointer) C.int { return C.int(library().EventSynchronize(of(e))) }

//export synEventElapsedTime
func synEventElapsedTime(to *C.uint64_t, from, until unsafe.Pointer) C.int {
	ns, st := library().EventElapsed(of(from), of(until))
	return put(to, C.uint64_t(ns), st)
}

//export synMemCopyAsync
func synMemCopyAsync(s unsafe.Pointer, src, size, dst C.uint64_t, direction C.int) C.int {
	return C.int(library().MemCopy(of(s), uint64(src), uint64(size), uint64(dst), int32(direction)))
}

//export synMemCopyAsyncMultiple
func synMemCopyAsyncMultiple(s unsafe.Pointer, src, size, dst *C.uint64_t, direction C.int, n C.uint64_t) C.int {
	if src == nil || size == nil || dst == nil || n > 1<<20 {
		return invalid
	}
	k := int(n)
	return C.int(library().MemCopyMultiple(of(s), copied[uint64](src, k), copied[uint64](size, k), copied[uint64](dst, k), int32(direction)))
}

//export synMemsetD8Async
func synMemsetD8Async(address C.uint64_t, value C.uint8_t, n C.uint64_t, s unsafe.Pointer) C.int {
	return C.int(library().Memset(uint64(address), uint32(value), 1, uint64(n), of(s)))
}

//export synMemsetD16Async
func synMemsetD16Async(address C.uint64_t, value C.uint16_t, n C.uint64_t, s unsafe.Pointer) C.int {
	return C.int(library().Memset(uint64(address), uint32(value), 2, uint64(n), of(s)))
}

//export synMemsetD32Async
func synMemsetD32Async(address C.uint64_t, value C.uint32_t, n C.uint64_t, s unsafe.Pointer) C.int {
	return C.int(library().Memset(uint64(address), uint32(value), 4, uint64(n), of(s)))
}

// Graphs.

//export synGraphCreate
func synGraphCreate(to unsafe.Pointer, deviceType C.int) C.int {
	h, st := library().GraphCreate(int32(deviceType))
	return give(to, h, st)
}

//export synGraphDestroy
func synGraphDestroy(g unsafe.Pointer) C.int { return C.int(library().GraphDestroy(of(g))) }

//export synGraphGetDeviceType
func synGraphGetDeviceType(g unsafe.Pointer, to *C.int) C.int {
	t, st := library().GraphDeviceType(of(g))
	return put(to, C.int(t), st)
}

//export synGraphSetAttribute
func synGraphSetAttribute(g unsafe.Pointer, wanted *C.int, values *C.uint64_t, n C.uint32_t) C.int {
	if wanted == nil || values == nil {
		return invalid
	}
	return C.int(library().GraphSetAttributes(of(g), copied[int32](wanted, int(n)), copied[uint64](values, int(n))))
}

//export synGraphSetAttributes
func synGraphSetAttributes(g unsafe.Pointer, wanted *C.int, values *C.uint64_t, n C.uint32_t) C.int {
	return synGraphSetAttribute(g, wanted, values, n) // a union of 8 bytes
}

//export synSectionCreate
func synSectionCreate(to unsafe.Pointer, descriptor C.uint64_t, g unsafe.Pointer) C.int {
	h, st := library().SectionCreate(of(g))
	return give(to, h, st)
}

//export synSectionDestroy
func synSectionDestroy(s unsafe.Pointer) C.int { return C.int(library().SectionDestroy(of(s))) }

//export synSectionSetPersistent
func synSectionSetPersistent(s unsafe.Pointer, v C.uint8_t) C.int {
	return C.int(library().SectionSetPersistent(of(s), v != 0))
}

//export synSectionSetConst
func synSectionSetConst(s unsafe.Pointer, v C.uint8_t) C.int {
	return C.int(library().SectionSetConst(of(s), v != 0))
}

//export synSectionSetRMW
func synSectionSetRMW(s unsafe.Pointer, v C.uint8_t) C.int {
	return C.int(library().SectionSetRMW(of(s), v != 0))
}

//export synSectionSetGroup
func synSectionSetGroup(s unsafe.Pointer, group C.uint64_t) C.int {
	return C.int(library().SectionSetGroup(of(s), uint64(group)))
}

//export synTensorHandleCreate
func synTensorHandleCreate(to, g unsafe.Pointer, kind C.int, name *C.char) C.int {
	h, st := library().TensorHandleCreate(of(g), int32(kind), text(name))
	return give(to, h, st)
}

//export synTensorDestroy
func synTensorDestroy(t unsafe.Pointer) C.int { return C.int(library().TensorDestroy(of(t))) }

//export synTensorSetGeometry
func synTensorSetGeometry(t unsafe.Pointer, g *C.simTensorGeometry, kind C.int) C.int {
	if g == nil {
		return invalid
	}
	return C.int(library().TensorSetGeometry(of(t), copied[uint64](&g.sizes[0], len(g.sizes)), uint32(g.dims), int32(kind)))
}

//export synTensorSetDeviceDataType
func synTensorSetDeviceDataType(t unsafe.Pointer, dataType C.int) C.int {
	return C.int(library().TensorSetDeviceDataType(of(t), int32(dataType)))
}

//export synTensorSetDeviceFullLayout
func synTensorSetDeviceFullLayout(t unsafe.Pointer, x *C.simTensorDeviceFullLayout) C.int {
	if x == nil {
		return invalid
	}
	return C.int(library().TensorSetDeviceFullLayout(of(t), copied[uint32](&x.strides[0], len(x.strides)), int32(x.deviceDataType)))
}

//export synTensorSetPermutation
func synTensorSetPermutation(t unsafe.Pointer, x *C.simTensorPermutation) C.int {
	if x == nil || int(x.dims) > len(x.permutation) {
		return invalid
	}
	return C.int(library().TensorSetPermutation(of(t), copied[uint8](&x.permutation[0], int(x.dims))))
}

//export synTensorSetAllowPermutation
func synTensorSetAllowPermutation(t unsafe.Pointer, v C.int8_t) C.int {
	return C.int(library().TensorSetAllowPermutation(of(t), int8(v)))
}

//export synTensorSetExternal
func synTensorSetExternal(t unsafe.Pointer, v C.uint8_t) C.int {
	return C.int(library().TensorSetExternal(of(t), v != 0))
}

//export synTensorSetHostPtr
func synTensorSetHostPtr(t, p unsafe.Pointer, size C.uint64_t, dataType C.int, copyData C.uint8_t) C.int {
	if p == nil || size > 1<<40 {
		return invalid
	}
	return C.int(library().TensorSetHostPtr(of(t), unsafe.Slice((*byte)(p), size), int32(dataType), copyData != 0))
}

//export synTensorAssignToSection
func synTensorAssignToSection(t, s unsafe.Pointer, offset C.uint64_t) C.int {
	return C.int(library().TensorAssignToSection(of(t), of(s), uint64(offset)))
}

//export synTensorSetSectionOffset
func synTensorSetSectionOffset(t unsafe.Pointer, offset C.uint64_t) C.int {
	return C.int(library().TensorSetSectionOffset(of(t), uint64(offset)))
}

//export synNodeCreateWithId
func synNodeCreateWithId(g unsafe.Pointer, in, out *C.uintptr_t, nIn, nOut C.uint32_t, params unsafe.Pointer, size C.uint32_t, guid, name *C.char, to *C.uint64_t, inLayouts, outLayouts **C.char) C.int {
	if in == nil && nIn > 0 || out == nil && nOut > 0 || guid == nil || to == nil || params == nil && size > 0 {
		return invalid
	}
	id, st := library().NodeCreate(of(g), copied[handle](in, int(nIn)), copied[handle](out, int(nOut)),
		slices.Clone(unsafe.Slice((*byte)(params), size)), text(guid), text(name))
	return put(to, C.uint64_t(id), st)
}

//export synNodeCreate
func synNodeCreate(g unsafe.Pointer, in, out *C.uintptr_t, nIn, nOut C.uint32_t, params unsafe.Pointer, size C.uint32_t, guid, name *C.char, inLayouts, outLayouts **C.char) C.int {
	var id C.uint64_t
	return synNodeCreateWithId(g, in, out, nIn, nOut, params, size, guid, name, &id, inLayouts, outLayouts)
}

//export synNodeDependencySet
func synNodeDependencySet(g unsafe.Pointer, blocking, blocked *C.uint64_t, nBlocking, nBlocked C.uint32_t) C.int {
	if blocking == nil || blocked == nil {
		return invalid
	}
	return C.int(library().NodeDependencySet(of(g), copied[uint64](blocking, int(nBlocking)), copied[uint64](blocked, int(nBlocked))))
}

//export synGraphCompile
func synGraphCompile(to, g unsafe.Pointer, name, log *C.char) C.int {
	if name == nil {
		return invalid
	}
	h, st := library().GraphCompile(of(g), text(name))
	return give(to, h, st)
}

// Recipes.

//export synRecipeSerialize
func synRecipeSerialize(r unsafe.Pointer, path *C.char) C.int {
	return C.int(library().RecipeSerialize(of(r), text(path)))
}

//export synRecipeDeSerialize
func synRecipeDeSerialize(to unsafe.Pointer, path *C.char) C.int {
	h, st := library().RecipeDeSerialize(text(path))
	return give(to, h, st)
}

//export synRecipeDestroy
func synRecipeDestroy(r unsafe.Pointer) C.int { return C.int(library().RecipeDestroy(of(r))) }

//export synRecipeGetAttribute
func synRecipeGetAttribute(to *C.uint64_t, wanted *C.int, n C.uint32_t, r unsafe.Pointer) C.int {
	if to == nil || wanted == nil {
		return invalid
	}
	values, st := library().RecipeAttributes(of(r), copied[int32](wanted, int(n)))
	for i, v := range values {
		list(to, int(n))[i] = C.uint64_t(v)
	}
	return C.int(st)
}

//export synWorkspaceGetSize
func synWorkspaceGetSize(to *C.uint64_t, r unsafe.Pointer) C.int {
	n, st := library().WorkspaceSize(of(r))
	return put(to, C.uint64_t(n), st)
}

//export synTensorRetrieveLaunchAmount
func synTensorRetrieveLaunchAmount(r unsafe.Pointer, to *C.uint32_t) C.int {
	n, st := library().LaunchAmount(of(r))
	return put(to, C.uint32_t(n), st)
}

//export synTensorRetrievePersistentAmount
func synTensorRetrievePersistentAmount(r unsafe.Pointer, to *C.uint32_t) C.int {
	return synTensorRetrieveLaunchAmount(r, to)
}

//export synTensorRetrieveLaunchIds
func synTensorRetrieveLaunchIds(r unsafe.Pointer, to *C.uint64_t, n C.uint32_t) C.int {
	if to == nil {
		return invalid
	}
	ids, st := library().LaunchIDs(of(r), uint32(n))
	for i, id := range ids {
		list(to, int(n))[i] = C.uint64_t(id)
	}
	return C.int(st)
}

//export synTensorRetrieveIds
func synTensorRetrieveIds(r unsafe.Pointer, names **C.char, to *C.uint64_t, n C.uint32_t) C.int {
	if names == nil || to == nil {
		return invalid
	}
	ids, st := library().IDsByName(of(r), texts(names, int(n)))
	for i, id := range ids {
		list(to, int(n))[i] = C.uint64_t(id)
	}
	return C.int(st)
}

//export synTensorRetrieveNames
func synTensorRetrieveNames(r unsafe.Pointer, to *C.char, n C.uint32_t) C.int {
	if to == nil {
		return invalid
	}
	names, st := library().PersistentNames(of(r), uint32(n))
	const each = 1024
	for i, name := range names {
		store((*C.char)(unsafe.Add(unsafe.Pointer(to), i*each)), each, name)
	}
	return C.int(st)
}

//export synTensorRetrieveLaunchInfoById
func synTensorRetrieveLaunchInfoById(r unsafe.Pointer, n C.uint32_t, infos *C.simRetrievedLaunchTensorInfo) C.int {
	if infos == nil {
		return invalid
	}
	all := list(infos, int(n))
	ids := make([]uint64, n)
	for i := range all {
		ids[i] = uint64(all[i].tensorId)
	}
	found, st := library().LaunchInfos(of(r), ids)
	for i := range found {
		retrieved(&all[i], &found[i])
	}
	return C.int(st)
}

//export synTensorRetrieveInfosByName
func synTensorRetrieveInfosByName(r unsafe.Pointer, n C.uint32_t, infos *C.simTensorMetadataInfo) C.int {
	if infos == nil {
		return invalid
	}
	all := list(infos, int(n))
	names := make([]string, n)
	for i := range all {
		names[i] = text(all[i].tensorName)
	}
	found, st := library().InfosByName(of(r), names)
	for i := range found {
		metadata(&all[i], &found[i])
	}
	return C.int(st)
}

//export synRecipeSectionGetProp
func synRecipeSectionGetProp(r unsafe.Pointer, id C.uint32_t, property C.int, to *C.uint64_t) C.int {
	if property != 1 {
		v, st := library().SectionProperty(of(r), uint32(id), int32(property))
		return put(to, C.uint64_t(v), st)
	}
	data, st := library().SectionData(of(r), uint32(id))
	return put(to, C.uint64_t(constants.keep(of(r), uint32(id), data)), st)
}

//export synRecipeSectionHostBuffersClear
func synRecipeSectionHostBuffersClear(r unsafe.Pointer, ids *C.uint32_t, n C.uint64_t) C.int {
	if ids == nil || n > 1<<16 {
		return invalid
	}
	return C.int(library().SectionHostBuffersClear(of(r), copied[uint32](ids, int(n))))
}

//export synLaunch
func synLaunch(s unsafe.Pointer, tensors *C.simLaunchTensorInfo, n C.uint32_t, workspace C.uint64_t, r unsafe.Pointer, flags C.uint32_t) C.int {
	if tensors == nil && n > 0 {
		return invalid
	}
	return C.int(library().Launch(of(s), launchTensors(tensors, int(n)), uint64(workspace), of(r), uint32(flags)))
}

//export synLaunchWithExternalEvents
func synLaunchWithExternalEvents(s unsafe.Pointer, tensors *C.simLaunchTensorInfo, n C.uint32_t, workspace C.uint64_t, r, events unsafe.Pointer, nEvents, flags C.uint32_t) C.int {
	if nEvents > 0 {
		return C.int(library().Unsupported("synLaunchWithExternalEvents"))
	}
	return synLaunch(s, tensors, n, workspace, r, flags)
}
