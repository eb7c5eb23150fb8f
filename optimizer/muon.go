package optimizer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// Muon (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., 2502.16982) updates matrices of layers. It moves a
// matrix along the orthogonal matrix nearest to a mean of its gradients, which takes products of the whole matrix: so no
// plan divides one, and it is updated on the device wherever its state is. Embeddings, head and vectors are left to AdamW.

// MuonTerms are the constants of Muon's updates that AdamW does not have.
type MuonTerms struct {
	Momentum float64   // share of the old mean, usually 0.95
	Rate     float64   // the matrices' learning rate as a multiple of the others'
	Scale    MuonScale // of the step, by a matrix's shape
}

// Usual returns the usual terms.
func (MuonTerms) Usual() MuonTerms { return MuonTerms{Momentum: 0.95, Rate: 1} }

// Step returns what the learning rate is multiplied by for a matrix of files' shape.
func (t *MuonTerms) Step(rows, cols int) float64 {
	return t.Rate * muonScales[t.Scale].factor(float64(rows), float64(cols))
}

// MuonScale names a convention of how long a step is, as adjust_lr_fn of torch.optim.Muon does.
type MuonScale uint8

const (
	// MatchAdamW makes a step's root mean square about AdamW's, so that its learning rates and weight decay are right.
	MatchAdamW MuonScale = iota
	// OriginalScale is Jordan's: a step has about the same effect on outputs whatever the shape. Rates are near 0.02.
	OriginalScale
)

var muonScales = [...]struct {
	name   string
	factor func(rows, cols float64) float64
}{
	MatchAdamW:    {"match_rms_adamw", func(rows, cols float64) float64 { return 0.2 * math.Sqrt(max(rows, cols)) }},
	OriginalScale: {"original", func(rows, cols float64) float64 { return math.Sqrt(max(1, rows/cols)) }},
}

func (s MuonScale) String() string { return muonScales[s].name }

// MuonScales lists the names of the conventions, the default first.
func MuonScales() (names []string) {
	for _, s := range muonScales {
		names = append(names, s.name)
	}
	return names
}

// MuonScaleNamed is the inverse of String.
func MuonScaleNamed(name string) (MuonScale, error) {
	names := MuonScales()
	if i := slices.Index(names, name); i >= 0 {
		return MuonScale(i), nil
	}
	return 0, fmt.Errorf("%q is not one of %s%s", name, strings.Join(names, ", "), suggest.Hint(name, names))
}
