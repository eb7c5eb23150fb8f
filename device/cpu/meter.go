package cpu

import (
	"sync/atomic"
	"time"
)

// A Meter shows a watchdog that calls which take long get on: on a slow machine,
// or on one that has other things to do, a single product or the read of a
// chunk can take longer than anyone should wait for a disk that hangs.
//
//	reads, writes      each piece of a few MiB counts
//	throttled copies   each second of the link's time counts
//	all else           computes: what counts is processor time of the process
//
// So a kernel may take as long as it likes while it gets a fortieth of a core,
// and what waits for something that never comes uses none. Known weakness: what
// computes for ever is never found. Kernels are loops over operands, whose ends
// are known.
type Meter struct {
	pieces  atomic.Uint64
	kernels atomic.Int32         // under way
	clock   func() time.Duration // nil: processorTime
}

// meterUnit is the processor time that counts: more in ten seconds than an idle
// process takes, little for one that computes.
const meterUnit = 250 * time.Millisecond

// Progress is a number that changes while calls get on.
func (m *Meter) Progress() uint64 {
	n := m.pieces.Load()
	if m.kernels.Load() > 0 {
		clock := m.clock
		if clock == nil {
			clock = processorTime
		}
		n += uint64(clock() / meterUnit)
	}
	return n
}

// Begin notes that a call begins to compute, End that it is done.
func (m *Meter) Begin() { m.kernels.Add(1) }

// End is the converse of Begin.
func (m *Meter) End() { m.kernels.Add(-1) }

func (m *Meter) piece() { m.pieces.Add(1) }
