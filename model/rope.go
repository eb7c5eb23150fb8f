package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
)

// RopeScaling stretches rotary positions beyond the context that a model was first trained
// with. It makes pairs of a head's columns rotate more slowly, slow pairs more so than fast ones.
type RopeScaling struct {
	Type            string  // "linear", "llama3", "yarn" or "longrope"
	Factor          float64 // by which pairs are slowed; not for longrope
	LowFreqFactor   float64 // pairs that make fewer turns over the original context are slowed by Factor,
	HighFreqFactor  float64 // those that make more not at all, those in between to some degree: llama3, yarn
	OriginalContext int
	Unrounded       bool      // the range in between does not begin and end at whole pairs: yarn
	Attention       float64   // queries and keys are multiplied by it where they are rotated: yarn, longrope
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
	switch ranged := s.Type == "llama3" || s.Type == "yarn"; {
	case s.Type != "longrope" && !sane(s.Factor):
		return fmt.Errorf("rope_scaling of type %s has the factor %v; hint: it must be positive, usually 2 to 32", s.Type, s.Factor)
	case s.Type != "linear" && (s.OriginalContext < 2 || s.OriginalContext > maxLength):
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
	if n := m.RotaryDim() / 2; len(s.Short) != n || len(s.Long) != n {
		return fmt.Errorf("rope_scaling of type longrope: short_factor has %d numbers and long_factor %d; hint: give one for each of the %d pairs that are rotated", len(s.Short), len(s.Long), n)
	}
	for _, x := range slices.Concat(s.Short, s.Long) {
		if !sane(x) {
			return fmt.Errorf("rope_scaling of type longrope: short_factor or long_factor has %v; hint: use positive numbers", x)
		}
	}
	return nil
}

// share returns pct as a RotaryPct, whose zero means all.
func (c *config) share(key string, pct float64) float64 {
	switch pct {
	case 0:
		c.fail("%s is 0: %w: models without rotary positions are not supported", key, ErrUnsupported)
	case 1:
		return 0
	}
	return pct
}

// ropeConfig is rope_scaling or, in newer versions, rope_parameters, which also has rope_theta and may be one
// such object for each type of layer.
type ropeConfig struct {
	Type      string      `json:"rope_type"`
	OldType   string      `json:"type"`
	Theta     float64     `json:"rope_theta"`
	Factor    float64     `json:"factor"`
	Low       float64     `json:"low_freq_factor"`
	High      float64     `json:"high_freq_factor"`
	Original  int         `json:"original_max_position_embeddings"`
	Partial   *float64    `json:"partial_rotary_factor"`
	Attention *float64    `json:"attention_factor"`
	BetaFast  float64     `json:"beta_fast"`
	BetaSlow  float64     `json:"beta_slow"`
	Truncate  *bool       `json:"truncate"`
	MScale    float64     `json:"mscale"`
	MScaleAll float64     `json:"mscale_all_dim"`
	Short     []float64   `json:"short_factor"`
	Long      []float64   `json:"long_factor"`
	Full      *ropeConfig `json:"full_attention"`
	Sliding   *ropeConfig `json:"sliding_attention"`
}

// rope reads rotary bases, what part of a head is rotated, and how positions are scaled.
func (c *config) rope(m *Model) *RopeScaling {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		var p ropeConfig
		if !c.get(key, &p) {
			continue
		}
		strict := json.NewDecoder(bytes.NewReader(c.raw[key]))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&ropeConfig{}); err != nil {
			c.fail("%s: %w: %v", key, ErrUnsupported, err)
		}
		if s := c.ropeOf(m, key, p); s != nil {
			return s
		}
	}
	return nil
}

// ropeOf reads one such object.
func (c *config) ropeOf(m *Model, key string, p ropeConfig) *RopeScaling {
	byLayer := families[m.Family].localRope
	if local := p.Sliding; local != nil {
		if c.ropeScaling(m, key, local) != nil || !byLayer {
			c.fail("%s: sliding_attention: %w: only a rope_theta of its own is supported, for gemma3_text and olmo3", key, ErrUnsupported)
		}
		if m.Window > 0 {
			m.LocalTheta = cmp.Or(local.Theta, m.LocalTheta)
		}
	}
	if full := p.Full; full != nil {
		full.Truncate = cmp.Or(full.Truncate, p.Truncate)
		p = *full
	} else if m.Family == OLMo3 && key == "rope_parameters" && p.Sliding == nil { // transformers does not read it
		c.fail("%s: %w: full_attention and sliding_attention are missing", key, ErrUnsupported)
	}
	if byLayer && (p.Truncate != nil || p.Long != nil) { // transformers looks for truncate elsewhere
		c.fail("%s: %w: truncate and longrope are supported only where all layers have the same positions", key, ErrUnsupported)
	}
	m.RopeTheta = cmp.Or(p.Theta, m.RopeTheta)
	if families[m.Family].partial && p.Partial != nil {
		m.RotaryPct, p.Partial = c.share(key+": partial_rotary_factor", *p.Partial), nil
	}
	return c.ropeScaling(m, key, &p)
}

// ropeScaling returns how positions are scaled, as transformers reads it; nil: not at all.
func (c *config) ropeScaling(m *Model, key string, p *ropeConfig) *RopeScaling {
	if p.Partial != nil && *p.Partial != 1 {
		c.fail("%s: partial_rotary_factor %v: %w", key, *p.Partial, ErrUnsupported)
	}
	p.Type = cmp.Or(p.Type, p.OldType)
	s := &RopeScaling{Type: p.Type, Factor: p.Factor, OriginalContext: p.Original}
	switch p.Type {
	case "", "default":
		return nil
	case "linear":
	case "llama3":
		s.LowFreqFactor, s.HighFreqFactor = p.Low, p.High
	case "yarn":
		s.LowFreqFactor, s.HighFreqFactor = cmp.Or(p.BetaSlow, 1), cmp.Or(p.BetaFast, 32)
		s.Unrounded = p.Truncate != nil && !*p.Truncate
		s.Attention = p.yarnAttention()
	case "longrope":
		s.Factor, s.Short, s.Long = 0, p.Short, p.Long
		if m.Family == Phi3 { // its own key is the one that counts
			s.OriginalContext = c.int("original_max_position_embeddings", 4096)
		}
		s.Attention = p.longAttention(m.MaxPositions, s.OriginalContext)
	default:
		c.fail("%s: rope_type %q: %w; hint: default, linear, llama3, yarn and longrope are supported", key, p.Type, ErrUnsupported)
	}
	if m.Family == Phi3 && p.Type != "longrope" {
		c.fail("%s: rope_type %q: %w: for phi3, only longrope is supported", key, p.Type, ErrUnsupported)
	}
	return s
}

// yarnAttention returns what transformers multiplies rotary tables by.
func (p *ropeConfig) yarnAttention() float64 {
	grown := func(weight float64) float64 {
		if p.Factor <= 1 {
			return 1
		}
		return 0.1*weight*math.Log(p.Factor) + 1
	}
	switch {
	case p.Attention != nil:
		return *p.Attention
	case p.MScale != 0 && p.MScaleAll != 0:
		return grown(p.MScale) / grown(p.MScaleAll)
	}
	return grown(1)
}

// longAttention does the same for longrope.
func (p *ropeConfig) longAttention(positions, original int) float64 {
	factor := cmp.Or(p.Factor, float64(positions)/float64(original))
	switch {
	case p.Attention != nil:
		return *p.Attention
	case factor <= 1:
		return 1
	}
	return math.Sqrt(1 + math.Log(factor)/math.Log(float64(original)))
}

// ropeConfig adds how rotary positions are scaled.
func (m *Model) ropeConfig(kv map[string]any) {
	scaling := m.scalingConfig()
	switch local := cmp.Or(m.LocalTheta, m.RopeTheta); {
	case m.Family == OLMo3 && (m.RopeTheta != olmo3Theta || local != olmo3Theta):
		delete(kv, "rope_theta")
		full := map[string]any{"rope_type": "default"}
		maps.Copy(full, scaling)
		full["rope_theta"] = m.RopeTheta
		kv["rope_parameters"] = map[string]any{"full_attention": full, "sliding_attention": map[string]any{"rope_type": "default", "rope_theta": local}}
	case m.Family == GPTOSS && scaling == nil: // otherwise transformers uses the published models' scaling
		kv["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": m.RopeTheta}
	case scaling != nil:
		kv["rope_scaling"] = scaling
		if m.Family == Phi3 {
			kv["original_max_position_embeddings"] = m.RopeScaling.OriginalContext
		}
	}
}

func (m *Model) scalingConfig() map[string]any {
	s := m.RopeScaling
	if s == nil {
		return nil
	}
	scaling := map[string]any{"rope_type": s.Type}
	switch s.Type {
	case "linear":
		add(scaling, map[string]any{"factor": s.Factor})
	case "llama3":
		add(scaling, map[string]any{"factor": s.Factor, "low_freq_factor": s.LowFreqFactor, "high_freq_factor": s.HighFreqFactor,
			"original_max_position_embeddings": s.OriginalContext})
	case "yarn":
		add(scaling, map[string]any{"factor": s.Factor, "beta_slow": s.LowFreqFactor, "beta_fast": s.HighFreqFactor,
			"original_max_position_embeddings": s.OriginalContext, "attention_factor": s.Attention})
		if s.Unrounded {
			scaling["truncate"] = false
		}
	case "longrope":
		add(scaling, map[string]any{"short_factor": s.Short, "long_factor": s.Long,
			"original_max_position_embeddings": s.OriginalContext, "attention_factor": s.Attention})
	}
	return scaling
}
