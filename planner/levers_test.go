package planner

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/plan"
)

// TestLevers: what is offered is neither what the run has already nor what would be refused.
func TestLevers(t *testing.T) {
	const bf16, eight, lora = "optimizer_state=bf16_moments", "optimizer_state=8bit_moments", "lora={rank: 16}"
	for _, c := range []struct {
		set  func(*config.Config)
		want string
	}{
		{func(*config.Config) {}, bf16 + " " + eight + " " + lora},
		{func(c *config.Config) { c.Precision = config.Int8 }, bf16 + " " + eight},
		{func(c *config.Config) { c.KeepMask = true }, bf16 + " " + eight},
		{func(c *config.Config) { c.TrainWithin = 1 << 20 }, bf16 + " " + eight},
		{func(c *config.Config) { c.Optimizer = "sgd" }, lora},
		{func(c *config.Config) { c.Optimizer = "muon" }, bf16 + " " + lora},
		{func(c *config.Config) { c.TieLayers, c.DelinkAt, c.Model.Name = 2, config.AutoDelink, "" }, bf16},
	} {
		of := config.Default()
		of.Model.Name, of.Device, of.SequenceLength, of.GlobalBatch = "folder", "cpu", 1, 4
		c.set(&of)
		spec, err := job.Settle(config.ToPlan, &of, func(string) {})
		check(t, err)
		var got []string
		for _, l := range alternatives(spec, plan.FP32State) {
			if !strings.Contains(l.set, "quantize") {
				got = append(got, l.set)
			}
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%+v: offered %s, want %s", spec.Optimizer, got, c.want)
		}
	}
}
