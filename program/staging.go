package program

import (
	"github.com/athanor-llm/athanor/device"
)

// What an update reads and does not live where it happens, comes there through
// buffers of one update, tier by tier, and goes back the same way:
//
//	state on   updated by   way
//	disk       host         disk > host > disk
//	host       device       host > device > host
//	disk       device       disk > host > device > host > disk
//
// The same buffers serve one chunk after the other, as far as the packing lets
// them; and since every stream has its own order, one chunk comes while another is
// updated and a third goes.

// stagingDepth is how many chunks' states are staged at once, by the tier that
// updates them. Two keep a disk and the cores busy, since a disk reads or writes;
// a link does both at once, so on the device one chunk comes, one is updated and
// one goes.
var stagingDepth = [...]int{device.DeviceTier: 3, device.HostTier: 2}

// Streams of copies between a tier and the next nearer to the device.
var (
	nearer  = [...]device.Stream{device.HostTier: device.HostToDev, device.DiskTier: device.DiskRead}
	farther = [...]device.Stream{device.HostTier: device.DevToHost, device.DiskTier: device.DiskWrite}
)

// trip is the way of a buffer to where an update needs it: the buffer itself, then
// one in each tier nearer to the device. What is only read does not go back.
type trip struct {
	stops []int
	back  bool
}

// staging is what updates read ahead.
type staging struct {
	lo     *lowering
	queues [device.HostTier + 1][]int // chunks whose state is elsewhere, by the tier that updates them
	trips  [][]trip                   // by chunk, those that have begun
}

// newStaging queues those of some chunks, in order of their updates, that have to
// come from elsewhere.
func (lo *lowering) newStaging(order []int, grads []store) *staging {
	s := &staging{lo: lo, trips: make([][]trip, len(lo.pl.Chunks))}
	for _, c := range order {
		if lo.reduced(c).len() > 0 && len(lo.distant(c, grads[c])) > 0 {
			t := lo.updatedOn(c)
			s.queues[t] = append(s.queues[t], c)
		}
	}
	return s
}

// distant lists the trips of what the update of a chunk reads from another tier,
// not begun.
func (lo *lowering) distant(c int, grad store) (list []trip) {
	h := &lo.weightBuf[c]
	seen := -1
	for _, t := range []trip{{[]int{h.m.buf}, true}, {[]int{h.master.buf}, true}, {[]int{grad.buf}, false}} {
		if b := t.stops[0]; b != seen && lo.p.Buffers[b].Tier > lo.updatedOn(c) {
			list, seen = append(list, t), b // a master may be a record of the moments' buffer
		}
	}
	return list
}

// next lists what fetches the next chunk that a tier updates.
func (s *staging) next(list *[]op, tier device.Tier, grads []store) {
	if len(s.queues[tier]) == 0 {
		return
	}
	c, p := s.queues[tier][0], s.lo.p
	s.queues[tier] = s.queues[tier][1:]
	for _, t := range s.lo.distant(c, grads[c]) {
		for from := p.Buffers[t.stops[0]].Tier; from > tier; from-- {
			far := t.stops[len(t.stops)-1]
			near := s.lo.stage(far, from-1)
			t.stops = append(t.stops, near)
			*list = append(*list, copyOp(nearer[from], updateKey(c), p.whole(near), p.whole(far)))
		}
		s.trips[c] = append(s.trips[c], t)
	}
}

// stage makes a buffer in another tier for what is in one.
func (lo *lowering) stage(buf int, tier device.Tier) int {
	b := lo.p.Buffers[buf]
	b.Name, b.Tier, b.Persistent, b.Init = "stage."+b.Name, tier, false, nil
	return lo.buffer(b)
}

// arrived is what a chunk's update works on, where it has come to.
func (s *staging) arrived(c int, grad store) (weightHome, store) {
	home := s.lo.weightBuf[c]
	for _, t := range s.trips[c] {
		for _, at := range []*store{&home.m, &home.v, &home.master, &grad} {
			if at.buf == t.stops[0] {
				at.buf = t.stops[len(t.stops)-1]
			}
		}
	}
	return home, grad
}

// back lists what returns an updated chunk.
func (s *staging) back(list *[]op, c int) {
	p := s.lo.p
	for _, t := range s.trips[c] {
		for k := len(t.stops) - 1; t.back && k > 0; k-- {
			to := t.stops[k-1]
			*list = append(*list, copyOp(farther[p.Buffers[to].Tier], updateKey(c), p.whole(to), p.whole(t.stops[k])))
		}
	}
}

// updateKey is that of what moves for the update of a chunk.
func updateKey(c int) Key { return Key{Segment: -1, Micro: -1, Chunk: c} }
