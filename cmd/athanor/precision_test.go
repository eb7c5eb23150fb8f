package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
)

// TestPrecision: left open, the precision is bf16 on described GPUs, fp32 on the CPU, here or described by a file, and that of
// the run if one is resumed.
func TestPrecision(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2")
	here := filepath.Join(dir, "hardware.json")
	check(t, os.WriteFile(here, thisMachine(t, 1), 0o644))
	settled := func(overrides ...string) graph.DType {
		cfg, err := config.Load(file, append(overrides, "device=cpu"))
		check(t, err)
		spec, err := job.Settle(config.ToTrain, cfg, func(string) {})
		check(t, err)
		return spec.Precision
	}
	for want, overrides := range map[graph.DType][][]string{
		graph.F32:  {nil, {"hardware.name=" + here}, {"hardware.name=h100", "precision=fp32"}},
		graph.BF16: {{"hardware.name=h100"}, {"hardware.name=rtx4090", "ranks=2"}, {"precision=bf16"}},
	} {
		for _, o := range overrides {
			if got := settled(o...); got != want {
				t.Errorf("%v: %v", o, got)
			}
		}
	}
	call("train", file, "precision=bf16").must(t, 0, "random numbers")
	if got := settled(); got != graph.BF16 {
		t.Errorf("a run in bf16 goes on in %v", got)
	}
	call("train", file, "max_steps=3").must(t, 0, "at step 2")
	call("train", file, "max_steps=4", "precision=fp32").must(t, 2, "precision is bf16 there")
}
