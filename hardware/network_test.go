package hardware_test

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
)

// TestNetwork: collectives by levels cost what closed forms say: a ring within a host at the rate of its links; a ring
// through all hosts at the rate of the network, which a group of all ranks has to itself and of which smaller groups have
// their share; a message to another host the same share.
func TestNetwork(t *testing.T) {
	const (
		hosts, perHost = 2, 8
		inner, inLag   = 200e9, 1e-5
		outer, outLag  = 12.5e9, 3e-5
		size           = 1 << 30
	)
	h := known(t, "a100-80")
	*h.Link(device.DeviceTier, device.DeviceTier) = hardware.Link{From: device.DeviceTier, To: device.DeviceTier, Latency: inLag, Bandwidth: inner}
	h.Join(hosts, perHost)
	h.Network.Link.Latency, h.Network.Link.Bandwidth = outLag, outer
	every := func(step, n int) (ranks []int) {
		for r := range n {
			ranks = append(ranks, r*step)
		}
		return ranks
	}
	whole := operand(0, graph.F32, 1, size/4)
	gather := func(op graph.Op, ranks []int) device.Call {
		return device.Call{Op: op, Stream: device.Collective, Args: []device.Operand{whole, operand(0, graph.F32, 1, size/4/len(ranks))}, Peers: ranks}
	}
	send := func(from, to int) device.Call {
		return device.Call{Op: graph.Send, Stream: device.Send, Args: []device.Operand{whole}, Peers: []int{to}, Rank: from}
	}
	for name, c := range map[string]struct {
		call device.Call
		want float64
	}{
		"all ranks":            {gather(graph.AllGather, every(1, 16)), 15 * (outLag + size/16/outer)},
		"all ranks, summed":    {gather(graph.AllReduce, every(1, 16)), 30 * (outLag + size/16/outer)},
		"all to all":           {device.Call{Op: graph.AllToAll, Stream: device.Collective, Args: []device.Operand{operand(0, graph.F32, 32, size/128), operand(0, graph.F32, 2, size/8)}, Peers: every(1, 16)}, 15 * (outLag + 8*8/15.*size/16/outer)},
		"one host":             {gather(graph.ReduceScatter, every(2, 8)), 7 * (inLag + size/8/inner)},
		"one of each host":     {gather(graph.AllGather, []int{0, 1}), outLag + perHost*size/2/outer},
		"two of each host":     {gather(graph.AllGather, []int{0, 1, 2, 3}), 3 * (outLag + perHost/2*size/4/outer)},
		"a message inside":     {send(3, 5), inLag + size/inner},
		"a message outside":    {send(3, 4), outLag + perHost*size/outer},
		"a message, backwards": {send(4, 3), outLag + perHost*size/outer},
	} {
		if got := h.Cost(&c.call); math.Abs(got/c.want-1) > 1e-12 {
			t.Errorf("%s: %v s, expected %v", name, got, c.want)
		}
	}
	deep := *h
	deep.Network = h.Network.Deal(1, 8) // four stages on each host, of two pipelines
	for name, c := range map[string]struct{ from, to, senders int }{"inside": {2, 3, 0}, "to the other host": {3, 4, 2}} {
		want := inLag + size/inner
		if c.senders > 0 {
			want = outLag + float64(c.senders)*size/outer
		}
		if call := send(c.from, c.to); math.Abs(deep.Cost(&call)/want-1) > 1e-12 {
			t.Errorf("a pipeline's message %s: %v s, expected %v", name, deep.Cost(&call), want)
		}
	}
	quick := h.Quicker(2, device.Send, device.Recv, device.Collective)
	if c := send(3, 4); math.Abs(quick.Cost(&c)-(outLag+perHost*size/outer/2)) > 1e-9 || h.Cost(&c) == quick.Cost(&c) {
		t.Errorf("with twice the network a message takes %v s, without %v", quick.Cost(&c), h.Cost(&c))
	}
	again, err := hardware.Parse(text(t, h))
	if err != nil || !bytes.Equal(text(t, again), text(t, h)) || again.Network == nil {
		t.Errorf("read again: %+v, %v", again, err)
	}
	h.Network.Hosts = 1
	if _, err := hardware.Parse(text(t, h)); err == nil || !strings.Contains(err.Error(), "network.hosts") {
		t.Errorf("a network of one host: %v", err)
	}
}

// TestDeal: however ranks are dealt, each host has as many, with numbers of their own; ranks that share are on as few hosts
// as hold them, if hosts hold them evenly.
func TestDeal(t *testing.T) {
	for _, hosts := range []int{1, 2, 3} {
		for perHost := 1; perHost <= 8; perHost++ {
			for sharing := 1; sharing <= hosts*perHost; sharing++ {
				n := (&hardware.Network{Hosts: hosts, PerHost: perHost}).Deal(sharing, 1)
				seen, spans := map[[2]int]bool{}, map[int]map[int]bool{}
				for r := range hosts * perHost {
					host, own := n.Place(r)
					if seen[[2]int{host, own}] || host >= hosts || own >= perHost {
						t.Fatalf("%+v: rank %d is number %d of host %d", n, r, own, host)
					}
					seen[[2]int{host, own}] = true
					if spans[r/sharing] == nil {
						spans[r/sharing] = map[int]bool{}
					}
					spans[r/sharing][host] = true
				}
				for g, on := range spans {
					if whole := (g+1)*sharing <= hosts*perHost; whole && perHost%sharing == 0 && len(on) != 1 || whole && sharing%perHost == 0 && len(on) != sharing/perHost {
						t.Fatalf("%+v: %d ranks that share, group %d, are on %d hosts", n, sharing, g, len(on))
					}
				}
			}
		}
	}
}

// TestDealPipelines: however deep pipelines are, each host has as many ranks with numbers of their own; where they have more stages
// than there are hosts, the replicas of each stage are on one host, and a pipeline crosses from host to host as rarely as it can.
func TestDealPipelines(t *testing.T) {
	for _, hosts := range []int{2, 3, 4} {
		for perHost := 1; perHost <= 8; perHost++ {
			for stages := 2; stages <= hosts*perHost; stages++ {
				if hosts*perHost%stages != 0 {
					continue
				}
				n := (&hardware.Network{Hosts: hosts, PerHost: perHost}).Deal(1, stages)
				seen, homes, crossed := map[[2]int]bool{}, map[int]map[int]bool{}, 0
				for r := range hosts * perHost {
					host, own := n.Place(r)
					if seen[[2]int{host, own}] || host >= hosts || own >= perHost {
						t.Fatalf("%+v: rank %d is number %d of host %d", n, r, own, host)
					}
					seen[[2]int{host, own}] = true
					if homes[r%stages] == nil {
						homes[r%stages] = map[int]bool{}
					}
					homes[r%stages][host] = true
					if r%stages > 0 && n.Host(r-1) != host {
						crossed++
					}
				}
				if stages%hosts != 0 {
					continue
				}
				for s, on := range homes {
					if len(on) != 1 {
						t.Errorf("%+v: stage %d of %d is on %d hosts", n, s, stages, len(on))
					}
				}
				if replicas := hosts * perHost / stages; crossed != replicas*(hosts-1) {
					t.Errorf("%+v: %d pipelines of %d stages cross %d times", n, replicas, stages, crossed)
				}
			}
		}
	}
}

// TestUnevenHosts: of hosts with different numbers of ranks each gets its own, in turn; collectives and messages wait for the host
// whose network most of them cross at once, by closed forms.
func TestUnevenHosts(t *testing.T) {
	h := known(t, "a100-80")
	h.Join(2, 4)
	h.Network.Counts = []int{4, 2}
	*h.Link(device.DeviceTier, device.DeviceTier) = hardware.Link{From: device.DeviceTier, To: device.DeviceTier, Bandwidth: 200e9}
	h.Network.Link.Latency, h.Network.Link.Bandwidth = 0, 1e9
	var on []int
	for r := range 6 {
		on = append(on, h.Network.Host(r))
	}
	if want := []int{0, 1, 0, 1, 0, 0}; !slices.Equal(on, want) {
		t.Fatalf("ranks are on the hosts %v, not %v", on, want)
	}
	if pairs := h.Network.Deal(2, 1); pairs.Host(0) != pairs.Host(1) || pairs.Host(2) != pairs.Host(3) || pairs.Host(4) != pairs.Host(5) {
		t.Error("ranks that share are on different hosts")
	}
	deep := h.Network.Deal(1, 6)
	for r := range 6 {
		if want := r / 4; deep.Host(r) != want {
			t.Errorf("stage %d of a pipeline of all ranks is on host %d, not %d", r, deep.Host(r), want)
		}
	}
	const size = 6 << 20
	whole := operand(0, graph.F32, 1, size/4)
	call := func(op graph.Op, ranks ...int) device.Call {
		return device.Call{Op: op, Stream: device.Collective, Args: []device.Operand{whole, operand(0, graph.F32, 1, size/4/len(ranks))}, Peers: ranks, Rank: ranks[0]}
	}
	for _, c := range []struct {
		call device.Call
		want float64
	}{
		{call(graph.AllGather, 0, 1, 2, 3, 4, 5), 5 * size / 6 / 1e9},
		{call(graph.AllGather, 0, 1), 4 * size / 2 / 1e9}, // three more ranks of the first host may be in such pairs
		{call(graph.AllGather, 0, 2, 4, 5), 3 * size / 4 / 200e9},
		{device.Call{Op: graph.Send, Stream: device.Send, Args: []device.Operand{whole}, Peers: []int{1}}, 2 * size / 1e9}, // no more have a peer there
	} {
		if got := h.Cost(&c.call); math.Abs(got/c.want-1) > 1e-12 {
			t.Errorf("%v among %v: %v s, expected %v", c.call.Op, c.call.Peers, got, c.want)
		}
	}
	again, err := hardware.Parse(text(t, h))
	if err != nil || !slices.Equal(again.Network.Counts, []int{4, 2}) {
		t.Fatalf("read again: %+v, %v", again, err)
	}
	h.Network.Counts = []int{4, 3, 1}
	if _, err := hardware.Parse(text(t, h)); err == nil || !strings.Contains(err.Error(), "network.counts") {
		t.Errorf("three hosts of two: %v", err)
	}
}
