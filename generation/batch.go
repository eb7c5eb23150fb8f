package generation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/machine"
)

// Options say how a model is opened.
type Options struct {
	Context   int // most tokens of a sequence, prompt and text
	Sequences int // at once
	Device    string
	Limit     int64 // on the bytes of device memory; 0: what there is
	DType     graph.DType
}

// Batch generates many texts at once with one model.
type Batch struct {
	Folder    *folder.Folder
	Tokenizer *bpe.Tokenizer
	// Notes list the settings of generation_config.json that are ignored.
	Notes []string

	context, sequences, vocab int
	slots                     slots
	together                  int  // sequences join when so many slots are free, or all
	hurries                   bool // the first of them does not wait for others
	ends                      []int32
	free                      []int
	now                       []*sequence // in the order in which they came
	rows                      []folder.Placed
	of                        []*sequence // of each row
	said                      []rowResult // by each row
}

// slots generate sequences: folder.Slots or folder.Block.
type slots interface {
	ReadPrompts(ctx context.Context, list []*folder.Reading) error
	Accepts(list []folder.Placed, slot int) bool
	Step(ctx context.Context, list []folder.Placed) error
	Logits(i int) []float64
	Footprint() folder.Footprint
	Close() error
}

// sequence is a request that has a slot.
type sequence struct {
	*Request
	slot    int
	ids     []int32 // prompt and text
	at      int     // the next one to read
	chooser *chooser
	text    *text
	result  Result
	pending []Token // have been generated since Each was called
}

// rowResult is what a row's logits say.
type rowResult struct {
	next    int32 // the next token of the prompt, or the one chosen
	logprob float64
	top     []Ranked
	err     error
}

// Open opens a model for batches. It has no part in the folder's closing.
func Open(ctx context.Context, f *folder.Folder, o Options) (*Batch, error) {
	return open(f, o.Context, o.Sequences, 1, func() (slots, error) {
		d, err := machine.OpenAlone(o.Device, 0, o.Limit)
		if err != nil {
			return nil, folder.Misuse(err)
		}
		return f.OpenSlots(ctx, d, o.Context, o.Sequences, o.DType)
	})
}

// open returns a batch of slots that are opened last.
func open(f *folder.Folder, context, sequences, together int, openSlots func() (slots, error)) (*Batch, error) {
	b := &Batch{Folder: f, context: context, sequences: sequences, vocab: f.Model.Vocab, together: together}
	var err error
	if b.Tokenizer, err = f.Tokenizer(); err != nil {
		return nil, err
	}
	if b.ends, err = f.Ends(b.Tokenizer); err != nil {
		return nil, err
	}
	if b.Notes, err = f.SetAside(); err != nil {
		return nil, err
	}
	for i := range sequences {
		b.free = append(b.free, i)
	}
	b.slots, err = openSlots()
	return b, err
}

// Close closes the device.
func (b *Batch) Close() error { return b.slots.Close() }

// Context returns the most tokens of a sequence.
func (b *Batch) Context() int { return b.context }

// Sequences returns how many sequences are generated at once.
func (b *Batch) Sequences() int { return b.sequences }

// Footprint returns the memory that the programs take.
func (b *Batch) Footprint() folder.Footprint { return b.slots.Footprint() }

// Check returns an error if a request cannot be served.
func (b *Batch) Check(r *Request) error {
	switch n := len(r.Prompt); {
	case n == 0:
		return errors.New("the prompt has no tokens; hint: give a prompt")
	case n > b.context:
		return fmt.Errorf("the prompt has %d tokens, but a sequence has at most %d; hint: shorten the prompt", n, b.context)
	case r.Tokens < 0 || r.Tokens == 0 && !(r.Echo && r.Logprobs >= 0):
		return fmt.Errorf("max_tokens is %d; hint: use at least 1", r.Tokens)
	}
	for _, id := range r.Prompt {
		if id < 0 || int(id) >= b.vocab {
			return fmt.Errorf("token %d is not in the vocabulary of %d tokens; hint: use the tokenizer that the model was trained with", id, b.vocab)
		}
	}
	for _, s := range r.Stop {
		if s == "" {
			return errors.New("stop is an empty text; hint: leave it out")
		}
	}
	return r.Sampling.Check()
}

// Run serves requests, which have passed Check, as they come. It returns when there are no more and all have ended, or with the error
// that stopped it; requests that have not ended then end in that error.
func (b *Batch) Run(ctx context.Context, requests <-chan *Request) error {
	for open := true; open || len(b.now) > 0; {
		open = b.join(ctx, requests, open)
		if err := ctx.Err(); err != nil {
			return b.fail(err)
		}
		b.leave()
		if len(b.now) == 0 {
			continue
		}
		if err := b.step(ctx); err != nil {
			return b.fail(b.Folder.Blame(err))
		}
	}
	return nil
}

// fail ends all requests in an error.
func (b *Batch) fail(err error) error {
	for len(b.now) > 0 {
		b.end(b.now[0], err)
	}
	return err
}

// join gives waiting requests free slots. It waits for one if there is nothing else to do, or for as many as join together. It reports
// whether there may be more.
func (b *Batch) join(ctx context.Context, requests <-chan *Request, open bool) bool {
	if len(b.now) > 0 && len(b.free) < b.together {
		return open
	}
	idle := len(b.now) == 0
	for open && len(b.free) > 0 {
		var r *Request
		if idle && (len(b.now) == 0 || len(b.now) < b.together && !b.hurries) {
			select {
			case r, open = <-requests:
			case <-ctx.Done():
				return open
			}
		} else {
			select {
			case r, open = <-requests:
			default:
				return open
			}
		}
		if open {
			b.begin(r)
		}
	}
	return open
}

// begin gives a request a slot.
func (b *Batch) begin(r *Request) {
	last := len(b.free) - 1
	s := &sequence{Request: r, slot: b.free[last], ids: slices.Clone(r.Prompt), chooser: newChooser(r.Sampling, r.Prompt), text: newText(r.Stop)}
	b.free = b.free[:last]
	b.now = append(b.now, s)
	if s.reportsPrompt() {
		s.result.Tokens = append(s.result.Tokens, Token{ID: s.ids[0], Text: b.Tokenizer.Token(s.ids[0]), First: true})
	}
}

// reportsPrompt reports whether the logits of the prompt's tokens are needed.
func (s *sequence) reportsPrompt() bool { return s.Echo && s.Logprobs >= 0 }

// leave ends requests that are no longer wanted.
func (b *Batch) leave() {
	for _, s := range slices.Clone(b.now) {
		if s.Request.Context != nil && s.Request.Context.Err() != nil {
			b.end(s, context.Cause(s.Request.Context))
		}
	}
}

// end ends a request.
func (b *Batch) end(s *sequence, err error) {
	b.now = slices.DeleteFunc(b.now, func(o *sequence) bool { return o == s })
	b.free = append(b.free, s.slot)
	if err != nil {
		s.Done(nil, err)
		return
	}
	if part := s.text.takeRest(); part != "" || len(s.pending) > 0 {
		s.tell(part)
	}
	s.result.Text = readable(s.text.all)
	s.Done(&s.result, nil)
}

// step goes on with all sequences: it reads prompts, then makes a step.
func (b *Batch) step(ctx context.Context) error {
	if err := b.readPrompts(ctx); err != nil {
		return err
	}
	b.rows, b.of = b.rows[:0], b.of[:0]
	for _, s := range b.now {
		b.row(s)
	}
	for _, s := range b.now { // rows that are left go to prompts whose logits are needed
		for s.at < len(s.ids) && s.reportsPrompt() && b.slots.Accepts(b.rows, s.slot) {
			b.row(s)
		}
	}
	if err := b.slots.Step(ctx, b.rows); err != nil {
		return err
	}
	b.look()
	for i, s := range b.of {
		switch {
		case !slices.Contains(b.now, s): // it has ended in an error
		case b.said[i].err != nil:
			b.end(s, b.Folder.Blame(b.said[i].err))
		default:
			b.take(s, b.rows[i].Position, &b.said[i])
		}
	}
	return nil
}

// readPrompts reads prompts whose logits are not needed, those that came first first.
func (b *Batch) readPrompts(ctx context.Context) error {
	var list []*folder.Reading
	var of []*sequence
	for _, s := range b.now {
		if s.at < len(s.Prompt) && !s.reportsPrompt() {
			list, of = append(list, &folder.Reading{Slot: s.slot, Prompt: s.Prompt, At: s.at}), append(of, s)
		}
	}
	err := b.slots.ReadPrompts(ctx, list)
	for i, s := range of {
		s.at = list[i].At
	}
	return err
}

// row adds the next token of a sequence to the step.
func (b *Batch) row(s *sequence) {
	b.rows = append(b.rows, folder.Placed{Token: s.ids[s.at], Slot: s.slot, Position: s.at})
	b.of = append(b.of, s)
	s.at++
}

// look finds out what the rows say, on all cores.
func (b *Batch) look() {
	b.said = slices.Grow(b.said[:0], len(b.rows))[:len(b.rows)]
	var all sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), len(b.rows))
	for w := range workers {
		all.Go(func() {
			for i := w; i < len(b.rows); i += workers {
				b.said[i] = b.of[i].look(b.rows[i].Position, b.slots.Logits(i))
			}
		})
	}
	all.Wait()
}

// look finds out what the logits after the token at a position say.
func (s *sequence) look(position int, logits []float64) (r rowResult) {
	last := position == len(s.ids)-1
	if !last && !s.reportsPrompt() {
		return r
	}
	if most := logits[likeliest(logits)]; !stat.Finite(most) || slices.ContainsFunc(logits, math.IsNaN) { // -Inf only means never
		r.err = folder.NotFinite(fmt.Errorf("a logit after %d tokens is not finite", position+1))
		return r
	}
	if !last {
		r.next = s.ids[position+1]
	} else if s.Tokens == 0 {
		return r
	}
	if s.Logprobs < 0 {
		r.next = s.chooser.choose(logits)
		return r
	}
	all := logits
	if last {
		all = slices.Clone(logits) // choosing changes them
		r.next = s.chooser.choose(logits)
	}
	r.logprob, r.top = rank(all, r.next, s.Logprobs)
	return r
}

// take goes on with a sequence by what the logits after the token at a position say.
func (b *Batch) take(s *sequence, position int, said *rowResult) {
	token := Token{ID: said.next, Text: b.Tokenizer.Token(said.next), Logprob: said.logprob, Top: said.top}
	switch {
	case position < len(s.ids)-1:
		if s.reportsPrompt() {
			s.result.Tokens = append(s.result.Tokens, token)
		}
		return
	case s.Tokens == 0:
		s.result.Reason = Full
		b.end(s, nil)
		return
	}
	s.result.Added++
	if s.Logprobs >= 0 {
		s.result.Tokens, s.pending = append(s.result.Tokens, token), append(s.pending, token)
	}
	if slices.Contains(b.ends, said.next) || slices.Contains(s.Ends, said.next) {
		s.result.Reason = Stopped
		b.end(s, nil)
		return
	}
	part := ""
	switch {
	case b.Tokenizer.Bytes([]int32{said.next}) == 0:
		part = s.text.addControl(token.Text)
	case s.Trim && len(s.text.all) == 0:
		part = s.text.add(b.Tokenizer.Trim(token.Text))
	default:
		part = s.text.add(token.Text)
	}
	if part != "" {
		s.tell(part)
	}
	switch {
	case s.text.ended:
		s.result.Reason = Stopped
	case s.result.Added >= s.Tokens || len(s.ids) == b.context:
		s.result.Reason = Full
	default:
		s.ids = append(s.ids, said.next)
		return
	}
	b.end(s, nil)
}

// tell hands out a part of the text.
func (s *sequence) tell(part string) {
	if s.Each != nil {
		s.Each(Part{part, s.pending})
	}
	s.pending = nil
}
