package train

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/plan"
)

// What becomes of a key that is changed between two starts of a run.
const (
	refused = "refused"           // it is part of the run's identity
	told    = "told"              // it is one of the settings
	asText  = "as the text"       // it decides the tokens, whose hash is part of the identity
	atStart = "at the start"      // it has no effect on a run that goes on
	noBits  = "changes no result" // it is about machines, time, or what is shown and kept
)

// fates says it for each key, and for those that are refused or told also a change of it: what both starts have, and the key's two
// values.
var fates = map[string][]string{
	"model.type": {refused, "", "llama", "mistral"}, "model.layers": {refused, "", "2", "3"}, "model.width": {refused, "", "32", "64"},
	"model.heads": {refused, "model.head_dim=8 model.kv_heads=2", "4", "8"}, "model.kv_heads": {refused, "", "4", "2"}, "model.head_dim": {refused, "", "8", "16"},
	"model.feed_forward": {refused, "", "64", "96"}, "model.experts": {refused, "model.type=mixtral model.active_experts=2", "4", "8"},
	"model.active_experts": {refused, "model.type=mixtral model.experts=4", "1", "2"}, "model.vocabulary": {refused, "", "300", "301"},
	"model.max_positions": {refused, "", "64", "128"}, "model.rope_theta": {refused, "", "10000", "5000"}, "model.window": {refused, "model.type=mistral", "16", "8"},
	"model.tied": {refused, "", "true", "false"},
	"data":       {asText}, "tokenizer": {asText}, "resize_vocab": {asText}, "bos": {asText}, "on_bad_row": {asText}, "text_field": {asText}, "validation": {noBits},
	"documents": {refused, "", "joined", "separate"}, "sequence_length": {refused, "", "32", "16"}, "global_batch": {refused, "", "4", "8"},
	"learning_rate": {told, "", "1e-3", "2e-3"}, "max_steps": {told, "", "10", "20"}, "max_tokens": {told, "", "1280", "2560"}, "max_epochs": {told},
	"max_time": {told, "", "1h", "2h"}, "schedule": {told, "", "cosine", "linear"}, "decay_steps": {told, "schedule=wsd", "3", "4"},
	"warmup_steps": {told, "", "1", "2"}, "min_learning_rate": {told, "", "1e-5", "1e-4"}, "skip_spikes": {told, "", "0", "6"},
	"delink_at": {told, "tie_layers=2", "4", "5"}, "tie_layers": {refused, "model.layers=4", "2", "4"},
	"out": {atStart}, "resume": {atStart}, "carry_optimizer": {atStart}, "train_within": {atStart},
	"device": {noBits}, "ranks": {noBits}, "hosts": {noBits},
	"precision": {refused, "", "fp32", "bf16"}, "optimizer": {refused, "", "adamw", "lion"}, "optimizer_state": {refused, "", "fp32", "bf16"},
	"muon.learning_rate": {refused, "optimizer=muon", "1e-3", "2e-3"}, "muon.momentum": {refused, "optimizer=muon", "0.9", "0.95"}, "muon.scale": {refused, "optimizer=muon", "original", "match_rms_adamw"},
	"seed": {refused, "", "1", "2"}, "weight_decay": {refused, "", "0.1", "0"}, "beta1": {refused, "", "0.9", "0.8"}, "beta2": {refused, "", "0.95", "0.99"},
	"epsilon": {refused, "", "1e-8", "1e-6"}, "gradient_clipping": {refused, "", "1", "0"},
	"neftune_alpha":   {refused, "", "0", "5"},
	"expert_balance":  {refused, "model.type=mixtral model.experts=4 model.active_experts=2", "0.01", "0.1"},
	"distill.teacher": {refused}, "distill.top": {refused, "distill.teacher=x", "8", "16"}, "distill.temperature": {refused, "distill.teacher=x", "1", "2"}, "distill.weight": {refused, "distill.teacher=x", "0.5", "1"},
	"labels":          {refused, "", "2", "3"},
	"preference.beta": {refused, "", "0.1", "0.2"}, "preference.loss": {refused, "preference.beta=0.1", "dpo", "ipo"}, "preference.margin": {refused, "preference.beta=2 preference.loss=simpo", "1", "2"},
	"preference.desirable_weight": {refused, "preference.beta=0.1 preference.loss=kto", "1", "1.5"}, "preference.undesirable_weight": {refused, "preference.beta=0.1 preference.loss=apo_zero_unpaired", "1", "2"},
	"freeze": {refused, "", `"*.mlp.*"`, `"*.self_attn.*"`}, "keep_mask": {refused}, "quantize": {refused, "lora.rank=2 model.width=64", "none", "nf4"},
	"lora.rank": {refused, "", "2", "4"}, "lora.alpha": {refused, "lora.rank=2", "2", "4"}, "lora.rslora": {refused, "lora.rank=2", "false", "true"}, "lora.dora": {refused, "lora.rank=2", "false", "true"}, "lora.dropout": {refused, "lora.rank=2", "0", "0.1"},
	"lora.targets": {refused, "lora.rank=2", `"*.q_proj.*"`, `"*.v_proj.*"`}, "lora.modules_to_save": {refused, "lora.rank=2", "[embed_tokens]", "[lm_head]"},
	"validation_fraction": {refused, "", "0.01", "0.02"},
	"eval_every":          {noBits}, "eval_batches": {noBits}, "early_stop": {noBits}, "dashboard": {noBits},
}

// unchanging are sections of which no key changes a result.
var unchanging = []string{"limits.", "plan.", "save_", "keep_checkpoints", "keep_best", "sample.", "alerts.", "hardware."}

// TestKeysAtResume: of each key of a configuration it is decided what a change between two starts does, and what is to be
// refused or told is. A new key fails here until somebody has decided.
func TestKeysAtResume(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	file := filepath.Join(t.TempDir(), "run.yaml")
	check(t, os.WriteFile(file, []byte(`model: {type: llama, layers: 2, width: 32, heads: 4, vocabulary: 300}
sequence_length: 32
global_batch: 4
learning_rate: 1.0e-3
max_steps: 10
hardware: {name: l4}
`), 0o644))
	for _, k := range config.Keys() {
		if k.Section || slices.ContainsFunc(unchanging, func(prefix string) bool { return strings.HasPrefix(k.Name, prefix) }) {
			continue
		}
		fate := fates[k.Name]
		switch {
		case len(fate) == 0:
			t.Errorf("%s: what does a change of it do to a run that goes on? hint: decide in train/identity.go or settings.go, and say it here", k.Name)
			continue
		case len(fate) < 4:
			continue
		}
		var of [2]identity
		var list [2]settings
		for i, value := range fate[2:] {
			of[i], list[i] = begun(t, file, append(strings.Fields(fate[1]), k.Name+"="+value))
		}
		if got := list[0].changes(list[1]); (len(got) > 0) != (fate[0] == told) {
			t.Errorf("%s from %s to %s: told %q", k.Name, fate[2], fate[3], got)
		}
		if got := of[0].difference(of[1]); (got != "") != (fate[0] == refused) {
			t.Errorf("%s from %s to %s: the runs differ in %q", k.Name, fate[2], fate[3], got)
		}
	}
}

// begun returns what the configuration alone says of a run.
func begun(t *testing.T, file string, overrides []string) (id identity, list settings) {
	t.Helper()
	c, err := config.LoadTo(config.ToPlan, file, overrides)
	if err != nil {
		t.Fatalf("%q: %v", overrides, err)
	}
	spec, err := job.Settle(config.ToPlan, c, func(string) {})
	check(t, err)
	s, err := Prepare(t.Context(), spec, func(string, int64, int64) {})
	if err != nil {
		t.Fatalf("%q: %v", overrides, err)
	}
	defer s.Close()
	id.configured(spec)
	id.Model = plan.Fingerprint(untied(s.Graph))
	return id, settingsOf(spec)
}
