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

// Describe returns the machine that a configuration plans for: the one that
// hardware.name describes, which may be elsewhere, or this one.
func Describe(c *config.Config, note func(string)) (*Machine, error) {
	if c.Hardware.Name == "" {
		return Find(c, note)
	}
	c.Ranks = max(c.Ranks, 1) // a description does not say how many there are
	h, err := lookup(c)
	if err == nil && c.Ranks > 1 && h.Link(device.DeviceTier, device.DeviceTier) == nil {
		err = fmt.Errorf("%s describes no link between ranks, but the run has %d ranks; hint: use a file written by `athanor probe --ranks %d --out FILE`", c.Hardware.Name, c.Ranks, c.Ranks)
	}
	if err != nil {
		return nil, c.Fault("hardware.name", err.Error())
	}
	for link, rate := range map[[2]device.Tier]config.Rate{
		{device.HostTier, device.DeviceTier}:   c.Hardware.H2D,
		{device.DeviceTier, device.HostTier}:   c.Hardware.D2H,
		{device.DeviceTier, device.DeviceTier}: c.Hardware.Peers,
	} {
		if rate > 0 {
			h.Throttle(link[0], link[1], float64(rate))
		}
	}
	m := &Machine{Hardware: h, described: true, ranks: c.Ranks}
	return m, m.limit(c)
}

// equip raises one rank's host memory and disk on a known machine to the configuration's limits where those are
// more: the name is only that of a card, and what surrounds it is for its owner to say.
func equip(h *hardware.Hardware, c *config.Config) {
	n := int64(c.Ranks)
	h.Memory.Host = max(h.Memory.Host, int64(c.Limits.Host)/n)
	h.Memory.Disk = max(h.Memory.Disk, int64(c.Limits.Disk)/n)
}

// OnGPU reports whether a configuration, whose device is settled, plans for GPUs, here or described.
func OnGPU(c *config.Config) bool {
	if c.Hardware.Name == "" {
		return c.Device == "cuda"
	}
	one := *c
	one.Ranks = 1
	h, err := lookup(&one)
	return err == nil && !h.Memory.Shared
}

// maxHardware bounds the bytes of a machine's description.
const maxHardware = 64 << 20

// lookup looks up a configuration's machine by known name, then by file, and returns one
// rank's share.
func lookup(c *config.Config) (*hardware.Hardware, error) {
	name := c.Hardware.Name
	h, unknown := hardware.KnownRank(name, c.Ranks)
	if unknown == nil {
		equip(h, c)
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
	return h.Share(c.Ranks), nil
}
