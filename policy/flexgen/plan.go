package flexgen

import (
	"cmp"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/plan"
)

// MachineOf describes a machine with the rates of its parts, where no constants were fitted to runs: of copies, of products of 64 rows, and of attention,
// which makes a FLOP of each byte of a cache.
func MachineOf(h *hardware.Hardware) *Machine {
	rate := func(from, to device.Tier) float64 {
		if l := h.Link(from, to); l != nil {
			return l.Bandwidth
		}
		return 1
	}
	out, in := rate(device.DeviceTier, device.HostTier), rate(device.HostTier, device.DiskTier)
	m := &Machine{ToDevice: rate(device.HostTier, device.DeviceTier), CachesToHost: out, HiddenToHost: out, FromDisk: rate(device.DiskTier, device.HostTier), PromptToDisk: in, TokenToDisk: in,
		Memory: [3]float64{float64(h.Memory.Device), float64(h.Memory.Host), float64(h.Memory.Disk)}, Usable: 0.8, HostAttention: 1}
	if e := h.Engine(device.Compute); e != nil {
		peak := cmp.Or(e.Peak.BF16, e.Peak.F32)
		m.PromptProducts, m.PromptAttention = peak*e.Matmul, peak*e.Attention
		m.TokenProducts, m.TokenAttention = min(m.PromptProducts, 64*e.Bandwidth), e.Bandwidth
	}
	if e := h.Engine(device.HostCompute); e != nil {
		m.HostAttention = e.Bandwidth
	}
	return m
}

// Plan is the policy as a plan of a step, whose graph is of a batch. Tensors of a segment, and batches, are on the disk, the host or the device, in this order, by
// where the middle of each is. The host attends to caches that are not on the device.
func (p *Policy) Plan(g *graph.Graph) *plan.Plan {
	pl := plan.InBatches(g, p.Batches, 1)
	pl.Group, pl.Prefetch, pl.Chunks = p.Batches, p.Batches, plan.Layout(g, 1)
	for i := range pl.Batches {
		b, middle := &pl.Batches[i], (float64(i)+0.5)/float64(p.Batches)
		b.Cache, b.Hidden = tierAt(p.Caches, middle), min(device.HostTier, tierAt(p.Hidden, middle))
		if b.Cache > device.DeviceTier {
			b.Attend = plan.AttendOnHost
		}
	}
	for s := range g.Segments {
		var all, before int64
		for _, i := range g.Segments[s].Params {
			all += g.Stored(i).Bytes()
		}
		for c := range pl.Chunks {
			ch := &pl.Chunks[c]
			var bytes int64
			for _, i := range g.Segments[s].Params {
				if i >= ch.First && i < ch.Last {
					bytes += g.Stored(i).Bytes()
				}
			}
			if bytes > 0 {
				ch.Weights, ch.State = tierAt(p.Weights, (float64(before)+float64(bytes)/2)/float64(all)), device.HostTier
				before += bytes
			}
		}
	}
	pl.Cache = 2 * pl.CacheNeeded(g)
	return pl
}

// tierAt returns the tier that a place between 0 and 1 belongs to.
func tierAt(fractions [3]float64, at float64) device.Tier {
	switch {
	case at < fractions[2]:
		return device.DiskTier
	case at < fractions[2]+fractions[1]:
		return device.HostTier
	}
	return device.DeviceTier
}
