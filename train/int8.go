package train

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model"
)

// measure finds the greatest magnitudes of a folder's matrices, from which their units in int8 follow. A run that goes on measures the
// folder that it began with, so its units stay.
func measure(spec *job.Spec, m *model.Model, from string) error {
	if !spec.Int8 || from == "" || m.LoRA != nil || m.Experts > 0 { // the last two are refused later
		return nil
	}
	base, err := safetensors.OpenFolder(from)
	if err != nil {
		return folder.WeightsError(from, err)
	}
	defer base.Close()
	source, room := &folder.Source{Base: base}, []float32(nil)
	m.Largest = map[string]float64{}
	params := m.Params()
	for _, p := range params {
		if p.Vector || p.State {
			continue
		}
		each, all := 1<<20, int(p.Elems())
		if p.Grown > 0 { // it is read as a whole
			each = all
		}
		for at := 0; at < all; at += each {
			room = append(room[:0], make([]float32, min(each, all-at))...)
			if err := source.Read(p, at, room); err != nil {
				return folder.WeightsError(from, err)
			}
			for _, x := range room {
				m.Largest[p.Name] = max(m.Largest[p.Name], math.Abs(float64(x)))
			}
		}
		if !stat.Finite(m.Largest[p.Name]) {
			return spec.Fault("precision", fmt.Sprintf("%s in %s has numbers that are not finite, for which int8 has no unit; hint: use fp32 or bf16, or another model", p.Name, from))
		}
	}
	if !m.Rotary() { // one operator reads the embeddings of tokens and positions
		tokens, positions := params[0].Name, params[1].Name
		both := max(m.Largest[tokens], m.Largest[positions])
		m.Largest[tokens], m.Largest[positions] = both, both
	}
	return nil
}
