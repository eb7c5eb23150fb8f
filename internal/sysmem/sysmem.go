// Package sysmem reports how much memory, and how many cores, this process may use.
//
// Linux kills a process that touches more than its control group allows, without an
// error; macOS and Windows begin to page. So before an arena is touched, callers compare
// its size with what is available.
//
// On Linux that is what is left of the tightest of these limits: the machine's
// MemAvailable and the limit of the process's control group and of every group above it
// (version 2, whose memory.high slows down instead of killing, or the memory controller of
// version 1), and the limits on the process's addresses (ulimit -v) and on those it can write to (ulimit -d). On
// macOS it is what is free, pages of files and what programs have marked as purgeable, but not what could be compressed.
// On Windows it is free memory, as far as the page file lets it be committed. Page cache
// counts as available everywhere, since systems drop it first.
//
// A quota of CPU time (Kubernetes' limits, docker --cpus) is a time, not a number of cores: threads on more cores use
// it up early in each period, and then all stand still, wherever they are.
package sysmem

import (
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/internal/size"
)

// Info is memory in bytes.
type Info struct {
	Total     int64 // of the machine, or the tightest limit on this process
	Available int64 // bytes that may still be touched
}

// Read returns the memory of the running system, or an error where that is not known.
func Read() (Info, error) {
	m, err := system()
	if err != nil {
		return Info{}, fmt.Errorf("memory size of this machine: %w", err)
	}
	return m, nil
}

// ErrMemory reports that there is no memory for something.
var ErrMemory = errors.New("not enough memory")

// Enough returns an error if less than so many bytes may still be touched, where the system would kill the process. If the system
// does not report its memory, it accepts them.
func Enough(bytes int64) error {
	m, err := Read()
	if err != nil || bytes <= m.Available {
		return nil
	}
	return fmt.Errorf("%w: %s are needed, but only %s are available; hint: allow the process more memory, or end other programs", ErrMemory, size.Exact(bytes), size.Exact(m.Available))
}

// leastAddresses is what a process needs before it holds anything: Go's runtime reserves 1.2 GiB of addresses at its start,
// and each thread of the C library its stack and an arena. With less, the runtime ends the process in the midst of something.
const leastAddresses = 1700 << 20

// EnoughAddresses returns an error if the limit on the process's addresses (ulimit -v) is less than any work takes.
func EnoughAddresses() error { return addressesFor(systemAddresses()) }

func addressesFor(limit int64) error {
	if limit == 0 || limit >= leastAddresses {
		return nil
	}
	return fmt.Errorf("%w: the limit on addresses (ulimit -v) of %s is less than the %s that a process takes before any model; hint: raise it (ulimit -v unlimited), and limit memory with a control group", ErrMemory, size.Exact(limit), size.Exact(leastAddresses))
}

// Mapped returns how many bytes of addresses this process has: all that it has asked for, whether it touched it or not. It is
// exact, so that two calls tell what was asked for in between. 0: not known.
func Mapped() int64 { return systemMapped() }

// Cores returns the CPU time that this process may use, in seconds per second; 0: as much as there is.
func Cores() float64 { return systemCores() }
