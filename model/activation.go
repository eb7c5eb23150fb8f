package model

import (
	"fmt"
	"math"
	"slices"
)

// Activation is the function between the products of a feed-forward, alone or, if that is gated, of its gate.
type Activation uint8

const (
	GELUTanh Activation = iota // GPT-2's
	GELUErf
	ReLU
	SiLU
	ReLU2          // the square of ReLU (So et al., 2109.08668)
	Sigmoid        // of gates
	Identity       // of convolutions, and of gates that multiply
	NumActivations // how many there are
)

// activations defines each activation: its name in programs, its names in config.json (the keys of
// ACT2FN in transformers), its value and derivative at x.
var activations = [...]struct {
	name  string
	names []string
	at    func(x float64) (y, dy float64)
}{
	{"gelu_tanh", []string{"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"}, func(x float64) (y, dy float64) {
		const k, q = 0.7978845608028654, 0.044715 // sqrt(2/pi)
		t := math.Tanh(k * (x + q*x*x*x))
		return x / 2 * (1 + t), (1+t)/2 + x/2*(1-t*t)*k*(1+3*q*x*x)
	}},
	{"gelu", []string{"gelu", "gelu_python"}, func(x float64) (y, dy float64) {
		phi := math.Erfc(-x/math.Sqrt2) / 2
		return x * phi, phi + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	}},
	{"relu", []string{"relu"}, func(x float64) (y, dy float64) {
		if x > 0 {
			return x, 1
		}
		return max(0, x), 0 // keeps a NaN
	}},
	{"silu", []string{"silu", "swish"}, func(x float64) (y, dy float64) {
		s := 1 / (1 + math.Exp(-x))
		return x * s, s + x*s*(1-s)
	}},
	{"relu2", []string{"relu2"}, func(x float64) (y, dy float64) {
		r := max(0, x)
		return r * r, 2 * r
	}},
	{"sigmoid", []string{"sigmoid"}, func(x float64) (y, dy float64) {
		s := 1 / (1 + math.Exp(-x))
		return s, s * (1 - s)
	}},
	{"identity", []string{"linear"}, func(x float64) (y, dy float64) { return x, 1 }},
}

var _ = [1]struct{}{}[len(activations)-int(NumActivations)] // compiles if each activation has its row

// String returns the name in programs.
func (a Activation) String() string {
	if a >= NumActivations {
		return fmt.Sprintf("act(%d)", uint8(a))
	}
	return activations[a].name
}

// At returns the function's value and derivative at x.
func (a Activation) At(x float64) (y, dy float64) { return activations[a].at(x) }

// ParseActivation is the inverse of String.
func ParseActivation(name string) (a Activation, ok bool) {
	for a := range NumActivations {
		if activations[a].name == name {
			return a, true
		}
	}
	return 0, false
}

// ActivationNames lists the names in config.json.
func ActivationNames() (list []string) {
	for _, a := range activations {
		list = append(list, a.names...)
	}
	return list
}

// ActivationOf returns the activation that has a name in config.json.
func ActivationOf(name string) (a Activation, ok bool) {
	for a := range NumActivations {
		if slices.Contains(activations[a].names, name) {
			return a, true
		}
	}
	return 0, false
}
