package model

import (
	"fmt"
	"slices"
)

// Half says which parts a layer has.
type Half uint8

const (
	Both  Half = iota
	Mixes      // only what mixes tokens: attention, or a scan
	Feeds      // only the feed-forward
)

// HasMixer reports whether a layer mixes tokens.
func HasMixer(m *Model, layer int) bool { return halfOf(m, layer) != Feeds }

// HasFeedForward reports whether a layer has a feed-forward.
func HasFeedForward(m *Model, layer int) bool { return halfOf(m, layer) != Mixes }

func halfOf(m *Model, layer int) Half {
	if len(m.Halves) == 0 {
		return Both
	}
	return m.Halves[layer%len(m.Halves)]
}

// checkHalves refuses half layers where others are not built.
func checkHalves(m *Model) error {
	if len(m.Halves) == 0 {
		return nil
	}
	for l := range m.Layers {
		if halfOf(m, l) == Feeds && m.Mamba.HasLayer(l) {
			return fmt.Errorf("layer %d has a scan, but mixes no tokens; hint: give each layer one of both", l)
		}
	}
	if m.Norms != PreNorm || m.Parallel || m.Experts > 0 || m.PerLayer > 0 || m.Lent != (Lent{}) || m.Mamba.Beside || !slices.Contains(m.Halves, Mixes) || !slices.Contains(m.Halves, Feeds) {
		return fmt.Errorf("%s cannot have layers that are only half; hint: use a family that has them, such as nemotron_h", m.Family)
	}
	return nil
}
