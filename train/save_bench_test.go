package train

import (
	"testing"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// BenchmarkSave writes checkpoints of a run of GPT-2 124M, each replacing the one before. Compare with the disk's speed
// (dd oflag=direct conv=fsync).
func BenchmarkSave(b *testing.B) {
	for _, state := range plan.StateFormats() {
		b.Run(state.String(), func(b *testing.B) {
			dir := b.TempDir()
			tr, _ := openRun(b, runConfig(b, dir), "model=gpt2", "max_steps=1000", "keep_checkpoints=1", "precision=bf16", "optimizer_state="+state.String())
			defer func() { check(b, tr.Close()) }()
			check(b, tr.save(quiet{}))
			snapshot := checkpoint.Snapshot{Weights: tr.tensors(optimizer.Weights), State: tr.moments()}
			b.SetBytes(snapshot.Bytes())
			for b.Loop() {
				tr.Step++
				check(b, tr.save(quiet{}))
			}
		})
	}
}
