package main

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestNotFinite: eval and generate of weights that are broken, or with which numbers grow beyond all bounds, end with exit
// code 5 and say what is at fault; a loss that is finite is reported however large it is.
func TestNotFinite(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	folder, _ := modelFolder(t)
	tokenizer, err := os.ReadFile(folder + "/tokenizer.json")
	check(t, err)
	with := func(name string, change func(x []float32)) string {
		dir := t.TempDir()
		set, err := safetensors.OpenFolder(folder)
		check(t, err)
		defer set.Close()
		info, ok := set.Lookup(name)
		if !ok {
			t.Fatalf("there is no %s", name)
		}
		values := make([]float32, info.Elements())
		check(t, set.ReadFloat32(name, 0, values))
		change(values)
		rename(t, folder, dir, func(n string) string {
			if n == name {
				return ""
			}
			return n
		}, safetensors.Float32s(name, safetensors.F32, info.Shape, values))
		check(t, os.WriteFile(dir+"/tokenizer.json", tokenizer, 0o644))
		return dir
	}
	times := func(by float32) func(x []float32) {
		return func(x []float32) {
			for i := range x {
				x[i] *= by
			}
		}
	}
	const down, norm, head = "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"
	for name, c := range map[string]struct {
		dir  string
		want []string
	}{
		"NaN":   {with(down, func(x []float32) { x[7] = float32(math.NaN()) }), []string{down + " has a NaN", "another copy"}},
		"Inf":   {with(norm, func(x []float32) { x[7] = float32(math.Inf(1)) }), []string{norm + " has a +Inf", "another copy"}},
		"grown": {with(norm, times(3e38)), []string{"though all weights in ", "config.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := append(c.want, "not finite", "hint: ")
			eval := []string{"eval", c.dir, "../../LICENSE", "--batches", "1"}
			for _, more := range [][]string{nil, {"--json"}} {
				if out := call(append(eval, more...)...).must(t, 5, want...).stdout; out != "" {
					t.Errorf("there is a result: %s", out)
				}
			}
			if out := call("generate", c.dir, "--prompt", "gold", "--max-tokens", "3").must(t, 5, want...).stdout; out != "" {
				t.Errorf("there is a text: %s", out)
			}
		})
	}
	var got evalReport
	large := []string{"eval", with(head, times(1e5)), "../../LICENSE", "--batches", "1"}
	call(append(large, "--json")...).must(t, 0).into(t, &got)
	if got.Perplexity != nil || !(got.Loss > 710) {
		t.Errorf("%+v", got)
	}
	if text := call(large...).must(t, 0).stdout; !strings.Contains(text, "perplexity +Inf,") {
		t.Error(text)
	}
	if text := call("eval", with(head, times(1e2)), "../../LICENSE", "--batches", "1").must(t, 0).stdout; len(text) > 100 {
		t.Error(text)
	}
}
