package model

import (
	"errors"
	"fmt"
	"slices"
)

// MultiplyFP8 multiplies with the matrices of the layers in FP8, see graph.MaxE4M3: those that Quantize would hold in 4 bits, trained or
// not. Embedding, head, norms, attention and adapters are as they were, and so are the matrices themselves. It changes what the model
// computes. At least one such matrix there must be.
func MultiplyFP8(m *Model) error {
	for _, no := range []struct {
		what string
		has  bool
	}{
		{"weights in 4 bits", m.NF4}, {"weights in int8", m.Int8}, {"experts", m.Experts > 0},
	} {
		if no.has {
			return fmt.Errorf("fp8 is not built for %s; hint: use bf16", no.what)
		}
	}
	m.FP8 = true
	if !slices.ContainsFunc(m.Params(), func(p Param) bool { return p.FP8 }) {
		m.FP8 = false
		return errors.New("the model's layers have no matrix to multiply with in fp8; hint: use bf16")
	}
	return nil
}
