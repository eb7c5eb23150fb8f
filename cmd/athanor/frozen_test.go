package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// tensors reads all tensors of a folder.
func tensors(t *testing.T, dir, base string) map[string][]byte {
	t.Helper()
	set, err := safetensors.OpenIn(dir, base)
	check(t, err)
	defer set.Close()
	list := map[string][]byte{}
	for _, info := range set.Tensors() {
		buf := make([]float32, info.Elements())
		check(t, set.ReadFloat32(info.Name, 0, buf))
		list[info.Name] = fmt.Append(nil, buf)
	}
	return list
}

// TestFreeze: what is frozen comes out of a run as it went in, to the bit, even
// in bf16, whatever the plan; it has no optimizer state; a stopped run continues to
// the same end, but not with other parameters frozen.
func TestFreeze(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir, file := tiny(t, "max_steps: 4", `freeze: ["model.embed_tokens.weight", "model.layers.0.*", "*.v_proj.weight"]`)
	all := strings.Replace(file, "run.yaml", "all.yaml", 1)
	text, err := os.ReadFile(file)
	check(t, err)
	text, _, _ = bytes.Cut(text, []byte("freeze:"))
	check(t, os.WriteFile(all, append(text, "model: {type: llama, layers: 2, width: 32, heads: 4, kv_heads: 2}\n"...), 0o644))
	call("train", all, "out="+dir+"/base", "max_steps=2").must(t, 0)
	base := dir + "/base/checkpoint-2"
	before := tensors(t, base, "model")
	frozen := func(name string) bool {
		return strings.Contains(name, "embed_tokens") || strings.Contains(name, "layers.0.") || strings.Contains(name, "v_proj")
	}
	for i, args := range []string{"", "precision=bf16 plan.weights=host plan.state=host plan.micro_batch=1 plan.recompute=full", "ranks=2 plan.state=disk plan.micro_batch=1 plan.recompute=full"} {
		out := fmt.Sprint(dir, "/run", i)
		train := append([]string{"train", file, "model=" + base, "tokenizer=" + base + "/tokenizer.json", "out=" + out}, strings.Fields(args)...)
		call(append(train, "max_steps=2")...).must(t, 0)
		call(append(train, "max_steps=4")...).must(t, 0, "checkpoint-2 at step 2")
		if !strings.HasPrefix(args, "ranks") { // whose plans need not be alike
			call(append(train, "max_steps=4", "out="+out+"-whole")...).must(t, 0)
			sameRun(t, out, out+"-whole", 4)
		}
		for name, v := range tensors(t, out+"/checkpoint-4", "model") {
			if bytes.Equal(v, before[name]) != frozen(name) {
				t.Errorf("%s: %s: changed %v", args, name, !bytes.Equal(v, before[name]))
			}
		}
		for name := range tensors(t, out+"/checkpoint-4/state", "m") {
			if frozen(name) {
				t.Errorf("%s: %s has moments", args, name)
			}
		}
		call(append(train, "max_steps=6", `freeze=["*.v_proj.weight"]`)...).must(t, 2, "belongs to another run", "frozen", "hint:")
	}
	call("plan", file, "plan.state=device").must(t, 0)
	for arg, want := range map[string]string{
		"freeze=lm_head": "did you mean",
		`freeze="*"`:     "parameters are frozen",
		`freeze="a["`:    "syntax error",
	} {
		call("plan", file, arg).must(t, 2, "freeze", want, "hint:")
	}
}

// TestFreezePlans: freezing makes a plan smaller by gradients and moments; all else is
// pinned, since which plan is fastest depends on the machine.
func TestFreezePlans(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	_, file := tiny(t)
	type report struct {
		Peaks struct{ Device, Host []int64 }
	}
	var whole, part report
	alike := []string{"plan", file, "--json", "plan.state=device", "plan.micro_batch=1", "plan.group=1", "plan.recompute=none"}
	call(alike...).must(t, 0).into(t, &whole)
	call(append(alike, "freeze=model.layers.*")...).must(t, 0).into(t, &part)
	// Gradient and moments of the layers at least.
	const layer = 2*32*32 + 2*32*16 + 3*32*96 + 2*32
	if saved := whole.Peaks.Device[0] - part.Peaks.Device[0]; saved < 2*layer*12 {
		t.Errorf("%d bytes less for %d frozen elements", saved, 2*layer)
	}
	r := call("plan", file, "freeze=model.layers.*").must(t, 0)
	if !strings.Contains(r.stdout, "frozen weights") {
		t.Errorf("the table does not name them:\n%s", r.stdout)
	}
}
