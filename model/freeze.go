package model

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// Freeze excludes from training all parameters whose names match one of the
// patterns: * matches any run of characters, ? one, [0-5] a range. At least one
// parameter must remain trained, and each pattern must match one.
//
//	transformer.wte.weight      the embedding
//	transformer.h.[0-5].*       the first six layers
func (m *Model) Freeze(patterns ...string) error {
	m.Frozen = nil
	params := m.Params()
	frozen, err := m.match(params, patterns)
	if err != nil {
		return err
	}
	for i, p := range params {
		if frozen[i] {
			m.Frozen = append(m.Frozen, p.Name)
		}
		if bias := strings.HasSuffix(p.Name, ".bias"); bias && frozen[i] && params[i-1].Vector && !frozen[i-1] {
			return fmt.Errorf("%s is frozen and %s is not, but one operator computes the gradients of both; hint: freeze both, or only %[2]s", p.Name, params[i-1].Name)
		} else if bias && !frozen[i] && params[i-1].Taps && frozen[i-1] {
			return fmt.Errorf("%s is frozen and %s is not, but one operator computes the gradients of both; hint: freeze both, or only %[2]s", params[i-1].Name, p.Name)
		}
	}
	if !slices.ContainsFunc(params, func(p Param) bool { return !p.State && !slices.Contains(m.Frozen, p.Name) }) {
		return fmt.Errorf("all %d parameters are frozen; hint: leave some of them trainable", len(params))
	}
	return nil
}

// Quantize holds the frozen weights of the layers' linear operators and experts in 4 bits a number,
// as QLoRA does (Dettmers et al., 2305.14314, section 3): see graph.NF4Block. It changes
// what the model computes. At least one such weight must be frozen.
func (m *Model) Quantize() error {
	m.NF4 = true
	if !slices.ContainsFunc(m.Params(), func(p Param) bool { return p.NF4 }) {
		m.NF4 = false
		return errors.New("only frozen weights can be held in 4 bits, and none of the layers' linear weights is frozen; hint: set lora: {rank: 16}, or freeze some layers")
	}
	return nil
}

// FreezeLinear freezes the weights of the layers' linear operators and experts.
func (m *Model) FreezeLinear() {
	m.Frozen = nil
	for _, p := range m.Params() {
		if m.quantizable(p) {
			m.Frozen = append(m.Frozen, p.Name)
		}
	}
}

// quantizable reports whether a parameter is the weight of a linear operator of a layer, or
// of experts. A router's is not: its output decides too much for adapters and 4 bits. Nor are those of linear attention whose few
// outputs say how much states keep and take in.
func (m *Model) quantizable(p Param) bool {
	n := &m.Family.Tensors
	return !p.Vector && !p.Taps && !p.Adapter && p.Layer >= 0 && p.Layer < m.Layers && !(m.Experts > 0 && strings.HasSuffix(p.Name, n.Router+".weight")) &&
		!(m.SharedGate && strings.HasSuffix(p.Name, n.SharedRouter+".weight")) &&
		!(m.Delta.Some() && (n.DeltaA != "" && strings.HasSuffix(p.Name, n.DeltaA+".weight") || strings.HasSuffix(p.Name, n.DeltaB+".weight")))
}

// match reports which parameters match one of the patterns. Each pattern must match one.
func (m *Model) match(params []Param, patterns []string) ([]bool, error) {
	list := make([]bool, len(params))
	for _, pattern := range patterns {
		matched := false
		for i, p := range params {
			ok, err := path.Match(pattern, p.Name)
			if err != nil {
				return nil, fmt.Errorf("%q: %w; hint: * stands for anything, ? for one character, [0-5] for a range", pattern, err)
			}
			list[i], matched = list[i] || ok, matched || ok
		}
		if !matched {
			return nil, fmt.Errorf("%q matches no parameter; hint: %s", pattern, m.meant(pattern, params))
		}
	}
	return list, nil
}

// meant returns a hint on what a pattern without a match may have meant.
func (m *Model) meant(pattern string, params []Param) string {
	if ok, _ := path.Match(pattern, m.HeadName()); ok && m.Tied {
		return "the head is tied to the embedding, " + m.Params()[0].Name
	}
	var names []string
	for _, p := range params {
		names = append(names, p.Name)
	}
	for _, p := range m.Params() {
		if ok, _ := path.Match(pattern, p.Name); ok { // but is not among those that the pattern may choose
			return p.Name + " gets no adapter: only embedding, head and the linear weights of layers do, except routers of experts"
		}
		if slices.ContainsFunc(p.Tensors(), func(t Tensor) bool { ok, _ := path.Match(pattern, t.Name); return ok }) {
			return "all experts of a layer are stored together, in parameters such as " + p.Name
		}
	}
	if w := suggest.Nearest(pattern, names); w != "" {
		return "did you mean " + w + "?"
	}
	if p := "*" + strings.Trim(pattern, "*") + "*"; slices.ContainsFunc(names, func(n string) bool { ok, _ := path.Match(p, n); return ok }) {
		return fmt.Sprintf("the pattern must match the whole name: did you mean %q?", p)
	}
	return "names are those of the Hugging Face folder, such as " + names[len(names)-1]
}
