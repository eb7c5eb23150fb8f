//go:build linux

package fake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// Codes of NCCL that the fake returns.
const (
	ncclUnhandledCudaError = 1
	ncclInvalidArgument    = 4
	ncclInvalidUsage       = 5
	ncclRemoteError        = 6
)

// Cluster is what fake NCCL libraries of several machines are joined by. It is stricter than the real one: what that might
// survive, wait for forever or answer with other bytes is a fault.
//
//   - What two members exchange in a group is exactly what one group of the other has for it, of the same sizes, and groups
//     come in one order, also those that only some members have something for.
//   - A member has a card of its own, comes once, and uses one stream; the first exchange on another stream excepted, which
//     must be over.
//   - Bytes are in one allocation of the member's card; no empty transfers.
//   - A communicator is used by one thread at a time, and not after it was aborted or destroyed; one is not destroyed twice,
//     nor while it is used; all are given back.
type Cluster struct {
	// Patience is how long a member waits for others, after which that is a fault.
	Patience time.Duration

	mu     sync.Mutex
	moved  *sync.Cond
	drawn  uint64
	handle uintptr
	rings  map[nv.UniqueID]*ring
	comms  map[uintptr]*comm
	faults []string
	moves  [3]int // transfers, gathers, communicators
}

// NewCluster returns one without machines.
func NewCluster() *Cluster {
	c := &Cluster{Patience: 20 * time.Second, handle: 1 << 20, rings: map[nv.UniqueID]*ring{}, comms: map[uintptr]*comm{}}
	c.moved = sync.NewCond(&c.mu)
	return c
}

// ring is a communicator.
type ring struct {
	members []*comm // by number; nil: not there
	cards   []card
	lost    bool // one was aborted
}

type card struct {
	gpu     *GPU
	context uintptr
}

// comm is one member's end.
type comm struct {
	ring    *ring
	rank    int
	stream  uintptr
	posted  map[int][]*batch // what a group has for another member, the oldest first
	gathers []*transfer
	over    bool
	running int
	inside  int // threads
}

// batch is what a group has for one other member.
type batch struct {
	sends, recvs []transfer
	taken        bool // by the other
}

type transfer struct {
	src, dst uintptr
	bytes    int
	done     int // members that have taken it, of a gather
}

// op is one of a group that is not ended.
type op struct {
	comm     *comm
	stream   uintptr
	peer     int // -1: a gather
	send     bool
	transfer transfer
}

// Faults returns an error that lists what was done wrong, and what was not given back.
func (c *Cluster) Faults() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, f := range c.faults {
		errs = append(errs, errors.New("NCCL: "+f))
	}
	for _, m := range c.comms {
		if !m.over {
			errs = append(errs, fmt.Errorf("NCCL: member %d was not given back", m.rank))
		}
	}
	return errors.Join(errs...)
}

// Moves returns the number of transfers, gathers and communicators.
func (c *Cluster) Moves() [3]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moves
}

func (c *Cluster) fault(format string, args ...any) int32 {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
	return ncclInvalidUsage
}

// await waits for something, as the GPU or a process does. The caller holds the lock.
func (c *Cluster) await(r *ring, what func() bool) bool {
	late := false
	timer := time.AfterFunc(c.Patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.moved.Broadcast()
	})
	defer timer.Stop()
	for !r.lost && !what() {
		if late {
			return false
		}
		c.moved.Wait()
	}
	return !r.lost // kernels that were aborted move nothing any more
}

// NCCL returns the library of a machine.
func (c *Cluster) NCCL(g *GPU) *nv.NCCL {
	groups := map[int]*[]op{} // by thread
	in := func(a []uintptr, o op) int32 {
		c.mu.Lock()
		group := groups[threadID()]
		c.mu.Unlock()
		if group != nil {
			*group = append(*group, o)
			return 0
		}
		return c.launch(g, []op{o})
	}
	call := func(f func(a []uintptr) int32) nv.Proc { return func(a ...uintptr) int32 { return f(a) } }
	return &nv.NCCL{
		GetVersion: call(func(a []uintptr) int32 { set(a[0], int32(22304)); return 0 }),
		GetUniqueID: call(func(a []uintptr) int32 {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.drawn++
			binary.LittleEndian.PutUint64(bytesAt(a[0], 128), c.drawn)
			return 0
		}),
		Init: call(func(a []uintptr) int32 { return c.init(g, a) }),
		GroupStart: call(func([]uintptr) int32 {
			c.mu.Lock()
			defer c.mu.Unlock()
			if groups[threadID()] != nil {
				return c.fault("a group within a group")
			}
			groups[threadID()] = &[]op{}
			return 0
		}),
		GroupEnd: call(func([]uintptr) int32 {
			c.mu.Lock()
			group := groups[threadID()]
			delete(groups, threadID())
			c.mu.Unlock()
			switch {
			case group == nil:
				return ncclInvalidUsage
			case len(*group) == 0:
				return 0
			}
			return c.launch(g, *group)
		}),
		Send: call(func(a []uintptr) int32 {
			m, code := c.use(a[4])
			if code != 0 {
				return code
			}
			return in(a, op{m, a[5], int(a[3]), true, transfer{src: a[0], bytes: int(a[1])}})
		}),
		Recv: call(func(a []uintptr) int32 {
			m, code := c.use(a[4])
			if code != 0 {
				return code
			}
			return in(a, op{m, a[5], int(a[3]), false, transfer{dst: a[0], bytes: int(a[1])}})
		}),
		AllGather: call(func(a []uintptr) int32 {
			m, code := c.use(a[4])
			if code != 0 {
				return code
			}
			return in(a, op{m, a[5], -1, false, transfer{src: a[0], dst: a[1], bytes: int(a[2])}})
		}),
		GetAsyncError: call(func(a []uintptr) int32 {
			m, code := c.use(a[0])
			if code != 0 {
				return code
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			set(a[1], int32(0))
			if m.ring.lost {
				set(a[1], int32(ncclRemoteError))
			}
			return 0
		}),
		Abort:   call(func(a []uintptr) int32 { return c.end(a[0], true) }),
		Destroy: call(func(a []uintptr) int32 { return c.end(a[0], false) }),
	}
}

// init joins a member; it waits for all.
func (c *Cluster) init(g *GPU, a []uintptr) int32 {
	id, size, rank := *(*nv.UniqueID)(pointer(a[4])), int(a[1]), int(a[2])
	g.mu.Lock()
	context := g.current()
	g.mu.Unlock()
	if code := g.waitIdle(); code != 0 { // memory is allocated
		return ncclUnhandledCudaError
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.rings[id]
	if r == nil {
		r = &ring{members: make([]*comm, size)}
		c.rings[id] = r
	}
	own := card{g, context}
	switch {
	case context == 0:
		return c.fault("a member without a context")
	case a[3] != 1 || id == (nv.UniqueID{}) || binary.LittleEndian.Uint64(id[:]) > c.drawn:
		return c.fault("an identity that nobody has drawn")
	case rank < 0 || rank >= size || size != len(r.members):
		return c.fault("member %d of %d", rank, size)
	case r.members[rank] != nil:
		return c.fault("member %d comes twice", rank)
	case slices.Contains(r.cards, own):
		return c.fault("two members have one card")
	}
	m := &comm{ring: r, rank: rank, posted: map[int][]*batch{}}
	r.members[rank], r.cards = m, append(r.cards, own)
	c.moved.Broadcast()
	if !c.await(r, func() bool { return !slices.Contains(r.members, nil) }) {
		return ncclRemoteError
	}
	c.handle++
	c.comms[c.handle] = m
	set(a[0], c.handle)
	c.moves[2]++
	return 0
}

// use returns the member that a handle means, if it may be used.
func (c *Cluster) use(handle uintptr) (*comm, int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.comms[handle]
	switch {
	case m == nil:
		return nil, ncclInvalidArgument
	case m.over:
		return nil, c.fault("member %d is used after its end", m.rank)
	}
	return m, 0
}

// end ends a member.
func (c *Cluster) end(handle uintptr, abort bool) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.comms[handle]
	switch {
	case m == nil || m.over:
		return c.fault("a member ends twice")
	case !abort && m.running > 0:
		return c.fault("member %d is destroyed while it is used", m.rank)
	}
	m.over = true
	m.ring.lost = m.ring.lost || abort
	c.moved.Broadcast()
	return 0
}

// launch checks a group and gives it to its stream.
func (c *Cluster) launch(g *GPU, group []op) int32 {
	m, s := group[0].comm, group[0].stream
	for _, o := range group {
		own := o.comm == m && o.stream == s
		for _, p := range []uintptr{o.transfer.src, o.transfer.dst} {
			n := o.transfer.bytes
			if p == o.transfer.dst && o.peer < 0 {
				n *= len(m.ring.members)
			}
			own = own && (p == 0 || g.memory.insideLocked(p, uintptr(n)))
		}
		if !own || o.transfer.bytes <= 0 || o.peer >= len(m.ring.members) || o.peer == m.rank {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.fault("member %d: an impossible transfer %+v", m.rank, o)
		}
	}
	c.mu.Lock()
	if m.inside > 0 || m.stream != s && m.running > 0 {
		defer c.mu.Unlock()
		return c.fault("member %d is used by two threads or streams at once", m.rank)
	}
	m.inside++
	m.stream = s
	m.running++
	c.mu.Unlock()
	code := g.push(s, func() { c.run(m, group) })
	c.mu.Lock()
	m.inside--
	c.mu.Unlock()
	return code
}

// run makes the transfers of a group, on its stream.
func (c *Cluster) run(m *comm, group []op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { m.running-- }()
	if group[0].peer < 0 {
		for i := range group {
			c.gather(m, &group[i].transfer)
		}
		return
	}
	own := map[int]*batch{}
	for _, o := range group {
		b := own[o.peer]
		if b == nil {
			b = &batch{}
			own[o.peer] = b
			m.posted[o.peer] = append(m.posted[o.peer], b)
		}
		if o.send {
			b.sends = append(b.sends, o.transfer)
		} else {
			b.recvs = append(b.recvs, o.transfer)
		}
	}
	c.moved.Broadcast()
	for peer, b := range own {
		other := m.ring.members[peer]
		next := func() *batch {
			for _, t := range other.posted[m.rank] {
				if !t.taken {
					return t
				}
			}
			return nil
		}
		if !c.await(m.ring, func() bool { return next() != nil }) {
			c.missed(m, peer)
			return
		}
		t := next()
		t.taken = true
		if len(t.sends) != len(b.recvs) || len(t.recvs) != len(b.sends) {
			c.fault("members %d and %d have groups that do not match", m.rank, peer)
			return
		}
		for i := range b.recvs {
			if t.sends[i].bytes != b.recvs[i].bytes {
				c.fault("member %d sends %d bytes to %d, which receives %d", peer, t.sends[i].bytes, m.rank, b.recvs[i].bytes)
				return
			}
			copy(bytesAt(b.recvs[i].dst, b.recvs[i].bytes), bytesAt(t.sends[i].src, b.recvs[i].bytes))
			c.moves[0]++
		}
		c.moved.Broadcast()
	}
	for peer, b := range own { // nobody may change what another has not read
		if !c.await(m.ring, func() bool { return b.taken }) {
			c.missed(m, peer)
			return
		}
		m.posted[peer] = slices.DeleteFunc(m.posted[peer], func(x *batch) bool { return x == b })
	}
}

// missed is the end of a wait. That the other was aborted is no fault.
func (c *Cluster) missed(m *comm, peer int) {
	if !m.ring.lost {
		c.fault("member %d waits for member %d in vain", m.rank, peer)
	}
}

// gather copies every member's bytes, when all have come.
func (c *Cluster) gather(m *comm, t *transfer) {
	at := len(m.gathers)
	m.gathers = append(m.gathers, t)
	c.moves[1]++
	c.moved.Broadcast()
	for i, other := range m.ring.members {
		if !c.await(m.ring, func() bool { return len(other.gathers) > at }) {
			c.missed(m, i)
			return
		}
		o := other.gathers[at]
		if o.bytes != t.bytes {
			c.fault("members %d and %d gather %d and %d bytes", m.rank, i, t.bytes, o.bytes)
			return
		}
		if dst := t.dst + uintptr(i*t.bytes); dst != o.src {
			copy(bytesAt(dst, t.bytes), bytesAt(o.src, t.bytes))
		}
		o.done++
		c.moved.Broadcast()
	}
	if !c.await(m.ring, func() bool { return t.done == len(m.ring.members) }) {
		c.missed(m, m.rank)
	}
}
