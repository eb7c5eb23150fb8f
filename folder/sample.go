package folder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/jsonkeys"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/machine"
)

// Prompt is a prompt and how to continue it.
type Prompt struct {
	Text        string
	Tokens      int     // to add, at most
	Temperature float64 // 0: always the likeliest token
	Seed        uint64
	Device      string      // cpu or cuda
	Limit       int64       // on the bytes of device memory; 0: what there is
	DType       graph.DType // of the computation: fp32 or bf16
	Quantize    bool        // see Folder.Quantize
	CacheBits   int         // see Folder.CompressCaches; 0: keys and values are as computed
	// Each, if set, is called with the prompt's text, then with each token's as it
	// comes. These are bytes: a character may take several tokens.
	Each func(text []byte)
}

// Sampled is a prompt's continuation.
type Sampled struct {
	Text         string  `json:"text"` // the prompt and its continuation
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"` // added
	IDs          []int32 `json:"ids"`    // of what was added
	PromptTime   float64 `json:"prompt_seconds"`
	Time         float64 `json:"seconds"` // from the first added token to the last
	Footprint
	// Full reports that generation stopped because the context was full.
	Full bool `json:"context_full"`
	// Notes list the settings of generation_config.json that are ignored.
	Notes []string `json:"notes,omitempty"`
}

// Sample continues a prompt with the model in a folder, until the model ends the
// text, Prompt.Tokens have been added, or the context is full.
func Sample(ctx context.Context, dir string, p Prompt) (*Sampled, error) {
	f, err := Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.compress(&p); err != nil {
		return nil, err
	}
	w := &writer{prompt: &p}
	if w.tokenizer, err = f.Tokenizer(); err != nil {
		return nil, err
	}
	if w.ends, err = f.Ends(w.tokenizer); err != nil {
		return nil, err
	}
	if w.out.Notes, err = f.SetAside(); err != nil {
		return nil, err
	}
	ids, err := PromptIDs(w.tokenizer, p.Text)
	if err != nil {
		return nil, err
	}
	if len(ids) > f.Model.MaxPositions {
		return nil, misuse{fmt.Errorf("the prompt has %d tokens, but the model has %d positions; hint: shorten the prompt", len(ids), f.Model.MaxPositions)}
	}
	d, err := machine.OpenAlone(p.Device, 0, p.Limit)
	if err != nil {
		return nil, misuse{err}
	}
	g, err := f.Generator(ctx, d, min(f.Model.MaxPositions, len(ids)+p.Tokens), p.DType)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	if p.Text != "" {
		w.say([]byte(p.Text))
	}
	if err := w.read(ctx, g, ids); err != nil {
		return nil, f.Blame(err)
	}
	return &w.out, f.Blame(w.grow(ctx, g, p.random()))
}

// random returns the source of the random choices.
func (p *Prompt) random() *rand.Rand { return rand.New(rand.NewPCG(p.Seed, 7)) }

// writer turns what a Generator computes into text.
type writer struct {
	prompt    *Prompt
	tokenizer *bpe.Tokenizer
	ends      []int32 // tokens that end the text
	out       Sampled
}

// read reads the prompt, whose tokens are ids.
func (w *writer) read(ctx context.Context, g *Generator, ids []int32) error {
	began := time.Now()
	err := g.Extend(ctx, ids...)
	w.out.PromptTokens, w.out.PromptTime = len(ids), time.Since(began).Seconds()
	w.out.Footprint = g.Footprint()
	return err
}

// grow continues what was read.
func (w *writer) grow(ctx context.Context, g *Generator, r *rand.Rand) error {
	out, p := &w.out, w.prompt
	out.IDs = []int32{}
	began := time.Now()
	for {
		next := pick(g.Logits(), p.Temperature, r)
		if slices.Contains(w.ends, next) {
			return nil
		}
		text := w.tokenizer.Token(next) // empty for an id in the embedding's padding
		if out.Text == "" {
			text = w.tokenizer.Trim(text)
		}
		w.say(text)
		out.Tokens++
		out.IDs = append(out.IDs, next)
		out.Time = time.Since(began).Seconds()
		if out.Full = out.Tokens < p.Tokens && g.Room() == 0; out.Full || out.Tokens >= p.Tokens {
			return nil
		}
		if err := g.Extend(ctx, next); err != nil {
			return err
		}
	}
}

// say adds to the text.
func (w *writer) say(text []byte) {
	w.out.Text += string(text)
	if w.prompt.Each != nil {
		w.prompt.Each(text)
	}
}

// Ends returns the tokens that end a text: the tokenizer's end of text, and those
// that generation_config.json names or, where it names none, config.json.
func (f *Folder) Ends(t *bpe.Tokenizer) ([]int32, error) {
	var ends []int32
	if end, ok := t.EndOfText(); ok {
		ends = append(ends, end)
	}
	for _, name := range []string{generationConfig, "config.json"} {
		var c struct {
			End json.RawMessage `json:"eos_token_id"`
		}
		if err := f.decode(name, &c); err != nil {
			return nil, err
		}
		if len(c.End) == 0 || string(c.End) == "null" {
			continue
		}
		if c.End[0] != '[' {
			c.End = slices.Concat([]byte("["), c.End, []byte("]"))
		}
		var ids []int32
		if err := json.Unmarshal(c.End, &ids); err != nil {
			return nil, fmt.Errorf("%s: %s: eos_token_id is %s; hint: it must be a token id or a list of token ids", f.Path, name, c.End)
		}
		return append(ends, ids...), nil
	}
	return ends, nil
}

// generationConfig is the file with transformers' generation settings.
const generationConfig = "generation_config.json"

// shaping lists its keys that affect which token is chosen.
var shaping = strings.Fields(`repetition_penalty no_repeat_ngram_size bad_words_ids sequence_bias suppress_tokens begin_suppress_tokens
	forced_bos_token_id forced_eos_token_id min_length min_new_tokens exponential_decay_length_penalty num_beams guidance_scale
	penalty_alpha`)

// SetAside returns notes on settings of that file that are ignored and would change
// the text in transformers.
func (f *Folder) SetAside() (notes []string, err error) {
	var c map[string]any
	if err := f.decode(generationConfig, &c); err != nil {
		return nil, err
	}
	for _, key := range shaping {
		switch v := c[key].(type) {
		case nil:
		case float64:
			if v != 0 && v != 1 {
				notes = append(notes, fmt.Sprintf("%s %v in %s is ignored", key, v, generationConfig))
			}
		case []any:
			if len(v) > 0 {
				notes = append(notes, fmt.Sprintf("%s in %s is ignored", key, generationConfig))
			}
		default:
			notes = append(notes, fmt.Sprintf("%s in %s is ignored", key, generationConfig))
		}
	}
	return notes, nil
}

// decode reads a JSON file of the folder or, if an adapter's folder lacks it, of its model's;
// an absent file leaves v unchanged.
func (f *Folder) decode(name string, v any) error {
	text, err := bounded.ReadFile(filepath.Join(f.Path, name), maxModel)
	if errors.Is(err, fs.ErrNotExist) && f.base != f.Path {
		text, err = bounded.ReadFile(filepath.Join(f.base, name), maxModel)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = jsonkeys.Explain(text, cmp.Or(json.Unmarshal(text, v), jsonkeys.Unique(text)))
	}
	if err != nil {
		return suggest.Add(fmt.Errorf("%s: %s: %w", f.Path, name, err), "check that it is the file that was published")
	}
	return nil
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
