package simsynapse

import "fmt"

// Status is a synStatus.
type Status int32

// The statuses that the library returns.
const (
	Success                 Status = 0
	InvalidArgument         Status = 1
	OutOfHostMemory         Status = 3
	OutOfDeviceMemory       Status = 4
	ObjectAlreadySet        Status = 5 // synObjectAlreadyInitialized
	NoDeviceFound           Status = 8
	DeviceReset             Status = 17
	Unsupported             Status = 18
	WrongParamsFile         Status = 19
	DeviceAlreadyAcquired   Status = 20
	NameIsAlreadyUsed       Status = 21
	Busy                    Status = 22
	Fail                    Status = 26
	Uninitialized           Status = 28
	FailedSectionValidation Status = 30
	SynapseTerminated       Status = 31
	InvalidEventHandle      Status = 33
	MappingNotFound         Status = 34
	InvalidTensorProperties Status = 39
	FailHCCL                Status = 40
	FailedToCollectTime     Status = 41
)

var statusNames = []string{
	"synSuccess", "synInvalidArgument", "synCbFull", "synOutOfHostMemory", "synOutOfDeviceMemory", "synObjectAlreadyInitialized",
	"synObjectNotInitialized", "synCommandSubmissionFailure", "synNoDeviceFound", "synDeviceTypeMismatch", "synFailedToInitializeCb",
	"synFailedToFreeCb", "synFailedToMapCb", "synFailedToUnmapCb", "synFailedToAllocateDeviceMemory", "synFailedToFreeDeviceMemory",
	"synFailedNotEnoughDevicesFound", "synDeviceReset", "synUnsupported", "synWrongParamsFile", "synDeviceAlreadyAcquired",
	"synNameIsAlreadyUsed", "synBusy", "synAllResourcesTaken", "synUnavailable", "synInvalidTensorDimensions", "synFail",
	"synOutOfResources", "synUninitialized", "synAlreadyInitialized", "synFailedSectionValidation", "synSynapseTerminated",
	"synAssertAsync", "synInvalidEventHandle", "synMappingNotFound", "synFailedDynamicPatching", "synFailedStaticPatching",
	"synFailedToSubmitWorkload", "synInvalidSectionsDefinition", "synInvalidTensorProperties", "synFailHccl", "synFailedToCollectTime",
	"synTimeout", "synResourceBadUsage",
}

// String is the name that the public header gives the status.
func (s Status) String() string {
	if s >= 0 && int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("synStatus %d", int32(s))
}

// Result is a hcclResult.
type Result int32

// The results that the library returns.
const (
	HCCLSuccess         Result = 0
	HCCLUnsupported     Result = 2
	HCCLSynapseError    Result = 4
	HCCLInvalidArgument Result = 7
	HCCLInvalidUsage    Result = 8
	HCCLSocketError     Result = 9
	HCCLTerminated      Result = 15
	HCCLUninitialized   Result = -1
)

var resultNames = map[Result]string{
	0: "hcclSuccess", 1: "hcclNoDeviceFound", 2: "hcclUnsupported", 3: "hcclOutOfMemory", 4: "hcclUnhandledSynapseError", 5: "hcclSystemError",
	6: "hcclInternalError", 7: "hcclInvalidArgument", 8: "hcclInvalidUsage", 9: "hcclSocketError", 10: "hcclLibfabricError",
	11: "hcclTryAgain", 12: "hcclBusy", 14: "hcclStreamError", 15: "hcclSynapseTerminated", 16: "hcclPortDown", -1: "hcclUninitialized",
}

// String is the name that the public header gives the result.
func (r Result) String() string {
	if n, ok := resultNames[r]; ok {
		return n
	}
	return fmt.Sprintf("hcclResult %d", int32(r))
}

// asResult is the result of a collective call that a status keeps from being made.
func (s Status) asResult() Result {
	switch s {
	case Success:
		return HCCLSuccess
	case Uninitialized:
		return HCCLUninitialized
	case SynapseTerminated:
		return HCCLTerminated
	case InvalidArgument:
		return HCCLInvalidArgument
	}
	return HCCLSynapseError
}
