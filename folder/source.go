package folder

import (
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/model"
)

// Source is where a model's parameters are read from: the weights of a folder and, if
// Adapter is not nil, the factors of its adapter and what is stored beside them.
type Source struct {
	Base, Adapter *safetensors.Set
	New           string               // a parameter that files need not have, since it begins as random numbers; "": none
	rows          map[string]tokenRows // that the adapter replaces, by parameter
}

// Read reads the elements of a parameter from index first on, as many as dst holds; of one that has grown, or that files have
// in MXFP4, all.
func (s *Source) Read(p model.Param, first int, dst []float32) error {
	set, q := s.find(p)
	n := min(len(dst), int(q.Elems())-first)
	if err := ReadParam(set, q, first, dst[:n]); err != nil {
		return err
	}
	if n < len(dst) {
		p.Extend(dst)
	}
	return s.rows[p.Name].read(s.Adapter, first, dst)
}

// Places returns where in files the elements of a parameter are, from index first on, in their order; nil: nowhere as they are.
func (s *Source) Places(p model.Param, first, n int) []safetensors.Place {
	if !s.Has(p) || p.Grown > 0 || len(s.rows[p.Name].tokens) > 0 {
		return nil
	}
	set, q := s.find(p)
	return Places(set, q, first, n)
}

// Has reports whether there are files with a parameter. If not, it is a factor of a new adapter, or New.
func (s *Source) Has(p model.Param) bool {
	return (!p.Adapter || s.Adapter != nil) && (s.New == "" || p.Name != s.New)
}

// Halved reports whether the files hold a parameter in bf16, or in a format whose numbers are all exact in bf16.
func (s *Source) Halved(p model.Param) bool {
	set, q := s.find(p)
	return p.Grown == 0 && len(s.rows[p.Name].tokens) == 0 && Halved(set, q)
}

// find returns the files with a parameter, and the parameter as they have it.
func (s *Source) find(p model.Param) (*safetensors.Set, model.Param) {
	if p.Adapter {
		return s.Adapter, p
	}
	if p.Whole && s.Adapter != nil {
		if _, there := s.Adapter.Lookup(p.Tensors()[0].Name); there {
			return s.Adapter, p
		}
	}
	return s.Base, p.Original()
}

// Close closes the files.
func (s *Source) Close() error {
	err := s.Base.Close()
	if s.Adapter != nil {
		err = errors.Join(err, s.Adapter.Close())
	}
	return err
}

// Check refuses files that do not match a model: that lack a parameter, have it in another shape, or have tensors
// that the model would leave out. Without an adapter there are no factors to check: they begin as random numbers.
// folderOf names the folder of a parameter.
func (s *Source) Check(m *model.Model, folderOf func(p model.Param) string) error {
	params := m.Params()
	for _, p := range params {
		if !s.Has(p) {
			continue
		}
		set, q := s.find(p)
		if err := ReadParam(set, q, 0, nil); err != nil {
			return WeightsError(folderOf(p), fmt.Errorf("parameter %s: %w", p.Name, err))
		}
	}
	return errors.Join(s.checkCopies(m), WeightsError(folderOf(params[0].Original()), checkUsed(s.Base, m, false)))
}

// checkCopies refuses an adapter whose files have a parameter more than once, and not the same.
func (s *Source) checkCopies(m *model.Model) error {
	if s.Adapter == nil {
		return nil
	}
	for _, p := range m.Params() {
		equal, _ := m.PEFT().Copies(p)
		for _, name := range equal {
			other := p
			other.Whole, other.Parts = true, name
			if _, there := s.Adapter.Lookup(name); !there {
				continue
			}
			set, q := s.find(p)
			if err := equalRows(set, q, s.Adapter, other); err != nil {
				return suggest.Add(err, "save the adapter again, or set ensure_weight_tying to false in adapter_config.json if embedding and head were trained apart")
			}
		}
	}
	return nil
}

// checkUsed refuses files with a tensor that belongs to no parameter of a model, or to none of its adapters: its
// effect would be missing from all results, and the tensor, silently, from what is saved.
func checkUsed(set *safetensors.Set, m *model.Model, adapters bool, more ...string) error {
	known := map[string]bool{}
	for _, name := range more {
		known[name] = true
	}
	for _, name := range (model.Tensor{Name: m.HeadName()}).Names() {
		known[name] = !adapters // even if it is tied, see CheckTied
	}
	if model.Classifies(m) {
		for _, name := range model.WordHead(m) { // of the language model that adapters with labels are trained on
			known[name] = !adapters
		}
	}
	for _, p := range m.Params() {
		equal, others := m.PEFT().Copies(p)
		for _, name := range append(equal, others...) {
			known[name] = true
		}
		switch {
		case adapters && !p.InAdapter() || !adapters && p.Adapter:
			continue
		case !adapters:
			p = p.Original()
		}
		if blocks, scales, ok := packed(set, p); ok {
			known[blocks.Name], known[scales.Name] = true, true
			continue
		}
		for _, t := range tensorsIn(set, p) {
			for _, name := range t.Names() {
				known[name] = true
			}
			if info, ok := lookup(set, t); ok {
				if scales, input, ok := scalesOf(info); ok {
					known[scales], known[input] = true, true
				}
			}
		}
	}
	first, n := "", 0
	for _, t := range set.Tensors() {
		if known[t.Name] || !adapters && (m.Buffer(t.Name) || model.Carried(m, t.Name)) {
			continue
		}
		if n++; n == 1 {
			first = t.Name
		}
	}
	if n == 0 {
		return nil
	}
	others := ""
	if n > 1 {
		others = fmt.Sprintf(" (and %d more)", n-1)
	}
	if adapters {
		return fmt.Errorf("there is a tensor %s%s that is neither a factor of an adapted weight nor in modules_to_save; hint: check that adapter_config.json belongs to these weights", first, others)
	}
	return fmt.Errorf("there is a tensor %s%s that the model of config.json does not have; hint: check that config.json belongs to these weights, with all their layers, and that they are those of a plain %s model", first, others, m.Family)
}

// ReadParam reads the elements of a parameter from index first on, as many as dst holds. All tensors of the parameter must be
// there, with the model's shapes. A parameter in MXFP4 is read as a whole or not at all.
func ReadParam(set *safetensors.Set, p model.Param, first int, dst []float32) error {
	if blocks, scales, ok := packed(set, p); ok {
		return readPacked(set, p, blocks, scales, dst)
	}
	for _, t := range tensorsIn(set, p) {
		info, ok := lookup(set, t)
		if !ok {
			return fmt.Errorf("there is no tensor %s among the %d in the files; hint: check that the folder is complete and of the same model family", t.Name, len(set.Tensors()))
		}
		if !slices.Equal(info.Shape, t.Shape) {
			return fmt.Errorf("%s has shape %v, but config.json requires %v; hint: check that config.json belongs to these weights", t.Name, info.Shape, t.Shape)
		}
		lo, hi := max(first, t.First), min(first+len(dst), t.First+t.Elems())
		if len(dst) == 0 { // whether it can be read
			lo, hi = first, first
		} else if lo >= hi {
			continue
		}
		if err := readTensor(set, info, max(lo-t.First, 0), dst[lo-first:hi-first]); err != nil {
			return err
		}
	}
	return nil
}

// Places returns where in files the elements of a parameter are, from index first on, in their order; nil: nowhere as they are.
func Places(set *safetensors.Set, p model.Param, first, n int) (list []safetensors.Place) {
	if _, _, ok := packed(set, p); ok {
		return nil
	}
	at := first
	for _, t := range tensorsIn(set, p) {
		info, ok := lookup(set, t)
		if !ok || !slices.Equal(info.Shape, t.Shape) {
			return nil
		}
		lo, hi := max(first, t.First), min(first+n, t.First+t.Elems())
		if lo >= hi {
			continue
		}
		place, ok := set.Place(info.Name, lo-t.First, hi-lo)
		if !ok || lo != at {
			return nil
		}
		list, at = append(list, place), hi
	}
	if at != first+n {
		return nil
	}
	return list
}

// tensorsIn returns the tensors of a parameter that files have.
func tensorsIn(set *safetensors.Set, p model.Param) []model.Tensor {
	return p.TensorsIn(func(name string) bool { _, ok := set.Lookup(name); return ok })
}

// lookup finds a tensor in files, whichever of its names they have.
func lookup(set *safetensors.Set, t model.Tensor) (info safetensors.Info, ok bool) {
	name, ok := t.NameIn(func(name string) bool { _, ok := set.Lookup(name); return ok })
	if ok {
		info, ok = set.Lookup(name)
	}
	return info, ok
}

// CheckTied refuses a folder whose config.json ties the head to the embedding, but
// whose weights have a different head. That head would be ignored, and programs
// differ in which of the two they trust.
func CheckTied(set *safetensors.Set, m *model.Model) error {
	embedding := m.Params()[0].Original()
	head := embedding
	head.Name = m.HeadName()
	if _, there := lookup(set, model.Tensor{Name: head.Name}); !(m.Tied || m.Files.Tied) || !there {
		return nil
	}
	return suggest.Add(equalRows(set, embedding, set, head), "set tie_word_embeddings to false there if the head has weights of its own")
}

// equalRows compares two matrices that are tied.
func equalRows(setA *safetensors.Set, a model.Param, setB *safetensors.Set, b model.Param) error {
	one, other := make([]float32, a.Cols), make([]float32, a.Cols)
	for row := range a.Rows {
		if err := ReadParam(setA, a, row*a.Cols, one); err != nil {
			return fmt.Errorf("parameter %s: %w", a.Name, err)
		}
		if err := ReadParam(setB, b, row*a.Cols, other); err != nil {
			return fmt.Errorf("parameter %s: %w", b.Name, err)
		}
		if !slices.Equal(one, other) {
			return fmt.Errorf("%s differs from %s, but they are one in the model", b.Tensors()[0].Name, a.Tensors()[0].Name)
		}
	}
	return nil
}

// Halved reports whether files hold a parameter in bf16, or in a format whose numbers are all exact in bf16.
func Halved(set *safetensors.Set, p model.Param) bool {
	if _, _, ok := packed(set, p); ok {
		return true
	}
	return !slices.ContainsFunc(tensorsIn(set, p), func(part model.Tensor) bool {
		info, ok := lookup(set, part)
		return !ok || info.DType != safetensors.BF16
	})
}
