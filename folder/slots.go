package folder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// Slots generates several sequences at once. The caches have a slot for each, with room for Context tokens. A step
// reads tokens of any sequences, at positions of their own, and computes the logits that follow each. So sequences
// join and leave between steps, and no program is compiled for that: there is one for each of a few numbers of
// tokens, and a step takes the least that suffices, whose other rows are idle.
//
//	slot 0  a b c d          step: d at 3 of slot 0, y at 1 of slot 2 (program of 2 tokens)
//	slot 1
//	slot 2  x y
//
// Long prompts are read by programs of their own, in blocks, as in Generator. What a sequence gets depends on its own
// tokens only, bit for bit: operators compute rows independently, and attention sums over a sequence's own keys in the order
// of their positions. Layers that hand states from token to token have a state of each slot, which a token at position 0 begins anew.
type Slots struct {
	Context   int // tokens of a sequence
	Sequences int
	Vocab     int

	session *session.Session
	once    bool  // tokens are read once: see model.Remembers
	blocks  []int // tokens of programs that read prompts, descending
	rows    []int // tokens of programs that compute logits, ascending
	reads   []int // programs by index in blocks
	steps   []int // programs by index in rows
	tokens  []int32
	places  []int32
	logits  []float64
}

// Placed is a token to be read, at a position of the sequence in a slot.
type Placed struct {
	Token          int32
	Slot, Position int
}

// OpenSlots opens the model for as many sequences of up to context tokens, with weights, caches and activations of the
// given type, fp32 or bf16. It takes ownership of the device, even on error. The error is a *search.Misfit if the device
// has too little memory.
func (f *Folder) OpenSlots(ctx context.Context, d *machine.Alone, context, sequences int, dtype graph.DType) (*Slots, error) {
	s := &Slots{Context: context, Sequences: sequences, Vocab: f.Model.Vocab, once: model.Remembers(f.Model), logits: make([]float64, sequences*f.Model.Vocab)}
	blocks := usefulBlocks(context)
	err := s.open(ctx, f, d, blocks, dtype)
	if large := slices.IndexFunc(blocks, func(rows int) bool { return rows <= leastRows }); errors.Is(err, search.ErrDoesNotFit) && large > 0 {
		err = s.open(ctx, f, d, blocks[large:], dtype)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := f.load(s.session); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// UsefulBlocks returns how many tokens of each prompt programs of a block of sequences may read at once.
func UsefulBlocks(context int) []int {
	if context < blockRows[0] {
		return []int{min(leastRows, context)}
	}
	return []int{blockRows[0], leastRows}
}

// stepRows returns the numbers of tokens for which steps are prepared: powers of two, and the most.
func stepRows(sequences int) (list []int) {
	for n := 1; n < sequences; n *= 2 {
		list = append(list, n)
	}
	return append(list, sequences)
}

// open plans the programs and reserves their memory. The weights are still to be loaded. Programs with most tokens are first, since
// inputs of the others lie where those of the first do.
func (s *Slots) open(ctx context.Context, f *Folder, d *machine.Alone, blocks []int, dtype graph.DType) error {
	var list []graph.Generation
	for _, n := range stepRows(s.Sequences) {
		list = append(list, graph.Generation{Context: s.Context, Slots: s.Sequences, Rows: n})
	}
	for _, n := range blocks {
		list = append(list, graph.Generation{Context: s.Context, Slots: s.Sequences, Rows: n, Reads: true})
	}
	slices.SortStableFunc(list, func(a, b graph.Generation) int { return b.Rows - a.Rows })
	s.blocks, s.rows, s.reads, s.steps = nil, nil, nil, nil
	var graphs []*graph.Graph
	for i, n := range list {
		g, err := n.Build(f.Model, dtype)
		if err != nil {
			return err
		}
		graphs = append(graphs, g)
		if n.Reads {
			s.blocks, s.reads = append(s.blocks, n.Rows), append(s.reads, i)
		} else {
			s.rows, s.steps = slices.Insert(s.rows, 0, n.Rows), slices.Insert(s.steps, 0, i)
		}
	}
	last := len(graphs) - 1
	s.tokens, s.places = make([]int32, list[0].Rows), make([]int32, 2*s.Sequences)
	var err error
	s.session, err = openAlone(ctx, d, graphs[last], 1, lower.Decode, graphs[:last]...)
	return err
}

// Close closes the session and the device.
func (s *Slots) Close() error {
	s.session.Close()
	return s.session.Devices[0].Close()
}

// Footprint returns the memory that all programs take. What is streamed is a step's.
func (s *Slots) Footprint() Footprint { return footprint(s.session, len(s.reads)+len(s.steps)) }

// promptTokens bounds the tokens of prompts that are read between steps, so that texts that have begun go on.
const promptTokens = 512

// ReadPrompts reads parts of prompts, those that are first first. What it leaves steps may read.
func (s *Slots) ReadPrompts(ctx context.Context, list []*Reading) error {
	for left := promptTokens; left > 0 && len(list) > 0; {
		r := list[0]
		next, err := s.read(ctx, r.Slot, r.Prompt, r.At)
		if err != nil {
			return err
		}
		if next == r.At {
			list = list[1:]
		}
		left -= next - r.At
		r.At = next
	}
	return nil
}

// Accepts reports whether a step that reads some tokens can also read one of a slot.
func (s *Slots) Accepts(list []Placed, _ int) bool { return len(list) < s.Sequences }

// read reads tokens of a prompt, all but the last of which are to be read before the first step on that sequence. at is the position of
// the first that has not been read, and next that after this call: at, if a step has to read it.
func (s *Slots) read(ctx context.Context, slot int, prompt []int32, at int) (next int, err error) {
	last := len(prompt) - 1
	if at >= last {
		return at, nil
	}
	i := cheapest(s.blocks, at, last, s.once)
	if i == len(s.blocks) {
		return at, nil
	}
	next = min(at+s.blocks[i], last)
	first := next - s.blocks[i]
	block := s.tokens[:s.blocks[i]]
	copy(block, prompt[first:next])
	s.places[0], s.places[1] = int32(first), int32(slot)
	return next, s.run(ctx, s.reads[i], "pos", s.places[:2], block)
}

// Step reads tokens, at most as many as there may be sequences, and computes the logits that follow each of them. Of a sequence, those
// before a token must have been read or be among them.
func (s *Slots) Step(ctx context.Context, list []Placed) error {
	i := slices.IndexFunc(s.rows, func(n int) bool { return n >= len(list) })
	if i < 0 || len(list) == 0 {
		return fmt.Errorf("a step cannot read %d tokens: the slots are for 1 to %d", len(list), s.Sequences)
	}
	n := s.rows[i]
	tokens, places := s.tokens[:n], s.places[:2*n]
	for r := range tokens {
		tokens[r], places[2*r], places[2*r+1] = 0, -1, 0
		if r < len(list) {
			tokens[r], places[2*r], places[2*r+1] = list[r].Token, int32(list[r].Position), int32(list[r].Slot)
		}
	}
	name := "pos"
	if n > 1 {
		name = fmt.Sprintf("pos%d", n)
	}
	if err := s.run(ctx, s.steps[i], name, places, tokens); err != nil {
		return err
	}
	return s.session.Engine(s.steps[i]).ReadBuffer("logits", s.logits[:n*s.Vocab])
}

// Logits returns those that follow the i-th token of the latest step. They may be changed.
func (s *Slots) Logits(i int) []float64 { return s.logits[i*s.Vocab : (i+1)*s.Vocab] }

// run runs a program.
func (s *Slots) run(ctx context.Context, program int, name string, places, tokens []int32) error {
	e := s.session.Engine(program)
	if err := e.WriteInts(name, places); err != nil {
		return err
	}
	if err := e.WriteInts("batch.tokens", tokens); err != nil {
		return err
	}
	_, err := e.Step(ctx)
	return err
}
