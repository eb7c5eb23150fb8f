package search

import (
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
)

// What is enumerated: residencies, micro-batches, groups of micro-batches, and how roomy the small decisions
// are.

// residency says where the three kinds of parameter memory live.
type residency struct {
	label                 string
	weights, grads, state device.Tier
	shard                 string // of several ranks, see plan.Shardings
}

var residencies = []residency{
	{"everything on the device", device.DeviceTier, device.DeviceTier, device.DeviceTier, ""},
	{"optimizer on the host", device.DeviceTier, device.DeviceTier, device.HostTier, ""},
	{"optimizer and gradients on the host", device.DeviceTier, device.HostTier, device.HostTier, ""},
	{"weights and optimizer on the host", device.HostTier, device.DeviceTier, device.HostTier, ""},
	{"all parameters on the host", device.HostTier, device.HostTier, device.HostTier, ""},
	{"optimizer on disk", device.DeviceTier, device.DeviceTier, device.DiskTier, ""},
	{"gradients on the host, optimizer on disk", device.DeviceTier, device.HostTier, device.DiskTier, ""},
	{"all parameters on the host, optimizer on disk", device.HostTier, device.HostTier, device.DiskTier, ""},
}

// residenciesOf lists the residencies of groups of ranks that share parameters: each first with nothing divided
// among the ranks, then with more and more.
func residenciesOf(group int) []residency {
	if group == 1 {
		return residencies
	}
	var list []residency
	for _, r := range residencies {
		for _, shard := range plan.Shardings() {
			switch {
			case r.weights == device.HostTier && (shard == "state" || shard == "grads"):
				continue // what is gathered goes through the device
			case r.state != device.DeviceTier && shard == "":
				continue // every rank's host would do all of the work
			}
			if shard != "" {
				list = append(list, residency{fmt.Sprintf("%s, %s sharded", r.label, shard), r.weights, r.grads, r.state, shard})
				continue
			}
			list = append(list, r)
		}
	}
	return list
}

// farther reports whether a placement has the same sharding as another and nothing nearer than it.
func (r residency) farther(than residency) bool {
	return r.shard == than.shard && r.weights >= than.weights && r.grads >= than.grads && r.state >= than.state
}

// pipelined reports whether the user has made decisions that only pipelines have.
func (p *Pins) pipelined() bool {
	return p.Pipeline > 1 || p.Schedule != "" || p.Slices > 1 || len(p.Stages) > 0
}

func (p *Pins) allow(r residency) bool {
	ok := func(pin *device.Tier, t device.Tier) bool { return pin == nil || *pin == t }
	return ok(p.Weights, r.weights) && ok(p.Grads, r.grads) && ok(p.State, r.state)
}

// microBatches lists divisors of the batch, largest first, of at most 1<<16 tokens unless the smallest that the
// order of sums permits is longer. If there are many, those that differ little are left out.
func (s *search) microBatches() []int {
	if b := s.req.Pins.MicroBatch; b > 0 {
		return []int{b}
	}
	var all []int
	for b := 1; b <= s.batch && (len(all) == 0 || b*s.graph.Seq <= 1<<16); b++ {
		if s.batch%b == 0 && s.graph.Takes(b*s.graph.Seq, s.batch*s.graph.Seq) {
			all = append(all, b)
		}
	}
	slices.Reverse(all)
	const many, apart = 6, 1.5
	if len(all) <= many {
		return all
	}
	list := all[:1:1]
	for i, b := range all[1:] {
		if float64(list[len(list)-1]) >= apart*float64(b) || i == len(all)-2 {
			list = append(list, b)
		}
	}
	return list
}

// groups lists how many micro-batches may go through a layer before they go on to the next: one or all.
func (s *search) groups(b int) []int {
	n := s.batch / b
	if g := s.req.Pins.Group; g > 0 {
		return []int{min(g, n)}
	}
	if n == 1 {
		return []int{1}
	}
	return []int{1, n}
}

// style is how roomy the small decisions are.
type style struct {
	headRows int
	chunk    int64 // elements
	spare    int64 // cache beyond what one unit needs, in layers
	prefetch int
}

// styles lists styles from roomy to frugal.
func (s *search) styles(b int, r residency) []style {
	rows := b * s.graph.Seq
	head := s.req.Head(rows, s.m.Capacity[device.DeviceTier])
	const blocks = 1024 // per micro-batch, at most: a million tokens would otherwise make a long program
	frugal := head
	for frugal > max(32, rows/blocks) && s.req.shrink(frugal) < frugal {
		frugal = s.req.shrink(frugal)
	}
	list := []style{{head, 1 << 62, 1, 1}, {frugal, 1 << 62, 0, 1}, {frugal, 1, 0, 1}}
	if r.weights == device.HostTier {
		list = append([]style{{head, 1 << 62, 3, 2}}, list...)
	}
	if h := s.req.Pins.HeadRows; h > 0 {
		for i := range list {
			list[i].headRows = h
		}
	}
	if s.frugal {
		list = list[len(list)-1:]
	}
	return list
}

// layerBytes is the size of one layer's weights.
func (s *search) layerBytes() (sum int64) {
	for i, p := range s.graph.Params {
		if p.Layer == 0 {
			sum += s.graph.Stored(i).Bytes()
		}
	}
	return sum
}
