package sysmem

import "runtime"

// cores is what Go found when the process started.
var cores = runtime.GOMAXPROCS(0)

// Cores is the number of processors that this process may use, affinity, quota
// and the environment's GOMAXPROCS considered. Ask here and not the runtime: its
// number grows when streams get processors of Go's own (device/cpu).
func Cores() int { return cores }
