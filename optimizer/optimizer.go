// Package optimizer has the rules by which training updates weights, one row each, and the kinds of state that a parameter
// has between steps.
//
// A rule says which operator makes an update and what it keeps; everything else follows from the row: bytes per parameter,
// what is sharded, offloaded, streamed through staging buffers, saved, cleared and proved. To add one, add its row here, its
// operator to graph's table, and a kernel to each device (ARCHITECTURE.md has the recipe).
package optimizer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// Kind is a kind of what a parameter has between steps.
type Kind uint8

const (
	Weights      Kind = iota // the weights that are updated; their upper halves if there are LowerHalves
	FirstMoment              // a running mean of gradients
	SecondMoment             // a running mean of their squares
	Gradient                 // of a step whose gradients are kept, or whose update is left to the next step
	HalfWeights              // a bf16 copy of Weights, which operators read
	LowerHalves              // what bf16 weights leave out of fp32 ones
	Mask                     // which elements are stored, where only those are that are not 0, see graph.MaskLine
	NumKinds
)

// kinds have the names in the text of programs and in the names of buffers' contents, those for people, and whether only
// updates read and write it.
var kinds = [NumKinds]struct {
	short, long string
	moment      bool
}{
	Weights:      {"p", "weight", false},
	FirstMoment:  {"m", "first moment", true},
	SecondMoment: {"v", "second moment", true},
	Gradient:     {"g", "gradient", false},
	HalfWeights:  {"p16", "bf16 weight", false},
	LowerHalves:  {"rest", "lower half of the weight", false},
	Mask:         {"mask", "mask", false},
}

// String returns the kind's name in the text of programs.
func (k Kind) String() string {
	if k < NumKinds {
		return kinds[k].short
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Words returns what a person calls the kind.
func (k Kind) Words() string { return kinds[k].long }

// Moment reports whether a kind is a moment of some optimizer: only updates read and write it, and it begins with zeros.
func (k Kind) Moment() bool { return kinds[k].moment }

// KindNamed is the inverse of Kind.String.
func KindNamed(name string) (Kind, error) {
	for k := range NumKinds {
		if kinds[k].short == name {
			return k, nil
		}
	}
	return 0, fmt.Errorf("unknown kind of state %q", name)
}

// Optimizer names a rule.
type Optimizer uint8

const (
	AdamW Optimizer = iota
	Lion
	Muon
	SGD
	NumOptimizers
)

// Rule is a row of the table.
type Rule struct {
	Name string // in configurations, plans and checkpoints
	// Op makes an update. Its operands are, in this order: weights, moments, gradient, clip (optional), scalars, a bf16 copy
	// of the weights (optional), their lower halves (optional) and, unless Elementwise, room to work in.
	Op graph.Op
	// Moments are the kinds of state beside the weights, of as many elements.
	Moments []Kind
	// Elementwise updates treat each element by itself, so that they may be cut anywhere. Others need whole matrices, and
	// leave all parameters but the layers' matrices to AdamW, see For.
	Elementwise bool
	// Beta1, Beta2, Epsilon and Decay (of weights) are the defaults of the hyper-parameters, 0 where the rule has none; of a
	// rule that leaves parameters to AdamW the first three are AdamW's.
	Beta1, Beta2, Epsilon, Decay float64
	// Low is a learning rate with which, and with lower ones, a run usually hardly learns; 0: none is known.
	Low float64
}

var table = [NumOptimizers]Rule{
	// Loshchilov and Hutter, 1711.05101, algorithm 2.
	AdamW: {Name: "adamw", Op: graph.AdamW, Moments: []Kind{FirstMoment, SecondMoment}, Elementwise: true, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8, Decay: 0.1},
	// Chen et al., 2302.06675, algorithm 2: the sign of a mean of gradients. Learning rates are usually 3 to 10 times
	// lower than AdamW's, and weight decay as much higher, so that their product is the same.
	Lion: {Name: "lion", Op: graph.Lion, Moments: []Kind{FirstMoment}, Elementwise: true, Beta1: 0.9, Beta2: 0.99, Decay: 1},
	// Gradient descent without momentum: weights are all the state there is. Learning rates are usually 100 to 1000 times AdamW's.
	SGD: {Name: "sgd", Op: graph.SGD, Elementwise: true, Low: 0.01},
	// See muon.go.
	Muon: {Name: "muon", Op: graph.Muon, Moments: []Kind{FirstMoment}, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8, Decay: 0.1},
}

// Rule returns the optimizer's row, which must not be changed.
func (o Optimizer) Rule() *Rule { return &table[o] }

// For returns the rule of a parameter, which is indivisible if it is a matrix that an optimizer needs as a whole.
func (o Optimizer) For(indivisible bool) *Rule {
	if o.Rule().Elementwise || indivisible {
		return o.Rule()
	}
	return AdamW.Rule()
}

// Moments lists the kinds of moments that some parameter has.
func (o Optimizer) Moments() []Kind {
	list := slices.Clone(o.For(false).Moments)
	for _, k := range o.For(true).Moments {
		if !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	return list
}

func (o Optimizer) String() string { return table[o].Name }

// Names lists the optimizers, the default first.
func Names() (list []string) {
	for _, r := range table {
		list = append(list, r.Name)
	}
	return list
}

// Named is the inverse of String.
func Named(name string) (Optimizer, error) {
	if o := slices.IndexFunc(table[:], func(r Rule) bool { return r.Name == name }); o >= 0 {
		return Optimizer(o), nil
	}
	return 0, fmt.Errorf("%q is not one of %s%s", name, strings.Join(Names(), ", "), suggest.Hint(name, Names()))
}

func (o Optimizer) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

func (o *Optimizer) UnmarshalText(text []byte) (err error) {
	*o, err = Named(string(text))
	return err
}

// Updating returns the rule whose updates an operator makes, or nil.
func Updating(op graph.Op) *Rule {
	for o := range table {
		if table[o].Op == op {
			return &table[o]
		}
	}
	return nil
}

// State lists the kinds of state that an update writes: the weights, then the moments.
func (r *Rule) State() []Kind { return append([]Kind{Weights}, r.Moments...) }

// Positions of an update's operands behind the weights and moments.
func (r *Rule) GradientAt() int    { return 1 + len(r.Moments) }
func (r *Rule) ClipAt() int        { return 2 + len(r.Moments) }
func (r *Rule) ScalarsAt() int     { return 3 + len(r.Moments) }
func (r *Rule) HalfWeightsAt() int { return 4 + len(r.Moments) }
func (r *Rule) LowerHalvesAt() int { return 5 + len(r.Moments) }
func (r *Rule) WorkAt() int        { return 6 + len(r.Moments) } // unless Elementwise

// MostMoments is the maximum number of moments of a rule.
const MostMoments = 2
