package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Prompt is what text is generated from.
type Prompt struct {
	Text        string
	Tokens      int     // to add, at most
	Temperature float64 // 0: always the likeliest token
	Seed        uint64
	Device      string // cpu or cuda
	// Each is called, if set, with the prompt's text and then with that of each
	// token as it comes: bytes, of which several tokens may make one character.
	Each func(text []byte)
}

// Sampled is what came of a prompt.
type Sampled struct {
	Text         string  `json:"text"` // the prompt and its continuation
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"` // added
	PromptTime   float64 `json:"prompt_seconds"`
	Time         float64 `json:"seconds"` // from the first added token to the last
	// Full says that it ended because the model takes no longer texts.
	Full bool `json:"context_full"`
}

// Sample continues a prompt with the model in a folder, until the model ends
// the text, Prompt.Tokens are there or the model's context is full.
func Sample(ctx context.Context, dir string, p Prompt) (*Sampled, error) {
	f, err := OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Tokenizer == nil {
		return nil, fmt.Errorf("%s has no tokenizer.json; hint: copy that of the model there", dir)
	}
	ids := f.Tokenizer.Encode([]byte(p.Text))
	end, hasEnd := f.Tokenizer.EndOfText()
	if len(ids) == 0 {
		if !hasEnd {
			return nil, errors.New("an empty prompt, and the tokenizer has no end-of-text token to start from; hint: give a prompt")
		}
		ids = []int32{end}
	}
	if len(ids) > f.Model.MaxPositions {
		return nil, misuse{fmt.Errorf("the prompt has %d tokens, the model takes %d; hint: a shorter prompt", len(ids), f.Model.MaxPositions)}
	}
	d, err := openAlone(p.Device)
	if err != nil {
		return nil, misuse{err}
	}
	g, err := f.Generator(ctx, d, min(f.Model.MaxPositions, len(ids)+p.Tokens))
	if err != nil {
		return nil, err
	}
	defer g.Close()

	out := &Sampled{PromptTokens: len(ids)}
	say := func(ids ...int32) error {
		text, err := f.Tokenizer.Decode(ids)
		out.Text += string(text)
		if p.Each != nil {
			p.Each(text)
		}
		return err
	}
	if p.Text != "" {
		if err := say(ids...); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if err := g.Extend(ctx, ids...); err != nil {
		return nil, err
	}
	out.PromptTime = time.Since(began).Seconds()
	began = time.Now()
	r := rand.New(rand.NewPCG(p.Seed, 7))
	for {
		next := pick(g.Logits(), p.Temperature, r)
		if hasEnd && next == end {
			return out, nil
		}
		if err := say(next); err != nil {
			return nil, err
		}
		out.Tokens++
		out.Time = time.Since(began).Seconds()
		if out.Full = out.Tokens < p.Tokens && g.Room() == 0; out.Full || out.Tokens >= p.Tokens {
			return out, nil
		}
		if err := g.Extend(ctx, next); err != nil {
			return nil, err
		}
	}
}

// pick draws a token from softmax(logits / temperature).
func pick(logits []float64, temperature float64, r *rand.Rand) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	if temperature <= 0 {
		return int32(best)
	}
	var sum float64
	for _, v := range logits {
		sum += math.Exp((v - logits[best]) / temperature)
	}
	u := r.Float64() * sum
	for i, v := range logits {
		if u -= math.Exp((v - logits[best]) / temperature); u < 0 {
			return int32(i)
		}
	}
	return int32(best)
}
