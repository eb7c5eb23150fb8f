package pool

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where a helper wakes.
//
// A helper that is woken by a channel goes through Go's scheduler and then
// through the kernel's, which chooses a core for the thread. On a virtual
// machine a core that has been idle for some milliseconds is often passed over,
// probably taken for one that the host has taken away (vcpu_is_preempted), and the
// thread is put on the core of who woke it, where it waits until the next balancing:
// up to 4 ms in which one of two cores computes. So a helper sleeps in the kernel
// itself, and its waker forbids it one core, its own. When it is awake it may run
// everywhere again: nothing is pinned.
//
//	waker on core 0                helper, asleep
//	mask of helper := all but 0
//	wake ------------------------> on core 1; mask := all
//
// Measured on two cores of such a machine, 2.5 ms of work for two workers after
// 10 ms of sleep: 5.0 ms (median) with channels, 2.7 so.
//
// Known weakness: several helpers are not spread over the cores, each mostly wakes
// on the one where it slept.

// bed is where a helper sleeps. Its thread is its own from lie to sleep's end.
type bed struct {
	token  atomic.Uint32 // the futex: 1 when it may get up
	thread int
	cores  unix.CPUSet // that the thread may run on
	narrow bool        // the waker has changed that
}

// Operations of futex(2) that golang.org/x/sys/unix has no names for.
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

// lie makes ready for sleep: from here on wake may be called.
func (b *bed) lie() {
	runtime.LockOSThread()
	b.thread, b.narrow = unix.Gettid(), false
	if unix.SchedGetaffinity(0, &b.cores) != nil {
		b.cores.Zero()
	}
}

// rise ends what lie began, if nobody can call wake any more.
func (b *bed) rise() { runtime.UnlockOSThread() }

// sleep waits for wake and rises.
func (b *bed) sleep() {
	for b.token.Load() == 0 {
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.token)), futexWaitPrivate, 0, 0, 0, 0)
	}
	b.token.Store(0)
	if b.narrow {
		_ = unix.SchedSetaffinity(0, &b.cores) // what was allowed a moment ago
	}
	b.rise()
}

// wake ends the sleep that lie announced, if it can on another core than the
// given one.
func (b *bed) wake(core int) {
	if b.cores.IsSet(core) && b.cores.Count() > 1 {
		others := b.cores
		others.Clear(core)
		b.narrow = unix.SchedSetaffinity(b.thread, &others) == nil
	}
	b.token.Store(1)
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.token)), futexWakePrivate, 1, 0, 0, 0)
}

// GiveWay lets others run, goroutines and threads. Who looks for something for long calls it now and then: Go's
// scheduler knows nothing of a thread of its own that waits for the very core, perhaps with what is looked for, while
// another core is idle (see bed). Where other processes want the core it may take milliseconds.
func GiveWay() {
	runtime.Gosched()
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// core is where the caller runs, or -1.
func core() int {
	var n uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0); e != 0 {
		return -1
	}
	return int(n)
}
