package graph

import (
	"fmt"
	"math"
)

// Weights in int8 (Lin et al., 2206.15472). A matrix W = Unit*Q is stored as Q, whole numbers from -127 to 127, and trained as such:
// nothing else of it exists, no fp32 copy and no remainder. Unit, see model.Int8, is a power of two that never changes, so W is exact in
// fp32 and in bf16. -128 stands for a number that is not finite.
//
//	dL/dQ = Unit * dL/dW     is so small beside Q that Q would stand still;
//	dL/dQ / Unit^2           is of the right size: the paper's quantization-aware scaling
//
// The update of an optimizer in these terms, Q - step(dL/dQ / Unit^2), is its update of W divided by Unit: for SGD exactly, and for
// one whose steps do not depend on the gradient's scale if it gets dL/dW. So updates get dL/dW, add what they would add to W, and round
// Q to a whole number, up or down by chance (RoundInt8), since most changes are a small part of Unit. The random numbers are a function of
// the seed, the step and the element, see Chance.

// MaxInt8 is the greatest magnitude of a weight in int8, in units.
const MaxInt8 = 127

// notFinite is what stands for NaN and infinities.
const notFinite = math.MinInt8

// RoundInt8 returns x, in units, as a weight: up or down by chance, so that x is the mean, given 16 random bits. Half of the bits' range
// rounds to the nearest.
func RoundInt8(x float32, random uint32) int8 {
	switch {
	case x-x != 0:
		return notFinite
	case x >= MaxInt8:
		return MaxInt8
	case x <= -MaxInt8:
		return -MaxInt8
	}
	return int8((int32(math.Floor(float64(x)*(1<<16))) + int32(random)) >> 16)
}

// FromInt8 returns weights in units.
func FromInt8(q int8) float32 { return levels8[uint8(q)] }

var levels8 = func() (list [256]float32) {
	for i := range list {
		list[i] = float32(int8(i))
	}
	list[256+notFinite] = float32(math.NaN())
	return list
}()

// unit returns what weights in int8 among a node's operands are multiples of; 0: none are in int8.
func (g *Graph) unit(args []Use) float64 {
	for _, u := range args {
		if u.Value >= 0 && g.Values[u.Value].DType == I8 {
			return g.Params[g.ParamOf(u.Value)].Unit
		}
	}
	return 0
}

// checkInt8 names an operator that cannot read weights in int8, or reads two that are multiples of different units.
func (g *Graph) checkInt8() error {
	for s := range g.Segments {
		for _, list := range [][]Node{g.Segments[s].Forward, g.Segments[s].Backward} {
			for _, n := range list {
				for k, u := range n.Args {
					if u.Value < 0 || g.Values[u.Value].DType != I8 {
						continue
					}
					if n.Op.Info().Args[k].Shape.Types != "q" || g.Params[g.ParamOf(u.Value)].Unit != n.Attr.Unit {
						return fmt.Errorf("%v cannot read %s in int8; hint: use fp32 or bf16", n.Op, g.Values[u.Value].Name)
					}
				}
			}
		}
	}
	return nil
}
