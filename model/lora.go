package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// LoRA are the low-rank adapters of a model (Hu et al., 2106.09685). Each adapted weight W of a layer stays as
// it is, and the product of two narrow matrices, which are all that is trained, is added to its effect:
//
//	y = x.W + bias + (s*(x.A^T)).B^T    A [Rank, in], B [out, Rank], s see Scale
//
// B starts as zeros, so training starts from the model as it was. The scale is part of the
// model, an operator on the narrow product x.A^T and, backwards, on its gradient. A model
// whose B were s times as large would compute the same, but AdamW would not train it in the same way: its steps
// have the size of the learning rate, whatever the gradient's. To take the same steps, B would need a learning
// rate s times as large, a decay and an epsilon divided by s, and gradients multiplied by s in the norm that
// clips them.
//
// Their names are those of Hugging Face's PEFT:
//
//	model.layers.0.self_attn.q_proj.weight          [out, in], frozen
//	model.layers.0.self_attn.q_proj.lora_A.weight   [rank, in]
//	model.layers.0.self_attn.q_proj.lora_B.weight   [out, rank]
//
// In the list of parameters, a layer's adapters follow everything else in it.
//
// Each of a mixture's experts has such factors, stacked one below the other like the weights. PEFT stores those
// of all experts as one A [E*Rank, in] and one B [out, Rank*E], whose columns are those of all experts for the
// first rank, then for the second, and so on; and it names the wrapper of a module's parameter instead of the
// parameter, the inner wrapper being base_layer:
//
//	model.layers.0.mlp.experts.gate_up_proj         base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight
//	model.layers.0.mlp.experts.down_proj            base_model.model.model.layers.0.mlp.experts.lora_A.weight
//
// If only one of the two is adapted, its names have no base_layer.
//
// The embedding's first factor is a table like the embedding, of Rank numbers for each token, to which the second is applied. It
// begins as zeros. The head's factors have these names even if the head is the embedding: each use of the matrix may have an
// adapter of its own.
//
//	model.embed_tokens.lora_embedding_A      [vocabulary, rank], in files [rank, vocabulary]
//	model.embed_tokens.lora_embedding_B      [width, rank]
//	lm_head.lora_A.weight                    [rank, width]
//	lm_head.lora_B.weight                    [vocabulary, rank]
//
// With DoRA (Liu et al., 2402.09353) each row of the adapted weight is divided by its length and multiplied by a number of its own, which
// begins as the length that the row has without an adapter, and is trained too:
//
//	model.layers.0.self_attn.q_proj.lora_magnitude_vector    [out]
type LoRA struct {
	Rank    int
	Alpha   float64              // 0: Rank
	DoRA    bool                 // adapted weights have magnitudes of their own, see Magnitude
	Dropout float64              // while training: the probability with which an adapter reads 0 instead of an element of its input
	RSLoRA  bool                 // divide Alpha by the square root of Rank
	Own     map[string]RankAlpha // of weights of layers whose rank or alpha is another
	Weights []string             // names of the adapted weights, in the order of Params
	Whole   []string             // names of the parameters that are trained as they are, see TrainWhole
	Kept    []string             // names of others that the adapter's folder has whole, see Keep
	Rows    []string             // names of those of which it has some rows by themselves, see PEFT.TokenRows
	sorted  []string
}

// RankAlpha are the rank and alpha of an adapter.
type RankAlpha struct {
	Rank  int
	Alpha float64
}

// Noisy reports whether training draws random numbers for tokens.
func Noisy(m *Model) bool { return m.Neftune > 0 || m.LoRA != nil && m.LoRA.Dropout > 0 }

// Of returns those of a weight's adapter.
func (l *LoRA) Of(weight string) RankAlpha {
	if own, ok := l.Own[weight]; ok {
		return own
	}
	return RankAlpha{l.Rank, l.Alpha}
}

// Scale returns the factor of the adapter of a weight: Alpha/Rank or, rank-stabilised (Kalajdzievski,
// 2312.03732), Alpha/sqrt(Rank), with which wide adapters learn as fast as narrow ones.
func (l *LoRA) Scale(weight string) float64 {
	of := l.Of(weight)
	if l.RSLoRA {
		return of.Alpha / math.Sqrt(float64(of.Rank))
	}
	return of.Alpha / float64(of.Rank)
}

func (l *LoRA) String() string {
	kind := ""
	if l.DoRA {
		kind = ", with magnitudes"
	}
	if l.Dropout > 0 {
		kind += fmt.Sprintf(", dropout %v", l.Dropout)
	}
	if len(l.Own) > 0 {
		kind += fmt.Sprintf(" (others on %d)", len(l.Own))
	}
	text := fmt.Sprintf("adapters of rank %d, scale %.4g%s, on %d weights", l.Rank, l.Scale(""), kind, len(l.Weights))
	if len(l.Whole) > 0 {
		text += " and, trained whole, " + strings.Join(l.Whole, ", ")
	}
	return text
}

// mostScale keeps scales, and their inverses, well within the range of float32.
const mostScale = 1e6

// Adapt gives adapters to the weights of linear layers and experts whose names match one of
// the patterns (see Freeze), and excludes everything else from training. Without patterns all linear layers get
// one, but experts, each of which would need its own, do not. Embedding and head do if a pattern matches them and no weight of
// a layer. From l it takes rank and scale.
func (m *Model) Adapt(l LoRA, patterns ...string) error {
	m.Frozen, m.LoRA = nil, nil
	if l.Alpha == 0 {
		l.Alpha = float64(l.Rank)
	}
	chosen, err := chooseAdapted(m, patterns)
	if err != nil {
		return err
	}
	l.Weights, l.Whole, l.Kept, l.Rows = nil, nil, nil, nil
	if !(l.Dropout >= 0 && l.Dropout < 1) {
		return fmt.Errorf("dropout is %v; hint: use 0 for none, or a probability below 1, usually 0.05 or 0.1", l.Dropout)
	}
	for _, p := range chosen {
		rank := l.Of(p.Name).Rank
		if least := min(p.Rows/max(p.Experts, 1), p.Cols); rank < 1 || rank > least {
			return fmt.Errorf("rank %d is out of range for %s of %d x %d; hint: use 1 to %d, usually 8 to 64", rank, p.Name, p.Rows, p.Cols, least)
		}
		if s := l.Scale(p.Name); !(s >= 1/mostScale && s <= mostScale) {
			return fmt.Errorf("alpha %v with rank %d scales adapters by %v, which is out of range; hint: alpha is usually the rank, or twice that", l.Of(p.Name).Alpha, rank, s)
		}
		if _, own := l.Own[p.Name]; own && (p.Experts > 0 || p.Layer < 0 || p.Layer >= m.Layers) {
			return fmt.Errorf("a rank or alpha of its own is not built for %s: experts, embedding and head have that of all; hint: leave it out of rank_pattern and alpha_pattern", p.Name)
		}
		switch {
		case l.Dropout > 0 && l.DoRA:
			return errors.New("dropout is not built with dora; hint: leave one of the two out")
		case l.Dropout > 0 && p.Experts > 0:
			return fmt.Errorf("dropout is not built for the adapters of experts, such as %s; hint: leave dropout out, or choose other targets", p.Name)
		}
		if l.DoRA && (m.InOut() || p.Experts > 0 || p.Layer < 0 || p.Layer >= m.Layers) {
			return fmt.Errorf("dora is not built for %s: experts, embedding and head, and weights that are stored [in, out]; hint: leave it out, or choose other targets", p.Name)
		}
		l.Weights = append(l.Weights, p.Name)
	}
	l.sorted = slices.Sorted(slices.Values(l.Weights))
	m.LoRA = &l
	return nil
}

// chooseAdapted returns the weights that get adapters by some patterns.
func chooseAdapted(m *Model, patterns []string) (chosen []Param, err error) {
	var list []Param
	ends := 0 // embedding and head come first
	for _, p := range m.Params() {
		switch {
		case m.quantizable(p) && (p.Experts == 0 || len(patterns) > 0):
			list = append(list, p)
		case !p.Vector && m.PEFT().OfVocabulary(p) && len(patterns) > 0:
			list, ends = slices.Insert(list, ends, p), ends+1
			if m.Tied {
				p.Name = m.HeadName()
				list, ends = slices.Insert(list, ends, p), ends+1
			}
		}
	}
	if len(patterns) == 0 {
		return list, nil
	}
	all := make([]bool, len(list))
	for _, pattern := range patterns {
		matched, err := m.match(list, []string{pattern})
		if err != nil {
			return nil, err
		}
		first := 0
		if slices.Contains(matched[ends:], true) {
			first = ends
		}
		for i := first; i < len(list); i++ {
			all[i] = all[i] || matched[i]
		}
	}
	for i, p := range list {
		if all[i] {
			chosen = append(chosen, p)
		}
	}
	return chosen, nil
}

// adapts reports whether a weight has an adapter.
func (l *LoRA) adapts(weight string) bool {
	_, ok := slices.BinarySearch(l.sorted, weight)
	return ok
}

// Factors returns the names of the two factors of a weight's adapter. ok is false if it
// has none.
func (m *Model) Factors(weight string) (a, b string, ok bool) {
	name := strings.TrimSuffix(weight, ".weight")
	ok = m.LoRA != nil && m.LoRA.adapts(weight)
	switch weight {
	case m.Family.namesInside(m.Inside).Embed:
		return name + embedA, name + embedB, ok
	case m.HeadName():
		name = headModule
	}
	return name + loraA, name + loraB, ok
}

// MagnitudeOf returns the name of the magnitudes of an adapted weight's rows. ok is false if it has none.
func MagnitudeOf(m *Model, weight string) (name string, ok bool) {
	return strings.TrimSuffix(weight, ".weight") + loraM, m.LoRA != nil && m.LoRA.DoRA && m.LoRA.adapts(weight)
}

// DirectedBy returns the name of the weight whose rows' magnitudes a parameter has.
func DirectedBy(p Param) string { return strings.TrimSuffix(p.Name, loraM) + ".weight" }

const (
	loraM          = ".lora_magnitude_vector"
	loraA, loraB   = ".lora_A.weight", ".lora_B.weight"
	embedA, embedB = ".lora_embedding_A", ".lora_embedding_B"
	headModule     = "lm_head" // in memory
)

// factors returns the parameters of an adapter. A has the variance of the uniform distribution from which PEFT
// initialises it.
func (l *LoRA) factors(name string, in, out, layer int) []Param {
	rank := l.Of(name + ".weight").Rank
	list := []Param{
		{Name: name + loraA, Rows: rank, Cols: in, Layer: layer, Std: 1 / math.Sqrt(3*float64(in)), Adapter: true},
		{Name: name + loraB, Rows: out, Cols: rank, Layer: layer, Init: Zeros, Adapter: true},
	}
	if l.DoRA {
		list = append(list, Param{Name: name + loraM, Rows: 1, Cols: out, Layer: layer, Vector: true, Init: Lengths, Adapter: true})
	}
	return list
}

// ofOutputs returns those of the adapters added last that have an element, or a row, for each output.
func (b *paramList) ofOutputs() []Param {
	n := len(b.adapters)
	if n == 0 {
		return nil
	}
	if b.m.LoRA.DoRA {
		return b.adapters[n-2:]
	}
	return b.adapters[n-1:]
}

// embedFactors returns the parameters of the adapter of an embedding.
func (l *LoRA) embedFactors(p Param) []Param {
	name := strings.TrimSuffix(p.Name, ".weight")
	return []Param{
		{Name: name + embedA, Rows: p.Rows, Cols: l.Rank, Layer: p.Layer, Init: Zeros, Adapter: true, Transposed: true},
		{Name: name + embedB, Rows: p.Cols, Cols: l.Rank, Layer: p.Layer, Std: 1, Adapter: true},
	}
}

// expertFactors returns the parameters of the adapters of experts' matrices [out, in].
// inner says that another parameter of the same module has adapters too, whose wrapper encloses these.
func (m *Model) expertFactors(p Param, inner bool) []Param {
	list := m.LoRA.factors(p.Name, p.Cols, p.Rows/p.Experts, p.Layer)
	module := m.PEFT().moduleInMemory(p.Name)
	if inner {
		module += ".base_layer"
	}
	list[1].Interleaved = p.Interleaved
	for i, factor := range []string{loraA, loraB} {
		list[i].Rows, list[i].Experts, list[i].Parts = list[i].Rows*p.Experts, p.Experts, peftPrefix+module+factor
	}
	return list
}

// gateUp and down are what experts' parameters are called in a module.
const gateUp, down = "gate_up_proj", "down_proj"

// last returns what follows the last dot of a name.
func last(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }
