package run

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
)

// Prompt is what text is generated from.
type Prompt struct {
	Text        string
	Tokens      int     // to add, at most
	Temperature float64 // 0: always the likeliest token
	Seed        uint64
}

// Folder is a Hugging Face folder opened for inference.
type Folder struct {
	Model     *model.Model
	Tokenizer *bpe.Tokenizer // nil if the folder has none
	Weights   *safetensors.Set
}

// OpenFolder opens a model folder.
func OpenFolder(dir string) (*Folder, error) {
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("%s is not a model folder: %w; hint: give a folder with config.json and model.safetensors, such as a checkpoint", dir, err)
	}
	f := &Folder{}
	if f.Model, _, err = model.Parse(text); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if path := filepath.Join(dir, "tokenizer.json"); exists(path) {
		if f.Tokenizer, err = bpe.Load(path); err != nil {
			return nil, err
		}
	}
	if f.Weights, err = safetensors.OpenFolder(dir); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return f, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Close closes the weights.
func (f *Folder) Close() error { return f.Weights.Close() }

// Session opens the model for batches of sequences of seq tokens, plainly, in
// the given mode.
func (f *Folder) Session(ctx context.Context, seq, sequences int, mode program.Mode) (*Session, error) {
	g, err := graph.Build(f.Model, seq, graph.F32)
	if err != nil {
		return nil, err
	}
	p, err := program.Lower(ctx, g, program.Plain(g, sequences), program.Options{Mode: mode})
	if err != nil {
		return nil, err
	}
	s, err := Open(g, cpu.New(cpu.Options{}), p)
	if err != nil {
		return nil, err
	}
	byName := map[string]model.Param{}
	for _, q := range g.Params {
		byName[q.Name] = q
	}
	if err := s.Load(func(name string, dst []float32) error { return readParam(f.Weights, byName[name], dst) }); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Sample continues a prompt with the model in a folder.
//
// Known weakness: every token costs a forward pass over the whole context.
func Sample(ctx context.Context, dir string, p Prompt) (string, error) {
	f, err := OpenFolder(dir)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if f.Tokenizer == nil {
		return "", fmt.Errorf("%s has no tokenizer.json", dir)
	}
	ids := f.Tokenizer.Encode([]byte(p.Text))
	end, hasEnd := f.Tokenizer.EndOfText()
	if len(ids) == 0 {
		if !hasEnd {
			return "", fmt.Errorf("an empty prompt, and the tokenizer has no end-of-text token to start from; hint: give a prompt")
		}
		ids = []int32{end}
	}
	seq := min(f.Model.MaxPositions, len(ids)+p.Tokens)
	if len(ids) > seq {
		return "", fmt.Errorf("the prompt has %d tokens, the model takes %d; hint: a shorter prompt", len(ids), f.Model.MaxPositions)
	}
	s, err := f.Session(ctx, seq, 1, program.Logits)
	if err != nil {
		return "", err
	}
	defer s.Device.Close()
	defer s.Close()
	r := rand.New(rand.NewPCG(p.Seed, 7))
	targets := make([]int32, seq)
	logits := make([]float64, seq*f.Model.Vocab)
	for range p.Tokens {
		window := ids[max(0, len(ids)-seq):]
		tokens := make([]int32, seq)
		copy(tokens, window)
		if _, err := s.Step(ctx, 0, tokens, targets, Scalars{Targets: seq}); err != nil {
			return "", err
		}
		if err := s.Engine(0).ReadBuffer("logits", logits); err != nil {
			return "", err
		}
		last := (len(window) - 1) * f.Model.Vocab
		next := pick(logits[last:last+f.Model.Vocab], p.Temperature, r)
		if hasEnd && next == end {
			break
		}
		ids = append(ids, next)
	}
	text, err := f.Tokenizer.Decode(ids)
	return string(text), err
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
