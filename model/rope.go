package model

import (
	"fmt"
	"slices"
)

// RopeScaling stretches rotary positions beyond the context that a model was first trained
// with. It makes pairs of a head's columns rotate more slowly, slow pairs more so than fast ones.
type RopeScaling struct {
	Type            string  // "linear", "llama3", "yarn", "longrope" or "proportional"
	Factor          float64 // by which pairs are slowed; not for longrope
	LowFreqFactor   float64 // pairs that make fewer turns over the original context are slowed by Factor,
	HighFreqFactor  float64 // those that make more not at all, those in between to some degree: llama3, yarn
	OriginalContext int
	Unrounded       bool      // the range in between does not begin and end at whole pairs: yarn
	Attention       float64   // queries and keys are multiplied by it where they are rotated: yarn, longrope
	Share           float64   // of pairs, the fastest ones, that rotate at all: proportional
	AllDim          float64   // by how much scores are multiplied, see Model.ScoreScale: yarn with latents
	Growth          float64   // of queries beyond the original context, which is not built: yarn
	Short, Long     []float64 // by which each pair is slowed, Long in sequences longer than the original context: longrope
}

// LongRope reports whether rotary positions depend on the length of sequences.
func (m *Model) LongRope() bool { return m.RopeScaling != nil && m.RopeScaling.Type == "longrope" }

// Pairs returns the factors by which longrope slows each pair in sequences of seq tokens, and the config.json
// key that has them.
func (s *RopeScaling) Pairs(seq int) (factors []float64, key string) {
	if seq > s.OriginalContext {
		return s.Long, "long_factor"
	}
	return s.Short, "short_factor"
}

// checkRope checks that the rotary tables made from these settings are finite.
func (m *Model) checkRope() error {
	s := m.RopeScaling
	if s == nil || !m.Rotary() {
		return nil
	}
	sane := func(x float64) bool { return x > 1e-6 && x < 1e12 }
	if n := m.RotaryDim(false); s.Type == "proportional" && (!(s.Share <= 1) || s.Share*float64(n) < 2) {
		return fmt.Errorf("rope_scaling of type proportional has partial_rotary_factor %v of %d pairs; hint: it must be at most 1, and of at least one pair", s.Share, n/2)
	}
	switch ranged := s.Type == "llama3" || s.Type == "yarn"; {
	case s.Type != "longrope" && !sane(s.Factor):
		return fmt.Errorf("rope_scaling of type %s has the factor %v; hint: it must be positive, usually 2 to 32", s.Type, s.Factor)
	case s.Type != "linear" && s.Type != "proportional" && (s.OriginalContext < 2 || s.OriginalContext > maxLength):
		return fmt.Errorf("rope_scaling of type %s has original_max_position_embeddings %d; hint: it must be from 2 to %d", s.Type, s.OriginalContext, maxLength)
	case ranged && !(sane(s.LowFreqFactor) && s.HighFreqFactor > s.LowFreqFactor && sane(s.HighFreqFactor)):
		return fmt.Errorf("rope_scaling of type %s has the bounds %v and %v (low_freq_factor and high_freq_factor, or beta_slow and beta_fast); hint: both must be positive, the second greater", s.Type, s.LowFreqFactor, s.HighFreqFactor)
	case s.Type == "yarn" && !(m.RopeTheta > 1):
		return fmt.Errorf("rope_scaling of type yarn has rope_theta %v; hint: it must be above 1, usually 1e4 to 1e6", m.RopeTheta)
	case (s.Type == "yarn" || s.Type == "longrope") && !sane(s.Attention):
		return fmt.Errorf("rope_scaling of type %s has attention_factor %v; hint: it must be positive, usually about 1", s.Type, s.Attention)
	case s.Type != "longrope":
		return nil
	}
	if n := m.RotaryDim(false) / 2; len(s.Short) != n || len(s.Long) != n {
		return fmt.Errorf("rope_scaling of type longrope: short_factor has %d numbers and long_factor %d; hint: give one for each of the %d pairs that are rotated", len(s.Short), len(s.Long), n)
	}
	for _, x := range slices.Concat(s.Short, s.Long) {
		if !sane(x) {
			return fmt.Errorf("rope_scaling of type longrope: short_factor or long_factor has %v; hint: use positive numbers", x)
		}
	}
	return nil
}
