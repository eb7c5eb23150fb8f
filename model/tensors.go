package model

import (
	"fmt"
	"slices"
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

// BareName returns the name in folders of the model without its head, such as those of
// GPT2Model and the published GPT-2: without the first part, "transformer.", "model." or the like. ok is
// false for the head, which has no such part, and for adapters.
func (t Tensor) BareName() (name string, ok bool) {
	_, name, _ = strings.Cut(t.Name, ".")
	return name, strings.Contains(name, ".") && !strings.HasPrefix(t.Name, peftPrefix)
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
		return []Tensor{{Name: peftPrefix + p.Name, Shape: []int{p.Cols, p.Rows}}}
	case p.Parts != "":
		return p.expertTensors()
	case p.Transposed:
		return []Tensor{{Name: p.Name, Shape: []int{p.Experts, p.Cols, p.Rows / p.Experts}}}
	case p.Adapter:
		return []Tensor{{Name: peftPrefix + p.Name, Shape: []int{p.Rows, p.Cols}}}
	case p.Vector && p.Experts == 0:
		return []Tensor{{Name: p.Name, Shape: []int{p.Cols}}}
	}
	return []Tensor{{Name: p.Name, Shape: []int{p.Rows, p.Cols}}}
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
