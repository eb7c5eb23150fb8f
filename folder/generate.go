package folder

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/search"
	"github.com/athanor-llm/athanor/session"
)

// Generator continues one sequence by autoregressive decoding. Its programs share
// weights and key-value caches: one takes a token and computes the logits that follow it; the others
// take a block of the prompt and compute the logits that follow its last token. All are lowered, verified and executed like any other program.
//
// A prompt is read in the blocks that take least time together, see cheapest. The last one may begin early, and its overlap is recomputed with
// the same result:
//
//	58 tokens:  0..31  26..57
type Generator struct {
	session *session.Session
	blocks  []int // tokens of each block program, descending
	context int
	vocab   int
	once    bool    // tokens are read once: states of linear attention and of convolutions cannot go back, so no block begins early
	ids     []int32 // the sequence so far
	block   []int32
	pos     []int32
	logits  []float64 // of the latest token
}

// blockRows are the tokens of the blocks in which prompts are read. Every block reads all weights, perhaps over a link, so
// that large ones are faster; but tokens that are read again are computed for nothing.
var blockRows = [...]int{512, 256, 128, 64, 32, 16, 8, 4, 2}

// usefulBlocks returns the tokens of blocks that a context has room for.
func usefulBlocks(context int) []int {
	fits := slices.IndexFunc(blockRows[:], func(rows int) bool { return rows <= context })
	if fits < 0 {
		return nil
	}
	return blockRows[fits:]
}

// leastRows are the tokens of the largest block where the device has too little memory for larger ones; where that is too much still, an eighth of them.
const leastRows = 64

// passTokens is how many tokens could be computed in the time in which all weights are read: 5 to 30 on processors. On GPUs it is hundreds, but there
// a few blocks more cost a millisecond each.
const passTokens = 16

// Generator opens the model for decoding up to context tokens, with weights, caches and activations
// of the given type, fp32 or bf16. It takes ownership of the device, even on error. The error is a *search.Misfit if the
// device has too little memory.
func (f *Folder) Generator(ctx context.Context, d *machine.Alone, context int, dtype graph.DType) (*Generator, error) {
	g, err := newGenerator(ctx, f.Model, d, context, dtype)
	if err != nil {
		d.Close()
		return nil, err
	}
	if err := f.load(g.session); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// newGenerator prepares a device for sequences of up to context tokens, with
// weights still to be loaded. Close on the Generator closes the device; on error
// the caller does.
func newGenerator(ctx context.Context, m *model.Model, d *machine.Alone, context int, dtype graph.DType) (*Generator, error) {
	g := &Generator{once: model.Remembers(m), context: context, vocab: m.Vocab, pos: make([]int32, 1), logits: make([]float64, m.Vocab)}
	var prompts []*graph.Graph
	for _, rows := range usefulBlocks(context) {
		block, err := graph.Generation{Context: context, Rows: rows, Last: true}.Build(m, dtype)
		if err != nil {
			return nil, err
		}
		g.blocks, prompts = append(g.blocks, rows), append(prompts, block)
	}
	g.block = make([]int32, blockRows[0])
	one, err := graph.BuildDecode(m, context, 1, dtype)
	if err != nil {
		return nil, err
	}
	g.session, err = openAlone(ctx, d, one, 1, lower.Decode, prompts...)
	for _, most := range []int{leastRows, leastRows / 8} { // large blocks are left out where there is no room for them
		large := slices.IndexFunc(g.blocks, func(rows int) bool { return rows <= most })
		if large <= 0 || !errors.Is(err, search.ErrDoesNotFit) {
			continue
		}
		g.blocks, prompts = g.blocks[large:], prompts[large:]
		g.session, err = openAlone(ctx, d, one, 1, lower.Decode, prompts...)
	}
	return g, err
}

// Close closes the session and the device.
func (g *Generator) Close() error {
	g.session.Close()
	return g.session.Devices[0].Close()
}

// Footprint returns the memory that the generator takes.
func (g *Generator) Footprint() Footprint { return footprint(g.session, 1+len(g.blocks)) }

// Room returns how many tokens may still be added.
func (g *Generator) Room() int { return g.context - len(g.ids) }

// Reset begins another sequence.
func (g *Generator) Reset() { g.ids = g.ids[:0] }

// Keep truncates the sequence to the prefix that it shares with ids, which never includes the last of ids, and
// returns how many tokens are kept; of a model with linear attention all or none. To continue with ids, Extend by the rest of them.
func (g *Generator) Keep(ids []int32) int {
	n := 0
	for n < min(len(g.ids), len(ids)-1) && g.ids[n] == ids[n] {
		n++
	}
	if g.once && n < len(g.ids) {
		n = 0
	}
	g.ids = g.ids[:n]
	return n
}

// Logits returns the logits of the next token, valid until the next Extend.
func (g *Generator) Logits() []float64 { return g.logits }

// Extend appends tokens to the sequence and computes the logits that follow it.
func (g *Generator) Extend(ctx context.Context, ids ...int32) error {
	if len(ids) > g.Room() {
		return fmt.Errorf("%d tokens after the first %d do not fit a context of %d tokens; hint: shorten the text", len(ids), len(g.ids), g.context)
	}
	for _, id := range ids {
		if id < 0 || int(id) >= g.vocab {
			return misuse{fmt.Errorf("token %d is not in the vocabulary of %d tokens; hint: use the tokenizer that the model was trained with", id, g.vocab)}
		}
	}
	at := len(g.ids)
	g.ids = append(g.ids, ids...)
	for end := len(g.ids); at < end; {
		i, first := g.nextBlock(at, end)
		at = first + tokensOf(g.blocks, i)
		if err := g.step(ctx, i, first, at); err != nil {
			if g.once { // nobody knows how much of the text the states have
				g.Reset()
			}
			return err
		}
	}
	if most := slices.Max(g.logits); !stat.Finite(most) { // which is NaN if any is; a logit of -Inf only means never
		return NotFinite(fmt.Errorf("a logit after %d tokens is %v, which is not finite", len(g.ids), most))
	}
	return nil
}

// nextBlock returns the program that goes on at position at of a text that ends before position end, and where it begins.
func (g *Generator) nextBlock(at, end int) (prog, first int) {
	prog = cheapest(g.blocks, at, end, g.once)
	return prog, min(at, end-tokensOf(g.blocks, prog))
}

// tokensOf returns how many tokens the program of a block takes, or the one after these, which takes one.
func tokensOf(blocks []int, prog int) int {
	if prog == len(blocks) {
		return 1
	}
	return blocks[prog]
}

// cheapest returns the block to read first of a text from position at to before position end, by its number, or len(blocks) for a single token: of those
// that take least time together, each as long as its tokens and passTokens take. The last one may begin early, unless tokens are read once. blocks are
// the tokens of each block, descending.
func cheapest(blocks []int, at, end int, once bool) int {
	left := end - at
	switch {
	case left == 1 || len(blocks) == 0:
		return len(blocks)
	case left >= 2*blocks[0]:
		return 0
	}
	cost, begin := make([]int, left+1), make([]int, left+1) // of so many tokens, and the block to begin with
	for n := 1; n <= left; n++ {
		cost[n] = math.MaxInt
		for i := range len(blocks) + 1 {
			takes := tokensOf(blocks, i)
			if takes > n && (once || takes > end) {
				continue
			}
			if c := cost[max(0, n-takes)] + takes + passTokens; c < cost[n] {
				cost[n], begin[n] = c, i
			}
		}
	}
	return begin[left]
}

// step runs a program on the tokens at positions [first, end).
func (g *Generator) step(ctx context.Context, prog, first, end int) error {
	e := g.session.Engine(prog)
	g.pos[0] = int32(first)
	if err := e.WriteInts("pos", g.pos); err != nil {
		return err
	}
	tokens := g.block[:end-first]
	copy(tokens, g.ids[first:end])
	if err := e.WriteInts("batch.tokens", tokens); err != nil {
		return err
	}
	if _, err := e.Step(ctx); err != nil || end < len(g.ids) {
		return err
	}
	return e.ReadBuffer("logits", g.logits)
}
