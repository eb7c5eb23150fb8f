package cuda

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/device/link"
)

// A fabric joins GPUs of one process that are the ranks of one run, or some of them; far.go explains
// how they meet ranks of other processes. The memory of a process's GPUs shares one address space, so
// each rank fetches what it needs from the others with its copy engines, or with its kernels if it has
// peer access.
//
// Calls between ranks meet on the GPUs: each member has a flag in pinned memory that
// counts its rendezvous. A stream that arrives at one writes the next number to its own
// flag and waits until the others' are as high. So workers never wait for each other,
// and the k-th call of a group meets the k-th on every other rank although no rank
// knows k of the others.
//
//	rank 0   [flag 0 = 7][wait: flag 1 >= 7] fetch [flag 0 = 8][wait: flag 1 >= 8]
//	rank 1            [flag 1 = 7][wait: flag 0 >= 7] fetch [flag 1 = 8]...
//
// The others' operands are found by the order in which a group's calls were prepared,
// which must be their launch order.
//
// When one device's round fails, the fabric is lost: all flags are raised above every
// awaited number, repeatedly until the devices are closed, since a stream may still
// write an old number. The others' rounds end with a device.PeerError.
//
// Known weakness: all ranks of one GPU together must not use more streams than the
// driver has queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless set, and the driver may give
// fewer); a rank uses six, and a seventh if there are other hosts. The
// driver may load the library's kernels on first use and then wait for the whole
// context: with several ranks on one GPU, or if a first step hangs,
// CUDA_MODULE_LOADING=EAGER loads all of them at the start. All ranks fetch from all
// others. This moves as many bytes as a ring, but suits switches better than GPUs that
// are only linked to two neighbours. A rank has one worker for all its streams, which
// blocks when one of them has hundreds of calls queued (worker.go). Verify allows up to
// device.QueueLen launched calls on each stream, so ranks that need more than the
// worker allows could deadlock. No known schedule or sharding does (TestRanksAhead).

// Fabric is a set of joined devices. Create it first, then each device with
// Options.Fabric and its rank.
type Fabric struct {
	opened time.Time // the shared clock origin of spans
	hub    *link.Hub // of ranks in several processes; nil: all are here
	slot   int64     // maximum size in bytes of a block from or to another host

	mu      sync.Mutex
	changed *sync.Cond // a call was prepared, or a rank is lost
	devices []*Device
	open    int // devices that are not closed
	groups  map[string]*meeting
	boxes   map[[3]int]*meeting // of messages, by sender, receiver and tag
	posts   map[[2]int]*post    // by a rank here and one elsewhere
	nccl    *nv.NCCL            // over which calls with ranks elsewhere go; nil: over pipes
	wirings map[link.Meeting]*wiring
	flags   *cpu.Arena
	words   []atomic.Uint32
	used    int // of words
	down    atomic.Bool
	lost    *device.PeerError
	closed  chan struct{} // all devices are
	rest    sync.WaitGroup
}

// maxFlags bounds the members of all meetings together: one for each end of each
// message of a step.
const maxFlags = 1 << 18

// NewFabric returns a fabric for n ranks.
func NewFabric(n int) *Fabric {
	f := &Fabric{
		opened: time.Now(), slot: slotBytes, devices: make([]*Device, max(n, 0)), groups: map[string]*meeting{},
		boxes: map[[3]int]*meeting{}, posts: map[[2]int]*post{}, wirings: map[link.Meeting]*wiring{}, closed: make(chan struct{}),
	}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// NewFabricAcross returns the fabric of this process's part of n ranks. It closes the hub when a
// rank is lost.
func NewFabricAcross(n int, hub *link.Hub) *Fabric {
	f := NewFabric(n)
	f.hub = hub
	return f
}

// Opened returns the origin of the spans' clock.
func (f *Fabric) Opened() time.Time { return f.opened }

// isLocal reports whether a rank is in this process.
func (f *Fabric) isLocal(rank int) bool { return f.hub == nil || f.hub.IsLocal(rank) }

// Ranks returns the number of ranks.
func (f *Fabric) Ranks() int { return len(f.devices) }

// queueVars are the environment variables that set how many queues the driver has for kernels and
// copies. rankQueues is the number of streams of a rank, none of which may wait behind another's.
var queueVars = []string{"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS"}

const rankQueues = 7

// fewQueues returns an error if a variable leaves a rank too few queues, and names it: some launchers
// of other systems set it to 1.
func fewQueues() error {
	for _, name := range queueVars {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n < rankQueues {
			return fmt.Errorf("with %s=%d, kernels and copies wait for each other; hint: unset it", name, n)
		}
	}
	return nil
}

// join adds an opened device, on its worker. The first device pins the flags for all.
func (f *Fabric) join(d *Device) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	rank := d.options.Rank
	if rank < 0 || rank >= len(f.devices) {
		return fmt.Errorf("there is no rank %d in a fabric of %d", rank, len(f.devices))
	}
	if f.devices[rank] != nil {
		return fmt.Errorf("rank %d of the fabric is taken", rank)
	}
	if !f.isLocal(rank) {
		return fmt.Errorf("rank %d is in another process", rank)
	}
	if err := fewQueues(); err != nil { // or ranks would wait forever
		return err
	}
	if f.flags == nil {
		var err error
		if f.flags, err = cpu.NewArena(4 * maxFlags); err != nil {
			return err
		}
		b := f.flags.Bytes()
		code := d.driver.MemHostRegister(address(b), uintptr(len(b)), nv.RegisterPortable|nv.RegisterMapped)
		if err := d.driver.Check("cuMemHostRegister", code); err != nil {
			return err
		}
		f.words = unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&b[0])), maxFlags)
	}
	f.devices[rank] = d
	f.open++
	return nil
}

// members returns the devices of those ranks that are in this process, all of which must have
// joined.
func (f *Fabric) members(ranks []int) ([]*Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*Device
	for _, r := range ranks {
		if !f.isLocal(r) {
			continue
		}
		if f.devices[r] == nil {
			return nil, fmt.Errorf("rank %d has not been opened; hint: open all ranks before preparing their shared calls", r)
		}
		list = append(list, f.devices[r])
	}
	return list, nil
}

// leave removes a device, on its worker, once its streams are idle. The last device
// releases the flags.
func (f *Fabric) leave(d *Device) error {
	f.mu.Lock()
	joined := slices.Contains(f.devices, d)
	if joined {
		f.open--
	}
	last := joined && f.open == 0
	f.changed.Broadcast()
	f.mu.Unlock()
	if !last {
		return nil
	}
	close(f.closed)
	f.rest.Wait()
	d.driver.MemHostUnregister(address(f.flags.Bytes()))
	return f.flags.Close()
}

// meeting is where the calls of one group, or the two ends of a message, meet
// repeatedly.
type meeting struct {
	ranks []int
	flags []*atomic.Uint32 // nil: of a member in another process
	count []uint32         // rendezvous so far; each entry belongs to its member's worker
	calls [][]*exchange    // of each member, in the order of preparation
}

// meetingOf returns the meeting of a call, creating it if needed. The fabric must be
// locked.
func (f *Fabric) meetingOf(c *device.Call, rank int) (*meeting, error) {
	ranks := device.Members(c, rank)
	group, box := fmt.Sprint(ranks), [3]int{ranks[0], ranks[len(ranks)-1], c.Tag}
	message := device.IsMessage(c.Op)
	m := f.groups[group]
	if message {
		m = f.boxes[box]
	}
	if m != nil {
		return m, nil
	}
	n := len(ranks)
	m = &meeting{ranks: ranks, count: make([]uint32, n), calls: make([][]*exchange, n)}
	for _, r := range ranks {
		var flag *atomic.Uint32
		if f.isLocal(r) {
			var err error
			if flag, err = f.flag(); err != nil {
				return nil, err
			}
		}
		m.flags = append(m.flags, flag)
	}
	if message {
		f.boxes[box] = m
	} else {
		f.groups[group] = m
	}
	return m, nil
}

// flag returns a word of pinned memory, zero. The fabric must be locked.
func (f *Fabric) flag() (*atomic.Uint32, error) {
	if f.used == len(f.words) {
		return nil, fmt.Errorf("there are more than %d groups of ranks and messages; hint: use fewer micro-batches", maxFlags/2)
	}
	f.used++
	return &f.words[f.used-1], nil
}

// partners returns the calls that meet, one per member. It waits until all are
// prepared.
func (f *Fabric) partners(e *exchange) ([]*exchange, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := e.meeting
	list := make([]*exchange, len(m.ranks))
	for i := 0; i < len(list); {
		if f.lost != nil {
			return nil, f.lost
		}
		if m.flags[i] == nil {
			var err error
			if list[i], err = f.heard(e, i); err != nil {
				return nil, err
			}
		} else if e.index < len(m.calls[i]) {
			list[i] = m.calls[i][e.index]
		}
		if list[i] == nil {
			f.changed.Wait()
			continue
		}
		i++
	}
	calls := make([]*device.Call, len(list))
	for i, p := range list {
		calls[i] = &p.call
	}
	return list, device.Agree(calls)
}

// lose tells all devices that one is lost.
func (f *Fabric) lose(d *Device, err error) { f.loseRank(d, device.Lost(d.options.Rank, err)) }

// loseRank tells all devices but d (which may be nil) that a rank is lost; only the first loss is
// recorded. Other processes notice that their pipes are closed. The pipes are closed before the flags
// are raised, so that nothing is sent before it is there.
func (f *Fabric) loseRank(d *Device, lost *device.PeerError) {
	f.mu.Lock()
	if f.lost != nil {
		f.mu.Unlock()
		return
	}
	f.lost = lost
	f.down.Store(true)
	f.changed.Broadcast()
	devices := slices.Clone(f.devices)
	open := f.open > 0
	if open {
		f.rest.Add(1)
	}
	f.mu.Unlock()
	if f.hub != nil {
		f.hub.Close() // whatever Close returns, nobody waits there any longer
	}
	if open {
		go f.release()
	}
	for _, o := range devices {
		if o != nil && o != d {
			o.round.fail(lost)
		}
	}
	f.abortWires()
}

// release raises all flags until all devices are closed.
func (f *Fabric) release() {
	defer f.rest.Done()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		f.mu.Lock()
		n := f.used
		f.mu.Unlock()
		for i := range n {
			// Above every count; counts are compared as distances.
			if w := &f.words[i]; w.Load() < 1<<30 {
				w.Add(1 << 30)
			}
		}
		select {
		case <-f.closed:
			return
		case <-tick.C:
		}
	}
}

// Abort fails the round: calls not yet passed to the driver are skipped, Sync returns
// err, and joined devices lose this one. Any goroutine may call it.
func (d *Device) Abort(err error) { d.fail(err) }
