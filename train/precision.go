package train

import (
	"encoding/json"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/machine"
)

// SettlePrecision decides what `precision: auto` stands for: the precision that the run began with, else bf16 on
// GPUs, whose matrix units are several times as fast with it, and fp32 on the CPU, where bf16 gains less.
// Problems of the run's folder are left for CheckOut to report.
func SettlePrecision(c *config.Config) {
	if c.Precision != "auto" {
		return
	}
	c.Precision = "fp32"
	if begun, ok := recorded(c); ok && begun.Precision == graph.BF16.String() || !ok && machine.OnGPU(c) {
		c.Precision = "bf16"
	}
}

// recorded returns the identity in the checkpoint that a run resumes from, if there is one.
func recorded(c *config.Config) (id identity, ok bool) {
	path, _, err := latest(c, checkpoint.Sizes)
	if err != nil {
		return id, false
	}
	ck, err := checkpoint.Open(checkpoint.Disk{}, path)
	if err != nil {
		return id, false
	}
	defer ck.Close()
	return id, json.Unmarshal(ck.Trainer.Plan, &id) == nil
}
