package config

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/model"
)

// LabelNames returns the names of the labels that the configuration asks for; nil: it asks for none.
func (c *Config) LabelNames() []string {
	if len(c.Labels) == 1 {
		if n, err := strconv.Atoi(c.Labels[0]); err == nil {
			return model.LabelNames(min(max(n, 0), model.MostLabels+1))
		}
	}
	return c.Labels
}

// checkLabels checks the names of labels, and what they cannot be combined with.
func (c *Config) checkLabels(d *decoder) {
	if len(c.Labels) == 0 {
		if d.given("labels") {
			d.fail("labels", "there are none; hint: name them, such as [question, complaint], or leave labels out for a language model")
		}
		return
	}
	names := c.LabelNames()
	seen := map[string]bool{}
	for i, name := range names {
		if n, err := strconv.Atoi(name); err == nil && n != i { // rows have names or numbers, and a number would mean another label
			d.fail("labels", fmt.Sprintf("the name %q is a number, but labels have numbers from 0, and this is %d; hint: use names that are no numbers, and in rows too, or number the labels from 0", name, i))
			break
		}
		if name == "" || seen[name] {
			d.fail("labels", fmt.Sprintf("the name %q is empty or given twice; hint: give each label a name of its own, such as [question, complaint]", name))
			break
		}
		seen[name] = true
	}
	switch n := len(names); {
	case n == 0:
		d.fail("labels", "there are 0; hint: name them, such as [question, complaint], or one whose value is learnt, such as [price]")
	case n > model.MostLabels:
		d.fail("labels", fmt.Sprintf("there are more than %d; hint: use fewer", model.MostLabels))
	}
	c.checkScored(d, "labels", "the loss is of one choice, or value, for each text")
	if c.Preference.Beta > 0 {
		d.fail("labels", "preference compares answers, which have no such labels; hint: leave out labels or preference")
	}
}

// checkScored refuses what a head with labels, for which a key asks, cannot be combined with.
func (c *Config) checkScored(d *decoder, key, why string) {
	for _, other := range []struct {
		key, why string
		given    bool
	}{
		{"documents", why, d.given("documents") && c.Documents != Separate},
		{"expert_balance", "there is no such term in its loss", c.ExpertBalance > 0},
		{"sample", "the model writes no text", c.Sample.Tokens > 0},
		{"precision", "int8 holds no such head", c.Precision == Int8},
	} {
		if other.given {
			d.fail(other.key, fmt.Sprintf("not with %s: %s; hint: leave one of the two out", key, other.why))
		}
	}
	if i := slices.Index(c.LoRA.Targets, model.ScoreModule); i >= 0 {
		d.fail("lora.targets", fmt.Sprintf("%s, the head of %s, is trained whole beside adapters; hint: leave it out", model.ScoreModule, key))
	}
}
