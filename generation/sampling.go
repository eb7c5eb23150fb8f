package generation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling says how tokens are chosen. The zero value always takes the likeliest.
//
// The steps are those of transformers, in its order: penalties, temperature, top-k, top-p, min-p. Then a token is drawn from
// what is left, by random numbers that depend on Seed alone.
type Sampling struct {
	Temperature float64 // divides logits; 0: the likeliest token is taken
	TopK        int     // only the K likeliest tokens; 0: all
	TopP        float64 // only the fewest likeliest tokens whose probabilities add up to it; 0 or 1: all
	MinP        float64 // only tokens at least so likely, relative to the likeliest; 0: all
	Repetition  float64 // divides positive logits of tokens that occur in prompt or text, and multiplies negative ones (1909.05858); 0 or 1: none
	Presence    float64 // is subtracted from logits of tokens that occur in the text
	Frequency   float64 // is subtracted as often as they occur there
	Seed        uint64
}

// Check returns an error for settings out of range, which it names as JSON does.
func (s *Sampling) Check() error {
	for _, v := range []struct {
		name        string
		value       float64
		least, most float64
	}{
		{"temperature", s.Temperature, 0, 100},
		{"top_k", float64(s.TopK), 0, math.MaxInt32},
		{"top_p", s.TopP, 0, 1},
		{"min_p", s.MinP, 0, 1},
		{"repetition_penalty", s.Repetition, 0, 100},
		{"presence_penalty", s.Presence, -100, 100},
		{"frequency_penalty", s.Frequency, -100, 100},
	} {
		if !(v.value >= v.least && v.value <= v.most) {
			return fmt.Errorf("%s is %v; hint: use %v to %v", v.name, v.value, v.least, v.most)
		}
	}
	return nil
}

// chooser chooses the tokens of one text.
type chooser struct {
	Sampling
	random *rand.Rand
	count  map[int32]int // of tokens in the text; 0 for those that are only in the prompt
	kept   []candidate   // scratch memory
}

// candidate is a token that may be drawn.
type candidate struct {
	id     int32
	weight float64 // its probability, not normalised: that of the likeliest is 1
}

func newChooser(s Sampling, prompt []int32) *chooser {
	c := &chooser{Sampling: s, random: rand.New(rand.NewPCG(s.Seed, 7))}
	if c.penalises() {
		c.count = map[int32]int{}
		for _, id := range prompt {
			c.count[id] = 0
		}
	}
	return c
}

func (c *chooser) penalises() bool {
	return c.Repetition != 0 && c.Repetition != 1 || c.Presence != 0 || c.Frequency != 0
}

// choose returns the next token. It changes the logits, which must be finite or -Inf.
func (c *chooser) choose(logits []float64) int32 {
	c.penalise(logits)
	id := c.draw(logits)
	if c.count != nil {
		c.count[id]++
	}
	return id
}

func (c *chooser) penalise(logits []float64) {
	for id, n := range c.count {
		v := &logits[id]
		switch {
		case c.Repetition == 0:
		case *v > 0:
			*v /= c.Repetition
		default:
			*v *= c.Repetition
		}
		if n > 0 {
			*v -= c.Presence + c.Frequency*float64(n)
		}
	}
}

// draw chooses from what the filters leave.
func (c *chooser) draw(logits []float64) int32 {
	best := likeliest(logits)
	if c.Temperature == 0 {
		return best
	}
	c.kept = c.kept[:0]
	var sum float64
	for i, v := range logits {
		w := math.Exp((v - logits[best]) / c.Temperature)
		sum += w
		if w >= c.MinP && w > 0 {
			c.kept = append(c.kept, candidate{int32(i), w})
		}
	}
	c.filter(sum)
	sum = 0
	for _, k := range c.kept {
		sum += k.weight
	}
	u := c.random.Float64() * sum
	for _, k := range c.kept {
		if u -= k.weight; u < 0 {
			return k.id
		}
	}
	return best
}

// filter keeps the candidates of top-k, then of top-p, in the order of their ids. sum is the weight of all tokens.
func (c *chooser) filter(sum float64) {
	some := c.TopK > 0 && c.TopK < len(c.kept)
	if !some && (c.TopP == 0 || c.TopP == 1) {
		return
	}
	byWeight := func(a, b candidate) int { // the first among equals
		if a.weight != b.weight {
			if a.weight > b.weight {
				return -1
			}
			return 1
		}
		return int(a.id - b.id)
	}
	c.dropRare(some, sum)
	slices.SortFunc(c.kept, byWeight)
	if some {
		c.kept = c.kept[:c.TopK]
		sum = 0
		for _, k := range c.kept {
			sum += k.weight
		}
	}
	if c.TopP > 0 && c.TopP < 1 {
		var before float64
		n := slices.IndexFunc(c.kept, func(k candidate) bool {
			before += k.weight
			return before >= c.TopP*sum
		})
		if n >= 0 {
			c.kept = c.kept[:n+1]
		}
	}
	slices.SortFunc(c.kept, func(a, b candidate) int { return int(a.id - b.id) })
}

// rare is a weight: so many tokens have less that to sort the others is much faster.
const rare = 1e-4

// dropRare drops candidates that the filters cannot reach.
func (c *chooser) dropRare(some bool, sum float64) {
	n, likely := 0, 0.0
	for _, k := range c.kept {
		if k.weight >= rare {
			n++
			likely += k.weight
		}
	}
	if some && n >= c.TopK || !some && likely >= c.TopP*sum {
		c.kept = slices.DeleteFunc(c.kept, func(k candidate) bool { return k.weight < rare })
	}
}

// likeliest returns the first token of the greatest logit.
func likeliest(logits []float64) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// Ranked is a token with the logarithm of its probability, by the model alone: before penalties, temperature and filters.
type Ranked struct {
	ID      int32
	Logprob float64
}

// rank returns the logarithm of a token's probability, and the n likeliest tokens.
func rank(logits []float64, id int32, n int) (logprob float64, top []Ranked) {
	most := logits[likeliest(logits)]
	var sum float64
	for _, v := range logits {
		sum += math.Exp(v - most)
	}
	all := most + math.Log(sum)
	for i, v := range logits { // insertion into a short list
		if len(top) == n && (n == 0 || v-all <= top[n-1].Logprob) {
			continue
		}
		at := len(top)
		for at > 0 && v-all > top[at-1].Logprob {
			at--
		}
		top = slices.Insert(top, at, Ranked{int32(i), v - all})
		top = top[:min(n, len(top))]
	}
	return logits[id] - all, top
}
