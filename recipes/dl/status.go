package dl

import "fmt"

// Status is a synStatus, which is an error unless it is Success: errors.Is(err, dl.Busy).
type Status uint32

// The statuses that quill tells apart. All have names, see [Status.Name].
const (
	Success           Status = 0
	InvalidArgument   Status = 1
	OutOfHostMemory   Status = 3
	AlreadyObject     Status = 5 // synObjectAlreadyInitialized
	NoDeviceFound     Status = 8
	DeviceReset       Status = 17
	Busy              Status = 22
	StatusFail        Status = 26
	Uninitialized     Status = 28
	AlreadyInit       Status = 29 // synAlreadyInitialized
	SectionValidation Status = 30
	Terminated        Status = 31 // synSynapseTerminated
	AssertAsync       Status = 32
	MappingNotFound   Status = 34
)

// statuses holds what each status is called, what it usually means, and what may help.
// Numbers from 44 on exist since software 1.20.
var statuses = [...]struct{ name, means, help string }{
	0:  {"synSuccess", "success", ""},
	1:  {"synInvalidArgument", "an argument is invalid", "parameters of a node that have another size or value than its kernel takes give this too"},
	2:  {"synCbFull", "a command buffer is full", ""},
	3:  {"synOutOfHostMemory", "no host memory is left", "free memory, or raise the limit of locked memory (ulimit -l)"},
	4:  {"synOutOfDeviceMemory", "no device memory is left", "use fewer cache blocks; quill plan shows what takes memory"},
	5:  {"synObjectAlreadyInitialized", "the object is in use, its properties are final", "properties of a tensor must be set before the first node that uses it"},
	6:  {"synObjectNotInitialized", "the object is not initialised", ""},
	7:  {"synCommandSubmissionFailure", "the driver refused the commands", "look at dmesg for errors of the device"},
	8:  {"synNoDeviceFound", "no such device", "hl-smi and quill doctor list the devices, --modules chooses them; another process may hold it, or the driver is not loaded"},
	9:  {"synDeviceTypeMismatch", "what was compiled is for another type of device", "compile it for this device"},
	10: {"synFailedToInitializeCb", "a command buffer could not be made", ""},
	11: {"synFailedToFreeCb", "a command buffer could not be freed", ""},
	12: {"synFailedToMapCb", "a command buffer could not be mapped", ""},
	13: {"synFailedToUnmapCb", "a command buffer could not be unmapped", ""},
	14: {"synFailedToAllocateDeviceMemory", "device memory could not be allocated", "use fewer cache blocks; quill plan shows what takes memory"},
	15: {"synFailedToFreeDeviceMemory", "device memory could not be freed", "its address is not one that was allocated, or work on it is pending"},
	16: {"synFailedNotEnoughDevicesFound", "there are fewer devices than asked for", "hl-smi lists the devices"},
	17: {"synDeviceReset", "the device was reset", "this process must end; look at dmesg for the reason"},
	18: {"synUnsupported", "this version of the software does not do that", ""},
	19: {"synWrongParamsFile", "not a recipe file, or one of another version", "compile it again with the installed software"},
	20: {"synDeviceAlreadyAcquired", "the device is taken", "hl-smi shows the process that has it"},
	21: {"synNameIsAlreadyUsed", "the name is there twice", ""},
	22: {"synBusy", "work is pending", "synchronise first"},
	23: {"synAllResourcesTaken", "no stream or event is left", ""},
	24: {"synUnavailable", "not available", ""},
	25: {"synInvalidTensorDimensions", "the dimensions are invalid", ""},
	26: {"synFail", "failure, for which the status has no reason", "the reason is in the logs of the library (folder HABANA_LOGS, level LOG_LEVEL_ALL=4 or less)"},
	27: {"synOutOfResources", "no resources are left", ""},
	28: {"synUninitialized", "the library is not initialised", ""},
	29: {"synAlreadyInitialized", "the library is initialised already", ""},
	30: {"synFailedSectionValidation", "tensors of one section do not agree on its address, or one is bound inside the buffer of another", "all tensors of a section need one base address"},
	31: {"synSynapseTerminated", "the library has ended", "the process must be started again"},
	32: {"synAssertAsync", "a device assertion failed", ""},
	33: {"synInvalidEventHandle", "the event is invalid", ""},
	34: {"synMappingNotFound", "the memory is not known to the device", "host memory must be mapped, device memory allocated"},
	35: {"synFailedDynamicPatching", "addresses could not be put in a dynamic program", ""},
	36: {"synFailedStaticPatching", "addresses could not be put in the program", "every persistent tensor of the recipe needs an address"},
	37: {"synFailedToSubmitWorkload", "the work could not be submitted", "look at dmesg for errors of the device"},
	38: {"synInvalidSectionsDefinition", "the sections of the graph are invalid", ""},
	39: {"synInvalidTensorProperties", "a tensor is bound that has another type than it was compiled with", ""},
	40: {"synFailHccl", "a collective failed", "set HCCL_SOCKET_IFNAME to the interface that the ranks share"},
	41: {"synFailedToCollectTime", "the time of an event is not known", "it must be created to collect time"},
	42: {"synTimeout", "no answer in time", ""},
	43: {"synResourceBadUsage", "a resource is used wrongly", ""},
	44: {"synNullPtr", "a pointer is NULL", ""},
	45: {"synFailFuser", "the library that fuses kernels failed", "the reason is in the logs of the library (folder HABANA_LOGS)"},
	46: {"synFailComplexGuid", "the library that expands composite nodes failed", "the reason is in the logs of the library (folder HABANA_LOGS)"},
	47: {"synFailTpcKernels", "the kernel library failed", "it must be of the same release as libSynapse.so; GC_KERNEL_PATH names it"},
}

// Name is the C name of a status, "" if it has none that is public.
func (s Status) Name() string {
	if int(s) < len(statuses) {
		return statuses[s].name
	}
	return ""
}

// Error is the number, name and usual meaning.
func (s Status) Error() string {
	if s.Name() == "" {
		return fmt.Sprintf("status %d, which no public header has", uint32(s))
	}
	return fmt.Sprintf("status %d (%s): %s", uint32(s), s.Name(), statuses[s].means)
}

// Help is what may mend it, "" if nothing is known.
func (s Status) Help() string {
	if int(s) < len(statuses) {
		return statuses[s].help
	}
	return ""
}

// Result is an hcclResult_t, which is an error unless it is ResultSuccess.
type Result int32

// The results that quill tells apart.
const (
	ResultSuccess     Result = 0
	ResultUnsupported Result = 2
)

// results is as statuses; Uninitialized, which is -1, is kept apart.
var results = [...]struct{ name, means, help string }{
	0:  {"hcclSuccess", "success", ""},
	1:  {"hcclNoDeviceFound", "no device is acquired", "acquire it before making a communicator"},
	2:  {"hcclUnsupported", "not supported", "sums of f32 and bf16 are, in all versions"},
	3:  {"hcclOutOfMemory", "no memory is left", "leave device memory for the buffers of collectives"},
	4:  {"hcclUnhandledSynapseError", "a call of libSynapse failed inside", ""},
	5:  {"hcclSystemError", "a system call failed", "look at limits of open files and locked memory"},
	6:  {"hcclInternalError", "failure, for which the result has no reason", "the reason is in the logs of the library (folder HABANA_LOGS)"},
	7:  {"hcclInvalidArgument", "an argument is invalid", ""},
	8:  {"hcclInvalidUsage", "called in the wrong order", ""},
	9:  {"hcclSocketError", "ranks could not connect", "set HCCL_SOCKET_IFNAME to the interface that the ranks share; see that no firewall is between them"},
	10: {"hcclLibfabricError", "libfabric failed", ""},
	11: {"hcclTryAgain", "not possible now", "try again"},
	12: {"hcclBusy", "busy", ""},
	13: {"hcclNumResults", "a number that is no result", ""},
	14: {"hcclStreamError", "the stream failed", ""},
	15: {"hcclSynapseTerminated", "the library has ended", "the process must be started again"},
	16: {"hcclPortDown", "a port of the network is down", "look at the links of the cards"},
}

// Name is the C name of a result, "" if it has none that is public.
func (r Result) Name() string {
	switch {
	case r == -1:
		return "hcclUninitialized"
	case r >= 0 && int(r) < len(results):
		return results[r].name
	}
	return ""
}

// Error is the number, name and usual meaning.
func (r Result) Error() string {
	switch {
	case r == -1:
		return "result -1 (hcclUninitialized): the communicator is not initialised"
	case r.Name() == "":
		return fmt.Sprintf("result %d, which no public header has", int32(r))
	}
	return fmt.Sprintf("result %d (%s): %s", int32(r), r.Name(), results[r].means)
}

// Help is what may mend it, "" if nothing is known.
func (r Result) Help() string {
	if r >= 0 && int(r) < len(results) {
		return results[r].help
	}
	return ""
}

// UniqueID is an hcclUniqueId, which rank 0 makes and all ranks of a communicator get.
type UniqueID struct {
	Internal [1024]byte `c:"internal"`
	Length   uint64     `c:"length"`
}
