package hardware

import (
	"strconv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Ranks on several hosts: two levels of links.
//
// Approach: the link between two ranks of a host is Link(device, device), that between two hosts is Network, and a
// host's ranks share what it has of the latter. They are assumed to do alike, as ranks of one step do: while one sends a
// message to another host, its neighbours do too. A collective is a ring that visits one host after the other, so that
// each host's network is crossed once in each direction; its rounds take as long as the slower level. Of n ranks, m on
// each host, of P that each host has, a shard s goes on in
//
//	round = max(peers.latency + s/peers.rate, network.latency + s (P/m)/network.rate)
//
// where the first counts if m > 1 and the second if the ranks are on several hosts: P/m groups cross a host's network at
// once. An all-gather or a reduce-scatter takes n-1 rounds, an all-reduce 2(n-1) (Patarasuk and Yuan, JPDC 69(2), 2009).
//
// Example: 16 ranks on 2 hosts, 400 Gbit/s between them, gather 26 GB: 15 rounds of 26/16 GB at 50 GB/s, 0.49 s; at the
// 225 GB/s inside a host they would take 0.11 s.
//
// Known weakness: hosts are alike, with the same number of ranks each.

// Network joins the hosts that the ranks of a run are on.
type Network struct {
	// Hosts are dealt the ranks in turn. In a grid of stages and replicas that separates stages, whose messages are small
	// compared with sums of gradients.
	Hosts   int `json:"hosts"`
	PerHost int `json:"per_host"` // ranks
	// Row is the number of consecutive ranks that are dealt to a host at a time; 0: one.
	Row int `json:"row,omitempty"`
	// Link from one host to another, whole, of device memory. What one host sends does not slow down what it receives.
	Link Link `json:"link"`
}

// MostHosts bounds the number of hosts of a description.
const MostHosts = 1024

// usualNetwork is what joins hosts of GPUs unless something else is said: an Ethernet or InfiniBand port of 400 Gbit/s to
// each host, which is what clouds offer with eight GPUs (of their own, DGX hosts have eight ports).
var usualNetwork = Link{From: device.DeviceTier, To: device.DeviceTier, Latency: 2e-5, Bandwidth: 50e9}

// Join says that a run's ranks are on so many hosts, which the usual network joins, so many on each.
func (h *Hardware) Join(hosts, perHost int) {
	h.Network = &Network{Hosts: hosts, PerHost: perHost, Link: usualNetwork}
	if l := h.Link(device.DeviceTier, device.DeviceTier); h.Memory.Unified && l != nil { // there is no other way to another GPU
		h.Network.Link.Bandwidth = l.Bandwidth
	}
}

// Host returns the host of a rank, counted from 0. Without a network there is one host.
func (n *Network) Host(rank int) int {
	if n == nil {
		return 0
	}
	host, _ := n.Place(rank)
	return host
}

// Place returns the host of a rank, and its number there.
func (n *Network) Place(rank int) (host, own int) {
	row := max(n.Row, 1)
	return rank / row % n.Hosts, rank/(row*n.Hosts)*row + rank%row
}

// Deal says of which ranks, so many consecutive ones, a host has as many as it can: those that share each sequence or each
// matrix, and so send each other what every layer computes.
func (n *Network) Deal(sharing int) *Network {
	if n == nil {
		return nil
	}
	own := *n
	for own.Row = min(sharing, n.PerHost); sharing%own.Row != 0 || n.PerHost%own.Row != 0; own.Row-- {
	}
	return &own
}

// spread returns the number of hosts that a call between ranks is on, and the most of its ranks that share one.
func (n *Network) spread(c *device.Call) (hosts, together int) {
	if n == nil {
		return 1, len(c.Peers)
	}
	if device.IsMessage(c.Op) {
		if n.Host(c.Rank) != n.Host(c.Peers[0]) {
			return 2, 1
		}
		return 1, 2
	}
	var buf [16]int
	counts := append(buf[:0], make([]int, n.Hosts)...)
	for _, r := range c.Peers {
		k := n.Host(r)
		if counts[k]++; counts[k] == 1 {
			hosts++
		}
		together = max(together, counts[k])
	}
	return hosts, together
}

// appendSpread appends to a key on how many hosts a call between ranks is, if on several.
func (n *Network) appendSpread(b []byte, c *device.Call) []byte {
	if hosts, _ := n.spread(c); hosts > 1 {
		b = append(b, " hosts "...)
		b = strconv.AppendInt(b, int64(hosts), 10)
	}
	return b
}

// exchangeSeconds returns the price in seconds of a message, or of a collective by the ring algorithm; +Inf where there
// is no link. All ranks send at once, so links are the only limit.
func (h *Hardware) exchangeSeconds(c *device.Call) float64 {
	if len(c.Peers) == 1 && !device.IsMessage(c.Op) {
		return 0 // a group of one sends nothing
	}
	var bytes int64
	for _, a := range c.Args {
		if !a.Absent() {
			bytes = max(bytes, a.Bytes())
		}
	}
	hosts, together := h.Network.spread(c)
	if device.IsMessage(c.Op) {
		if hosts > 1 {
			return h.Network.Link.Seconds(bytes * int64(h.Network.PerHost))
		}
		return h.Link(device.DeviceTier, device.DeviceTier).Seconds(bytes)
	}
	var round float64
	n := float64(len(c.Peers))
	if together > 1 {
		round = h.Link(device.DeviceTier, device.DeviceTier).round(float64(bytes) / n)
	}
	if hosts > 1 {
		round = max(round, h.Network.Link.round(float64(bytes)/n*float64(h.Network.PerHost)/float64(together)))
	}
	rounds := n - 1
	if c.Op == graph.AllReduce {
		rounds *= 2
	}
	return rounds * round
}
