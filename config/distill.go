package config

import "github.com/athanor-llm/athanor/model"

// checkDistill checks its ranges, and names what it cannot be combined with.
func (c *Config) checkDistill(d *decoder, in func(key string, v, lo, hi float64)) {
	if !d.given("distill") {
		return
	}
	if off := Default().Distill; c.Distill.Teacher == "" && c.Distill != off {
		d.fail("distill.teacher", "missing; hint: give the folder of a model with the same tokenizer, such as a checkpoint of a larger one")
	}
	if c.Distill.Teacher == "" {
		return
	}
	in("distill.top", float64(c.Distill.Top), 1, model.MostTop)
	in("distill.temperature", c.Distill.Temperature, 0.1, 100)
	in("distill.weight", c.Distill.Weight, 1e-6, 1)
	for _, other := range []struct {
		key, why string
		given    bool
	}{
		{"preference", "losses of pairs have no teacher", c.Preference.Beta > 0},
		{"labels", "a head with labels has no teacher", len(c.Labels) > 0},
		{"train_within", "trials have no teacher", c.TrainWithin > 0},
	} {
		if other.given {
			d.fail(other.key, "not with distill: "+other.why+"; hint: leave one of the two out")
		}
	}
}
