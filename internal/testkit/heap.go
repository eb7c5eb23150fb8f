package testkit

import (
	"runtime"
	"runtime/debug"
)

// CollectSeldom has garbage collected as seldom as in the program, and takes no samples of what is allocated. The
// heaps of tests are small and their programs many: with Go's defaults a fourth of the time goes to collections, and a
// part of each to summing up the samples of thousands of different stacks. It belongs into TestMain; a profile of the
// heap needs -memprofilerate.
func CollectSeldom() {
	debug.SetGCPercent(400)
	runtime.MemProfileRate = 0
}
