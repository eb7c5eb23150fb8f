package main

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestValidation: with a validation corpus all other text is trained on, and the loss is what eval finds on that corpus. The choice of
// corpus changes nothing that is trained, so a run may resume with another one, which is reported. Files in both are not trained on.
func TestValidation(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", "save_every: 2", "keep_checkpoints: 9", "eval_batches: 1000")
	text := corpusOf(t, dir, "a.txt", "b.txt", "held.txt")
	args := func(out string, more ...string) []string {
		return append([]string{"train", file, "data=" + dir + "/[ab].txt", "out=" + dir + "/" + out}, more...)
	}
	var got, other trained
	r := call(args("one", "validation="+text["held.txt"], "--json")...).must(t, 0, "validation: text: 1 files, 1 documents")
	if r.into(t, &got); strings.Contains(r.stderr, "held out") {
		t.Error(r.stderr)
	}
	var seen evalReport
	call("eval", got.Checkpoint, text["held.txt"], "--sequence", "32", "--batches", "100000", "--json").must(t, 0).into(t, &seen)
	if math.Abs(seen.Loss/got.ValLoss-1) > 1e-5 {
		t.Errorf("validation loss %v, by eval %v", got.ValLoss, seen.Loss)
	}
	both := call(args("both", "data="+dir+"/*.txt", "validation="+text["held.txt"])...).must(t, 0, "note: 1 files of "+dir+"/*.txt also belong to "+text["held.txt"]+", and")
	if !strings.Contains(both.stderr, "corpus: text: 3 files") { // corpus.txt, a and b
		t.Error(both.stderr)
	}
	call(args("another", "validation="+dir+"/corpus.txt", "--json")...).must(t, 0).into(t, &other)
	if sameRun(t, dir+"/another", dir+"/one", 4); other.ValLoss == got.ValLoss {
		t.Error("another corpus has the same loss")
	}
	check(t, os.RemoveAll(dir+"/another/checkpoint-4"))
	const told = "its losses cannot be compared"
	call(args("another", "validation="+text["held.txt"])...).must(t, 0, "checkpoint-2 at step 2", "the validation text has changed from ", told)
	sameRun(t, dir+"/another", dir+"/one", 4)
	if r := call(args("another", "validation="+text["held.txt"], "max_steps=5")...).must(t, 0); strings.Contains(r.stderr, told) {
		t.Error(r.stderr)
	}
	call("train", dir+"/another/config.yaml", "max_steps=6").must(t, 0, "at step 5", "validation: text: 1 files")
	call(args("another", "max_steps=7")...).must(t, 2, "validation_fraction is none there and 0.01 here")
	for _, c := range []struct{ override, want string }{
		{"validation=" + dir + "/absent", "validation: no file matches"},
		{"validation=" + dir + "/[ab].txt", "data: all text of " + dir + "/[ab].txt is named again by a later source or by validation"},
		{"validation=$ABSENT/a", "validation: "},
		{"validation={files: a}", "validation: expected a name or a list of names"},
	} {
		call(args("never", c.override)...).must(t, 2, c.want, "hint:")
	}
	check(t, os.WriteFile(dir+"/short.txt", []byte("gold"), 0o644))
	call(args("never", "validation="+dir+"/short.txt")...).must(t, 2, "validation: ", "less than one window", "hint:")
	check(t, os.WriteFile(dir+"/cut.jsonl", []byte("{"), 0o644))
	call(args("never", "validation="+dir+"/cut.jsonl")...).must(t, 2, "validation: ", "cut.jsonl: line 1", "hint:")
}

// TestBestOfAnother: the least loss on one validation corpus is not compared with that on another.
func TestBestOfAnother(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2", "eval_batches: 1000", "keep_best: true", "eval_every: 1", "validation_fraction: null")
	text := corpusOf(t, dir, "a.txt", "b.txt")
	still := func(name, out string, more ...string) (r trained) {
		call(append([]string{"train", file, "learning_rate=1e-9", "out=" + dir + "/of-" + out, "validation=" + text[name], "--json"}, more...)...).must(t, 0).into(t, &r)
		return r
	}
	low, high := "a.txt", "b.txt"
	a, b := still(low, low).Best.Loss, still(high, high).Best.Loss
	if a > b {
		low, high, a, b = high, low, b, a
	}
	if got := still(high, low, "max_steps=4").Best; got.Step < 3 || math.Abs(got.Loss-b) > (b-a)/2 {
		t.Errorf("losses %v, then %v; the best is %+v", a, b, got)
	}
}

// corpusOf writes files of some text, each a different one, and returns their paths.
func corpusOf(t *testing.T, dir string, names ...string) map[string]string {
	t.Helper()
	path := map[string]string{}
	for k, name := range names {
		path[name] = dir + "/" + name
		text := strings.Repeat(fmt.Sprintf("the %d. salamander finds %s, and keeps it.\n", k, name), 100+20*k)
		check(t, os.WriteFile(path[name], []byte(text), 0o644))
	}
	return path
}

// TestValidationKinds: whatever is trained on can be validated with, in files of another format, and compressed.
func TestValidationKinds(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1", "eval_batches: 100")
	pairs, few := preferences(t, dir+"/pairs.jsonl", false), preferences(t, dir+"/few.jsonl", false)
	text, err := os.ReadFile(few)
	check(t, err)
	lines := strings.SplitAfter(string(text), "\n")
	check(t, os.WriteFile(few, []byte(strings.Join(lines[:30], "")), 0o644))
	const tables, packed, chats = "../../data/parquet/testdata/", "../../data/testdata/texts-", "../../data/testdata/chats-python.jsonl.zst"
	for _, c := range []struct{ args, want []string }{
		{[]string{"validation=" + tables + "texts-zstd-2.parquet"}, []string{"validation: Parquet: 1 files, 46 documents"}},
		{[]string{"validation=" + packed + "python.jsonl.gz", "documents=separate"}, []string{"validation: JSONL: 1 files, 46 documents"}},
		{[]string{"validation=" + packed + "frames.ndjson.zst", "documents=whole"}, []string{"validation: JSONL: 1 files", "documents cut, since they have more than 33 tokens: 18"}},
		{[]string{"data=" + chats, "validation=" + tables + "chats-polars.parquet", "tokenizer=" + chatFolder, "model={type: qwen2, layers: 2, width: 32, heads: 4}"},
			[]string{"validation: Parquet: ", "conversations, only what the assistant says is learnt"}},
		{[]string{"data=" + pairs, "validation=" + few, "preference.beta=0.3", "keep_best=true", "eval_every=1"},
			[]string{"120 pairs to train on and 30 to validate with", "validation: JSONL: ", "reference: computing the log-probabilities of 150 pairs"}},
	} {
		call(append([]string{"train", file, "resume=never", "out=" + t.TempDir()}, c.args...)...).must(t, 0, append(c.want, "step 1: validation loss")...)
	}
	// Pairs of several sources, some of them twice: each has its own reference, or the first loss were not log 2.
	call("train", file, fmt.Sprintf("data=[%s, {files: %s, times: 2.5}]", pairs, few), "preference.beta=0.3", "global_batch=16", "out="+dir+"/mixed").must(t, 0, "few.jsonl: JSONL: 1 files, 60 documents", "times 2.5")
	if first := steps(t, dir+"/mixed")[0]; math.Abs(first.Loss-math.Ln2) > 1e-7 || first.Margin != 0 {
		t.Errorf("the first step's loss is %v, margin %v", first.Loss, first.Margin)
	}
	// The reference of pairs is that of the beginning: for other pairs there is none.
	prefer := []string{"train", file, "data=" + pairs, "preference.beta=0.3"}
	call(append(prefer, "validation="+few)...).must(t, 0)
	check(t, os.WriteFile(few, []byte(strings.Join(lines[:29], "")), 0o644))
	call(append(prefer, "validation="+few, "max_steps=2")...).must(t, 2, "belongs to another run: validation is ")
	call("train", file, "validation="+pairs, "out="+dir+"/never").must(t, 2, "validation: ", "hint: set preference")
	call(append(prefer, "validation="+dir+"/corpus.txt", "out="+dir+"/never")...).must(t, 2, "validation: 0 of 1 documents belong to pairs", "hint:")
}

// TestSources: train and data report a corpus of several sources part by part, each with its share. As many steps as a pass has are made,
// and no run resumes with another mixture. One source that is read once is the same as a plain list of files.
func TestSources(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2")
	text := corpusOf(t, dir, "a.txt", "b.txt", "c.txt")
	mixture := fmt.Sprintf("data=[%s, {files: %s, times: 3}, {files: [%s], times: 0.5}]", text["a.txt"], text["b.txt"], text["c.txt"])
	var r dataReport
	call("data", file, mixture, "--json").must(t, 0).into(t, &r)
	sum, all, tokens := 0.0, 0.0, int64(0)
	for k, times := range []float64{1, 3, 0.5} {
		sum += r.Sources[k].Share
		tokens += r.Sources[k].Tokens
		all += times * float64(r.Sources[k].Tokens)
	}
	if b := r.Sources[1]; len(r.Sources) != 3 || tokens != r.Tokens || math.Abs(sum-1) > 1e-12 || math.Abs(b.Share-3*float64(b.Tokens)/all) > 1e-12 || b.Times != 3 || r.Files != 3 {
		t.Errorf("%+v", r)
	}
	said := call("train", file, mixture).must(t, 0, "corpus: text: 3 files, 3 documents", "\n  "+text["b.txt"]+": text: 1 files, 1 documents, ", " tokens, times 3, ", "times 0.5, ", " % of the sequences of a pass")
	for k := range r.Sources {
		if want := fmt.Sprintf("%d tokens, times %v, ", r.Sources[k].Tokens, r.Sources[k].Times); !strings.Contains(said.stderr, want) {
			t.Errorf("no %q in %s", want, said.stderr)
		}
	}
	if shown := call("data", file, mixture).must(t, 0).stdout; strings.Count(shown, " % of the tokens of a pass") != 3 {
		t.Error(shown)
	}
	call("train", file, mixture, "max_steps=3").must(t, 0, "at step 2")
	call("train", dir+"/run/config.yaml", "max_steps=4").must(t, 0, "at step 3", "times 0.5")
	call("train", file, strings.Replace(mixture, "times: 3", "times: 2", 1), "max_steps=5").must(t, 2, "belongs to another run: mixture is ", "3 times", "2 times")
	call("train", file, "data="+dir+"/[abc].txt", "max_steps=5").must(t, 2, "belongs to another run: ")

	steps := func(data string) int {
		call("train", file, data, "max_steps=null", "max_epochs=1", "out="+dir+"/epoch", "resume=auto").must(t, 0, "steps read it 1")
		c, err := config.Load(dir+"/epoch/config.yaml", nil)
		check(t, err)
		check(t, os.RemoveAll(dir+"/epoch"))
		return c.MaxSteps
	}
	if once, thrice := steps("data="+text["a.txt"]), steps("data={files: "+text["a.txt"]+", times: 3}"); thrice < 3*once-3 || thrice > 3*once {
		t.Errorf("a pass of %d steps, three times in it %d", once, thrice)
	}
	call("train", file, "data="+text["a.txt"], "out="+dir+"/plain").must(t, 0)
	call("train", file, "data={files: "+text["a.txt"]+"}", "max_steps=3", "out="+dir+"/plain").must(t, 0, "at step 2")
	call("train", file, "data={files: "+text["a.txt"]+", times: 2}", "max_steps=4", "out="+dir+"/plain").must(t, 2, "belongs to another run: mixture is ")

	check(t, os.WriteFile(dir+"/short.txt", []byte("gold"), 0o644))
	check(t, os.WriteFile(dir+"/empty.txt", nil, 0o644))
	for _, c := range []struct{ data, want string }{
		{"[" + text["a.txt"] + ", {files: " + dir + "/short.txt}]", "data: " + dir + "/short.txt: the corpus has 2 tokens"},
		{"[" + text["a.txt"] + ", {files: " + dir + "/empty.txt}]", "data: all files that match"},
		{"[" + text["a.txt"] + ", {files: " + dir + "/absent}]", "data: no file matches"},
		{"[" + text["a.txt"] + ", {files: " + text["a.txt"] + ", times: 2}]", "data: all text of " + text["a.txt"] + " is named again"},
		{"{files: " + text["a.txt"] + ", times: 1001}", "times 1001 of a source"},
	} {
		call("train", file, "data="+c.data, "tokenizer=gpt2", "out="+dir+"/never").must(t, 2, c.want, "hint:")
	}
	call("train", file, fmt.Sprintf("data=[%s/*.txt, {files: %s, times: 2}]", dir, text["b.txt"]), "out="+dir+"/twice").must(t, 0, "note: 1 files of "+dir+"/*.txt also belong to "+text["b.txt"]+", and are read only as part of the latter")
}
