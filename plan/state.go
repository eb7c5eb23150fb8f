package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
)

// StateFormat is how the optimizer's state is stored. Apart from the precision, this is the only
// part of a plan that changes results: bf16 values are rounded stochastically after
// every step (see graph.Chance), with the fp32 result as the mean, and packed moments to the nearest value of a block
// (see graph.MomentBlock). Plans and checkpoints leave FP32State out.
//
// With two moments, as AdamW has, the formats take per element:
//
//	fp32          weights and moments in fp32: 12 bytes, including the weights that operators read
//	bf16_moments  weights in fp32, moments in bf16: 8
//	8bit_moments  weights in fp32, moments in 8 bits and a scale for each block, but those of small parameters: 6
//	bf16          everything in bf16: 6; operators read the same weights
type StateFormat uint8

// The formats, from most memory to least.
const (
	FP32State StateFormat = iota
	BF16Moments
	PackedMoments
	BF16State
)

// states describes the formats: their names in configurations, plans and checkpoints, and what is stored as what.
var states = [...]struct {
	name            string
	master, moments graph.DType
	rounding        string // in words
}{FP32State: {"fp32", graph.F32, graph.F32, ""}, BF16Moments: {"bf16_moments", graph.F32, graph.BF16, stochastic},
	PackedMoments: {"8bit_moments", graph.F32, graph.U8, "rounded to the nearest value of a block"}, BF16State: {"bf16", graph.BF16, graph.BF16, stochastic}}

const stochastic = "with stochastic rounding"

// StateFormats returns all formats, from most memory to least.
func StateFormats() (list []StateFormat) {
	for f := range states {
		list = append(list, StateFormat(f))
	}
	return list
}

func (f StateFormat) String() string { return states[f].name }

// Rounding says in words how results become the format's values; "" if they are kept as they are.
func (f StateFormat) Rounding() string { return states[f].rounding }

// MarshalText writes the name.
func (f StateFormat) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads a name.
func (f *StateFormat) UnmarshalText(text []byte) error {
	var names []string
	for _, s := range states {
		names = append(names, s.name)
	}
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("optimizer_state cannot be %q; hint: use one of %s", text, strings.Join(names, ", "))
	}
	*f = StateFormat(i)
	return nil
}

// Types returns the element types in which the master weights and the moments are stored; of type U8 are those of parameters of
// graph.PackedLeast elements, and the others' are in fp32.
func (f StateFormat) Types() (master, moments graph.DType) {
	return states[f].master, states[f].moments
}

// TypesFor is Types for weights that operators read in the given type: of those in int8 there is nothing else, and they are updated.
func (f StateFormat) TypesFor(weights graph.DType) (master, moments graph.DType) {
	if weights == graph.I8 {
		return graph.I8, states[f].moments
	}
	return f.Types()
}

// StateBytes returns the bytes per element of an optimizer's moments, but for the scales of those in 8 bits, plus those of the rest of the
// weight if operators read it in the given, narrower type. Where they read a copy on a
// tier other than that of the update, the whole weight is stored, twice as much as that rest.
func StateBytes(o optimizer.Optimizer, state StateFormat, weights graph.DType) int64 {
	master, moments := state.TypesFor(weights)
	n := int64(len(o.Rule().Moments)) * moments.Size()
	if master != weights {
		n += master.Size() - weights.Size()
	}
	return n
}
