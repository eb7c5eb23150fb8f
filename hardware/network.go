package hardware

import (
	"cmp"
	"slices"
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
// once. Where hosts have different numbers of ranks, that whose network is crossed by most groups counts. An all-gather or a reduce-scatter takes n-1 rounds, an all-reduce 2(n-1) (Patarasuk and Yuan, JPDC 69(2), 2009).
//
// Example: 16 ranks on 2 hosts, 400 Gbit/s between them, gather 26 GB: 15 rounds of 26/16 GB at 50 GB/s, 0.49 s; at the
// 225 GB/s inside a host they would take 0.11 s.
//
// Known weakness: hosts differ in the number of their ranks only, not in what these are.

// Network joins the hosts that the ranks of a run are on.
type Network struct {
	// Hosts are dealt the ranks in turn. In a grid of stages and replicas that separates stages, whose messages are small
	// compared with sums of gradients.
	Hosts   int `json:"hosts"`
	PerHost int `json:"per_host"` // ranks; the most of any host
	// Counts are the numbers of ranks of the hosts; nil: PerHost each.
	Counts []int `json:"counts,omitempty"`
	// Row is the number of consecutive ranks that are dealt to a host at a time; 0: one.
	Row int `json:"row,omitempty"`
	// Senders is the number of a host's ranks that send messages to other hosts; 0: all of them do.
	Senders int `json:"senders,omitempty"`
	// Link from one host to another, whole, of device memory. What one host sends does not slow down what it receives.
	Link Link `json:"link"`
	// Duty is the part of its time in which a call between hosts keeps a core of each busy (see Duty).
	Duty float64 `json:"duty,omitempty"`
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
	if n.Counts == nil {
		return rank / row % n.Hosts, rank/(row*n.Hosts)*row + rank%row
	}
	var buf [16]int
	for have := append(buf[:0], make([]int, n.Hosts)...); ; host = (host + 1) % n.Hosts {
		k := min(row, n.Counts[host]-have[host])
		if rank < k {
			return host, have[host] + rank
		}
		rank -= k
		have[host] += k
	}
}

// Ranks returns the number of ranks of all hosts.
func (n *Network) Ranks() (all int) {
	for host := range n.Hosts {
		all += n.RanksOn(host)
	}
	return all
}

// RanksOn returns the number of a host's ranks.
func (n *Network) RanksOn(host int) int {
	if n.Counts == nil {
		return n.PerHost
	}
	return n.Counts[host]
}

// divides reports whether each host has a multiple of so many ranks.
func (n *Network) divides(row int) bool {
	return n.PerHost%row == 0 && !slices.ContainsFunc(n.Counts, func(k int) bool { return k%row != 0 })
}

// Deal says of which ranks, so many consecutive ones, a host has as many as it can: those that share each sequence or each
// matrix, and so send each other what every layer computes. Where none share, those are neighbours of a pipeline of more stages
// than there are hosts: of each replica a host has the same stages, of which only the last sends to another host.
func (n *Network) Deal(sharing, stages int) *Network {
	if n == nil {
		return nil
	}
	own := *n
	own.Senders = 0
	switch {
	case sharing == 1 && stages > n.Hosts && stages == n.Ranks():
		own.Row, own.Senders = n.PerHost, 1
		return &own
	case sharing == 1 && stages > n.Hosts && stages%n.Hosts == 0 && n.Counts == nil:
		own.Row = stages / n.Hosts
		own.Senders = n.PerHost / own.Row
		return &own
	}
	for own.Row = min(sharing, n.PerHost); sharing%own.Row != 0 || !n.divides(own.Row); own.Row-- {
	}
	return &own
}

// spread returns the number of hosts that a call between ranks is on, the most of its ranks that share one, and how many such
// calls there are at once for each that crosses the network of a host.
func (n *Network) spread(c *device.Call) (hosts, together int, calls float64) {
	if n == nil {
		return 1, len(c.Peers), 1
	}
	if device.IsMessage(c.Op) {
		from, to := n.Host(c.Rank), n.Host(c.Peers[0])
		if from == to {
			return 1, 2, 1
		}
		return 2, 1, float64(min(n.RanksOn(from), n.RanksOn(to), cmp.Or(n.Senders, n.PerHost)))
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
	for host, k := range counts {
		if k > 0 {
			calls = max(calls, float64(n.RanksOn(host))/float64(k))
		}
	}
	return hosts, together, calls
}

// appendSpread appends to a key on how many hosts a call between ranks is, if on several.
func (n *Network) appendSpread(b []byte, c *device.Call) []byte {
	if hosts, _, _ := n.spread(c); hosts > 1 {
		b = append(b, " hosts "...)
		b = strconv.AppendInt(b, int64(hosts), 10)
	}
	return b
}

// exchangeSeconds returns the price in seconds of a message, or of a collective by the ring algorithm, or for all_to_all of as many rounds in
// which each sends to another; +Inf where there is no link. All ranks send at once, so links are the only limit.
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
	hosts, together, calls := h.Network.spread(c)
	if device.IsMessage(c.Op) {
		if hosts > 1 {
			return h.Network.Link.Seconds(bytes * int64(calls))
		}
		return h.Link(device.DeviceTier, device.DeviceTier).Seconds(bytes)
	}
	var round float64
	n := float64(len(c.Peers))
	if together > 1 {
		round = h.Link(device.DeviceTier, device.DeviceTier).round(float64(bytes) / n)
	}
	if c.Op == graph.AllToAll && hosts > 1 { // of a host's members each sends to each of the others
		k := float64(together)
		calls *= k * (n - k) / (n - 1)
	}
	if hosts > 1 {
		round = max(round, h.Network.Link.round(float64(bytes)/n*calls))
	}
	rounds := n - 1
	if c.Op == graph.AllReduce {
		rounds *= 2
	}
	return rounds * round
}
