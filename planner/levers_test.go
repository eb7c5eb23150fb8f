package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/plan"
)

// TestOffered: the configuration takes every lever that is offered, whatever else it says, and they make the run that was
// planned for.
func TestOffered(t *testing.T) {
	usual := []string{"device=cpu", "sequence_length=8", "global_batch=4", "data=x", "learning_rate=1e-3", "max_steps=1", "out=x"}
	for _, base := range [][]string{
		{}, {"precision=int8"}, {"keep_mask=true"}, {"optimizer=sgd"}, {"optimizer=muon"}, {"precision=bf16", "optimizer_state=bf16"}, {"lora={rank: 8}"}, {"gradient_clipping=0"},
		{"skip_spikes=3"}, {"optimizer_state=8bit_moments"}, {"tie_layers=2", "delink_at=auto"}, {"tie_layers=2"}, {"device=auto", "hardware.name=l4"}, {"freeze=['*wte*']"},
	} {
		set := slices.Concat(usual, base)
		settled := func(more ...string) (*job.Spec, error) {
			c, err := config.LoadTo(config.ToPlan, "gpt2", slices.Concat(set, more))
			if err != nil {
				return nil, err
			}
			return job.Settle(config.ToPlan, c, func(string) {})
		}
		spec, err := settled()
		check(t, err)
		state := spec.OptimizerState[len(spec.OptimizerState)-1]
		for _, l := range slices.Concat(economise(spec), alternatives(spec, state), resorts(spec, state), []lever{larger(spec)}) {
			var keys []string
			for _, k := range strings.Split(l.set, " ") {
				if n := len(keys); n > 0 && !strings.Contains(k, "=") { // a value with a space
					keys[n-1] += " " + k
				} else {
					keys = append(keys, k)
				}
			}
			is, err := settled(keys...)
			if err != nil {
				t.Errorf("%q: %q is offered, but %v", base, l.set, err)
				continue
			}
			want := l.with(spec)
			if is.Precision != want.Precision || is.Int8 != want.Int8 || is.OptimizerState[0] != want.OptimizerState[0] || is.Clip != want.Clip || is.LoRA.Rank != want.LoRA.Rank ||
				is.SequenceLength != want.SequenceLength || is.GlobalBatch != want.GlobalBatch || is.Quantize != want.Quantize {
				t.Errorf("%q: %q is another run", base, l.set)
			}
		}
	}
}

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
