package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/cli/clitest"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine/machinetest"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/train"
)

// The verbs are tested as a user meets them: arguments in; exit code, standard
// output and standard error out. HOME is a temporary folder that all tests
// share, where the machine is known, so that it is seldom probed.

// childArgs makes the test binary act as the program itself, with these arguments
// (JSON), for tests that send signals or set limits of a process.
const childArgs = "ATHANOR_TEST_ARGS"

// fileLimit is the largest file that a child may write, in bytes: the way to
// let a disk fill up without filling one.
const fileLimit = "ATHANOR_TEST_FILE_LIMIT"

// plainUser makes a child run without administrator's rights.
const plainUser = "ATHANOR_TEST_PLAIN_USER"

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if cuda.ServeProbe() {
		return 0
	}
	if slices.Equal(os.Args[1:], []string{processVerb}) { // athanor serve, itself a child, starts it
		return execute(os.Args[1:], os.Stdout, os.Stderr)
	}
	if text := os.Getenv(childArgs); text != "" {
		var args []string
		if err := errOr(json.Unmarshal([]byte(text), &args), limitFiles(), dropRights()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 99
		}
		return execute(args, os.Stdout, os.Stderr)
	}
	code, err := machinetest.Run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

func errOr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// execute is the program without the process.
func execute(args []string, stdout, stderr io.Writer) int {
	return command().Execute(args, stdout, stderr)
}

// spilled has the optimizer's state on disk, and settles what would take seconds to search.
const spilled = "plan={state: disk, micro_batch: 1, recompute: full}"

// result is the outcome of a call of the program.
type result struct {
	code           int
	stdout, stderr string
}

// call calls the program on the machine that tests have.
func call(args ...string) result {
	if err := machinetest.Restore(); err != nil {
		panic(err)
	}
	return callHere(args...)
}

// callHere calls the program on the machine that is known in HOME, if one is.
func callHere(args ...string) result {
	var out, log bytes.Buffer
	code := execute(args, &out, &log)
	return result{code, out.String(), log.String()}
}

// callAlone calls the program with a home of its own: a probe forgets what other tests know of the machine.
func callAlone(t *testing.T, args ...string) (r result) {
	t.Helper()
	t.Run(args[0], func(t *testing.T) {
		t.Setenv("HOME", t.TempDir())
		r = callHere(args...)
	})
	return r
}

// must fails the test unless the exit code is as expected and standard error
// has all the words.
func (r result) must(t *testing.T, code int, words ...string) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, expected %d\nstdout: %s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
	for _, w := range words {
		if !strings.Contains(r.stderr, w) {
			t.Fatalf("standard error does not say %q:\n%s", w, r.stderr)
		}
	}
	for _, bad := range []string{"panic:", "goroutine ", "runtime error"} {
		if strings.Contains(r.stderr, bad) {
			t.Fatalf("the error is a crash:\n%s", r.stderr)
		}
	}
	return r
}

// object decodes standard output, which must be exactly one JSON object.
func (r result) object(t *testing.T) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.stdout))
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("standard output is no JSON object: %v\n%s", err, r.stdout)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("something follows the JSON object:\n%s", r.stdout)
	}
	return v
}

// into decodes standard output into a struct.
func (r result) into(t *testing.T, v any) {
	t.Helper()
	check(t, json.Unmarshal([]byte(r.stdout), v))
}

// child is the program as a process of its own.
func child(env []string, args ...string) *exec.Cmd {
	text, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childArgs+"="+string(text)), env...)
	return cmd
}

// finish runs a child to its end.
func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), log.String()}
}

// corpus writes text with some structure: sentences of a small grammar.
func corpus(t *testing.T, path string, sentences int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	words := [][]string{{"the", "a", "every", "no"}, {"old", "green", "quick", "silent"}, {"furnace", "salamander", "adept", "crucible"},
		{"heats", "finds", "keeps", "forgets"}, {"gold", "sulphur", "mercury", "the elixir"}}
	var b strings.Builder
	for range sentences {
		for i, list := range words {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(list[r.IntN(len(list))])
		}
		b.WriteString(".\n")
	}
	check(t, os.WriteFile(path, []byte(b.String()), 0o644))
}

// tiny writes the configuration of a small model on a small corpus into a new
// folder and returns both; lines go to the end of the file.
func tiny(t *testing.T, lines ...string) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	corpus(t, dir+"/corpus.txt", 800)
	file = dir + "/run.yaml"
	text := fmt.Sprintf(`data: %[1]s/corpus.txt
tokenizer: bpe-300
sequence_length: 32
global_batch: 4
learning_rate: 1.0e-3
schedule: constant
warmup_steps: 0
out: %[1]s/run
`, dir)
	if len(lines) == 0 {
		lines = []string{"max_steps: 4"}
	}
	text += strings.Join(lines, "\n") + "\n"
	if !strings.Contains(text, "eval_batches:") {
		text += "eval_batches: 1\n"
	}
	if !strings.Contains(text, "model:") {
		text += "model: {type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2}\n"
	}
	check(t, os.WriteFile(file, []byte(text), 0o644))
	return dir, file
}

// losses reads metrics.jsonl, in which every step must be once and in order.
func losses(t *testing.T, dir string) []float64 {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "metrics.jsonl"))
	check(t, err)
	defer f.Close()
	var list []float64
	for s := bufio.NewScanner(f); s.Scan(); {
		var m train.Metrics
		check(t, json.Unmarshal(s.Bytes(), &m))
		if m.Step != len(list)+1 {
			t.Fatalf("%s: line %d is step %d", dir, len(list)+1, m.Step)
		}
		list = append(list, m.Loss)
	}
	return list
}

// sameRun fails unless two runs have the same losses and, at the end, the same
// weights and moments, bit for bit.
func sameRun(t *testing.T, got, want string, step int) {
	t.Helper()
	a, b := losses(t, got), losses(t, want)
	if fmt.Sprint(a) != fmt.Sprint(b) || len(a) != step {
		t.Fatalf("losses of %d steps differ\n got %v\nwant %v", step, a, b)
	}
	weights := "model.safetensors"
	if _, err := os.Stat(fmt.Sprintf("%s/checkpoint-%d/%s", want, step, weights)); err != nil {
		weights = "adapter_model.safetensors"
	}
	for _, name := range []string{weights, "state/m.safetensors", "state/v.safetensors"} {
		name = fmt.Sprintf("checkpoint-%d/%s", step, name)
		x, err := os.ReadFile(filepath.Join(got, name))
		check(t, err)
		y, err := os.ReadFile(filepath.Join(want, name))
		check(t, err)
		if !bytes.Equal(x, y) {
			t.Fatalf("%s differs", name)
		}
	}
}

func TestHelp(t *testing.T) { clitest.Help(t, command) }

// TestUsage: what is wrong with a command line or a configuration is reported with
// a way out, and the exit code is 2.
func TestUsage(t *testing.T) {
	dir, file := tiny(t)
	corpus(t, dir+"/small.txt", 100)
	check(t, os.WriteFile(dir+"/broken.yaml", []byte("model: {type: gpt2"), 0o644))
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"trian", file}, []string{`did you mean "train"?`}},
		{[]string{"--jsn"}, []string{"--jsn", "--json"}},
		{[]string{"help", "trian"}, []string{`did you mean "train"?`}},
		{[]string{"plan"}, []string{"<config>", "hint: athanor plan --help"}},
		{[]string{"plan", file, "--explian"}, []string{"--explian", "--explain"}},
		{[]string{"plan", "absent.yaml"}, []string{"absent.yaml", "hint:"}},
		{[]string{"train", dir}, []string{"not a configuration file", "hint:"}},
		{[]string{"train", "gpt2"}, []string{"cannot read the file", "hint:"}},
		{[]string{"plan", "gpt2"}, []string{"sequence_length, global_batch: missing", "hint: a plan needs"}},
		{[]string{"plan", dir, "sequence_length=8", "global_batch=1"}, []string{"has no config.json", "hint:"}},
		{[]string{"plan", "gpt3", "sequence_length=8", "global_batch=1"}, []string{"gpt3", "hint:"}},
		{[]string{"plan", "{type: gpt2, layers: 1, width: 8, heads: 1}", "sequence_length=8", "global_batch=1"}, []string{"vocabulary is missing", "hint:"}},
		{[]string{"plan", file, "tokenizer=null"}, []string{"tokenizer: missing", "hint:"}},
		{[]string{"plan", file, "learning_rat=3"}, []string{"learning_rat", "did you mean learning_rate?"}},
		{[]string{"plan", file, "limits.devise=3MiB"}, []string{"limits.devise", "did you mean device?"}},
		{[]string{"plan", file, "limits.device=lots"}, []string{"limits.device", "not an amount of memory"}},
		{[]string{"plan", file, "limits.device"}, []string{"expected key=value"}},
		{[]string{"plan", file, "model={type: lama, layers: 2, width: 32, heads: 4}"}, []string{"lama", "hint:"}},
		{[]string{"plan", file, "model=gpt3"}, []string{"gpt3", "hint:"}},
		{[]string{"plan", file, "model={type: llama, layers: 2, width: 32, heads: 4, active_experts: 2}"}, []string{"llama has no experts", "mixtral"}},
		{[]string{"plan", file, "model={type: mixtral, layers: 2, width: 32, heads: 4, experts: 5000}"}, []string{"2 of 5000 experts", "4096"}},
		{[]string{"plan", file, "model={type: llama, layers: 2, width: 32, heads: 5}"}, []string{"width 32 cannot be divided among 5 heads", "head_dim"}},
		{[]string{"plan", file, "epsilon=0"}, []string{"epsilon: 0 is out of range", "1e-30"}},
		{[]string{"plan", file, "device=cuda"}, []string{"device", "hint:"}},
		{[]string{"plan", file, "plan.recompute=some"}, []string{"recompute", "hint:"}},
		{[]string{"plan", file, "plan.state=moon"}, []string{"plan.state", "moon"}},
		{[]string{"plan", file, "plan.update=disk"}, []string{"plan.update", "disk", "hint: use one of host, device"}},
		{[]string{"plan", file, "plan.state=disk", "limits.disk=none"}, []string{"plan.state", "no disk memory", "hint:"}},
		{[]string{"train", "--json", file, "resume=absent"}, []string{"resume", "absent is not a checkpoint", "hint:"}},
		{[]string{"train", file, "resume=absent", "limits.device=1"}, []string{"absent is not a checkpoint"}}, // before a plan is searched
		{[]string{"train", "--json", file, "resume=../../testdata/torch/gpt2-tiny"}, []string{"is not a checkpoint", "hint:"}},
		{[]string{"plan", file, "plan=absent.json"}, []string{"absent.json", "hint:"}},
		{[]string{"plan", file, "plan.micro_batch=3"}, []string{"plan.micro_batch: 3", "divisor"}},
		{[]string{"plan", file, "tokenizer=absent.json"}, []string{"tokenizer", "absent.json"}},
		{[]string{"plan", file, "sequence_length=-1"}, []string{"out of range"}},
		{[]string{"plan", file, "global_batch=300", "data=" + dir + "/small.txt"}, []string{"global_batch"}},
		{[]string{"train", file, "limits.device=9000TiB"}, []string{"limits.device", "(8.8 PiB)", "this machine has", "hint:"}},
		{[]string{"plan", file, "global_batch=1048576"}, []string{"global_batch"}},
		{[]string{"plan", file, "min_learning_rate=.nan"}, []string{"min_learning_rate"}},
		{[]string{"plan", file, "warmup_steps=-4"}, []string{"warmup_steps"}},
		{[]string{"plan", file, "hardware.h2d=1B/s"}, []string{"hardware.h2d", "hint:"}},
		{[]string{"plan", file, "plan.weights=host", "plan.state=device"}, []string{"plan:", "tiers", "hint:"}},
		{[]string{"plan", file, "plan.weights=disk"}, []string{"plan:", "tiers", "hint:"}},
		{[]string{"plan", file, "plan.prefetch=99999999999"}, []string{"prefetch", "hint:"}},
		{[]string{"plan", file, "plan.swap=1.5"}, []string{"plan.swap", "out of range", "hint:"}},
		{[]string{"plan", file, "plan.swap=.nan"}, []string{"plan.swap", "out of range", "hint:"}},
		{[]string{"plan", file, "plan.swap={99: 0.5}"}, []string{"plan.swap", "no layer 99", "hint:"}},
		{[]string{"plan", file, "plan.swap={-1: 0.5}"}, []string{"plan.swap", "no layer -1", "hint:"}},
		{[]string{"plan", file, "plan.swap=0.5", "limits.host=none"}, []string{"plan.swap", "no host memory", "hint:"}},
		{[]string{"plan", file, "plan.swap=0.5", "plan.swap_tier=disk", "limits.disk=none"}, []string{"plan.swap_tier", "no disk memory", "hint:"}},
		{[]string{"plan", file, "plan.swap_tier=host"}, []string{"plan.swap_tier", "nothing is swapped", "hint:"}},
		{[]string{"plan", file, "plan.policy=lru"}, []string{"plan.policy", "lru", "hint:"}},
		{[]string{"plan", file, "plan.slots=-1"}, []string{"plan.slots", "hint:"}},
		{[]string{"plan", file, "--policy=nosuch"}, []string{`policy "nosuch"`, "hint:", "zero-2", "memo-paper"}},
		{[]string{"plan", file, "--max-sequence", "--step=0"}, []string{"--step", "hint:"}},
		{[]string{"plan", file, "--max-sequence", "--policy=zero-2"}, []string{"--policy zero-2", "hint:"}},
		{[]string{"plan", file, "--max-sequence", "--policy=memo-paper", "limits.host=none"}, []string{"plan.policy", "no host memory", "hint:"}},
		{[]string{"plan", file, "plan.head_rows=1000000000000"}, []string{"head_rows", "hint:"}},
		{[]string{"eval", dir, file, "--batches", "0"}, []string{"--batches"}},
		{[]string{"eval", dir, file, "--sequence", "-1"}, []string{"--sequence"}},
		{[]string{"eval", dir, file}, []string{"not a model folder", "hint:"}},
		{[]string{"generate", file}, []string{"not a model folder", "hint:"}},
		{[]string{"plan", file, "sample={tokens: 3, prompt: " + strings.Repeat("gold", 100) + "}"}, []string{"sample.prompt", "the model takes at most 32", "hint:"}},
		{[]string{"draw", file}, []string{"--out"}},
		{[]string{"plan", dir + "/broken.yaml"}, []string{"broken.yaml", "examples/"}},
		{[]string{"plan", file, "model={type: gpt2, layers: 2}"}, []string{"layers, width and heads"}},
		{[]string{"plan", file, "model.layers=100000000"}, []string{"model: layers is"}},
		{[]string{"plan", file, "tokenizer=" + file}, []string{"tokenizer", "BPE or unigram"}},
		{[]string{"draw", file, "--out", "x.pdf"}, []string{"x.pdf", "hint:"}},
		{[]string{"probe", "--disk", file}, []string{"not a folder", "hint:"}},
		{[]string{"data", file + ".absent"}, []string{"no file matches", "hint:"}},
		{[]string{"data", file, "--sample", "-3"}, []string{"--sample"}},
		{[]string{"bench", "--match", "no such", "--cores", "1"}, []string{`contains "no such"`, "hint:"}},
		{[]string{"bench", "step", "gpt2", "--steps=-1"}, []string{"--steps", "hint:"}},
		{[]string{"bench", "budgets", file, "--steps=-1"}, []string{"--steps", "hint:"}},
		{[]string{"generate", ".", "--max-tokens", "0"}, []string{"--max-tokens is 0"}},
		{[]string{"generate", ".", "--temperature", "101"}, []string{"--temperature is 101"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			r := call(c.args...).must(t, 2, c.want...)
			if r.stdout != "" {
				t.Errorf("standard output: %s", r.stdout)
			}
			if strings.Count(r.stderr, "did you mean") > 1 || !strings.Contains(r.stderr, "hint:") {
				t.Errorf("told twice, or without a way out: %s", r.stderr)
			}
		})
	}
}

// TestLinesOfKeys: what is wrong with a key is reported with its line, whoever finds it.
func TestLinesOfKeys(t *testing.T) {
	for lines, want := range map[string]string{
		"seed: -1":                                            "10: seed: expected a whole number from 0 to 18446744073709551615",
		"limits:\n  device: 9000TiB":                          "11: limits.device: ",
		"plan:\n  micro_batch: 3":                             "11: plan.micro_batch: 3",
		"plan:\n  head_rows: 77":                              "11: plan.head_rows: 77",
		"precision: bf16\nplan: {head_rows: 1}":               "11: plan.head_rows: 1 is not a multiple of ",
		"plan:\n  prefetch: -1":                               "11: plan.prefetch: -1 is out of range",
		"plan:\n  recompute: some":                            "11: plan.recompute: ",
		"plan: {state: moon}":                                 "10: plan.state: ",
		"plan: absent.json":                                   "10: plan: ",
		"model: {type: lama, layers: 2, width: 32, heads: 4}": "10: model: ",
		"model: {type: gpt2, layers: 1, width: 8, heads: 1, vocabulary: 9}": "2: tokenizer: it has",
	} {
		t.Run(lines, func(t *testing.T) {
			_, file := tiny(t, "max_steps: 1", lines)
			call("plan", file).must(t, 2, fmt.Sprintf("%s:%s", file, want))
		})
	}
	_, file := tiny(t, "max_steps: 1", "plan: {micro_batch: 1}")
	call("plan", file, "plan.micro_batch=3").must(t, 2, file+": plan.micro_batch: 3") // the file is not to blame
}

// TestOrderOfArguments: flags and overrides may be mixed, and a flag's value stays
// with it even if it looks like an override.
func TestOrderOfArguments(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	for _, args := range [][]string{
		{"plan", file, "hardware.name=l4", "plan.micro_batch=2", "--json", "--out", dir + "/a=b"},
		{"plan", "--out", dir + "/a=b", file, "--json", "hardware.name=l4", "plan.micro_batch=2"},
		{"--json", "plan", file, "hardware.name=l4", "--out=" + dir + "/a=b", "plan.micro_batch=2"},
		{"plan", "--json", "--out", dir + "/a=b", "--", file, "hardware.name=l4", "plan.micro_batch=2"},
	} {
		var r search.Report
		call(args...).must(t, 0).into(t, &r)
		_, err := os.Stat(dir + "/a=b")
		if check(t, err); r.Plan.MicroBatch != 2 {
			t.Errorf("%v: micro-batch %d", args, r.Plan.MicroBatch)
		}
		check(t, os.Remove(dir+"/a=b"))
	}
	call("plan", file, "--explain", "hardwear.name=l4").must(t, 2, "did you mean hardware?")
	call("bench", "step", "--lora").must(t, 2, "--lora")
}

func TestFlagsKeepValues(t *testing.T) { clitest.FlagsKeepValues(t, command) }

// TestVerbsElsewhere: a verb that the laboratory has is not unknown: the error names the command that has it.
func TestVerbsElsewhere(t *testing.T) {
	for _, args := range [][]string{{"scale"}, {"--json", "scale", "memo"}, {"help", "pack"}, {"schedule", "1f1b"}, {"bench", "sweep", "a.yaml"},
		{"bench", "policies", "--help"}, {"bench", "--json", "swap"}} {
		call(args...).must(t, 2, " is a verb of athanor-lab; hint: athanor-lab ")
	}
	call("bench", "step", "scale").must(t, 2, "is not known") // a model's name, not a verb
}

// TestWrongFiles: files without an end, and folders that are something else.
func TestWrongFiles(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip(err)
	}
	for _, args := range [][]string{
		{"plan", "/dev/zero"},
		{"plan", file, "hardware.name=/dev/zero"},
		{"plan", file, "plan=/dev/zero"},
		{"plan", file, "tokenizer=/dev/zero"},
		{"plan", file, "model=" + dir},
	} {
		call(args...).must(t, 2, "hint:")
	}
	// A folder whose weights are not weights, as after an interrupted download.
	text, err := os.ReadFile("../../testdata/torch/llama-tiny/config.json")
	check(t, err)
	none := t.TempDir()
	check(t, os.WriteFile(none+"/config.json", text, 0o644))
	check(t, os.WriteFile(none+"/model.safetensors", []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"), 0o644))
	check(t, os.WriteFile(none+"/tokens.json", []byte("[[1,2,3]]"), 0o644))
	call("eval", none, "--tokens", none+"/tokens.json").must(t, 1, "weights of "+none, "among the 0 in the files", "hint:")
}

// TestOtherCores: what was measured on some cores is not assumed of others, and what is kept of that is made anew,
// whatever has become of it.
func TestOtherCores(t *testing.T) {
	testkit.Needs(t, testkit.All)
	_, file := tiny(t)
	args := []string{"plan", file}
	quietly := func(env []string) {
		if again := finish(t, child(env, args...)).must(t, 0); strings.Contains(again.stderr, "probing the machine") {
			t.Errorf("measured twice:\n%s", again.stderr)
		}
	}
	quietly(nil)
	more := []string{fmt.Sprint("GOMAXPROCS=", runtime.GOMAXPROCS(0)+1)}
	finish(t, child(more, args...)).must(t, 0, "probing the machine")
	quietly(more)
	kept, err := filepath.Glob(os.Getenv("HOME") + "/.cache/athanor/hardware-*.json")
	if check(t, err); len(kept) == 0 {
		t.Fatal("no description of the machine is kept")
	}
	for _, path := range kept {
		check(t, os.Truncate(path, 1<<41))
	}
	callHere("plan", file).must(t, 0, "probing the machine")
}

// TestNoHome: without a home that can be written the cache is in the temporary
// folder; if there is nowhere to write, this is reported before anything is done.
func TestNoHome(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	none := filepath.Join(dir, "file")
	check(t, os.WriteFile(none, nil, 0o644)) // a folder cannot be made in a file, whoever asks
	for _, home := range []string{"HOME=", "HOME=" + none} {
		temp := t.TempDir()
		env := []string{home, "XDG_CACHE_HOME=", "TMPDIR=" + temp}
		finish(t, child(env, "plan", file, "hardware.name=l4")).must(t, 0)
		if made, err := filepath.Glob(temp + "/athanor-*/tokenizers/*"); len(made) != 1 || err != nil {
			t.Errorf("%s: the cache is not in the temporary folder: %v %v", home, made, err)
		}
		finish(t, child([]string{home, "XDG_CACHE_HOME=", "TMPDIR=" + none}, "plan", file, "hardware.name=l4")).must(t, 1, "hint: set XDG_CACHE_HOME")
	}
}

// TestFullFiles: a result that does not fit on the disk is an error, leaves no partial file
// and an older one as it was; what is not a regular file is not removed.
func TestFullFiles(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t)
	before, err := os.ReadDir(dir)
	check(t, err)
	half := func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1<<20))
		return errOr(err, errors.New("no space left"))
	}
	if err := cli.WriteTo(dir+"/result", half); err == nil {
		t.Error("no error")
	}
	if after, err := os.ReadDir(dir); err != nil || len(after) != len(before) {
		t.Errorf("%v, left behind: %v", err, after)
	}
	whole := func(w io.Writer) error { return cli.Wrote(io.WriteString(w, "whole")) }
	check(t, cli.WriteTo(dir+"/result", whole))
	check(t, os.Symlink("result", dir+"/link"))
	for _, path := range []string{dir + "/result", dir + "/link"} {
		if err := cli.WriteTo(path, half); err == nil {
			t.Error("no error")
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "whole" {
			t.Errorf("%s: %v, of the older file is left %d bytes", path, err, len(text))
		}
	}
	check(t, cli.WriteTo(dir+"/link", func(w io.Writer) error { return cli.Wrote(io.WriteString(w, "other")) }))
	if text, err := os.ReadFile(dir + "/result"); err != nil || string(text) != "other" {
		t.Errorf("through a link: %q, %v", text, err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	check(t, os.Symlink("/dev/full", dir+"/full"))
	for _, flag := range []string{"--out", "--dump"} {
		call("plan", file, "hardware.name=l4", flag, dir+"/full").must(t, 1, "no space left", "hint: free some space")
		_, err := os.Lstat(dir + "/full")
		check(t, err)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestLostResults: a result that could not be written is not a success.
func TestLostResults(t *testing.T) {
	for _, args := range []string{"doctor", "doctor --json", "keys", "keys --json"} {
		var log bytes.Buffer
		if code := execute(strings.Fields(args), full{}, &log); code != 1 || !strings.Contains(log.String(), "no space left") {
			t.Errorf("athanor %s: exit code %d, %s", args, code, log.String())
		}
	}
}
