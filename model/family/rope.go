package family

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"

	"github.com/athanor-llm/athanor/model"
)

// share is a key for RotaryPct, whose zero means all: 1 in config.json.
func share(key string, def float64) row {
	return row{
		key: key,
		read: func(c *config, m *model.Model) {
			m.RotaryPct = def
			c.get(key, &m.RotaryPct)
			m.RotaryPct = c.share(key, m.RotaryPct)
		},
		write: func(m *model.Model, kv map[string]any) { kv[key] = cmp.Or(m.RotaryPct, 1) },
	}
}

// share returns pct as a RotaryPct.
func (c *config) share(key string, pct float64) float64 {
	switch pct {
	case 0:
		c.fail("%s is 0: %w: models without rotary positions are not supported", key, ErrUnsupported)
	case 1:
		return 0
	}
	return pct
}

// rotary is how a family's config.json scales rotary positions.
type rotary struct {
	partial  bool // rope_parameters may also say which part of each head is rotated
	byLayer  bool // rope_parameters may be one object for each type of layer
	nested   bool // rope_parameters must be
	longOnly bool // only longrope is read, and the context before scaling has a key of its own:
	original int
	mrope    bool // pairs may be divided among axes of an image, on all of which a token of text has the same position
	alpha    bool // rope_type dynamic with alpha makes the base greater
	scores   bool // mscale_all_dim also multiplies scores, twice
	queries  bool // queries may grow with their position
	// proportional says that only some of the pairs may rotate, which have the frequencies that they have if all do.
	proportional bool
	explicit     bool // where nothing is given, transformers scales positions like those of the published models
}

// rope is the row of rope_scaling and rope_parameters.
func rope(r rotary) row {
	return row{key: "rope_scaling", read: func(c *config, m *model.Model) { m.RopeScaling = r.scaling(c, m) }, write: r.write}
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
	Sections  []int       `json:"mrope_section"`
	MRoPE     bool        `json:"mrope_interleaved"`
	Positions int         `json:"max_position_embeddings"` // repeated, and read by nobody
	Alpha     float64     `json:"alpha"`
	Growth    *float64    `json:"llama_4_scaling_beta"`
	Full      *ropeConfig `json:"full_attention"`
	Sliding   *ropeConfig `json:"sliding_attention"`
}

// scaling reads rotary bases, what part of a head is rotated, and how positions are scaled.
func (r rotary) scaling(c *config, m *model.Model) *model.RopeScaling {
	if r.explicit && len(c.raw["rope_scaling"]) == 0 && len(c.raw["rope_parameters"]) == 0 {
		c.fail("rope_scaling is missing: %w: transformers would then use that of the published models; hint: add it explicitly", ErrUnsupported)
	}
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
		if s := r.of(c, m, key, p); s != nil {
			return s
		}
	}
	return nil
}

// of reads one such object.
func (r rotary) of(c *config, m *model.Model, key string, p ropeConfig) *model.RopeScaling {
	if local := p.Sliding; local != nil {
		if r.one(c, m, key, local) != nil || !r.byLayer {
			c.fail("%s: sliding_attention: %w: only a rope_theta of its own is supported, for families whose layers differ", key, ErrUnsupported)
		}
		if m.Window > 0 {
			m.LocalTheta = cmp.Or(local.Theta, m.LocalTheta)
		}
	}
	if full := p.Full; full != nil {
		full.Truncate = cmp.Or(full.Truncate, p.Truncate)
		p = *full
	} else if r.nested && key == "rope_parameters" && p.Sliding == nil { // transformers does not read it
		c.fail("%s: %w: full_attention and sliding_attention are missing", key, ErrUnsupported)
	}
	if r.byLayer && (p.Truncate != nil || p.Long != nil) { // transformers looks for truncate elsewhere
		c.fail("%s: %w: truncate and longrope are supported only where all layers have the same positions", key, ErrUnsupported)
	}
	m.RopeTheta = cmp.Or(p.Theta, m.RopeTheta)
	if r.partial && p.Partial != nil {
		m.RotaryPct, p.Partial = c.share(key+": partial_rotary_factor", *p.Partial), nil
	}
	return r.one(c, m, key, &p)
}

// one returns how positions are scaled, as transformers reads it; nil: not at all.
func (r rotary) one(c *config, m *model.Model, key string, p *ropeConfig) *model.RopeScaling {
	if r.proportional && p.Type == "proportional" {
		return &model.RopeScaling{Type: p.Type, Factor: cmp.Or(p.Factor, 1), Share: *cmp.Or(p.Partial, new(1.0))}
	}
	if p.Partial != nil && *p.Partial != 1 {
		c.fail("%s: partial_rotary_factor %v: %w", key, *p.Partial, ErrUnsupported)
	}
	p.Type = cmp.Or(p.Type, p.OldType)
	switch {
	case !r.mrope && (p.Sections != nil || p.MRoPE || p.Type == "mrope"):
		c.fail("%s: mrope_section: %w: %s has no images; hint: check model_type", key, ErrUnsupported, m.Family)
	case p.Type == "mrope":
		p.Type = "default"
	}
	if p.Alpha != 0 && p.Type != "dynamic" {
		c.fail("%s: alpha %v with rope_type %q: %w", key, p.Alpha, p.Type, ErrUnsupported)
	}
	s := &model.RopeScaling{Type: p.Type, Factor: p.Factor, OriginalContext: p.Original}
	switch growth := p.Growth; {
	case r.queries == (growth == nil):
		c.fail("%s: llama_4_scaling_beta: %w: %s needs it, and no other family knows it; hint: check model_type", key, ErrUnsupported, m.Family)
	case growth != nil && *growth != 0 && p.Type != "yarn":
		c.fail("%s: llama_4_scaling_beta is %v: %w: only with rope_type yarn is it supported", key, *growth, ErrUnsupported)
	case growth != nil:
		s.Growth = *growth
	}
	switch p.Type {
	case "", "default":
		return nil
	case "dynamic":
		if n := float64(m.HeadDim); r.alpha && p.Alpha > 0 && n > 2 {
			m.RopeTheta *= math.Pow(p.Alpha, n/(n-2))
			return nil
		}
		c.fail("%s: rope_type dynamic: %w: only Hunyuan's, with a positive alpha, is supported", key, ErrUnsupported)
	case "linear":
	case "llama3":
		s.LowFreqFactor, s.HighFreqFactor = p.Low, p.High
	case "yarn":
		s.LowFreqFactor, s.HighFreqFactor = cmp.Or(p.BetaSlow, 1), cmp.Or(p.BetaFast, 32)
		s.Unrounded = p.Truncate != nil && !*p.Truncate
		if s.Attention = p.yarnAttention(); r.scores {
			s.AllDim = p.MScaleAll
		}
	case "longrope":
		s.Factor, s.Short, s.Long = 0, p.Short, p.Long
		if r.longOnly {
			s.OriginalContext = r.original
		}
		s.Attention = p.longAttention(m.MaxPositions, s.OriginalContext)
	default:
		c.fail("%s: rope_type %q: %w; hint: default, linear, llama3, yarn and longrope are supported", key, p.Type, ErrUnsupported)
	}
	if r.longOnly && p.Type != "longrope" {
		c.fail("%s: rope_type %q: %w: for %s, only longrope is supported", key, p.Type, ErrUnsupported, m.Family)
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

// write adds how rotary positions are scaled.
func (r rotary) write(m *model.Model, kv map[string]any) {
	scaling := scalingConfig(m)
	switch {
	case scaling != nil:
		kv["rope_scaling"] = scaling
	case r.queries:
		kv["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": m.RopeTheta, "llama_4_scaling_beta": 0,
			"original_max_position_embeddings": m.MaxPositions}
	case r.explicit:
		kv["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": m.RopeTheta}
	}
}

// scalingConfig returns rope_scaling; nil: positions are not scaled.
func scalingConfig(m *model.Model) map[string]any {
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
		if s.AllDim != 0 {
			scaling["mscale_all_dim"] = s.AllDim
		}
		if s.Growth != 0 {
			scaling["llama_4_scaling_beta"] = s.Growth
		}
	case "proportional":
		add(scaling, map[string]any{"factor": s.Factor, "partial_rotary_factor": s.Share})
	case "longrope":
		add(scaling, map[string]any{"short_factor": s.Short, "long_factor": s.Long,
			"original_max_position_embeddings": s.OriginalContext, "attention_factor": s.Attention})
	}
	return scaling
}
