// Package fake is a GPU for tests: an nv.Driver made of Go functions.
//
// Device memory is memory of the process. Streams are goroutines that run at
// their own pace, so whatever is not ordered by events happens in some order,
// as on a GPU. Kernels run in one of two ways: a Runner compiles their text for the
// CPU behind a shim (see shim.h), if a C++ compiler is there; an Interpreter goes
// through the PTX that NVRTC makes of it, if that is there. With neither they do
// nothing. The fake is stricter than a driver: a call from a thread without the context, a copy
// that leaves its allocation, a handle that was destroyed are errors.
package fake
