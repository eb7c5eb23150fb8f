package run

import (
	"context"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// Generator continues one sequence by autoregressive decoding. Two programs share
// weights and key-value caches: one takes a token, the other a block of the prompt.
// Both are lowered, verified and executed like any other program.
//
// The last block of a prompt begins early if it would be incomplete, so that it
// ends with the prompt. Its overlap is recomputed with the same result.
//
//	10 tokens in blocks of 4:  0..3  4..7  6..9
//
// If the prompt is shorter than a block, the block's tail lies after the prompt;
// those positions are overwritten before anything attends to them.
//
// Known weakness: logits of all rows of a block are computed, but only the last
// row's are used.
type Generator struct {
	session *session.Session
	rows    int // tokens of a block
	context int
	vocab   int
	ids     []int32 // the sequence so far
	piece   []int32
	pos     []int32
	logits  []float64 // of the latest step, one row per token
	last    []float64 // of the latest token
}

// Programs of a Generator, in the order given to Open.
const (
	reading = iota
	generating
	generatorPrograms
)

// pieceRows is the number of prompt tokens per block: enough that reading the
// weights once per block does not dominate.
const pieceRows = 64

// Generator opens the model for decoding up to context tokens, with weights, caches and activations
// of the given type, fp32 or bf16. It takes ownership of the device, even on error. The error is a *plan.Misfit if the
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
	rows := min(pieceRows, context)
	gen := &Generator{rows: rows, context: context, vocab: m.Vocab, piece: make([]int32, rows), pos: make([]int32, 1), logits: make([]float64, rows*m.Vocab)}
	graphs := make([]*graph.Graph, generatorPrograms)
	for i, n := range [...]int{reading: rows, generating: 1} {
		var err error
		if graphs[i], err = graph.BuildDecode(m, context, n, dtype); err != nil {
			return nil, err
		}
	}
	var err error
	gen.session, err = openAlone(ctx, d, graphs, 1, program.Decode)
	return gen, err
}

// Close closes the session and the device.
func (g *Generator) Close() error {
	g.session.Close()
	return g.session.Devices[0].Close()
}

// Room returns how many tokens may still be added.
func (g *Generator) Room() int { return g.context - len(g.ids) }

// Reset begins another sequence.
func (g *Generator) Reset() { g.ids = g.ids[:0] }

// Keep truncates the sequence to the prefix that it shares with ids, which never includes the last of ids, and
// returns how many tokens are kept. To continue with ids, Extend by the rest of them.
func (g *Generator) Keep(ids []int32) int {
	n := 0
	for n < min(len(g.ids), len(ids)-1) && g.ids[n] == ids[n] {
		n++
	}
	g.ids = g.ids[:n]
	return n
}

// Logits returns the logits of the next token, valid until the next Extend.
func (g *Generator) Logits() []float64 { return g.last }

// Extend appends tokens to the sequence and computes the logits that follow it.
func (g *Generator) Extend(ctx context.Context, ids ...int32) error {
	if len(ids) > g.Room() {
		return fmt.Errorf("%d tokens after %d do not fit a context of %d; hint: a shorter text", len(ids), len(g.ids), g.context)
	}
	for _, id := range ids {
		if id < 0 || int(id) >= g.vocab {
			return fmt.Errorf("token %d is not in the vocabulary of %d", id, g.vocab)
		}
	}
	at := len(g.ids)
	g.ids = append(g.ids, ids...)
	end := len(g.ids)
	if len(ids) == 1 {
		return g.step(ctx, generating, at, ids, 0)
	}
	for at < end {
		first := max(0, min(at, end-g.rows))
		n := copy(g.piece, g.ids[first:])
		clear(g.piece[n:])
		if err := g.step(ctx, reading, first, g.piece, n-1); err != nil {
			return err
		}
		at = first + n
	}
	return nil
}

// step runs a program on tokens from position pos on, and sets g.last to the logits
// of one row.
func (g *Generator) step(ctx context.Context, prog, pos int, tokens []int32, row int) error {
	e := g.session.Engine(prog)
	g.pos[0] = int32(pos)
	if err := e.WriteInts("pos", g.pos); err != nil {
		return err
	}
	if err := e.WriteInts("batch.tokens", tokens); err != nil {
		return err
	}
	if _, err := e.Step(ctx); err != nil {
		return err
	}
	all := g.logits[:len(tokens)*g.vocab]
	g.last = all[row*g.vocab : (row+1)*g.vocab]
	if err := e.ReadBuffer("logits", all); err != nil {
		return err
	}
	if most := slices.Max(g.last); !finite(most) { // which is NaN if any is; a logit of -Inf only means never
		return notFinite{fmt.Errorf("a logit after %d tokens is %v: numbers are not finite", len(g.ids), most)}
	}
	return nil
}
