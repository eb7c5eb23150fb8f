package model

import (
	"fmt"
	"math"
)

// xIELU (2411.13010) is an activation with two parameters that are trained, through softplus, and two constants that files have, too:
//
//	p x^2 + beta x                       x > 0        p = softplus(alpha_p)
//	n (expm1(min(x, eps)) - x) + beta x  otherwise    n = beta + softplus(alpha_n)

// xielu adds the parameters; p and n begin as 0.8.
func (b *paramList) xielu(name string) {
	for _, p := range []struct {
		name string
		at   float64
	}{{".alpha_p", 0.8}, {".alpha_n", 0.8 - xieluBeta}} {
		b.vector(name+p.name, 1, Filled)
		b.list[len(b.list)-1].Std = math.Log(math.Expm1(p.at))
	}
}

const (
	xieluBeta = 0.5
	xieluEps  = -1e-6
)

// xieluConstants adds the constants.
func (b *paramList) xieluConstants(name string) {
	for _, p := range []Param{{Name: name + ".beta", Std: xieluBeta}, {Name: name + ".eps", Std: xieluEps}} {
		p.Rows, p.Cols, p.Layer, p.Vector, p.Init, p.Frozen, p.State, p.Scalar = 1, 1, b.layer, true, Filled, true, true, true
		b.list = append(b.list, p)
	}
}

// XIELUOf returns the names of a layer's constants.
func XIELUOf(m *Model, layer int) (beta, eps string) {
	n := m.Family.namesInside(m.Inside)
	prefix := fmt.Sprintf(n.Layer, LayerSharedBy(m, layer)) + n.XIELU
	return prefix + ".beta", prefix + ".eps"
}
