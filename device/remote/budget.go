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

// Account takes something of what is left, if there is so much, or gives it back where it is negative, and says what is
// left then. It is safe for concurrent use.
type Account func(take Limits) (left Limits, ok bool)

// NewAccount returns one of which limits are left.
func NewAccount(limits Limits) Account {
	var mu sync.Mutex
	left := limits
	return func(take Limits) (Limits, bool) {
		mu.Lock()
		defer mu.Unlock()
		if take.Memory > left.Memory || take.Disk > left.Disk || take.Ranks > left.Ranks {
			return left, false
		}
		left = left.Minus(take)
		return left, true
	}
}

// Minus returns the difference.
func (l Limits) Minus(other Limits) Limits {
	return Limits{l.Memory - other.Memory, l.Disk - other.Disk, l.Ranks - other.Ranks}
}

// Budget is what leaders may take of a host.
type Budget struct {
	Limits         // of all leaders together
	Take   Account // of what is left, also for other processes of this host
}

// NewBudget returns that of a host on which one process opens devices.
func NewBudget(l Limits) *Budget { return &Budget{l, NewAccount(l)} }

// describe bounds what a host says that it offers by what leaders may still take. Memory of GPUs is no
// part of the budget: they refuse by themselves what they do not have.
func (b *Budget) describe(d *Description, onGPU bool) {
	left, _ := b.Take(Limits{})
	memory := left.Memory - left.Memory/callsShare
	d.Host, d.Disk, d.Ranks = min(d.Host, memory), min(d.Disk, left.Disk), left.Ranks
	if !onGPU {
		d.Device = min(d.Device, memory)
	}
}

// takeRank counts a device that is to be opened.
func (b *Budget) takeRank() error {
	if _, ok := b.Take(Limits{Ranks: 1}); !ok {
		return fmt.Errorf("all %d ranks that this host has for its leaders are open; hint: wait until another run ends, or start athanor serve there with a larger --max-ranks", b.Ranks)
	}
	return nil
}

// takeMemory counts bytes that are to be used for something.
func (b *Budget) takeMemory(n int64, what string) error {
	left, ok := b.Take(Limits{Memory: n})
	return refusal(ok, n, left.Memory, b.Memory, what, "--memory")
}

// takeDisk counts bytes of an arena on the disk.
func (b *Budget) takeDisk(n int64, what string) error {
	left, ok := b.Take(Limits{Disk: n})
	return refusal(ok, n, left.Disk, b.Disk, what, "--disk-space")
}

// refusal says why n bytes cannot be taken; nil if they are.
func refusal(ok bool, n, left, limit int64, what, flag string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%w: %s takes %s, but of the %s that this host has for its leaders, %s are left; hint: wait until another run ends, or start athanor serve there with a larger %s",
		device.ErrMemory, what, size.Format(n), size.Format(limit), size.Format(left), flag)
}

// give returns what had been taken.
func (b *Budget) give(l Limits) { b.Take(Limits{}.Minus(l)) }
