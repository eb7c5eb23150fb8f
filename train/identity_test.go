package train

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/optimizer"
)

// TestIdentity: no field of a run's identity is left out when two are compared, and a
// difference is reported by the field's name. Older checkpoints say nothing of Adam's
// constants, of what is held out and of the text.
func TestIdentity(t *testing.T) {
	a := identity{Adam: "beta1 0.9, beta2 0.95, epsilon 1e-08", Documents: "joined", Held: "0.01", Text: "0123"}
	for i := range reflect.TypeFor[identity]().NumField() {
		f, b := reflect.TypeFor[identity]().Field(i), a
		switch v := reflect.ValueOf(&b).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString("another")
		case reflect.Int:
			v.SetInt(7)
		case reflect.Uint8: // a format of state: the next one
			v.SetUint(1)
		case reflect.Uint64:
			v.SetUint(7)
		case reflect.Float64:
			v.SetFloat(7)
		case reflect.Bool:
			v.SetBool(true)
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if d := a.difference(b); !strings.HasPrefix(d, name+" is ") {
			t.Errorf("another %s: %q", f.Name, d)
		}
	}
	older := a
	older.Adam, older.Held, older.Text = "", "", ""
	if d := a.difference(a) + older.difference(a); d != "" {
		t.Errorf("the same: %s", d)
	}
}

// TestOtherOptimizer: a run does not resume with another optimizer, and a checkpoint that names none is AdamW's.
func TestOtherOptimizer(t *testing.T) {
	before, lion := identity{}, identity{Optimizer: optimizer.Lion}
	text, err := json.Marshal(identity{Optimizer: optimizer.AdamW})
	check(t, err)
	if d := before.difference(identity{Optimizer: optimizer.AdamW}); d != "" || strings.Contains(string(text), "adamw") {
		t.Errorf("%s, written as %s", d, text)
	}
	if d := before.difference(lion); d != "optimizer is adamw there and lion here" {
		t.Errorf("%q", d)
	}
}

// TestOtherDocuments: a run does not resume with another rule, and checkpoints from
// before there was a choice were trained on joined documents.
func TestOtherDocuments(t *testing.T) {
	before, joined, separate := identity{}, identity{Documents: config.Joined}, identity{Documents: config.Separate}
	if d := before.difference(joined); d != "" {
		t.Errorf("without the field: %s", d)
	}
	if d := before.difference(separate); !strings.Contains(d, "documents is joined there and separate here") {
		t.Errorf("%q", d)
	}
}

// TestOtherModel: sizes that differ are named as the configuration names them, and other words stay.
func TestOtherModel(t *testing.T) {
	before := identity{Model: "llama l2 d64 h4/2/16 f128 v300 p32 silu eps1e-06 lora 2 of 14/70c2137a"}
	for other, want := range map[string]string{
		"llama l3 d64 h4/2/16 f128 v300 p32 silu eps1e-06 lora 2 of 14/70c2137a": "model is llama layers 2 there and llama layers 3 here",
		"llama l2 d32 h4/4/16 f96 v301 p32 silu eps1e-06 lora 2 of 14/70c2137a":  "model is width 64 heads/kv_heads/head_dim 4/2/16 feed_forward 128 vocabulary 300 there and width 32 heads/kv_heads/head_dim 4/4/16 feed_forward 96 vocabulary 301 here",
		"llama l2 d64 h4/2/16 f128 v300 p32 silu eps1e-06 lora 3 of 14/70c2137a": "model is lora 2 there and lora 3 here",
	} {
		if d := before.difference(identity{Model: other}); d != want {
			t.Errorf("%q, want %q", d, want)
		}
	}
}
