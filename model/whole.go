package model

import (
	"fmt"
	"slices"
)

// Parameters that an adapter's folder has whole, under PEFT's names:
//
//	model.embed_tokens.weight    base_model.model.model.embed_tokens.weight
//	lm_head.weight               base_model.model.lm_head.weight, or base_model.model.lm_head.base_layer.weight if it has an adapter
//
// They are those that are trained as they are (modules_to_save), and copies of the model's own that are not trained, such as an
// embedding with more rows than the model's. In the list of parameters they are where they are without adapters.
//
// PEFT trains a copy of each such module. Of a model whose head is the embedding, the head then is no longer the embedding but what
// it was, or another copy, unless ensure_weight_tying is set: see Part.

// Files says how the files that a model's own weights are read from differ from the model.
type Files struct {
	Vocab int  // rows of embedding and head; 0: as many as the model has. See Param.Extend
	Tied  bool // the head is the embedding there, and not in the model
}

// Part parts the head from the embedding, as which it begins, if one of the modules is one of the two.
func (m *Model) Part(modules []string) {
	if m.Tied && slices.ContainsFunc(modules, func(module string) bool {
		return m.PEFT().covers(m.Family.namesInside(m.Inside).Embed, module) || m.PEFT().covers(m.HeadName(), module)
	}) {
		m.Tied, m.Files.Tied = false, true
	}
}

// Resize gives embedding and head of a model in files another number of rows.
func (m *Model) Resize(vocab int) { m.Vocab, m.Files.Vocab = vocab, m.Vocab }

// TrainWhole trains modules beside the adapters. As in PEFT, modules are named by how their names end: embed_tokens is the
// embedding, and norm all norms whose names end so. If the head is the embedding, both names stand for the embedding.
func (m *Model) TrainWhole(modules ...string) error {
	l := *m.LoRA
	l.Whole = nil
	params := m.Params()
	matched := make([]bool, len(modules))
	for _, p := range params {
		found := false
		for i, module := range modules {
			if !p.Adapter && !p.State && m.PEFT().covers(p.Name, module) {
				found, matched[i] = true, true
			}
		}
		switch {
		case !found:
			continue
		case p.Experts > 0:
			return fmt.Errorf("modules_to_save: %s has all experts, which are stored together; hint: give experts adapters, by targets", p.Name)
		case l.adapts(p.Name):
			return fmt.Errorf("modules_to_save: %s has an adapter, too; hint: name it in targets or in modules_to_save", p.Name)
		}
		l.Whole = append(l.Whole, p.Name)
	}
	for i, module := range modules {
		head := m.Tied && m.PEFT().covers(m.HeadName(), module)
		switch {
		case matched[i] || head && slices.Contains(l.Whole, params[0].Name):
		case head:
			return fmt.Errorf("modules_to_save: %q is the embedding in this model; hint: name %s", module, moduleOf(params[0].Name))
		default:
			return fmt.Errorf("modules_to_save: the model has no module %q; hint: %s", module, m.PEFT().meantModule(module, params))
		}
	}
	m.LoRA = &l
	return nil
}

// Keep takes copies of parameters, which are not trained, from the adapter's folder: those of embedding and head that are
// among the names in a PEFT file.
func (m *Model) Keep(names []string) {
	l := *m.LoRA
	l.Kept = nil
	for _, p := range m.Params() {
		if m.PEFT().OfVocabulary(p) && !slices.Contains(l.Whole, p.Name) && slices.Contains(names, m.PEFT().wholeName(p.Name)) {
			l.Kept = append(l.Kept, p.Name)
		}
	}
	m.LoRA = &l
}

// headBias is the name of the head's bias.
const headBias = "lm_head.bias"

// settle fills in whether a parameter is trained, and where it is stored.
func (b *paramList) settle(p *Param) {
	m := b.m
	if m.PEFT().OfVocabulary(*p) && m.Files.Vocab > 0 {
		p.Grown = m.Vocab - m.Files.Vocab
	}
	if p.Name == m.HeadName() && m.Files.Tied {
		p.Source = m.Family.namesInside(m.Inside).Embed
	}
	if l := m.LoRA; l != nil && !p.Adapter {
		p.Frozen = p.State || !slices.Contains(l.Whole, p.Name)
		if p.Whole = !p.Frozen || p.Grown != 0 || slices.Contains(l.Kept, p.Name); p.Whole {
			p.Parts = m.PEFT().wholeName(p.Name)
		}
	}
}

// InAdapter reports whether a parameter is stored in an adapter's folder.
func (p Param) InAdapter() bool { return p.Adapter || p.Whole }

// Merged returns a parameter that adapters' folders have whole as the files of a model have it.
func (p Param) Merged() Param {
	if p.Whole {
		p.Whole, p.Parts = false, ""
	}
	return p
}

// Original returns a parameter as the files that the model's own weights are read from have it.
func (p Param) Original() Param {
	p = p.Merged()
	if p.Source != "" {
		p.Name = p.Source
	}
	if p.Vector {
		p.Cols -= p.Grown
	} else {
		p.Rows -= p.Grown
	}
	return p
}

// Extend fills the rows that the model's own files lack with the mean of the others, as resize_token_embeddings does in
// transformers, but for the noise that it adds.
func (p Param) Extend(values []float32) {
	width := p.Cols
	if p.Vector {
		width = 1
	}
	old := len(values)/width - p.Grown
	for col := range width {
		sum := 0.0
		for row := range old {
			sum += float64(values[row*width+col])
		}
		for row := old; row < old+p.Grown; row++ {
			values[row*width+col] = float32(sum / float64(old))
		}
	}
}
