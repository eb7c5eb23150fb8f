package gemm

import (
	"runtime"
	"sync"
	"time"
)

// peak is the argument of a loop of multiply-adds that does nothing else.
type peak struct {
	rounds int
	sums   [4]float32 // of the portable loop
}

// Peak measures the rate, in floating-point operations per second, at which the given number of cores execute fused
// multiply-adds in fp32 when nothing holds them up: the limit for any product. It takes the best of some runs that
// last about the given time together.
func Peak(cores int, total time.Duration) float64 { return sets()[0].peakRate(cores, total) }

// peakRate measures the peak with the instructions of x.
func (x *isa) peakRate(cores int, total time.Duration) float64 {
	const runs = 8
	p := peak{rounds: 1000}
	best := 0.0
	for start := time.Now(); time.Since(start) < total; {
		var all sync.WaitGroup
		begin := time.Now()
		for range cores {
			all.Go(func() {
				for range runs {
					q := p
					x.peak(&q)
				}
			})
		}
		all.Wait()
		took := time.Since(begin)
		best = max(best, float64(cores)*float64(runs*p.rounds)*float64(x.peakFlops)/took.Seconds())
		if took < total/50 {
			p.rounds = min(2*p.rounds, maxPeakRounds)
		}
		runtime.Gosched()
	}
	return best
}

// maxPeakRounds keeps a call of a peak loop, which cannot be preempted, below 100 microseconds.
const maxPeakRounds = 8000

// portablePeak multiplies and adds in plain Go, in four chains.
func portablePeak(p *peak) {
	x, y := float32(1), float32(0)
	for range p.rounds {
		for i := range p.sums {
			p.sums[i] += float32(x * y)
		}
	}
}
