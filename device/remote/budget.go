package remote

import (
	"fmt"
	"sync"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/size"
)

// Limits is what leaders may take of a host together.
type Limits struct {
	Memory int64 // bytes of the host's memory: arenas and prepared calls
	Disk   int64 // bytes of arenas on its disk
	Ranks  int   // devices that are open at once
}

// What a prepared call takes is not measured but assumed: these many bytes for the call and what a device
// keeps for it, and these for each operand and each of its peers.
const (
	callMemory    = 2 << 10
	operandMemory = 128
	peerMemory    = 32
	// callsShare is the part of the memory that Describe leaves for calls: 1/callsShare.
	callsShare = 16
)

// costOf returns what a prepared call is taken to need.
func costOf(c *device.Call) int64 {
	return callMemory + operandMemory*int64(len(c.Args)) + peerMemory*int64(len(c.Peers))
}

// budget is what leaders may still take of a host. It is safe for concurrent use.
type budget struct {
	mu    sync.Mutex
	limit Limits
	left  Limits
}

func newBudget(l Limits) *budget { return &budget{limit: l, left: l} }

// describe bounds what a host says that it offers by what leaders may still take. Memory of GPUs is no
// part of the budget: they refuse by themselves what they do not have.
func (b *budget) describe(d *Description, onGPU bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	memory := b.left.Memory - b.left.Memory/callsShare
	d.Host, d.Disk, d.Ranks = min(d.Host, memory), min(d.Disk, b.left.Disk), b.left.Ranks
	if !onGPU {
		d.Device = min(d.Device, memory)
	}
}

// takeRank counts a device that is to be opened.
func (b *budget) takeRank() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left.Ranks < 1 {
		return fmt.Errorf("all %d ranks that this host has for its leaders are open; hint: wait until another run ends, or start athanor serve there with a larger --max-ranks", b.limit.Ranks)
	}
	b.left.Ranks--
	return nil
}

// takeMemory counts bytes that are to be used for something.
func (b *budget) takeMemory(n int64, what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return take(&b.left.Memory, n, b.limit.Memory, what, "--memory")
}

// takeDisk counts bytes of an arena on the disk.
func (b *budget) takeDisk(n int64, what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return take(&b.left.Disk, n, b.limit.Disk, what, "--disk-space")
}

func take(left *int64, n, limit int64, what, flag string) error {
	if n > *left {
		return fmt.Errorf("%w: %s takes %s, but of the %s that this host has for its leaders, %s are left; hint: wait until another run ends, or start athanor serve there with a larger %s",
			device.ErrMemory, what, size.Format(n), size.Format(limit), size.Format(*left), flag)
	}
	*left -= n
	return nil
}

// give returns what had been taken.
func (b *budget) give(l Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left.Memory += l.Memory
	b.left.Disk += l.Disk
	b.left.Ranks += l.Ranks
}
