package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Shape is the size of a model.
type Shape struct{ Layers, Width, Heads int }

// Params returns the number of parameters besides embeddings and head: four matrices of attention and, of whichever form the
// feed-forward is, as many as eight more.
func (s Shape) Params() float64 { return 12 * float64(s.Layers) * float64(s.Width) * float64(s.Width) }

// String returns the shape as a configuration has it.
func (s Shape) String() string {
	return fmt.Sprintf("{layers: %d, width: %d, heads: %d}", s.Layers, s.Width, s.Heads)
}

// Setting is what a run has besides its text.
type Setting struct {
	Shape
	Batch int // sequences per step
	Rate  float64
}

// Model is a shape, and what planning says of it.
type Model struct {
	Shape
	Speed float64 // tokens per second
}

const (
	headDim             = 64
	narrowest, widest   = 64, 8192
	deepest             = 128
	flattest, steepest  = 128, 24 // columns per layer
	smaller, larger     = 4, 4    // how many times the size that Chinchilla's rule gives
	tokensPerParam      = 20      // that rule
	trainingFLOPs       = 6       // per parameter and token
	candidates          = 14      // at most that are planned
	smallPilot, farther = 3, 3    // times fewer and more parameters than the middle pilot
)

// FitBudget returns the number of parameters that Chinchilla's rule gives for so many FLOPs: C = 6ND, D = 20N.
func FitBudget(flops float64) float64 { return math.Sqrt(flops / trainingFLOPs / tokensPerParam) }

// Shapes returns models around n parameters, by size: heads of 64 columns, neither very flat nor very deep, each about a fifth larger than
// the one before. own is among them.
func Shapes(n float64, own Shape) []Shape {
	var list []Shape
	for w := narrowest; w <= widest; w += step(w) {
		for l := 2; l <= deepest; l += max(1, l/4) {
			s := Shape{l, w, w / headDim}
			if p := s.Params(); p >= n/smaller && p <= n*larger && w/l <= flattest && w/l >= steepest {
				list = append(list, s)
			}
		}
	}
	bySize := func(a, b Shape) int { return cmp.Compare(a.Params(), b.Params()) }
	slices.SortStableFunc(list, bySize)
	if list = thin(list); own.Layers > 0 && !slices.Contains(list, own) {
		list = append(list, own)
	}
	slices.SortStableFunc(list, bySize)
	return list
}

// step returns by how much widths grow.
func step(w int) int { return max(headDim, w/4/headDim*headDim) }

// thin leaves of a sorted list those whose sizes are apart by equal factors, and of models of about the same size the one whose
// proportions are nearest to usual ones.
func thin(list []Shape) (kept []Shape) {
	if len(list) <= candidates {
		return list
	}
	const usual = 56 // columns per layer
	least := math.Log(list[0].Params())
	span := math.Log(list[len(list)-1].Params()) - least
	best := map[int]Shape{}
	odd := func(s Shape) float64 { return math.Abs(math.Log(float64(s.Width) / float64(s.Layers) / usual)) }
	for _, s := range list {
		k := min(candidates-1, int((math.Log(s.Params())-least)/span*candidates))
		if b, ok := best[k]; !ok || odd(s) < odd(b) {
			best[k] = s
		}
	}
	for k := range candidates {
		if s, ok := best[k]; ok {
			kept = append(kept, s)
		}
	}
	return kept
}

// nearest returns the index of the model whose size is nearest to n.
func nearest(list []Model, n float64) (at int) {
	for i := range list {
		if math.Abs(math.Log(list[i].Params()/n)) < math.Abs(math.Log(list[at].Params()/n)) {
			at = i
		}
	}
	return at
}

// nearestShape returns the shape of usual proportions whose size is nearest to n.
func nearestShape(n float64) Shape {
	off := func(s Shape) float64 { return math.Abs(math.Log(s.Params() / n)) }
	least := Shape{Layers: 2, Width: narrowest}.Params()
	return slices.MinFunc(Shapes(max(n, least), Shape{}), func(x, y Shape) int { return cmp.Compare(off(x), off(y)) })
}
