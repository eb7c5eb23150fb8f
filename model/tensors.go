package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Tensor is a tensor of a model's files that holds a parameter or a part of one.
type Tensor struct {
	Name  string
	Shape []int
	First int // the element of the parameter at which it begins
}

// Elems returns the number of elements.
func (t Tensor) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Names returns the names that files may have for a tensor: its own and others that folders of other versions, and of the model
// without its head, have.
//
//	model.layers.0.mlp.up_proj.weight                   layers.0... in folders of LlamaModel and the published GPT-2
//	model.language_model.layers.0.mlp.up_proj.weight    language_model.model.layers.0..., of older versions model.layers.0...
//	lm_head.weight                                      language_model.lm_head.weight
//	backbone.layers.0.norm.weight                       model.layers.0.norm.weight
func (t Tensor) Names() []string {
	names := []string{t.Name}
	if strings.HasPrefix(t.Name, peftPrefix) {
		return names
	}
	if _, bare, _ := strings.Cut(t.Name, "."); strings.Contains(bare, ".") { // not the head
		names = append(names, bare)
	}
	if name := beginInMemory(t.Name); name != t.Name {
		names = append(names, name)
	}
	if text, ok := strings.CutPrefix(t.Name, languageModel); ok {
		names = append(names, "language_model.model."+text, "model."+text)
	}
	if strings.HasPrefix(t.Name, headModule+".") {
		names = append(names, "language_model."+t.Name)
	}
	return names
}

// NameIn returns the first of a tensor's names that files have. found is false if they have none of them.
func (t Tensor) NameIn(has func(name string) bool) (name string, found bool) {
	names := t.Names()
	if i := slices.IndexFunc(names, has); i >= 0 {
		return names[i], true
	}
	return "", false
}

// languageModel is what names of the text part of most models that also see or hear begin with, see Model.Inside.
const languageModel = "model.language_model."

// Carried reports whether a tensor in files, of a model of which this is the text part, belongs to another part. It is no
// parameter here, but is copied to wherever the whole model is written.
func Carried(m *Model, name string) bool {
	if m.Family.Ahead && aheadOf(m, name) || m.Lent.Keys > 0 && unreadOf(m, name) {
		return true
	}
	if m.Inside == "" {
		return false
	}
	own := m.Family.namesInside(m.Inside)
	ofText := func(part string) bool {
		return part == headModule || slices.ContainsFunc([]string{own.Embed, own.Layer, own.FinalNorm, own.PerLayerTable, own.PerLayerProjection, own.PerLayerNorm}, func(name string) bool {
			mine, _, _ := strings.Cut(strings.TrimPrefix(name, m.Inside), ".")
			return part == mine && mine != ""
		})
	}
	for _, begin := range []string{m.Inside, "language_model.model.", "language_model.", "model.", ""} {
		rest, ok := strings.CutPrefix(name, begin)
		if part, _, _ := strings.Cut(rest, "."); ok && ofText(part) { // of a text model, if not of this one
			return false
		}
	}
	return true
}

// aheadOf reports whether a tensor is of a layer beyond the last.
func aheadOf(m *Model, name string) bool {
	before, after, _ := strings.Cut(m.Family.namesInside(m.Inside).Layer, "%d")
	if strings.HasPrefix(name, m.Inside+"mtp_") || strings.HasPrefix(name, "model.mtp_") || strings.HasPrefix(name, "mtp.") { // as ERNIE names them, and Qwen
		return true
	}
	rest, ok := strings.CutPrefix(name, before)
	number, _, dot := strings.Cut(rest, after)
	layer, err := strconv.Atoi(number)
	return ok && dot && err == nil && layer >= m.Layers
}

// unreadOf reports whether a tensor is a weight of keys or values, or the gain of a norm of keys, of a layer that reads another's: files
// may have it, and nothing is computed with it.
func unreadOf(m *Model, name string) bool {
	before, after, _ := strings.Cut(m.Family.Tensors.Layer, "%d")
	_, rest, ok := strings.Cut(name, before[strings.Index(before, ".")+1:]) // whatever names of the text part begin with
	number, rest, dot := strings.Cut(rest, after)
	layer, err := strconv.Atoi(number)
	n := &m.Family.Tensors
	return ok && dot && err == nil && layer >= 0 && layer < m.Layers && Borrows(m, layer) && slices.Contains([]string{n.K + ".weight", n.V + ".weight", n.KNorm + ".weight"}, rest)
}

// Buffer reports whether a tensor in files is not a parameter but a table that config.json determines, as older
// versions of transformers wrote them: rotary tables, position numbers, attention masks.
func (m *Model) Buffer(name string) bool {
	dotted := "." + name
	ends := func(with ...string) bool {
		return slices.ContainsFunc(with, func(end string) bool { return strings.HasSuffix(dotted, end) })
	}
	return ends(".position_ids") || ends(m.Family.Buffers...) || m.Rotary() && strings.Contains(dotted, ".rotary_emb.")
}

// Tensors lists the tensors whose elements, one after the other, are the parameter. Usually that is one, of the
// parameter's name (a factor of an adapter has PEFT's), but for a mixture's experts it is two for each, gate
// and up, or one:
//
//	model.layers.0.mlp.experts.gate_up_proj [E*2F, D]
//	    model.layers.0.mlp.experts.0.gate_proj.weight [F, D]
//	    model.layers.0.mlp.experts.0.up_proj.weight [F, D]
//	    model.layers.0.mlp.experts.1.gate_proj.weight [F, D]
//	    ...
//
// gpt-oss has all experts' matrices, and their biases, in one tensor each, see Param.Transposed.
func (p Param) Tensors() []Tensor {
	switch {
	case p.Whole && p.Vector:
		return []Tensor{{Name: p.Parts, Shape: []int{p.Cols}}}
	case p.Whole:
		return []Tensor{{Name: p.Parts, Shape: []int{p.Rows, p.Cols}}}
	case p.Adapter && p.ofExperts():
		return []Tensor{{Name: p.Parts, Shape: []int{p.Rows / p.Experts, p.Cols * p.Experts}}}
	case p.Adapter && p.Experts > 0:
		return []Tensor{{Name: p.Parts, Shape: []int{p.Rows, p.Cols}}}
	case p.Adapter && p.Transposed:
		return []Tensor{{Name: peftPrefix + beginInMemory(p.Name), Shape: []int{p.Cols, p.Rows}}}
	case p.Parts != "" && !strings.Contains(p.Parts, "%d"):
		return []Tensor{{Name: p.Parts, Shape: []int{p.Experts, p.Rows / p.Experts, p.Cols}}}
	case p.Parts != "":
		return p.expertTensors()
	case p.Transposed:
		return []Tensor{{Name: p.Name, Shape: []int{p.Experts, p.Cols, p.Rows / p.Experts}}}
	case p.Adapter && p.Vector:
		return []Tensor{{Name: peftPrefix + beginInMemory(p.Name), Shape: []int{p.Cols}}}
	case p.Adapter:
		return []Tensor{{Name: peftPrefix + beginInMemory(p.Name), Shape: []int{p.Rows, p.Cols}}}
	case p.Scalar:
		return []Tensor{{Name: p.Name, Shape: []int{}}}
	case p.Vector && p.Cols == 1:
		return []Tensor{{Name: p.Name, Shape: []int{p.Rows}}}
	case !p.Vector && p.Experts > 0:
		return []Tensor{{Name: p.Name, Shape: []int{p.Experts, p.Rows / p.Experts, p.Cols}}}
	case p.Taps:
		return []Tensor{{Name: p.Name, Shape: []int{p.Rows, 1, p.Cols}}}
	case p.Vector && p.Experts == 0 && !p.Row:
		return []Tensor{{Name: p.Name, Shape: []int{p.Cols}}}
	}
	return []Tensor{{Name: p.Name, Shape: []int{p.Rows, p.Cols}}}
}

// TensorsIn returns the tensors of a parameter that files have: those of Tensors, or all experts in one.
func (p Param) TensorsIn(has func(name string) bool) []Tensor {
	one := Tensor{Name: p.Name, Shape: []int{max(p.Experts, 1), p.Rows / max(p.Experts, 1), p.Cols}}
	if _, there := one.NameIn(has); p.Stacked && there {
		return []Tensor{one}
	}
	return p.Tensors()
}

func (p Param) expertTensors() (list []Tensor) {
	parts := strings.Fields(p.Parts)
	rows := p.Rows / (p.Experts * len(parts))
	for e := range p.Experts {
		for _, part := range parts {
			list = append(list, Tensor{fmt.Sprintf(part, e), []int{rows, p.Cols}, len(list) * rows * p.Cols})
		}
	}
	return list
}
