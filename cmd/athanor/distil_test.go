package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestDistil: a run learns from a checkpoint of another model. In other memory, stopped and resumed it is the same run, with what the teacher
// said once; validations are of the text alone; other teachers, and those of other tokens, are refused.
func TestDistil(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 6", "eval_every: 3", "precision: fp32")
	call("train", file, "out="+dir+"/teacher", "seed=7").must(t, 0)
	teacher := dir + "/teacher/checkpoint-6"
	args := []string{"train", file, "distill.teacher=" + teacher, "distill.top=5", "distill.temperature=2", "distill.weight=0.75"}
	var got, plain trained
	call(append(args, "out="+dir+"/a", "--json")...).must(t, 0, "the 5 most probable tokens after each are computed").into(t, &got)
	call("train", file, "out="+dir+"/plain", "--json").must(t, 0).into(t, &plain)
	taught, text := steps(t, dir+"/a"), steps(t, dir+"/plain")
	if taught[0].Loss == text[0].Loss || taught[5].Loss >= taught[0].Loss || got.ValLoss == plain.ValLoss {
		t.Errorf("losses %v to %v with a teacher, %v without; validation losses %v and %v", taught[0].Loss, taught[5].Loss, text[0].Loss, got.ValLoss, plain.ValLoss)
	}
	again := append(args, "out="+dir+"/b", "plan.weights=host", "plan.micro_batch=1", "plan.recompute=full", "save_every=2", "keep_checkpoints=9")
	call(again...).must(t, 0)
	sameRun(t, dir+"/b", dir+"/a", 6)
	check(t, os.RemoveAll(dir+"/b/checkpoint-6"))
	stored, err := filepath.Glob(dir + "/b/teacher-*.bin")
	check(t, err)
	said, err := os.ReadFile(stored[0])
	check(t, err)
	for i := range said[:len(said)/2] { // what was written halfway is asked for again
		said[i] = 0
	}
	check(t, os.WriteFile(stored[0], said, 0o644))
	call(again...).must(t, 0, "resuming", "teacher: of")
	sameRun(t, dir+"/b", dir+"/a", 6)
	if out := call(again...).must(t, 0).stderr; strings.Contains(out, "teacher: of") {
		t.Errorf("the teacher is asked again:\n%s", out)
	}
	call(append(args, "out="+dir+"/a", "distill.teacher="+dir+"/plain/checkpoint-6", "max_steps=8")...).must(t, 2, "resume", "teacher is")
	call(append(args, "out="+dir+"/c", "model.vocabulary=400")...).must(t, 2, "distill.teacher: its vocabulary has")
	call(append(args, "out="+dir+"/c", "tokenizer=bpe-290")...).must(t, 2, "distill.teacher: its")
	call(append(args, "out="+dir+"/c", "distill.teacher="+dir+"/none")...).must(t, 2, "distill.teacher: ")
	for _, ranks := range [][]string{{"ranks=2"}, {"ranks=2", "plan.pipeline=2"}, {"ranks=2", "plan.sequence=2"}, {"ranks=4", "plan.pipeline=2", "plan.sequence=2"}} {
		out := dir + "/" + strings.Join(ranks, "-")
		call(append(append(args, ranks...), "out="+out)...).must(t, 0)
		for i, m := range steps(t, out) {
			if math.Abs(m.Loss/taught[i].Loss-1) > 1e-5 {
				t.Errorf("%v: step %d: loss %v, and %v of one rank", ranks, i+1, m.Loss, taught[i].Loss)
			}
		}
	}
	call(append(args, "out="+dir+"/c", "ranks=2", "plan.tensor=2")...).must(t, 2, "plan.tensor: ", "distill")
	call(append(args, "out="+dir+"/c", "plan.vocabulary_parts=2")...).must(t, 2, "plan.vocabulary_parts: ", "distill")
	call("train", file, "out="+dir+"/c", "distill.weight=0.6").must(t, 2, "distill.teacher: missing")
}
