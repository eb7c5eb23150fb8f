package model

import (
	"cmp"
	"fmt"
)

// Models that choose among labels instead of tokens. Instead of a head with a row for each token they have one with a row for each label, which
// reads what the last norm makes of a text's last token. It has no bias, is never the embedding, and its logits are neither bounded nor
// multiplied:
//
//	score.weight    [labels, width]
//
// That is what transformers' classes ...ForSequenceClassification compute. A reward model has one label, whose logit is the reward; that of a
// regression (problem_type regression) has one, too, whose logit is a value of the text.

// scoreName is the name of such a head.
const scoreName = ScoreModule + ".weight"

// ScoreModule is the module of such a head.
const ScoreModule = "score"

// LabelNames returns the names that transformers gives n labels without names.
func LabelNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("LABEL_%d", i))
	}
	return names
}

// MostLabels bounds the labels of a model.
const MostLabels = 1 << 16

// Classify makes a model one that chooses among labels, or, if there is one, a reward model.
func Classify(m *Model, labels []string) {
	m.Labels, m.Tied, m.LogitCap, m.Multipliers.Logits, m.Mup.Head = labels, false, 0, 0, 0
	m.Regression = false
}

// Classifies reports whether a model chooses among labels.
func Classifies(m *Model) bool { return len(m.Labels) > 0 }

// Outcomes returns the number of a model's logits: of labels, if it chooses among them, else of tokens.
func Outcomes(m *Model) int {
	if Classifies(m) {
		return len(m.Labels)
	}
	return m.Vocab
}

// WordHead returns the names of the head of the language model that a model was or is: files that labels begin with may have it.
func WordHead(m *Model) []string {
	return []string{cmp.Or(m.Family.Tensors.Head, "lm_head.weight"), headBias}
}
