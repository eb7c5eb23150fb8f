// Package collocate says how several trainings do on one card, or on one host's cores, at the same time (Robroek et al., "An
// Analysis of Collocation on GPUs for Deep Learning Training", 2209.06018).
//
// What fits is exact: the peaks of the jobs' plans are known to the byte. How fast they are is a model: a job that runs by
// itself leaves the processor idle while it waits for a link, a host or the next launch, and others may use that time.
//
//	exclusive   one after another, each with all of it
//	mps         together, on all of it: rates are max-min fair, with each resource used at most all the time
//	mig         together, each on an instance that is a device of its own; links and host are shared
//	cores       together, each on its share of a host's cores, on which the operators of all were timed together
//
// Example: two jobs alone take 1 s a step, in 0.4 s of which the card computes. Together they both run as fast as alone: the
// aggregate is 2. If the card computes for 0.8 s of each, it is busy after 1/1.6 s of their steps: 0.625 each, 1.25 in all.
//
// Known weakness: a kernel is taken to need the whole processor while it runs. Small ones do not, so that MPS brings more
// than is said; those that are bound by memory disturb each other's caches, so that it brings less.
package collocate

import (
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/program"
)

// Resource is what jobs compete for.
type Resource uint8

// The resources of a card and its host.
const (
	Processor Resource = iota
	ToDevice
	ToHost
	Host
	Disk
	numResources
)

// Use is the seconds of a step in which a job needs each resource whole.
type Use [numResources]float64

// Run is how a job does by itself on a device.
type Run struct {
	Seconds float64 // of a step
	Tokens  int     // of it
	Device  int64   // bytes at the peak
	Host    int64
	Use     Use
}

// Rate is the job's tokens per second.
func (r *Run) Rate() float64 { return float64(r.Tokens) / r.Seconds }

// UseOf returns what a step of a program needs.
func UseOf(p *program.Program, h *hardware.Hardware) (u Use) {
	var args []device.Operand
	for i := range p.Instrs {
		c := p.CallIn(args[:0], i)
		args = c.Args
		seconds := h.Cost(&c)
		switch c.Stream {
		case device.Compute:
			parts := h.Parts(&c)
			if all := parts.Seconds(); all > 0 && !math.IsInf(all, 0) {
				seconds *= 1 - parts.Overhead/all // while a launch is awaited, others may compute
			}
			u[Processor] += seconds
		case device.HostToDev:
			u[ToDevice] += seconds
		case device.DevToHost:
			u[ToHost] += seconds
		case device.HostCompute:
			u[Host] += seconds
		case device.DiskRead, device.DiskWrite:
			u[Disk] += seconds
		}
	}
	return u
}

// FairRates returns the rate of each job when all run at the same time, as a share of its rate alone: max-min fair. Resources
// that are false in shared are each job's own.
func FairRates(runs []*Run, shared [numResources]bool) []float64 {
	rates, done := make([]float64, len(runs)), make([]bool, len(runs))
	for {
		grow, full := math.Inf(1), Resource(numResources)
		for r := range numResources {
			used, wants := 0.0, 0.0
			for i, run := range runs {
				used += rates[i] * run.Use[r] / run.Seconds
				if !done[i] {
					wants += run.Use[r] / run.Seconds
				}
			}
			if g := (1 - used) / wants; shared[r] && wants > 0 && g < grow {
				grow, full = max(g, 0), r
			}
		}
		left := false
		for i := range runs {
			if !done[i] && 1-rates[i] <= grow {
				grow, full = 1-rates[i], numResources // nothing is faster than alone
			}
		}
		for i, run := range runs {
			if done[i] {
				continue
			}
			rates[i] += grow
			done[i] = rates[i] >= 1-1e-12 || full < numResources && run.Use[full] > 0
			left = left || !done[i]
		}
		if !left {
			return rates
		}
	}
}

// Assign gives each job an instance of its own so that the sum of values is greatest. value returns a job's on an
// instance; minus infinity: it does not fit. The sum is that if not all jobs can have one.
func Assign(jobs int, instances []string, value func(job int, instance string) float64) (sum float64, on []string) {
	sum = math.Inf(-1)
	taken, now := make([]bool, len(instances)), make([]string, jobs)
	var try func(j int, have float64)
	try = func(j int, have float64) {
		if j == jobs {
			if have > sum {
				sum, on = have, slices.Clone(now)
			}
			return
		}
		for i, name := range instances {
			if taken[i] || i > 0 && instances[i-1] == name && !taken[i-1] { // equal ones are the same choice
				continue
			}
			if v := value(j, name); !math.IsInf(v, -1) {
				taken[i], now[j] = true, name
				try(j+1, have+v)
				taken[i] = false
			}
		}
	}
	if jobs <= len(instances) {
		try(0, 0)
	}
	return sum, on
}
