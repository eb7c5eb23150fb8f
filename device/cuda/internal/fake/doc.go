// Package fake is a GPU for tests: an nv.Driver made of Go functions.
//
// Device memory is memory of the process. Streams are goroutines that run at their own pace, so
// work that events do not order runs in any order, as on a GPU. Kernels run in one of two ways:
// a Runner compiles their text for the CPU after a shim (in the folder shim), given a C++ compiler; an
// Interpreter executes the PTX that NVRTC generates, given NVRTC. With neither they do nothing.
// The fake is stricter than a driver: calls from a thread without the context, copies beyond an
// allocation and destroyed handles are errors.
package fake
