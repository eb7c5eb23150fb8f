package model_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

func TestFreeze(t *testing.T) {
	for _, c := range []struct {
		name     string
		patterns []string
		want     func(p model.Param) bool
	}{
		{"gpt2", []string{"transformer.wte.weight"}, func(p model.Param) bool { return p.Name == "transformer.wte.weight" }},
		{"gpt2", []string{"transformer.h.[0-5].*", "transformer.wpe.weight"}, func(p model.Param) bool { return p.Layer >= 0 && p.Layer < 6 || strings.Contains(p.Name, "wpe") }},
		{"gpt2", []string{"*.weight"}, func(p model.Param) bool { return strings.HasSuffix(p.Name, ".weight") }},
		{"llama-2-7b", []string{"model.*"}, func(p model.Param) bool { return p.Name != "lm_head.weight" }},
	} {
		m, err := family.Known(c.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Freeze(c.patterns...); err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Params() {
			if p.Frozen != c.want(p) || p.Frozen != slices.Contains(m.Frozen, p.Name) {
				t.Errorf("%s %v: %s is frozen: %v", c.name, c.patterns, p.Name, p.Frozen)
			}
		}
		if err := m.Freeze(); err != nil || slices.ContainsFunc(m.Params(), func(p model.Param) bool { return p.Frozen }) {
			t.Errorf("%s: nothing is frozen: %v", c.name, err)
		}
	}
	for _, c := range []struct{ name, pattern, want string }{
		{"gpt2", "transformer.wt.weight", "did you mean transformer.wte.weight?"},
		{"gpt2", "h.0.*", `did you mean "*h.0.*"?`},
		{"gpt2", "lm_head.*", "the head is tied to the embedding, transformer.wte.weight"},
		{"gpt2", "zzz", "such as transformer.ln_f.bias"},
		{"gpt2", "a[", "syntax error"},
		{"gpt2", "", "matches no parameter"},
		{"gpt2", "*", "all 148 parameters are frozen"},
		{"gpt2", "transformer.ln_f.bias", "but one operator computes the gradients of both; hint: freeze both, or only transformer.ln_f.weight"},
		{"qwen3-30b-a3b", "*.experts.0.*", "all experts of a layer are stored together, in parameters such as model.layers.0.mlp.experts.gate_up_proj"},
	} {
		m, err := family.Known(c.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Freeze(c.pattern); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s, %q: %v, want %q", c.name, c.pattern, err, c.want)
		}
	}
	for pattern, want := range map[string]string{"*.mlp.gate.weight": "mlp.gate.weight gets no adapter", "*.experts.7.*": "together, in parameters"} {
		m, err := family.Known("qwen3-30b-a3b")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Adapt(model.LoRA{Rank: 8}, pattern); err == nil || !strings.Contains(err.Error(), "hint: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("adapters for %q: %v, want %q", pattern, err, want)
		}
	}
	tied, err := family.Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	if err := tied.Freeze("lm_head.*"); err == nil || !strings.Contains(err.Error(), "hint: the head is tied to the embedding, transformer.wte.weight") {
		t.Errorf("an adapter for the head: %v", err)
	}
}
