package folder

import "fmt"

// Rewards are what a batch of pairs, or of single answers that are good or bad, yields besides its loss. A document's reward is beta times
// the logarithm of the ratio of its probability to that under the reference.
type Rewards struct {
	Pairs    int     `json:"pairs,omitempty"`   // that the rest is about
	Answers  int     `json:"answers,omitempty"` // likewise, of single ones
	Good     int     `json:"good,omitempty"`    // of these
	KL       float64 `json:"kl,omitempty"`      // estimate of the batch, see package train
	Accuracy float64 `json:"reward_accuracy"`   // share of the pairs whose chosen document has the greater reward; of the answers whose reward is on the right side of beta KL
	Margin   float64 `json:"reward_margin"`     // mean of the chosen reward minus the rejected one
	Chosen   float64 `json:"reward_chosen"`     // mean, also of good answers
	Rejected float64 `json:"reward_rejected"`   // mean, also of bad answers
}

// AddPairs adds a batch of pairs. begins are the positions at which its documents begin, chosen and rejected ones alternately, and ratios by
// token what a step returned.
func (r *Rewards) AddPairs(begins []int, ratios []float32, beta float64) {
	for k := 0; k+1 < len(begins); k += 2 {
		one, other := ratios[begins[k]], ratios[begins[k+1]]
		r.Chosen += beta * float64(one)
		r.Rejected += beta * float64(other)
		if one > other {
			r.Accuracy++
		}
		r.Pairs++
	}
}

// AddAnswers adds a batch of single answers, likewise. The ratios are without the batch's kl.
func (r *Rewards) AddAnswers(begins []int, good []bool, ratios []float32, kl, beta float64) {
	for k, at := range begins {
		ratio := float64(ratios[at])
		reward := beta * (ratio + kl)
		if good[k] {
			r.Good++
			r.Chosen += reward
		} else {
			r.Rejected += reward
		}
		if ratio > 0 && good[k] || ratio < 0 && !good[k] {
			r.Accuracy++
		}
		r.KL += kl
		r.Answers++
	}
}

// Mean returns the means over what was added; those of no documents are 0.
func (r *Rewards) Mean() *Rewards {
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

// Means returns Text and the mean rewards, for the end of a line.
func (r *Rewards) Means() string {
	liked, disliked := "chosen", "rejected"
	if r.Answers > 0 {
		liked, disliked = "good answers", "bad ones"
	}
	return fmt.Sprintf("%s, rewards %.4f of %s and %.4f of %s", r.Text(), r.Chosen, liked, r.Rejected, disliked)
}
