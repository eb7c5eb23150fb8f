//go:build amd64 || arm64

package pool

// pause is a spin-wait hint: it saves power and leaves the core to a sibling hyper-thread. On arm64, where YIELD does
// nothing on most processors, it is a barrier that takes about as long as PAUSE, as in Go's own spin loops.
//
//go:noescape
func pause()
