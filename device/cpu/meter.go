package cpu

import (
	"sync/atomic"
	"time"
)

// Meter shows a watchdog that long calls progress. On a slow or busy machine, a single
// matrix product or the read of a chunk can take longer than a reasonable timeout for a
// hung disk.
//
//	reads, writes      each piece of a few MiB counts
//	other hosts        what is sent and received counts; waiting for them is not work, though it occupies a core
//	throttled copies   each second of the link's time counts
//	all else           computes: the process's processor time counts
//
// So a kernel may run indefinitely while it gets a fortieth of a core, and a call that
// waits for something that never comes uses none. Known weakness: an endless
// computation is never detected. Kernels are loops over operands with known bounds.
type Meter struct {
	pieces  atomic.Uint64
	kernels atomic.Int32         // calls in progress
	clock   func() time.Duration // nil: processorTime
}

// meterUnit is the processor time that counts as progress: more in ten seconds than an
// idle process uses, little for one that computes.
const meterUnit = 250 * time.Millisecond

// Progress returns a number that changes while calls progress.
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

// Begin records the start of a computing call, End its end.
func (m *Meter) Begin() { m.kernels.Add(1) }

// End is the converse of Begin.
func (m *Meter) End() { m.kernels.Add(-1) }

func (m *Meter) piece() { m.pieces.Add(1) }
