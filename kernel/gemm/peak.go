package gemm

import (
	"time"

	"github.com/athanor-llm/athanor/internal/clock"
	"github.com/athanor-llm/athanor/kernel/pool"
)

// peak is the argument of a loop of only multiply-adds.
type peak struct {
	rounds int
	sums   [4]float32 // of the portable loop
}

// Kernels returns the name of the instruction set that products use on this machine.
func Kernels() string { return sets()[0].name }

// Peak measures the rate, in floating-point operations per second, at which the given number of cores together
// execute independent fp32 fused multiply-adds: the limit for any product. It returns the best of several runs that
// take about the given time in total.
func Peak(cores int, total time.Duration) float64 {
	x := sets()[0]
	return rate(x.peak, x.peakFlops, cores, total)
}

// Sustained is Peak but for what it returns: the mean over the given time, from which other work takes its part.
func Sustained(cores int, total time.Duration) float64 {
	x := sets()[0]
	_, mean := rates(x.peak, x.peakFlops, cores, total)
	return mean
}

// PeakBF16 is Peak for products of bf16. Without bf16 instructions it equals Peak.
func PeakBF16(cores int, total time.Duration) float64 {
	x := sets()[0]
	if x.peakDot == nil {
		return Peak(cores, total)
	}
	return rate(x.peakDot, x.peakDotFlops, cores, total)
}

// rate is the best of rates.
func rate(loop func(*peak), flops, cores int, total time.Duration) float64 {
	best, _ := rates(loop, flops, cores, total)
	return best
}

// rates measures a loop of the given number of operations per round: the best of several runs, and the mean of those of full
// length.
func rates(loop func(*peak), flops, cores int, total time.Duration) (best, mean float64) {
	const calls = 8
	rounds, done, spent := 1000, 0.0, 0.0
	workers := pool.New(cores)
	defer workers.Close()
	time.Sleep(time.Millisecond) // helpers that have slept wake on separate cores; new threads seldom do
	for start := clock.Now(); clock.Since(start) < total; {
		begin := clock.Now()
		workers.Run(cores*calls, &peakCalls{loop, rounds})
		took := clock.Since(begin)
		all := float64(cores*calls*rounds) * float64(flops)
		best = max(best, all/took.Seconds())
		if took < total/50 && rounds < maxPeakRounds {
			rounds = min(2*rounds, maxPeakRounds)
			continue
		}
		done, spent = done+all, spent+took.Seconds()
	}
	if spent == 0 {
		return best, best
	}
	return best, done / spent
}

// peakCalls is a pool.Body that calls a loop.
type peakCalls struct {
	loop   func(*peak)
	rounds int
}

func (c *peakCalls) Task(int, int) { c.loop(&peak{rounds: c.rounds}) }

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
