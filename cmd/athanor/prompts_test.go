package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestPrompts: of documents with a prompt only the completion is learnt: where it is always
// the same, its loss goes to zero, though nobody can predict the next word of the prompts.
// `athanor data` shows which tokens are which.
func TestPrompts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 60", "documents: separate", "validation_fraction: 0.05", "eval_batches: 100")
	r := rand.New(rand.NewPCG(1, 2))
	write := func(name string, line func(prompt, completion string) any) string {
		var b strings.Builder
		for range 400 {
			var prompt string
			for range 8 {
				prompt += []string{"iron", "copper", "gold", "silver", "tin", "lead", "mercury", "salt"}[r.IntN(8)] + " "
			}
			text, err := json.Marshal(line(prompt, "makes\na stone."))
			check(t, err)
			b.Write(append(text, '\n'))
		}
		check(t, os.WriteFile(dir+"/"+name, []byte(b.String()), 0o644))
		return dir + "/" + name
	}
	pairs := write("pairs.jsonl", func(p, c string) any { return map[string]string{"prompt": p, "completion": c} })
	texts := write("texts.jsonl", func(p, c string) any { return map[string]string{"text": p + c} })
	var pair, text trained
	call("train", file, "--json", "learning_rate=0.01", "data="+pairs).must(t, 0, "of 400 documents with a prompt, only the completion is learnt").into(t, &pair)
	call("train", file, "--json", "learning_rate=0.01", "data="+texts, "out="+dir+"/texts").must(t, 0).into(t, &text)
	if pair.ValLoss > 0.1 || text.ValLoss < 0.5 {
		t.Errorf("loss %v where completions are learnt, %v where all is", pair.ValLoss, text.ValLoss)
	}
	var seen evalReport
	call("eval", pair.Checkpoint, pairs, "--separate", "--json").must(t, 0).into(t, &seen)
	if seen.Loss > 0.1 || seen.Tokens == 0 {
		t.Errorf("eval: loss %v of %d tokens", seen.Loss, seen.Tokens)
	}
	shown := call("data", pairs, "--tokenizer", pair.Checkpoint+"/tokenizer.json", "--sample", "40").must(t, 0).stdout
	for _, want := range []string{"(given) or [learnt]", "( gold)", "[ stone]", "[\\n]"} {
		if !strings.Contains(shown, want) {
			t.Errorf("data does not show %s:\n%s", want, shown)
		}
	}
	check(t, os.WriteFile(pairs, []byte(fmt.Sprintln(`{"prompt": "only"}`)), 0o644))
	call("train", file, "data="+pairs, "out="+dir+"/none").must(t, 2, "pairs.jsonl: line 1", "not both given", "hint:")
}
