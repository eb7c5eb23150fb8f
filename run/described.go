package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
)

// DescribeMachine is the machine that a configuration plans for: one that need
// not be here, as hardware.name says, or this one.
func DescribeMachine(c *config.Config, note func(string)) (*Machine, error) {
	if c.Hardware.Name == "" {
		return FindMachine(c, note)
	}
	h, err := Describe(c.Hardware.Name, c.Ranks)
	if err != nil {
		return nil, &config.Error{File: c.File, Key: "hardware.name", Msg: err.Error()}
	}
	for i := range h.Links {
		l := &h.Links[i]
		throttle := [device.NumTiers]config.Rate{device.DeviceTier: c.Hardware.H2D, device.HostTier: c.Hardware.D2H}[l.To]
		if throttle > 0 && l.From+l.To == device.DeviceTier+device.HostTier {
			l.Bandwidth, l.Both, l.Curve = min(l.Bandwidth, float64(throttle)), min(l.Both, float64(throttle)), nil
		}
	}
	m := &Machine{Hardware: h, described: true, ranks: max(c.Ranks, 1)}
	return m, m.limit(c)
}

// Describe looks a machine up: what one of ranks has of it. Names come first,
// then files.
func Describe(name string, ranks int) (*hardware.Hardware, error) {
	h, unknown := hardware.KnownRank(name, ranks)
	if unknown == nil {
		return h, nil
	}
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(name, "./\\"):
		return nil, unknown
	case err != nil:
		return nil, fmt.Errorf("%w; hint: one of %s, or a file written by `probe --out`", err, strings.Join(hardware.Names(), ", "))
	}
	if h, err = hardware.Parse(text); err != nil {
		return nil, err
	}
	return h.Share(ranks), nil
}
