package machine

import (
	"errors"
	"fmt"
	"io/fs"
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
	return m, m.limit(r)
}

// equip raises one rank's host memory and disk on a known machine to the request's limits where those are
// more: the name is only that of a card, and what surrounds it is for its owner to say.
func equip(h *hardware.Hardware, r *Request) {
	n := int64(r.Ranks)
	h.Memory.Host = max(h.Memory.Host, int64(r.Limits.Host)/n)
	h.Memory.Disk = max(h.Memory.Disk, int64(r.Limits.Disk)/n)
	h.Memory.WholeDisk = max(h.Memory.WholeDisk, int64(r.Limits.Disk)/hosts(r.Ranks))
}

// hosts returns the number of hosts that so many ranks of a known machine are on.
func hosts(ranks int) int64 { return int64((ranks + hardware.PerHost - 1) / hardware.PerHost) }

// OnGPU reports whether a request is for GPUs, here or described.
func OnGPU(r *Request) bool {
	if r.Hardware.Name == "" {
		return device.IsGPU(r.Device)
	}
	one := *r
	one.Ranks = 1
	h, err := lookup(&one)
	return err == nil && !h.Memory.Shared
}

// maxHardware bounds the bytes of a machine's description.
const maxHardware = 64 << 20

// lookup looks up the described machine by known name, then by file, and returns one
// rank's share.
func lookup(r *Request) (*hardware.Hardware, error) {
	name := r.Hardware.Name
	h, unknown := hardware.KnownRank(name, r.Ranks)
	if unknown == nil {
		equip(h, r)
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
	return h.Share(r.Ranks), nil
}
