package model_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// TestDeltaAdapters: adapters go to the large products of linear attention, but not to its convolution, nor to the weights of decays,
// which have too few outputs for most ranks.
func TestDeltaAdapters(t *testing.T) {
	for name, want := range map[string][]string{
		"qwen3.5-0.8b":       {"in_proj_qkv", "in_proj_z", "out_proj"},
		"qwen3-next-80b-a3b": {"in_proj_qkvz", "out_proj"},
	} {
		m, err := family.Known(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Adapt(model.LoRA{Rank: 64}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, weight := range m.LoRA.Weights {
			if rest, ok := strings.CutPrefix(weight, "model.layers.0.linear_attn."); ok {
				got = append(got, strings.TrimSuffix(rest, ".weight"))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: adapters on %v, want %v", name, got, want)
		}
	}
}

// TestBands: what is in the order of files comes back to it from that of operators, which have, of each head of keys, all queries first.
func TestBands(t *testing.T) {
	for _, p := range samples.TinyModels["delta"].Params() {
		if p.Groups == 0 {
			continue
		}
		file, ours, back := make([]float32, p.Elems()), make([]float32, p.Elems()), make([]float32, p.Elems())
		for i := range file {
			file[i] = float32(i)
		}
		p.FromFile(ours, file)
		p.ToFile(back, ours)
		if !slices.Equal(file, back) || slices.Equal(file, ours) {
			t.Errorf("%s: %v in files is %v for operators, and %v again", p.Name, file, ours, back)
		}
		if second := p.Bands[0].Rows; p.Groups == 2 && strings.HasSuffix(p.Name, "in_proj_qkvz.weight") && ours[second*p.Cols] != float32(len(file)/2) {
			t.Errorf("%s: after the first head's queries comes %v", p.Name, ours[second*p.Cols])
		}
	}
}
