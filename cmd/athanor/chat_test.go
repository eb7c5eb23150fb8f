package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/internal/testkit"
)

const chatFolder = "../../data/chat/testdata/chatml"

// colours are what the tiny model learns to answer.
var colours = map[string]string{"gold": "yellow", "iron": "grey", "copper": "red", "silver": "white"}

// conversations writes conversations of two questions about metals, each answered for the metal that is that many
// places further.
func conversations(t *testing.T, path string, further int) string {
	t.Helper()
	metals := []string{"gold", "iron", "copper", "silver"}
	const n = 400
	r := rand.New(rand.NewPCG(3, 4))
	var b strings.Builder
	for range n {
		var turns []map[string]string
		for range 2 {
			m := r.IntN(len(metals))
			answer := colours[metals[(m+further)%len(metals)]]
			turns = append(turns, map[string]string{"role": "user", "content": metals[m] + "?"}, map[string]string{"role": "assistant", "content": answer})
		}
		text, err := json.Marshal(map[string]any{"messages": turns})
		check(t, err)
		b.Write(append(text, '\n'))
	}
	check(t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

// talk runs the chat verb on questions, a line each.
func talk(t *testing.T, questions string, args ...string) result {
	t.Helper()
	cmd := child(nil, append([]string{"chat"}, args...)...)
	cmd.Stdin = strings.NewReader(questions)
	return finish(t, cmd)
}

// TestChat: a model that is trained on conversations answers as they do, turn after turn, from a checkpoint that keeps the
// template, even as an adapter; a run resumes with the same template only.
func TestChat(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 250", "documents: separate", "validation_fraction: 0.05", "eval_batches: 100",
		"model: {type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2, max_positions: 128}")
	chats := conversations(t, dir+"/chat.jsonl", 0)
	args := []string{"train", file, "learning_rate=0.01", "sequence_length=64", "data=" + chats, "tokenizer=" + chatFolder}
	var got trained
	call(append(args, "--json")...).must(t, 0, "of 400 conversations, only what the assistant says is learnt").into(t, &got)
	if got.ValLoss > 0.5 { // windows begin anywhere, even after a question
		t.Errorf("loss %v of what has one answer", got.ValLoss)
	}
	const asked = "gold?\n\n  copper? \n"
	const want = "yellow\nred\n"
	answers := talk(t, asked, got.Checkpoint, "--temperature", "0").must(t, 0)
	if same := talk(t, asked, got.Checkpoint, "--temperature", "0", "--device-memory", "160KB").must(t, 0); same.stdout != answers.stdout {
		t.Errorf("with little memory: %q, without limit %q", same.stdout, answers.stdout)
	}
	talk(t, asked, got.Checkpoint, "--device-memory", "1KB").must(t, 3, "does not fit", "hint:")
	if answers.stdout != want {
		t.Errorf("%q, want %q", answers.stdout, want)
	}
	var report chatReport
	talk(t, asked, got.Checkpoint, "--temperature", "0", "--json").must(t, 0).into(t, &report)
	if len(report.Answers) != 2 || report.Answers[0].Known != 0 || report.Answers[1].Question != "copper?" || report.Answers[1].Text != "red" {
		t.Errorf("%+v", report.Answers)
	}
	for i, a := range report.Answers[1:] { // all but the answer's last token and what follows it was read
		before := report.Answers[i]
		if a.Known < before.PromptTokens || a.Known >= a.PromptTokens {
			t.Errorf("of %d tokens %d were known, after %d", a.PromptTokens, a.Known, before.PromptTokens)
		}
	}
	for _, name := range []string{"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"} {
		a, err := os.ReadFile(chatFolder + "/" + name)
		check(t, err)
		if b, err := os.ReadFile(got.Checkpoint + "/" + name); err != nil || !bytes.Equal(a, b) {
			t.Errorf("the checkpoint has another %s, %v", name, err)
		}
	}
	shown := call("data", chats, "--tokenizer", got.Checkpoint, "--sample", "40").must(t, 0).stdout
	for _, part := range []string{"(given) or [learnt]", "(<|im_start|>)", "[<|im_end|>]", "(<|im_end|>)"} {
		if !strings.Contains(shown, part) {
			t.Errorf("data does not show %s:\n%s", part, shown)
		}
	}
	call("eval", got.Checkpoint, chats, "--separate").must(t, 0)

	// An adapter on that model learns other answers; its folder alone can be talked to.
	other := conversations(t, dir+"/other.jsonl", 1)
	var adapted trained
	call("train", file, "learning_rate=0.01", "data="+other, "model="+got.Checkpoint, "tokenizer="+got.Checkpoint, "sequence_length=64", "lora={rank: 8}", "out="+dir+"/lora", "--json").must(t, 0).into(t, &adapted)
	if r := talk(t, "gold?\nsilver?\n", adapted.Checkpoint, "--temperature", "0").must(t, 0); r.stdout != "grey\nyellow\n" {
		t.Errorf("the adapter answers %q", r.stdout)
	}
}

// TestChatErrors: what cannot be a conversation says why.
func TestChatErrors(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	chats := conversations(t, dir+"/chat.jsonl", 0)
	call("train", file, "data="+chats).must(t, 2, "chat.jsonl: line 1", "needs a chat template", "hint:")
	call("train", file, "data="+chats, "tokenizer=gpt2").must(t, 2, "chat.jsonl: line 1", "needs a chat template", "hint:")
	call("data", chats).must(t, 2, "needs a chat template")
	call("train", file).must(t, 0)
	plain := dir + "/run/checkpoint-1"
	talk(t, "gold?\n", plain).must(t, 2, "needs a chat template", "hint:")

	with := func(template string) string {
		folder := dir + "/with"
		check(t, os.RemoveAll(folder))
		check(t, exec.Command("cp", "-r", plain, folder).Run())
		check(t, os.WriteFile(folder+"/chat_template.jinja", []byte(template), 0o644))
		return folder
	}
	for template, want := range map[string]string{
		"{{ raise_exception('no way') }}":                 "the template refuses this: no way",
		"{% for i in range(10**12) %}{% endfor %}":        "takes too long",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "check whether a macro calls itself",
		"{{ messages[":      "chat_template.jinja: line 1",
		"{% include 'x' %}": "not supported",
		"x{{ 'y' if add_generation_prompt else 'z' }}{{ messages|length }}":          "but together with the answer",
		strings.Repeat("x", 1<<20+1):                                                 "larger than 1.0 MiB",
		"{% if messages[-1].role == 'user' %}a{% else %}a{% endif %}":                "writes nothing",
		"{{ messages[0].content }}{% set x = messages[0].content.encode('utf-8') %}": "not supported",
	} {
		folder := with(template)
		r := call("data", chats, "--tokenizer", folder).must(t, 2, "chat_template.jinja", want, "hint:")
		if len(r.stderr) > 1000 {
			t.Errorf("an error of %d bytes: %.300s", len(r.stderr), r.stderr)
		}
		call("data", dir+"/corpus.txt", "--tokenizer", folder).must(t, 0) // other text does without
	}
	folder := with("{{ messages[0].content }}{% for m in messages[1:] %}{{ m.content }}{% endfor %}")
	talk(t, "gold?\n", folder, "--max-tokens", "0").must(t, 2, "--max-tokens")
	talk(t, "gold?\n", folder, "--context", "1").must(t, 2, "--context")
	talk(t, strings.Repeat("gold ", 400)+"\n", folder, "--context", "24").must(t, 2, "only 24 fit", "hint:")
	talk(t, "\n \n", folder).must(t, 0)
	talk(t, "gold?\n", folder, "--context", "16", "--temperature", "0").must(t, 0)
	talk(t, strings.Repeat("x", 2<<20), folder).must(t, 1, "reading the questions", "hint:")
}

// TestChatResume: a run on conversations resumes with the template that it began with, and no other.
func TestChatResume(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 2")
	chats := conversations(t, dir+"/chat.jsonl", 0)
	folder := dir + "/tokenizer"
	check(t, exec.Command("cp", "-r", chatFolder, folder).Run())
	args := []string{"train", file, "data=" + chats, "tokenizer=" + folder}
	call(args...).must(t, 0)
	call(append(args, "max_steps=4")...).must(t, 0, "at step 2")
	call(append(args, "max_steps=4", "out="+dir+"/plain")...).must(t, 0)
	sameRun(t, dir+"/run", dir+"/plain", 4)
	path := folder + "/chat_template.jinja"
	template, err := os.ReadFile(path)
	check(t, err)
	check(t, os.WriteFile(path, append([]byte("{# another #}"), template...), 0o644))
	call(append(args, "max_steps=6")...).must(t, 2, "belongs to another run: chat_template is", "hint:")

	// In tokenizer_config.json it is the same template.
	config, err := json.Marshal(map[string]any{"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
		"chat_template": []map[string]string{{"name": "rag", "template": "no"}, {"name": "default", "template": string(template)}}})
	check(t, err)
	check(t, os.Remove(path))
	check(t, os.WriteFile(folder+"/tokenizer_config.json", config, 0o644))
	call(append(args, "max_steps=6")...).must(t, 0, "at step 4")
}

// TestChatTransformers: with a checkpoint, transformers renders conversations as they were in training.
func TestChatTransformers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 1")
	chats := conversations(t, dir+"/chat.jsonl", 0)
	call("train", file, "data="+chats, "tokenizer="+chatFolder).must(t, 0)
	folder := dir + "/run/checkpoint-1"
	script := `
import json, sys
try:
    from transformers import AutoTokenizer
except ImportError:
    sys.exit(77)
t = AutoTokenizer.from_pretrained(sys.argv[1])
line = json.loads(open(sys.argv[2]).readline())
print(json.dumps(t.apply_chat_template(line["messages"], return_dict=True)["input_ids"]))
`
	python := os.Getenv("ATHANOR_PYTHON")
	if python == "" {
		python = "python3"
	}
	out, err := exec.Command(python, "-c", script, folder, chats).Output()
	if err != nil {
		t.Skip("no transformers")
	}
	var want []int32
	check(t, json.Unmarshal(out, &want))
	tokenizer, err := bpe.Load(folder)
	check(t, err)
	whole, err := tokenizer.Decode(want)
	check(t, err)
	var seen dataReport
	call("data", chats, "--tokenizer", folder, "--json", "--sample", fmt.Sprint(len(want))).must(t, 0).into(t, &seen)
	for i, p := range seen.Sample {
		if p.ID != want[i] {
			t.Fatalf("token %d is %d, in transformers %d of %q", i, p.ID, want[i], whole)
		}
	}
}
