package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func BenchmarkSave(b *testing.B) {
	dir := b.TempDir()
	root, err := filepath.Abs("..")
	check(b, err)
	file := filepath.Join(dir, "run.yaml")
	check(b, os.WriteFile(file, fmt.Appendf(nil, `model: gpt2
data: %s/graph/*.go
tokenizer: bpe-400
sequence_length: 32
global_batch: 1
learning_rate: 1.0e-3
max_steps: 1000
eval_batches: 1
keep_checkpoints: 1
out: %s/run
`, root, dir), 0o644))
	tr, _ := openRun(b, file, strings.Fields(os.Getenv("SAVE_OVERRIDES"))...)
	defer tr.Close()
	n := 0
	for b.Loop() {
		tr.Step++
		began := time.Now()
		check(b, tr.save(quiet{}))
		fmt.Printf("save %d: %.3f s\n", n, time.Since(began).Seconds())
		n++
	}
}
