package model

import (
	"fmt"
	"strings"
)

// Layers that share parameters (pseudo-to-real, 2110.03888): Shares consecutive layers are computed with those of the first of
// them, and a parameter's gradient is the sum over the layers. Files have such a model as an ordinary one, each layer with its
// copy, so that it can go on as one with layers of their own.

// LayerSharedBy returns the layer whose parameters a layer has.
func LayerSharedBy(m *Model, layer int) int {
	if m.Shares == 0 {
		return layer
	}
	return layer - layer%m.Shares
}

// ShareLayers has each n consecutive layers share parameters.
func ShareLayers(m *Model, n int) error {
	if n < 2 || m.Layers%n != 0 {
		return fmt.Errorf("%d layers cannot be divided into groups of %d; hint: use a divisor of the layers, at least 2", m.Layers, n)
	}
	m.Shares = n
	return nil
}

// CopiesOf returns a parameter as each layer that has it would have it by itself, in order.
func CopiesOf(m *Model, p Param) []Param {
	if m.Shares == 0 || p.Layer < 0 || p.Layer >= m.Layers {
		return []Param{p}
	}
	var list []Param
	prefix := m.Family.namesInside(m.Inside).Layer
	for l := p.Layer; l < p.Layer+m.Shares; l++ {
		q := p
		from, to := fmt.Sprintf(prefix, p.Layer), fmt.Sprintf(prefix, l)
		q.Layer, q.Name, q.Parts = l, to+strings.TrimPrefix(p.Name, from), strings.ReplaceAll(p.Parts, from, to)
		list = append(list, q)
	}
	return list
}
