package lower

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// Data that an update reads but that lives in another tier is staged through buffers
// that last for one update, tier by tier, and is written back the same way:
//
//	state on   updated by   path
//	disk       host         disk > host > disk
//	host       device       host > device > host
//	disk       device       disk > host > device > host > disk
//
// Successive chunks reuse the same memory where the packing allows it. Every stream has
// its own order, so one chunk is fetched while another is updated and a third is
// written back.

// stagingDepth is the number of chunks whose state is staged at once, by the tier that
// updates them. Two suffice for a disk and the cores, since a disk either reads or
// writes. A link carries both directions at once, so on the device one chunk arrives,
// one is updated and one leaves.
var stagingDepth = [...]int{device.DeviceTier: 3, device.HostTier: 2}

// Copy streams between a tier and the next one nearer to the device.
var (
	nearer  = [...]device.Stream{device.HostTier: device.HostToDev, device.DiskTier: device.DiskRead}
	farther = [...]device.Stream{device.HostTier: device.DevToHost, device.DiskTier: device.DiskWrite}
)

// trip is the path of a buffer to its update: the buffer itself, then one in each tier
// nearer to the device. Read-only data is not written back.
type trip struct {
	stops []int
	back  bool
}

// staging holds what updates prefetch.
type staging struct {
	up     *updater
	queues [device.HostTier + 1][]int // chunks whose state is elsewhere, by the tier that updates them
	trips  [][]trip                   // trips that have started, by chunk
}

// newStaging queues the chunks of order, in the order of their updates, that have data
// in another tier.
func newStaging(up *updater, order []int) *staging {
	st := up.st
	s := &staging{up: up, trips: make([][]trip, len(st.pl.Chunks))}
	for _, c := range order {
		if st.reduced(c).len() > 0 && len(up.distant(c)) > 0 {
			t := st.updatedOn(c)
			s.queues[t] = append(s.queues[t], c)
		}
	}
	return s
}

// distant lists the trips, not yet started, of what a chunk's update reads from other
// tiers.
func (up *updater) distant(c int) (list []trip) {
	h := &up.weights[c]
	seen := -1
	for _, t := range []trip{{[]int{h.moments[0].buf}, true}, {[]int{h.small[0].buf}, true}, {[]int{h.master.buf}, true}, {[]int{h.rest.buf}, true}, {[]int{up.grads[c].buf}, false}} {
		if b := t.stops[0]; b >= 0 && b != seen && up.b.p.Buffers[b].Tier > up.st.updatedOn(c) {
			list, seen = append(list, t), b // a master may be a record of the moments' buffer
		}
	}
	return list
}

// next lists the copies that fetch the next chunk that a tier updates.
func (s *staging) next(list *[]*op, tier device.Tier) {
	if len(s.queues[tier]) == 0 {
		return
	}
	c, p := s.queues[tier][0], s.up.b.p
	s.queues[tier] = s.queues[tier][1:]
	for _, t := range s.up.distant(c) {
		for from := p.Buffers[t.stops[0]].Tier; from > tier; from-- {
			far := t.stops[len(t.stops)-1]
			near := s.up.b.stageBuffer(far, from-1)
			t.stops = append(t.stops, near)
			*list = append(*list, copyOp(nearer[from], updateKey(c), p.BufferRegion(near), p.BufferRegion(far)))
		}
		s.trips[c] = append(s.trips[c], t)
	}
}

// arrived returns where a chunk's update finds its data.
func (s *staging) arrived(c int) (weightHome, store) {
	home, grad := s.up.weights[c], s.up.grads[c]
	for _, t := range s.trips[c] {
		arrive := func(at *store) {
			if at.buf == t.stops[0] {
				at.buf = t.stops[len(t.stops)-1]
			}
		}
		for k := range s.up.st.pl.Rule(s.up.st.g, c).Moments {
			arrive(&home.moments[k])
			arrive(&home.small[k])
		}
		arrive(&home.master)
		arrive(&home.rest)
		arrive(&grad)
	}
	return home, grad
}

// writeBack lists the copies that write back an updated chunk.
func (s *staging) writeBack(list *[]*op, c int) {
	p := s.up.b.p
	for _, t := range s.trips[c] {
		for k := len(t.stops) - 1; t.back && k > 0; k-- {
			to := t.stops[k-1]
			*list = append(*list, copyOp(farther[p.Buffers[to].Tier], updateKey(c), p.BufferRegion(to), p.BufferRegion(t.stops[k])))
		}
	}
}

// updateKey is the key of copies for a chunk's update.
func updateKey(c int) program.Key { return program.Key{Segment: -1, Micro: -1, Chunk: c} }
