package cli

import (
	"os"
	"runtime"

	"github.com/athanor-llm/athanor/internal/sysmem"
)

// obeyQuota makes kernels use as many cores as a quota of CPU time pays for, one at least: with more they would use it
// up early in each period and then all stand still, while the probe, which is shorter, would see none of that. A user's
// GOMAXPROCS holds.
func obeyQuota() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	if n := wholeCores(sysmem.Cores()); n > 0 && n < runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}

// wholeCores returns the number of cores that a quota pays for; 0: there is none.
func wholeCores(quota float64) int {
	if quota <= 0 {
		return 0
	}
	return max(1, int(quota))
}
