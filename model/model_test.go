package model_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// TestSinks: sinks are a vector with an element for each head of a layer, not a linear weight, and unknown to
// families without them.
func TestSinks(t *testing.T) {
	for name, has := range map[string]bool{"llama-3.2-1b": true, "gpt2": false} {
		m, err := family.Known(name)
		if err != nil {
			t.Fatal(err)
		}
		before := m.ParamCount()
		m.Sinks = true
		if err := m.Validate(); (err == nil) != has || err != nil && !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: %v", name, err)
		}
		if !has {
			continue
		}
		if got, want := m.ParamCount()-before, int64(m.Layers*m.Heads); got != want {
			t.Errorf("%s: %d sinks, want %d", name, got, want)
		}
		if err := errors.Join(m.Adapt(model.LoRA{Rank: 2}), m.Quantize()); err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Params() {
			if strings.HasSuffix(p.Name, "sinks") && (p.NF4 || !p.Vector || p.Cols != m.Heads || p.Name != fmt.Sprintf("model.layers.%d.self_attn.sinks", p.Layer)) {
				t.Errorf("%+v", p)
			}
		}
	}
}

// TestExpertOrder: an expert that files have as [in, out], gate and up interleaved, is [out, in] with gates
// first for operators, and converts back.
func TestExpertOrder(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 70)
		experts, ins, half := rapid.IntRange(1, 4).Draw(t, "experts"), n.Draw(t, "ins"), n.Draw(t, "half")
		p := model.Param{Rows: experts * 2 * half, Cols: ins, Experts: experts, Transposed: true, Interleaved: rapid.Bool().Draw(t, "in turn")}
		if rapid.Bool().Draw(t, "bias") {
			ins, p = 1, model.Param{Rows: experts, Cols: 2 * half, Experts: experts, Vector: true, Interleaved: true}
		}
		file, ours, back := make([]float32, p.Elems()), make([]float32, p.Elems()), make([]float32, p.Elems())
		for i := range file {
			file[i] = float32(i)
		}
		p.FromFile(ours, file)
		for e := range experts {
			for o := range 2 * half {
				at := o
				if p.Interleaved {
					at = o%half*2 + o/half
				}
				for i := range ins {
					if got, want := ours[(e*2*half+o)*ins+i], file[(e*ins+i)*2*half+at]; got != want {
						t.Fatalf("%+v: weight of output %d, input %d of expert %d is number %v of the file, want %v", p, o, i, e, got, want)
					}
				}
			}
		}
		if p.ToFile(back, ours); !slices.Equal(back, file) {
			t.Fatalf("%+v: %v came back as %v", p, file, back)
		}
	})
}

// TestExpertsTransposed: gpt-oss's attention gets adapters; its experts, which files have transposed, get them by
// name only, and may be held in 4 bits; biases of experts are not.
func TestExpertsTransposed(t *testing.T) {
	m, err := family.Known("gpt-oss-20b")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Adapt(model.LoRA{Rank: 8}, "*.experts.*"); err != nil || len(m.LoRA.Weights) != 2*m.Layers {
		t.Errorf("%v: %d weights of experts have adapters, want %d", err, len(m.LoRA.Weights), 2*m.Layers)
	}
	if err := m.Adapt(model.LoRA{Rank: 8}); err != nil || len(m.LoRA.Weights) != 4*m.Layers {
		t.Errorf("%v: %d weights have adapters, want %d", err, len(m.LoRA.Weights), 4*m.Layers)
	}
	if err := m.Quantize(); err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Params() {
		if experts := strings.Contains(p.Name, ".experts."); experts && p.NF4 != !strings.HasSuffix(p.Name, "_bias") {
			t.Errorf("%s is held in 4 bits: %v", p.Name, p.NF4)
		}
	}
}
