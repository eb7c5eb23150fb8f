package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// damage changes one random file of a folder: cuts it, flips a bit, empties or
// removes it. It returns what it did.
func damage(t *testing.T, r *rand.Rand, dir string) string {
	t.Helper()
	var files []string
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	path := files[r.IntN(len(files))]
	text, err := os.ReadFile(path)
	check(t, err)
	what := []string{"cut", "bit flipped", "emptied", "removed"}[r.IntN(4)]
	switch what {
	case "cut":
		text = text[:r.IntN(len(text))]
	case "bit flipped":
		text[r.IntN(len(text))] ^= 1 << r.IntN(8)
	case "emptied":
		text = nil
	case "removed":
		check(t, os.Remove(path))
		return what + " " + path
	}
	check(t, os.WriteFile(path, text, 0o644))
	return what + " " + path
}

// TestDamagedCheckpoint: whatever happens to the newest checkpoint, a resumed
// run says that it skips it, continues from the one before, and ends as if
// nothing had happened. If no checkpoint is whole it refuses to begin anew.
func TestDamagedCheckpoint(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	dir, file := tiny(t, "max_steps: 6", "save_every: 2", "keep_checkpoints: 5")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	call("train", file, "max_steps=4").must(t, 0)
	for i := range testkit.Count(1, 3, 12) {
		out := fmt.Sprintf("%s/run%d", dir, i)
		check(t, os.CopyFS(out, os.DirFS(dir+"/run")))
		did := damage(t, r, out+"/checkpoint-4")
		t.Log(did)
		call("train", file, "out="+out).must(t, 0, "skipped a checkpoint: ", "checkpoint-4", "checkpoint-2 at step 2")
		sameRun(t, out, dir+"/plain", 6)
	}
	before := losses(t, dir+"/run")
	t.Log(damage(t, r, dir+"/run/checkpoint-4"))
	t.Log(damage(t, r, dir+"/run/checkpoint-2"))
	call("train", file).must(t, 1, "checkpoint-4", "checkpoint-2", "hint:")
	if after := losses(t, dir+"/run"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("metrics.jsonl was changed: %v, before %v", after, before)
	}
}

// TestResultsOverSources: no result is written over what it is made of, or over another.
func TestResultsOverSources(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	model := "../../testdata/torch/gpt2-tiny"
	check(t, os.CopyFS(dir+"/m", os.DirFS(model)))
	check(t, os.Symlink("run.yaml", dir+"/link.svg"))
	before, err := os.ReadFile(file)
	check(t, err)
	for _, args := range [][]string{
		{"simulate", file, "--trace", file},
		{"plan", file, "--out", file},
		{"plan", file, "--out", dir + "/new", "--dump", dir + "/new"},
		{"draw", file, "--out", dir + "/link.svg"},
		{"eval", dir + "/m", "--tokens", dir + "/m/tokens.json", "--logits", dir + "/m/model.safetensors"},
		{"eval", model, "--tokens", dir + "/m/tokens.json", "--logits", dir + "/m/tokens.json"},
		{"eval", model, "--tokens", dir + "/m/tokens.json", "--logits", dir + "/x", "--grads", dir + "/x"},
	} {
		call(args...).must(t, 2, "is also an input, or is named for two outputs", "hint:")
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Error("the configuration has changed", err)
	}
}

// TestDamagedWeights: a checkpoint whose weights are not those that were saved is refused for
// resuming, starting, evaluating and generating, though it can be read. Whoever changed them on
// purpose removes the manifest that vouches for them.
func TestDamagedWeights(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	call("train", file).must(t, 0)
	folder := dir + "/copy"
	check(t, os.CopyFS(folder, os.DirFS(dir+"/run/checkpoint-1")))
	text, err := os.ReadFile(folder + "/model.safetensors")
	check(t, err)
	text[len(text)-1] ^= 1
	check(t, os.WriteFile(folder+"/model.safetensors", text, 0o644))
	for _, args := range [][]string{
		{"train", file, "out=" + dir + "/a", "resume=" + folder},
		{"train", file, "out=" + dir + "/b", "model=" + folder},
		{"eval", folder, dir + "/corpus.txt"},
		{"generate", folder, "--prompt", "a"},
	} {
		r := call(args...).must(t, 1, folder+": model.safetensors: corrupt", "hint:")
		if strings.Count(r.stderr, "hint:") != 1 {
			t.Errorf("not one hint: %s", r.stderr)
		}
	}
	check(t, os.RemoveAll(folder+"/state")) // which only a run needs
	check(t, os.Remove(folder+"/manifest.json"))
	call("eval", folder, dir+"/corpus.txt").must(t, 0)
}

// TestDiskFull: a run that cannot write any more, whatever the file, ends with
// 1 and a clear error; once there is room again, it continues to the same end.
func TestDiskFull(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	if !canLimitFiles {
		t.Skip("this system has no limits on files")
	}
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	dir, file := tiny(t, "max_steps: 8", "save_every: 2")
	call("train", file, "out="+dir+"/plain").must(t, 0)
	call("train", file, "max_steps=3").must(t, 0)
	st, err := os.Stat(dir + "/run/checkpoint-3/model.safetensors")
	check(t, err)
	for i := range 6 {
		// From a full metrics file to weights that lack a byte.
		limit := 1 + r.Int64N([]int64{100, 1000, 5000, st.Size() / 2, st.Size(), st.Size()}[i])
		t.Logf("limit %d", limit)
		finish(t, child([]string{fmt.Sprintf("%s=%d", fileLimit, limit)}, "train", file)).must(t, 1, "file too large")
	}
	// The disk tier takes its blocks at the start.
	finish(t, child([]string{fileLimit + "=20000"}, "train", file, spilled)).must(t, 1, "for the disk tier: file too large", "limits.disk")
	call("train", file).must(t, 0, "at step 3")
	sameRun(t, dir+"/run", dir+"/plain", 8)
}

// TestUnwritable: folders that cannot be written are reported with the key to
// change.
func TestUnwritable(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	call("train", file, "out="+file+"/run").must(t, 1, "set `out`")
	// This is checked before whether a plan fits; and a run that does not fit leaves no folder.
	for _, out := range []string{file + "/run", file} {
		call("train", file, "limits.device=1", "out="+out).must(t, 1, "set `out`")
	}
	call("train", file, "limits.device=1", "out="+dir+"/new/run").must(t, 3)
	call("train", file, "out="+file+"/run", "--dry-run").must(t, 0)
	if _, err := os.Stat(dir + "/new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a run that does not fit has made its folder: %v", err)
	}
	call("train", file, spilled, "limits.disk_path="+file+"/spill").must(t, 1, "limits.disk_path")
	check(t, os.MkdirAll(dir+"/run/metrics.jsonl", 0o755))
	call("train", file).must(t, 1, "metrics.jsonl")
	for _, args := range []string{"plan " + file + " --out ", "plan " + file + " --dump ", "probe --out ", "simulate " + file + " --trace ",
		"draw " + file + " --out "} {
		call(append(strings.Fields(args), file+"/x.svg")...).must(t, 1, "x.svg", "hint:")
	}
}

// TestUnwritableResults: that a result cannot be written is reported before any work is
// done for it, and checking this changes no file.
func TestUnwritableResults(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	late := file + " limits.device=1 " // what is found out later: nothing fits
	for _, args := range []string{"plan " + late + "--out ", "plan " + late + "--dump ", "simulate " + late + "--trace ", "draw " + late + "--out ",
		"eval absent --tokens absent --logits ", "eval absent --tokens absent --grads "} {
		for _, path := range []string{file + "/x.svg", dir + "/absent/x.svg"} {
			call(append(strings.Fields(args), path)...).must(t, 1, path+" cannot be written", "hint:")
		}
	}
	check(t, os.Mkdir(dir+"/folder.svg", 0o755))
	call("draw", file, "--out", dir+"/folder.svg").must(t, 1, "it is a folder", "hint:")
	call("plan", file).must(t, 0)
	call("probe", "--out", file+"/x.json").must(t, 1, "cannot be written")
	if kept, err := filepath.Glob(os.Getenv("HOME") + "/.cache/athanor/hardware-*.json"); err != nil || len(kept) == 0 {
		t.Errorf("a probe that could not be written was made: what was measured before is gone: %v", err)
	}
	check(t, os.WriteFile(dir+"/kept.svg", []byte("kept"), 0o644))
	for _, name := range []string{"/kept.svg", "/new.svg"} {
		call("draw", file, "limits.device=1", "--out", dir+name).must(t, 3)
	}
	text, err := os.ReadFile(dir + "/kept.svg")
	if _, made := os.Stat(dir + "/new.svg"); err != nil || string(text) != "kept" || made == nil {
		t.Errorf("files were changed before there was anything to write: %q, %v, %v", text, err, made)
	}
}
