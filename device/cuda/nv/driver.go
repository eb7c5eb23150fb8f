package nv

import (
	"fmt"
	"unsafe"
)

// Driver is libcuda. Handles and device addresses are words. The context belongs to the
// calling thread: lock the goroutine to its thread, then set the context.
type Driver struct {
	Lib Library // nil for a fake

	Init                     Proc `sym:"cuInit"`
	DriverGetVersion         Proc `sym:"cuDriverGetVersion"`
	GetErrorString           Proc `sym:"cuGetErrorString"`
	DeviceGetCount           Proc `sym:"cuDeviceGetCount"`
	DeviceGet                Proc `sym:"cuDeviceGet"`
	DeviceGetName            Proc `sym:"cuDeviceGetName"`
	DeviceGetAttribute       Proc `sym:"cuDeviceGetAttribute"`
	DeviceTotalMem           Proc `sym:"cuDeviceTotalMem_v2"`
	DeviceGetPCIBusId        Proc `sym:"cuDeviceGetPCIBusId"`
	DevicePrimaryCtxRetain   Proc `sym:"cuDevicePrimaryCtxRetain"`
	DevicePrimaryCtxRelease  Proc `sym:"cuDevicePrimaryCtxRelease_v2"`
	DevicePrimaryCtxSetFlags Proc `sym:"cuDevicePrimaryCtxSetFlags_v2"`
	CtxSetCurrent            Proc `sym:"cuCtxSetCurrent"`
	CtxSynchronize           Proc `sym:"cuCtxSynchronize"`
	DeviceCanAccessPeer      Proc `sym:"cuDeviceCanAccessPeer"`
	CtxEnablePeerAccess      Proc `sym:"cuCtxEnablePeerAccess"`
	StreamCreate             Proc `sym:"cuStreamCreate"`
	StreamDestroy            Proc `sym:"cuStreamDestroy_v2"`
	StreamSynchronize        Proc `sym:"cuStreamSynchronize"`
	StreamWaitEvent          Proc `sym:"cuStreamWaitEvent"`
	StreamWaitValue32        Proc `sym:"cuStreamWaitValue32_v2"`
	StreamWriteValue32       Proc `sym:"cuStreamWriteValue32_v2"`
	EventCreate              Proc `sym:"cuEventCreate"`
	EventRecord              Proc `sym:"cuEventRecord"`
	EventQuery               Proc `sym:"cuEventQuery"`
	EventSynchronize         Proc `sym:"cuEventSynchronize"`
	EventDestroy             Proc `sym:"cuEventDestroy_v2"`
	EventElapsedTime         Proc `sym:"cuEventElapsedTime_v2,cuEventElapsedTime"`
	MemAlloc                 Proc `sym:"cuMemAlloc_v2"`
	MemFree                  Proc `sym:"cuMemFree_v2"`
	MemGetInfo               Proc `sym:"cuMemGetInfo_v2"`
	MemHostRegister          Proc `sym:"cuMemHostRegister_v2"`
	MemHostUnregister        Proc `sym:"cuMemHostUnregister"`
	MemcpyPeerAsync          Proc `sym:"cuMemcpyPeerAsync"`
	MemcpyAsync              Proc `sym:"cuMemcpyAsync"`
	Memcpy2DAsync            Proc `sym:"cuMemcpy2DAsync_v2"`
	Memcpy                   Proc `sym:"cuMemcpy"`
	MemsetD8Async            Proc `sym:"cuMemsetD8Async"`
	ModuleLoadData           Proc `sym:"cuModuleLoadData"`
	ModuleUnload             Proc `sym:"cuModuleUnload"`
	ModuleGetFunction        Proc `sym:"cuModuleGetFunction"`
	FuncSetAttribute         Proc `sym:"cuFuncSetAttribute"`
	LaunchKernel             Proc `sym:"cuLaunchKernel"`
}

// OpenDriver opens libcuda.
func OpenDriver(p Places) (*Driver, error) {
	d := &Driver{}
	lib, err := p.openFirst(d, "NVIDIA's driver (libcuda.so.1)", "install the NVIDIA driver, or use device: cpu, which needs none", p.Driver)
	if err != nil {
		return nil, err
	}
	d.Lib = lib
	return d, nil
}

// Device attributes, flags and limits, with their numbers in cuda.h.
const (
	AttrSMs            = 16
	AttrIntegrated     = 18 // the GPU's memory is the host's
	AttrMajor          = 75
	AttrMinor          = 76
	AttrHostPointer    = 91 // registered host memory has the same address on host and device
	AttrSharedPerBlock = 97

	FuncSharedMemory = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

	CtxBlockingSync   = 4
	StreamNonBlocking = 1
	EventBlocking     = 1
	EventNoTiming     = 2
	RegisterPortable  = 1
	RegisterMapped    = 2
	WaitAtLeast       = 0 // as a distance, so that counts may wrap
	WaitEqual         = 1
	MemoryUnified     = 4

	ParamBuffer = 1 // CU_LAUNCH_PARAM_BUFFER_POINTER
	ParamSize   = 2
)

// Driver status codes that are handled specially.
const (
	Success       = 0
	NotReady      = 600
	outOfMemory   = 2
	noDevice      = 100
	noBinary      = 209
	ptxTooNew     = 222
	illegal       = 700
	resources     = 701
	timeout       = 702
	illegalStack  = 714 // to 719: faults of kernels
	launchFailed  = 719
	notReadyYet   = 802
	mismatch      = 803
	alreadyMapped = 712
	PeerEnabled   = 704
)

var hints = map[int32]string{
	outOfMemory:   "end other programs on the GPU or set a smaller limits.device",
	noDevice:      "no GPU is visible; check CUDA_VISIBLE_DEVICES and nvidia-smi",
	noBinary:      "the kernels were compiled for another GPU; remove the kernel cache",
	ptxTooNew:     "NVRTC is newer than the driver; install a newer driver or an older NVRTC",
	illegal:       "a kernel accessed memory outside its buffers; report this as a bug",
	resources:     "a kernel needs more registers or shared memory than the GPU has",
	launchFailed:  "a kernel failed; report this as a bug",
	notReadyYet:   "start NVIDIA's fabric manager",
	mismatch:      "the driver and libcuda have different versions; restart the machine",
	alreadyMapped: "this memory is already registered",
}

// Error is a failed library call.
type Error struct {
	Call string
	Code int32
	Text string
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s failed with %d", e.Call, e.Code)
	if e.Text != "" {
		s += " (" + e.Text + ")"
	}
	if h := hints[e.Code]; h != "" && len(e.Call) > 2 && e.Call[:2] == "cu" && e.Call[:3] != "cub" {
		s += "; hint: " + h
	}
	return s
}

// Late reports whether the fault may stem from earlier asynchronous work: the next
// driver call reports the GPU's faults.
func (e *Error) Late() bool {
	return e.Code == illegal || e.Code == timeout || e.Code >= illegalStack && e.Code <= launchFailed
}

// Check turns a driver status into an error.
func (d *Driver) Check(call string, code int32) error {
	if code == Success {
		return nil
	}
	return &Error{call, code, d.explain(code)}
}

func (d *Driver) explain(code int32) string {
	var p uintptr
	if d.GetErrorString(uintptr(code), Addr(&p)) != Success {
		return ""
	}
	return goString(p)
}

// Attribute returns an attribute of a device; 0 if the driver does not know it.
func (d *Driver) Attribute(dev, attr int) int {
	var v int32
	if d.DeviceGetAttribute(Addr(&v), uintptr(attr), uintptr(dev)) != Success {
		return 0
	}
	return int(v)
}

// Name returns the name of a device.
func (d *Driver) Name(dev int) string {
	b := make([]byte, 128)
	if d.DeviceGetName(Addr(&b[0]), uintptr(len(b)-1), uintptr(dev)) != Success {
		return ""
	}
	return cString(b)
}

// Word calls a procedure that writes one word to the address in its first argument, and
// returns that word.
func (d *Driver) Word(call string, f Proc, args ...uintptr) (uintptr, error) {
	var out uintptr
	err := d.Check(call, f(append([]uintptr{Addr(&out)}, args...)...))
	return out, err
}

// Function returns a kernel of a module.
func (d *Driver) Function(module uintptr, name string) (fn uintptr, err error) {
	text(name, func(s uintptr) { fn, err = d.Word("cuModuleGetFunction", d.ModuleGetFunction, module, s) })
	if err != nil {
		return 0, fmt.Errorf("kernel %s: %w", name, err)
	}
	return fn, nil
}

// Copy2D is CUDA_MEMCPY2D for unified addresses: rows of Width bytes, Pitch bytes from
// row to row.
type Copy2D struct {
	_, _            uint64 // srcXInBytes, srcY
	srcType, _      uint32
	_               uint64 // srcHost
	Src             uint64
	_               uint64 // srcArray
	SrcPitch        uint64
	_, _            uint64 // dstXInBytes, dstY
	dstType, _      uint32
	_               uint64 // dstHost
	Dst             uint64
	_               uint64 // dstArray
	DstPitch, Width uint64
	Height          uint64
}

// NewCopy2D fills in the constant fields.
func NewCopy2D(dst, src uintptr, dstPitch, srcPitch, width, height int64) *Copy2D {
	return &Copy2D{srcType: MemoryUnified, dstType: MemoryUnified, Src: uint64(src), Dst: uint64(dst),
		SrcPitch: uint64(srcPitch), DstPitch: uint64(dstPitch), Width: uint64(width), Height: uint64(height)}
}

const _ = -(unsafe.Sizeof(Copy2D{}) ^ 128) // the C struct's size
