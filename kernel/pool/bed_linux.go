package pool

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Which core a helper wakes on.
//
// A helper woken through a channel passes Go's scheduler and then the kernel's, which chooses a core for the thread.
// On a virtual machine the kernel often passes over a core that has been idle for some milliseconds, probably because
// it believes that the host preempted it (vcpu_is_preempted). It then puts the thread on the waker's core, where it
// waits for the next load balancing: for up to 4 ms only one of two cores computes. So a helper sleeps on a futex,
// and its waker excludes its own core from the helper's affinity mask. Once awake, the helper restores the mask:
// nothing stays pinned.
//
//	waker on core 0                helper, asleep
//	mask of helper := all but 0
//	wake ------------------------> on core 1; mask := all
//
// Measured on two cores of such a machine, 2.5 ms of work for two workers after 10 ms of sleep: 5.0 ms (median) with
// channels, 2.7 ms this way.
//
// Known weakness: several helpers are not spread over the cores; each mostly wakes on the core where it fell asleep.

// bed is where a helper sleeps. The helper is locked to its thread from lie until sleep or rise returns.
type bed struct {
	token  atomic.Uint32 // the futex: 1 when the helper may wake
	thread int
	cores  unix.CPUSet // the thread's original affinity mask
	narrow bool        // the waker has narrowed it
}

// Operations of futex(2) that golang.org/x/sys/unix does not define.
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

// lie prepares for sleep: from here on wake may be called.
func (b *bed) lie() {
	runtime.LockOSThread()
	b.thread, b.narrow = unix.Gettid(), false
	if unix.SchedGetaffinity(0, &b.cores) != nil {
		b.cores.Zero()
	}
}

// rise undoes lie without sleeping. Nobody may call wake any more.
func (b *bed) rise() { runtime.UnlockOSThread() }

// sleep waits for wake, restores the affinity mask and calls rise.
func (b *bed) sleep() {
	for b.token.Load() == 0 {
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.token)), futexWaitPrivate, 0, 0, 0, 0)
	}
	b.token.Store(0)
	if b.narrow {
		_ = unix.SchedSetaffinity(0, &b.cores) // allowed a moment ago, so errors are ignored
	}
	b.rise()
}

// wake ends the sleep that lie prepared, if possible on a core other than the given one.
func (b *bed) wake(core int) {
	if b.cores.IsSet(core) && b.cores.Count() > 1 {
		others := b.cores
		others.Clear(core)
		b.narrow = unix.SchedSetaffinity(b.thread, &others) == nil
	}
	b.token.Store(1)
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.token)), futexWakePrivate, 1, 0, 0, 0)
}

// GiveWay yields to other goroutines and threads. Long polling loops must call it now and then: the thread that would
// satisfy the condition may be waiting for this very core while another core is idle (see bed), which Go's scheduler
// cannot see. It may take milliseconds if other processes want the core.
func GiveWay() {
	runtime.Gosched()
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// core returns the core that the caller runs on, or -1 if unknown.
func core() int {
	var n uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0); e != 0 {
		return -1
	}
	return int(n)
}
