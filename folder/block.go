package folder

import (
	"context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
	"github.com/athanor-llm/athanor/verify"
)

// Block generates the sequences of a search.Block. Sequences have slots, as in Slots, but every program is of all slots, since
// the weights of a layer are brought for all: those that have nothing to read are idle in a step, and read their beginning again, with the same
// result, while others read their prompts.
type Block struct {
	*search.BlockPlan
	Vocab int
	// Stepped and Passed say how often all sequences made a step, and read a part of their prompts, and how long that took.
	Stepped, Passed Timed

	session *session.Session
	tokens  []int32
	places  []int32
	used    []int       // rows of the step that each batch has used
	begins  [][]int32   // of each slot's sequence, as many tokens as programs read at once
	logits  []float64   // of all rows
	of      [][]float64 // of each token of the latest step
}

// Timed is how often something was done, and the seconds that it took.
type Timed struct {
	Times   int     `json:"times"`
	Seconds float64 `json:"seconds"`
}

// Reading is a prompt that is being read: all but its last token.
type Reading struct {
	Slot   int
	Prompt []int32
	At     int // the first token that has not been read
}

// left reports whether there is something to read.
func (r *Reading) left() bool { return r.At < len(r.Prompt)-1 }

// OpenBlock opens the model for a block. It takes ownership of the device, even on error.
func (f *Folder) OpenBlock(ctx context.Context, d device.Device, plan *search.BlockPlan) (*Block, error) {
	b := &Block{BlockPlan: plan, Vocab: f.Model.Vocab}
	if err := b.open(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := f.load(b.session); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Block) open(d device.Device) (err error) {
	var steps [][]*program.Program
	for _, p := range b.Programs {
		if err := verify.Verify(p); err != nil {
			return err
		}
		steps = append(steps, []*program.Program{p})
	}
	most, n := 1, b.Sequences()
	if len(b.Reads) > 0 {
		most = b.Reads[0]
	}
	b.tokens, b.places = make([]int32, n*most), make([]int32, 2*b.Each)
	b.used, b.logits, b.begins = make([]int, b.Batches), make([]float64, n*b.Vocab), make([][]int32, n)
	for slot := range b.begins {
		b.begins[slot] = make([]int32, 0, most)
	}
	b.session, err = session.Open(b.Graphs[len(b.Graphs)-1], []device.Device{d}, steps...)
	return err
}

// Close closes the session and the device.
func (b *Block) Close() error {
	b.session.Close()
	return b.session.Devices[0].Close()
}

// Footprint returns the memory that all programs take. What is streamed is a step's.
func (b *Block) Footprint() Footprint { return footprint(b.session, len(b.Reads)+1) }

// remember notes a token that is read.
func (b *Block) remember(slot, position int, token int32) {
	if begin := b.begins[slot]; position < cap(begin) {
		begin = begin[:position+1] // shorter, where another sequence begins
		begin[position] = token
		b.begins[slot] = begin
	}
}

// ReadPrompts reads prompts, all but their last tokens.
func (b *Block) ReadPrompts(ctx context.Context, list []*Reading) error {
	for {
		most := 0
		for _, r := range list {
			most = max(most, len(r.Prompt)-1-r.At)
		}
		if most <= 0 {
			return nil
		}
		program := 0
		for program < len(b.Reads)-1 && b.Reads[program] > most {
			program++
		}
		if err := b.read(ctx, program, list); err != nil {
			return err
		}
	}
}

// read reads the next tokens of prompts.
func (b *Block) read(ctx context.Context, program int, list []*Reading) error {
	rows, e := b.Reads[program], b.session.Engine(program)
	tokens := b.tokens[:rows*b.Sequences()]
	clear(tokens)
	firsts := make([]int, b.Sequences())
	for _, r := range list {
		if !r.left() {
			continue
		}
		last := len(r.Prompt) - 1
		first := min(r.At, max(0, last-rows))
		r.At = min(first+rows, last)
		firsts[r.Slot] = first
		copy(tokens[r.Slot*rows:], r.Prompt[first:r.At])
		for i := first; i < r.At; i++ {
			b.remember(r.Slot, i, r.Prompt[i])
		}
	}
	for slot, first := range firsts {
		if first == 0 {
			copy(tokens[slot*rows:(slot+1)*rows], b.begins[slot])
		}
		b.places[0], b.places[1] = int32(first), int32(slot%b.Each)
		if err := e.WriteInts(numbered("pos", slot), b.places[:2]); err != nil {
			return err
		}
	}
	return b.run(ctx, program, tokens)
}

// numbered names what micro-batches have of their own.
func numbered(name string, n int) string {
	if n == 0 {
		return name
	}
	return fmt.Sprintf("%s.%d", name, n)
}

// Accepts reports whether a step that reads some tokens can also read one of a slot.
func (b *Block) Accepts(list []Placed, slot int) bool {
	n := 0
	for _, p := range list {
		if p.Slot/b.Each == slot/b.Each {
			n++
		}
	}
	return n < b.Each
}

// Step reads tokens, at most as many of a batch as it has sequences, and computes the logits that follow each of them. Of a sequence, those
// before a token must have been read or be among them.
func (b *Block) Step(ctx context.Context, list []Placed) error {
	tokens := b.tokens[:b.Sequences()]
	clear(tokens)
	clear(b.used)
	b.of = b.of[:0]
	program := len(b.Reads)
	e := b.session.Engine(program)
	for batch := range b.Batches {
		for r := range b.Each {
			b.places[2*r], b.places[2*r+1] = -1, 0
		}
		if b.Each == 1 { // one row cannot be idle: it reads the beginning again
			b.places[0] = 0
			copy(tokens[batch:batch+1], b.begins[batch])
		}
		for _, p := range list {
			if p.Slot/b.Each != batch {
				continue
			}
			r := b.used[batch]
			if r == b.Each {
				return fmt.Errorf("a step cannot read more than %d tokens of batch %d", b.Each, batch)
			}
			tokens[batch*b.Each+r] = p.Token
			b.places[2*r], b.places[2*r+1] = int32(p.Position), int32(p.Slot%b.Each)
			b.used[batch]++
			b.remember(p.Slot, p.Position, p.Token)
		}
		name := "pos"
		if b.Each > 1 {
			name = fmt.Sprintf("pos%d", b.Each)
		}
		if err := e.WriteInts(numbered(name, batch), b.places); err != nil {
			return err
		}
	}
	if err := b.run(ctx, program, tokens); err != nil {
		return err
	}
	clear(b.used)
	for _, p := range list {
		batch := p.Slot / b.Each
		row := batch*b.Each + b.used[batch]
		b.used[batch]++
		b.of = append(b.of, b.logits[row*b.Vocab:(row+1)*b.Vocab])
	}
	return e.ReadBuffer("logits", b.logits)
}

// Logits returns those that follow the i-th token of the latest step. They may be changed.
func (b *Block) Logits(i int) []float64 { return b.of[i] }

// run runs a program.
func (b *Block) run(ctx context.Context, program int, tokens []int32) error {
	e := b.session.Engine(program)
	if err := e.WriteInts("batch.tokens", tokens); err != nil {
		return err
	}
	r, err := e.Step(ctx)
	took := &b.Passed
	if program == len(b.Reads) {
		took = &b.Stepped
	}
	took.Times++
	took.Seconds += r.Seconds
	return err
}

// WeightsFit reports whether all weights can stay on a device, which stays the caller's, while a sequence of up to context tokens is
// generated.
func (f *Folder) WeightsFit(ctx context.Context, d *machine.Alone, context int, dtype graph.DType) (bool, error) {
	one := search.Block{Context: context, Each: 1, Batches: 1, Reads: UsefulBlocks(context), DType: dtype}
	one.Reads = one.Reads[len(one.Reads)-1:]
	graphs, err := one.Graphs(f.Model)
	if err != nil {
		return false, err
	}
	programs, err := planner.Inference(ctx, d, graphs[1], 1, lower.Decode, graphs[0])
	if errors.Is(err, search.ErrDoesNotFit) {
		return false, nil
	}
	return err == nil && streamedBytes(programs[1]) == 0, err
}
