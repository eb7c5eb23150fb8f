package train

import "fmt"

// Rewards are what a batch of pairs, or of single answers that are good or bad, yields besides its loss. A document's reward is beta times
// the logarithm of the ratio of its probability to that under the reference.
type Rewards struct {
	Pairs    int     `json:"pairs,omitempty"`   // that the rest is about
	Answers  int     `json:"answers,omitempty"` // likewise, of single ones
	Good     int     `json:"good,omitempty"`    // of these
	KL       float64 `json:"kl,omitempty"`      // estimate of the batch, see divergence
	Accuracy float64 `json:"reward_accuracy"`   // share of the pairs whose chosen document has the greater reward; of the answers whose reward is on the right side of beta KL
	Margin   float64 `json:"reward_margin"`     // mean of the chosen reward minus the rejected one
	Chosen   float64 `json:"reward_chosen"`     // mean, also of good answers
	Rejected float64 `json:"reward_rejected"`   // mean, also of bad answers
}

// add adds a batch, whose ratios a step returned.
func (r *Rewards) add(p *pairs, ratios []float32, beta float64) {
	if len(p.good) > 0 {
		r.addAnswers(p, ratios, beta)
		return
	}
	for k := 0; k+1 < len(p.begins); k += 2 {
		one, other := ratios[p.begins[k]], ratios[p.begins[k+1]]
		r.Chosen += beta * float64(one)
		r.Rejected += beta * float64(other)
		if one > other {
			r.Accuracy++
		}
		r.Pairs++
	}
}

// addAnswers adds a batch of single answers, whose ratios are without the batch's KL.
func (r *Rewards) addAnswers(p *pairs, ratios []float32, beta float64) {
	for k, at := range p.begins {
		ratio := float64(ratios[at])
		reward := beta * (ratio + p.kl)
		if p.good[k] {
			r.Good++
			r.Chosen += reward
		} else {
			r.Rejected += reward
		}
		if ratio > 0 && p.good[k] || ratio < 0 && !p.good[k] {
			r.Accuracy++
		}
		r.KL += p.kl
		r.Answers++
	}
}

// mean returns the means over what was added; those of no documents are 0.
func (r *Rewards) mean() *Rewards {
	over := func(n int) float64 { return float64(max(n, 1)) }
	m := *r
	all := over(r.Pairs + r.Answers)
	m.Accuracy, m.KL = r.Accuracy/all, r.KL/all
	m.Chosen, m.Rejected = r.Chosen/over(r.Pairs+r.Good), r.Rejected/over(r.Pairs+r.Answers-r.Good)
	m.Margin = m.Chosen - m.Rejected
	return &m
}

// Text returns a line about them.
func (r *Rewards) Text() string {
	text := fmt.Sprintf("reward margin %.4f  accuracy %.0f %%", r.Margin, 100*r.Accuracy)
	if r.Answers > 0 {
		text += fmt.Sprintf("  KL %.4f", r.KL)
	}
	return text
}

// curves returns the points for TensorBoard.
func (r *Rewards) curves(prefix string) []scalar {
	list := []scalar{{prefix + "/reward_accuracy", r.Accuracy}, {prefix + "/reward_margin", r.Margin}, {prefix + "/reward_chosen", r.Chosen}, {prefix + "/reward_rejected", r.Rejected}}
	if r.Answers > 0 {
		list = append(list, scalar{prefix + "/kl", r.KL})
	}
	return list
}
