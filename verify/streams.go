package verify

import (
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
)

// streamTiers gives the tiers written and read by a stream's operands.
var streamTiers = [device.NumStreams]struct {
	write, read device.Tier
	only        []graph.Op // nil: all that run on one rank
}{
	device.Compute:     {device.DeviceTier, device.DeviceTier, nil},
	device.HostToDev:   {device.DeviceTier, device.HostTier, copies},
	device.DevToHost:   {device.HostTier, device.DeviceTier, copies},
	device.DiskRead:    {device.HostTier, device.DiskTier, copies},
	device.DiskWrite:   {device.DiskTier, device.HostTier, copies},
	device.HostCompute: {device.HostTier, device.HostTier, onHost},
	device.Collective:  {device.DeviceTier, device.DeviceTier, []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce, graph.AllToAll}},
	device.Send:        {device.DeviceTier, device.DeviceTier, []graph.Op{graph.Send}},
	device.Recv:        {device.DeviceTier, device.DeviceTier, []graph.Op{graph.Recv}},
}

var copies = []graph.Op{graph.Copy}

// onHost lists the optimizer's operators, and those that look up rows, which compute the same on the host's cores
// as on the device, except for NormPart's order of fp64 summation. Matrix products are
// excluded: their bits differ there. So do those of attention over a cache if the device is a GPU; the
// search leaves it to the host only where the device has the same kernel.
var onHost = func() []graph.Op {
	list := []graph.Op{graph.NormPart, graph.NormAll, graph.AttentionAt, graph.Embed, graph.EmbedAt}
	for o := range optimizer.NumOptimizers {
		if o.Rule().Elementwise {
			list = append(list, o.Rule().Op)
		}
	}
	return append(list, graph.Cast, graph.Add, graph.Copy)
}()
