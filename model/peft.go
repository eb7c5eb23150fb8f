package model

import (
	"regexp"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// PEFT is a model as Hugging Face's PEFT names its parts: by modules, as transformers has them in memory.
type PEFT struct{ *Model }

// PEFT returns the model as PEFT names its parts.
func (m *Model) PEFT() PEFT { return PEFT{m} }

// peftPrefix is what names in an adapter's files begin with.
const peftPrefix = "base_model.model."

// nameInMemory returns the name that transformers has in memory for a parameter, which in files of GPT-NeoX, Mixtral and Nemotron-H
// is another.
func (m PEFT) nameInMemory(name string) string {
	if name == m.HeadName() && !Classifies(m.Model) {
		return headModule + ".weight"
	}
	if m.Family.Tensors.Experts != "" { // then the module is called alike
		return beginInMemory(name)
	}
	return strings.Replace(beginInMemory(name), ".block_sparse_moe.", ".mlp.", 1)
}

// backbone is what names in files of Nemotron-H begin with, where transformers has model. in memory.
const backbone = "backbone."

// beginInMemory returns a name that begins as transformers has it in memory.
func beginInMemory(name string) string {
	if rest, ok := strings.CutPrefix(name, backbone); ok {
		return "model." + rest
	}
	return name
}

// beginInFiles is its inverse.
func (m PEFT) beginInFiles(name string) string {
	if rest, ok := strings.CutPrefix(name, "model."); ok && strings.HasPrefix(m.Family.Tensors.Layer, backbone) {
		return backbone + rest
	}
	return name
}

// moduleInMemory returns the name that transformers has in memory for a parameter's module.
func (m PEFT) moduleInMemory(name string) string {
	return strings.TrimSuffix(m.nameInMemory(name), "."+last(name))
}

// covers reports whether a parameter is in a module whose name ends so.
func (m PEFT) covers(name, module string) bool {
	for _, name := range []string{name, m.nameInMemory(name)} {
		for i, c := range name {
			if c == '.' && strings.HasSuffix(name[:i], module) {
				return true
			}
		}
	}
	return false
}

// moduleOf returns the last part of the name of a parameter's module.
func moduleOf(name string) string { return last(strings.TrimSuffix(name, "."+last(name))) }

// meantModule returns a hint on what the name of a module may have meant.
func (m PEFT) meantModule(module string, params []Param) string {
	var names []string
	for _, p := range params {
		if name := moduleOf(p.Name); p.Experts == 0 && !p.Adapter && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if w := suggest.Nearest(module, names); w != "" {
		return "did you mean " + w + "?"
	}
	return "it has " + strings.Join(names, ", ")
}

// Modules returns the names by which PEFT finds the adapted weights, as few as possible: the last part of a
// name stands for all weights of that name, such as q_proj. Experts' weights are parameters of a module.
func (m PEFT) Modules() (modules, parameters []string) {
	count := map[string]int{} // weights that are not adapted, by the last part
	for _, p := range m.Params() {
		if !p.Vector && !p.Adapter && !m.LoRA.adapts(p.Name) {
			count[last(strings.TrimSuffix(p.Name, ".weight"))]++
		}
	}
	for _, w := range m.LoRA.Weights {
		name, module := strings.CutSuffix(w, ".weight")
		if w == m.HeadName() {
			name = headModule
		}
		list := &modules
		if !module {
			list, name = &parameters, m.moduleInMemory(w)+"."+last(w)
		}
		if short := last(name); count[short] == 0 {
			name = short
		}
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	return modules, parameters
}

// Pattern returns a regular expression for names of modules that Modules returns: it matches them in the text part of a model, and
// none in other parts, where modules may have the same names.
func (m PEFT) Pattern(modules []string) string {
	var short, all []string
	for _, name := range modules {
		switch quoted := regexp.QuoteMeta(name); {
		case name == headModule || strings.Contains(name, "."):
			all = append(all, quoted)
		default:
			short = append(short, quoted)
		}
	}
	if len(short) > 0 {
		all = append(all, regexp.QuoteMeta(m.Inside)+`(.*\.)?(`+strings.Join(short, "|")+")")
	}
	return strings.Join(all, "|")
}

// WholeModules returns the names by which PEFT finds what is trained whole, as few as possible.
func (m PEFT) WholeModules() (modules []string) {
	params := m.Params()
	for _, name := range m.LoRA.Whole {
		module := moduleOf(name)
		if m.Inside != "" || slices.ContainsFunc(params, func(p Param) bool { return m.covers(p.Name, module) && p.Frozen }) {
			module = m.moduleInMemory(name)
		}
		if name == m.HeadName() && !Classifies(m.Model) {
			module = headModule
		}
		if m.tiedWhole(name) { // by this name PEFT recognises the two
			modules = append(modules, headModule)
		}
		if !slices.Contains(modules, module) {
			modules = append(modules, module)
		}
	}
	return modules
}

// AdaptedIn returns the weights whose adapters' first factors are among the names in a PEFT file. parameters
// are those that PEFT's configuration names.
func (m PEFT) AdaptedIn(names, parameters []string) (weights []string) {
	outer := gateUp // the one whose names have no base_layer: the module's last adapted parameter
	if slices.ContainsFunc(parameters, func(p string) bool { return last(p) == down }) {
		outer = down
	}
	module := map[string]string{} // by its name in memory
	for _, p := range m.Params() {
		if p.Experts > 0 {
			module[m.moduleInMemory(p.Name)] = strings.TrimSuffix(p.Name, last(p.Name))
		}
	}
	for _, name := range names {
		name, ours := strings.CutPrefix(name, peftPrefix)
		name, embedding := strings.CutSuffix(name, embedA)
		name, first := strings.CutSuffix(name, loraA)
		switch {
		case !ours || !first && !embedding:
			continue
		case name == headModule:
			weights = append(weights, m.HeadName())
			continue
		}
		inside, inner := strings.CutSuffix(name, ".base_layer")
		switch experts := module[inside]; {
		case experts == "":
			weights = append(weights, m.beginInFiles(name)+".weight")
		case inner:
			weights = append(weights, experts+gateUp)
		default:
			weights = append(weights, experts+outer)
		}
	}
	return weights
}

// wholeName returns PEFT's name of a parameter that is stored whole.
func (m PEFT) wholeName(name string) string {
	end := last(name)
	module := strings.TrimSuffix(m.nameInMemory(name), "."+end)
	switch {
	case m.LoRA.adapts(name):
		module += ".base_layer"
	case slices.Contains(m.LoRA.Rows, name):
		module += ".token_adapter.base_layer"
	}
	return peftPrefix + module + "." + end
}

// Copies returns names under which PEFT may store a parameter once more: the head, if that is the embedding, and both
// if the vocabulary was resized or they have adapters. equal says that they are what is computed with, and not what the model was before.
func (m PEFT) Copies(p Param) (equal, others []string) {
	if !m.OfVocabulary(p) || p.Adapter {
		return nil, nil
	}
	names := []string{p.Name}
	if m.Tied && !p.Vector {
		names = append(names, m.HeadName())
	}
	for i, name := range names {
		name = peftPrefix + m.nameInMemory(name)
		module, end := strings.TrimSuffix(name, "."+last(name)), "."+last(name)
		if i > 0 {
			equal = append(equal, name, module+".base_layer"+end)
		}
		equal, others = append(equal, module+".modules_to_save"+end), append(others, module+".original_module"+end)
	}
	return equal, others
}

// tiedWhole reports whether a parameter is the embedding and the head, and trained whole.
func (m PEFT) tiedWhole(name string) bool {
	return m.Tied && name == m.Family.namesInside(m.Inside).Embed && m.LoRA != nil && slices.Contains(m.LoRA.Whole, name)
}

// Stored lists the tensors that folders hold of a parameter: Tensors and, as PEFT needs it, the head once more if it is the
// embedding and trained whole beside adapters.
func (m PEFT) Stored(p Param) []Tensor {
	list := p.Tensors()
	if m.tiedWhole(p.Name) {
		list = append(list, Tensor{Name: peftPrefix + m.nameInMemory(m.HeadName()), Shape: list[0].Shape})
	}
	return list
}

// EmbeddingModule returns the last part of the name of the embedding's module.
func (m PEFT) EmbeddingModule() string { return moduleOf(m.Family.namesInside(m.Inside).Embed) }

// TokenRows returns the embedding or the head, whichever a module's name means, and the tensor in an adapter's files that has
// those of its rows that are trained by themselves.
func (m PEFT) TokenRows(module string) (p Param, tensor string, ok bool) {
	for _, p := range m.Params() {
		names := []string{p.Name}
		if m.Tied && p.Name == m.Family.namesInside(m.Inside).Embed {
			names = append(names, m.HeadName())
		}
		for _, name := range names {
			if m.OfVocabulary(p) && !p.Adapter && !p.Vector && m.covers(name, module) {
				return p, peftPrefix + m.moduleInMemory(name) + ".token_adapter.trainable_tokens_delta", true
			}
		}
	}
	return p, "", false
}

// OfVocabulary reports whether a parameter has a row, or an element, for each token.
func (m PEFT) OfVocabulary(p Param) bool {
	return p.Name == m.Family.namesInside(m.Inside).Embed || p.Name == headBias || p.Name == m.HeadName() && !Classifies(m.Model)
}
