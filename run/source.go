package run

import (
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/model"
)

// source is where a model's parameters are read from: the weights of a folder and, if
// adapter is not nil, the factors of its adapter.
type source struct {
	base, adapter *safetensors.Set
}

// read reads a whole parameter.
func (s *source) read(p model.Param, dst []float32) error {
	return readParam(s.of(p), p, dst)
}

// of returns the files with a parameter.
func (s *source) of(p model.Param) *safetensors.Set {
	if p.Adapter {
		return s.adapter
	}
	return s.base
}

// Close closes the files.
func (s *source) Close() error {
	err := s.base.Close()
	if s.adapter != nil {
		err = errors.Join(err, s.adapter.Close())
	}
	return err
}

// check refuses files that do not match a model: that lack a parameter, have it in another shape, or have tensors
// that the model would leave out. Without an adapter there are no factors to check: they begin as random numbers.
// folderOf names the folder of a parameter.
func (s *source) check(m *model.Model, folderOf func(p model.Param) string) error {
	params := m.Params()
	for _, p := range params {
		if s.of(p) == nil {
			continue
		}
		if err := readPart(s.of(p), p, 0, nil); err != nil {
			return inFolder(folderOf(p), fmt.Errorf("parameter %s: %w", p.Name, err))
		}
	}
	return inFolder(folderOf(params[0]), checkUsed(s.base, m, false)) // the embedding is never an adapter's
}

// checkUsed refuses files with a tensor that belongs to no parameter of a model, or to none of its adapters: its
// effect would be missing from all results, and the tensor, silently, from what is saved.
func checkUsed(set *safetensors.Set, m *model.Model, adapters bool) error {
	known := map[string]bool{m.HeadName(): !adapters} // even if it is tied, see checkTied
	for _, p := range m.Params() {
		if p.Adapter != adapters {
			continue
		}
		if blocks, scales, ok := packed(set, p); ok {
			known[blocks.Name], known[scales.Name] = true, true
			continue
		}
		for _, t := range p.Tensors() {
			known[t.Name] = true
			if bare, ok := t.BareName(); ok {
				known[bare] = true
			}
		}
	}
	first, n := "", 0
	for _, t := range set.Tensors() {
		if known[t.Name] || !adapters && m.Buffer(t.Name) {
			continue
		}
		if n++; n == 1 {
			first = t.Name
		}
	}
	if n == 0 {
		return nil
	}
	more := ""
	if n > 1 {
		more = fmt.Sprintf(" (and %d more)", n-1)
	}
	if adapters {
		return fmt.Errorf("there is a tensor %s%s that is not a factor of an adapted weight; hint: only adapters of the layers' linear weights are supported", first, more)
	}
	return fmt.Errorf("there is a tensor %s%s that the model of config.json does not have; hint: check that config.json belongs to these weights, with all their layers, and that they are those of a plain %s model", first, more, m.Family)
}
