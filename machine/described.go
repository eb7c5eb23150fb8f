package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// Describe returns the machine that is to be planned for: the one that
// hardware.name describes, which may be elsewhere, or this one.
func Describe(r *Request, note func(string)) (*Machine, error) {
	if r.Hardware.Name == "" {
		return Find(r, note)
	}
	h, err := lookup(r)
	if err == nil && r.Ranks > 1 && h.Link(device.DeviceTier, device.DeviceTier) == nil {
		err = fmt.Errorf("%s describes no link between ranks, but the run has %d ranks; hint: use a file written by `athanor probe --ranks %d --out FILE`", r.Hardware.Name, r.Ranks, r.Ranks)
	}
	if err != nil {
		return nil, r.Fault("hardware.name", err.Error())
	}
	if rate := r.Hardware.Network; rate > 0 && h.Network == nil {
		return nil, r.Fault("hardware.network", fmt.Sprintf("there is none: all ranks, %d, are on one host; hint: hardware.hosts says on how many they are", r.Ranks))
	} else if rate > 0 {
		own := *h.Network
		own.Link.Bandwidth, own.Link.Curve = float64(rate), nil
		h.Network = &own
	}
	for link, rate := range map[[2]device.Tier]config.Rate{
		{device.HostTier, device.DeviceTier}:   r.Hardware.H2D,
		{device.DeviceTier, device.HostTier}:   r.Hardware.D2H,
		{device.DeviceTier, device.DeviceTier}: r.Hardware.Peers,
	} {
		if rate > 0 {
			h.Throttle(link[0], link[1], float64(rate))
		}
	}
	m := &Machine{Hardware: h, described: true, ranks: r.Ranks, endurance: r.Limits.DiskEndurance}
	if err := m.limit(r); err != nil {
		return nil, err
	}
	return m.Deal(r.Sharing, 1), nil
}

// equip raises one rank's host memory and disk on a known machine to the request's limits where those are
// more: the name is only that of a card, and what surrounds it is for its owner to say.
func equip(h *hardware.Hardware, r *Request, hosts int) {
	n := int64(r.Ranks)
	if !h.Memory.Unified { // else it is the card's
		h.Memory.Host = max(h.Memory.Host, int64(r.Limits.Host)/n)
	}
	h.Memory.Disk = max(h.Memory.Disk, int64(r.Limits.Disk)/n)
	h.Memory.WholeDisk = max(h.Memory.WholeDisk, int64(r.Limits.Disk)/int64(hosts))
}

// hostsOf returns the number of hosts that ranks of known cards are on: as few as hold equally many each,
// hardware.PerHost at most.
func hostsOf(ranks int) int {
	n := (ranks + hardware.PerHost - 1) / hardware.PerHost
	for ranks%n != 0 {
		n++
	}
	return n
}

// countsOf returns how many ranks each of so many hosts has: equally many unless the request says otherwise.
func countsOf(r *Request, hosts int) []int {
	if len(r.Hardware.PerHost) > 1 {
		return r.Hardware.PerHost
	}
	return slices.Repeat([]int{r.Ranks / hosts}, hosts)
}

// join joins hosts with so many ranks each by the usual network.
func join(h *hardware.Hardware, counts []int) {
	h.Join(len(counts), slices.Max(counts))
	h.Network.Counts = gridOf(counts).Counts
}

// OnGPU reports whether a request is for GPUs, here or described.
func OnGPU(r *Request) bool {
	if r.Hardware.Name == "" {
		return device.IsGPU(r.Device)
	}
	one := *r
	one.Ranks, one.Hardware.Hosts, one.Hardware.PerHost = 1, 0, nil
	h, err := lookup(&one)
	return err == nil && (!h.Memory.Shared || h.Memory.Unified)
}

// maxHardware bounds the bytes of a machine's description.
const maxHardware = 64 << 20

// lookup looks up the described machine by known name, then by file, and returns one
// rank's share.
func lookup(r *Request) (*hardware.Hardware, error) {
	name, counts := r.Hardware.Name, countsOf(r, cmp.Or(r.Hardware.Hosts, hostsOf(r.Ranks)))
	h, unknown := hardware.KnownRank(name, slices.Max(counts))
	if unknown == nil {
		equip(h, r, len(counts))
		if len(counts) > 1 {
			join(h, counts)
		}
		return h, nil
	}
	text, err := bounded.ReadFile(name, maxHardware)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(name, "./\\"):
		return nil, unknown
	case err != nil:
		return nil, fmt.Errorf("%w; hint: use one of %s, or a file written by `athanor probe --out`", err, strings.Join(hardware.Names(), ", "))
	}
	if h, err = hardware.Parse(text); err != nil {
		return nil, suggest.Add(fmt.Errorf("%s: %w", name, err), "use a file written by `athanor probe --out`")
	}
	return shareHosts(h, r)
}

// shareHosts returns one rank's share of a machine that a file describes: one host, of which there are as many as the
// request says, or all hosts of a run.
func shareHosts(h *hardware.Hardware, r *Request) (*hardware.Hardware, error) {
	if h.Network == nil {
		counts := countsOf(r, max(r.Hardware.Hosts, 1))
		h = h.Share(slices.Max(counts))
		if len(counts) > 1 {
			join(h, counts)
		}
		return h, nil
	}
	n := h.Network.Hosts
	if asked := cmp.Or(r.Hardware.Hosts, n); asked != n || r.Ranks%n != 0 {
		return nil, fmt.Errorf("%s describes %d hosts together, but the run has %d ranks on %d; hint: leave hardware.hosts out, and make ranks a multiple of %d", r.Hardware.Name, n, r.Ranks, asked, n)
	}
	h = h.Share(r.Ranks)
	h.Network = &hardware.Network{Hosts: n, PerHost: r.Ranks / n, Link: h.Network.Link}
	return h, nil
}
