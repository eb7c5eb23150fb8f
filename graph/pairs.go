package graph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/model"
)

// PairLoss is a loss of pairs of which one document is preferred. Let c and r be values of the chosen and the rejected
// document: log-probabilities, of a loss that Averages over their learnt tokens, less those under the reference if it has one.
//
// A loss that is Unpaired is one of single documents instead. Let x be such a value and kl an estimate that is the same for all
// documents of a batch; desirable and undesirable ones have weights.
type PairLoss uint8

const (
	DPO   PairLoss = iota // Rafailov et al., 2305.18290, equation 7: -log sigmoid(beta (c - r))
	IPO                   // Azar et al., 2310.12036, equation 17, averaged as TRL has it: (c - r - 1/(2 beta))²
	SimPO                 // Meng et al., 2405.14734, equation 6: -log sigmoid(beta (c - r) - margin)
	ORPO                  // Hong et al., 2403.07691, equation 6: -c - beta log sigmoid(odds c - odds r), odds x = x - log(1 - exp(x))
	// Ethayarajh et al., 2402.01306, equation 8, averaged as TRL has it: weight (1 - sigmoid(beta (x - kl))) of a desirable document,
	// weight (1 - sigmoid(beta (kl - x))) of an undesirable one
	KTO
	APOZeroUnpaired // D'Oosterlinck et al., 2408.06266, one document at a time as TRL has it: as KTO, with kl = 0
	// Bradley and Terry 1952, as TRL trains reward models: -log sigmoid(beta (c - r)) of what a head with one label says at the last tokens,
	// its rewards, in the place of log-probabilities
	Reward
	NumPairLosses
)

// PairRule is a row of the table of losses.
type PairRule struct {
	Name       string
	Averages   bool    // log-probabilities are means over tokens, else sums
	Reference  bool    // those under the reference are subtracted
	Beta       float64 // usual
	Margin     float64 // usual; 0: the loss has none
	Unpaired   bool    // documents are desirable or not, each by itself
	Scored     bool    // values are the logits of a head with one label
	Mismatched bool    // kl is estimated from answers to other prompts, see package train; else it is 0
}

var pairRules = [NumPairLosses]PairRule{
	DPO:   {Name: "dpo", Reference: true, Beta: 0.1},
	IPO:   {Name: "ipo", Averages: true, Reference: true, Beta: 0.1},
	SimPO: {Name: "simpo", Averages: true, Beta: 2, Margin: 1},
	ORPO:  {Name: "orpo", Averages: true, Beta: 0.1},

	KTO:             {Name: "kto", Reference: true, Beta: 0.1, Unpaired: true, Mismatched: true},
	APOZeroUnpaired: {Name: "apo_zero_unpaired", Reference: true, Beta: 0.1, Unpaired: true},
	Reward:          {Name: "reward", Scored: true, Beta: 1},
}

// Rule returns the loss's row, which must not be changed.
func (l PairLoss) Rule() *PairRule { return &pairRules[l] }

func (l PairLoss) String() string { return pairRules[l].Name }

// PairLossNamed is the inverse of String.
func PairLossNamed(name string) (PairLoss, error) {
	var names []string
	for _, r := range pairRules {
		names = append(names, r.Name)
	}
	if i := slices.Index(names, name); i >= 0 {
		return PairLoss(i), nil
	}
	return 0, fmt.Errorf("%q is not one of %s%s", name, strings.Join(names, ", "), suggest.Hint(name, names))
}

// checkPairs returns an error for what cannot be trained on pairs.
func checkPairs(m *model.Model, seq int) error {
	switch {
	case seq < 2:
		return fmt.Errorf("sequence_length is %d; hint: use at least 2, for the two documents of a pair", seq)
	case !m.Rotary():
		return fmt.Errorf("preference cannot be used with the learned positions of %s: the second document of a sequence would not begin at position 0; hint: use a model with rotary positions", m.Family)
	case m.Balance > 0:
		return fmt.Errorf("preference cannot be used with expert_balance %v, which is a term of the loss over tokens; hint: set expert_balance to 0", m.Balance)
	}
	return nil
}

// preference appends the loss of pairs. It depends on all tokens of a sequence, so the tokens' losses have a
// loop over chunks of rows of their own, and the backward pass recomputes the logits: see diffCrossEntropy.
func (b *builder) preference() {
	g := b.g
	nll := b.tokens("nll", 1, F32)
	b.chunk = true
	b.node(CrossEntropy, Attr{Limit: b.m.LogitCap, Score: g.Documents.Pairs.Rule().Scored}, b.all(nll), b.logits(), b.all(g.Targets), b.all(g.Scalars))
	b.chunk = false
	g.Losses, g.Ratios, b.pull = b.tokens("losses", 1, F32), b.tokens("ratios", 1, F32), b.tokens("pull", 1, F32)
	args := []Use{b.all(g.Losses), b.all(g.Ratios), b.all(b.pull), b.all(nll), b.all(g.Reference), b.all(g.Targets), b.all(g.Starts)}
	if g.Verdicts >= 0 {
		args = append(args, b.all(g.Verdicts))
	}
	b.node(Preference, Attr{Seq: g.Seq, Scale: g.Preference(), PairLoss: int(g.Documents.Pairs), Margin: g.Documents.Margin}, args...)
	b.node(LossSum, Attr{}, b.all(g.Total), b.all(g.Losses))
}
