package data

import (
	"fmt"
	"math"
	"math/bits"
)

// Split cuts all tokens into a training range and, after it, a validation
// range that holds the fraction heldOut of them, at least one window of
// sequence+1 tokens. It moves the cut back to the nearest end of a document, if
// there is one within the length of the validation range.
func (t *Tokens) Split(heldOut float64, sequence int) (train, validation Range, err error) {
	if !(heldOut >= 0 && heldOut < 1) {
		return train, validation, fmt.Errorf("held-out fraction %v: must be at least 0 and below 1", heldOut)
	}
	if sequence < 1 {
		return train, validation, fmt.Errorf("sequence length %d: must be at least 1", sequence)
	}
	if int64(sequence) >= t.count/2 {
		return train, validation, fmt.Errorf("the corpus has %d tokens, which is less than one window for training and one "+
			"for validation (sequence length %d + 1 each); hint: use a shorter sequence_length or more text", t.count, sequence)
	}
	window := int64(sequence) + 1
	size := min(max(int64(heldOut*float64(t.count)), window), t.count-window)
	cut := t.count - size
	for i := cut; i > max(cut-size, window); i-- {
		if t.At(i-1) == t.endOfText {
			cut = i
			break
		}
	}
	return Range{0, cut}, Range{cut, t.count}, nil
}

// Windows is a range of tokens cut into windows of Sequence()+1 tokens. Window i
// begins at token i*Sequence() of the range, so its last token is the first of
// window i+1: the inputs of the windows are disjoint, and their targets too.
// A remainder shorter than a window is not used. Otherwise the windows were packed (Whole, Preferences), or
// mixed from several sources (Mix).
type Windows struct {
	tokens   *Tokens
	first    int64
	count    int64
	sequence int
	packed   *packed // nil: the range is cut
	apart    int     // of pairs, examples and texts with labels: pieces of each document; else 0
	labels   labelling
	others   *packed // of examples: prompts, each with the answer to another, see Mismatched
	parts    []Part  // of a mixture, for which only count and sequence are used besides
}

// Windows cuts a range into windows; a range without a whole window is an error.
func (t *Tokens) Windows(r Range, sequence int) (Windows, error) {
	if err := t.check(r, sequence); err != nil {
		return Windows{}, err
	}
	if r.Len() <= int64(sequence) {
		return Windows{}, fmt.Errorf("%d tokens are less than one window (sequence length %d + 1); "+
			"hint: use a shorter sequence_length or more text", r.Len(), sequence)
	}
	return Windows{tokens: t, first: r.First, count: (r.Len() - 1) / int64(sequence), sequence: sequence}, nil
}

// check says what is wrong with a range from which windows are to be made.
func (t *Tokens) check(r Range, sequence int) error {
	if r.First < 0 || r.End > t.count || r.First > r.End {
		return fmt.Errorf("tokens %d to %d are out of range, there are %d", r.First, r.End, t.count)
	}
	if sequence < 1 {
		return fmt.Errorf("sequence length %d: must be at least 1", sequence)
	}
	return nil
}

// Count returns the number of windows.
func (w Windows) Count() int64 { return w.count }

// Sequence returns the number of tokens that one window predicts.
func (w Windows) Sequence() int { return w.sequence }

// Copy writes window i, 0 <= i < Count, to dst, which has Sequence()+1 elements.
// Inputs are dst[:Sequence()], targets dst[1:].
func (w Windows) Copy(dst []int32, i int64) {
	w, i = w.locate(i)
	if w.packed != nil {
		w.tokens.copyPacked(dst[:w.sequence+1], w.packed.of(i), w.apart)
		if w.labels != unlabelledWindows {
			w.label(dst[:w.sequence+1], w.packed.of(i))
		}
		return
	}
	w.tokens.Copy(dst[:w.sequence+1], w.first+i*int64(w.sequence))
}

// Stretches returns what window i, 0 <= i < Count, consists of: a stretch of tokens, or one for each document that was packed.
func (w Windows) Stretches(i int64) (list []Stretch) {
	w, i = w.locate(i)
	if w.packed == nil {
		first := w.first + i*int64(w.sequence)
		return []Stretch{{w.tokens, Range{first, first + int64(w.sequence) + 1}}}
	}
	for _, r := range w.packed.of(i) {
		list = append(list, Stretch{w.tokens, r})
	}
	return list
}

// Cursor says which window of the shuffled order comes next. It is a Sampler's whole
// state, and is saved with a checkpoint.
type Cursor struct {
	Epoch int64 `json:"epoch"` // complete passes over the windows
	Index int64 `json:"index"` // windows taken in this pass, below Windows.Pass
}

// Sampler visits windows in a shuffled order: in every epoch each window once, or as often as a mixture says,
// in an order that depends on seed and epoch only. It is not safe for concurrent use.
type Sampler struct {
	windows Windows
	pass    int64 // windows of an epoch
	sources []stream
	cursor  Cursor
}

// NewSampler returns a Sampler at the start of the first epoch. batch is the
// number of windows of one optimizer step; there must be at least that many windows, also in an epoch, so that
// no step repeats one for lack of others.
func NewSampler(w Windows, seed uint64, batch int) (*Sampler, error) {
	if batch < 1 {
		return nil, fmt.Errorf("batch of %d windows: must be at least 1", batch)
	}
	pass := w.Pass()
	if n := min(w.count, pass); n < int64(batch) {
		return nil, fmt.Errorf("the training text has %d windows of %d tokens, fewer than one batch of %d; "+
			"hint: use a smaller global_batch, a shorter sequence_length, or more text", n, w.sequence, batch)
	}
	return &Sampler{windows: w, pass: pass, sources: w.streams(seed)}, nil
}

// Cursor returns the position of the next window.
func (s *Sampler) Cursor() Cursor { return s.cursor }

// Window returns the number of the window that comes next.
func (s *Sampler) Window() int64 {
	source, before := turn(s.sources, s.cursor.Index, s.pass)
	from := &s.sources[source]
	return from.at(s.cursor.Epoch*from.turns + before)
}

// Seek moves to a position. A cursor whose index is not below the number of windows of
// an epoch is an error.
func (s *Sampler) Seek(c Cursor) error {
	if c.Epoch < 0 || c.Epoch >= math.MaxInt64/s.pass || c.Index < 0 || c.Index >= s.pass {
		return fmt.Errorf("epoch %d, window %d is not a position in the corpus, of which a pass has %d windows; "+
			"hint: resume with the corpus, tokenizer and sequence_length of the checkpoint", c.Epoch, c.Index, s.pass)
	}
	s.cursor = c
	return nil
}

// Skip moves n >= 0 windows forward, like Fill, without reading them: each rank
// skips the rows of the others.
func (s *Sampler) Skip(n int64) {
	s.cursor.Index += n
	s.cursor.Epoch += s.cursor.Index / s.pass
	s.cursor.Index %= s.pass
}

// Fill writes the next rows windows to batch, [rows, Sequence()+1] row-major, and
// advances the cursor. It allocates nothing. It panics if batch has another length.
func (s *Sampler) Fill(batch []int32, rows int) {
	width := s.windows.sequence + 1
	if len(batch) != rows*width {
		panic(fmt.Sprintf("data: a batch of %d tokens for %d rows of %d", len(batch), rows, width))
	}
	for row := range rows {
		s.windows.Copy(batch[row*width:(row+1)*width], s.Window())
		s.Skip(1)
	}
}

// permutation is a pseudo-random order of the numbers below n that needs no
// memory. A Feistel network permutes the numbers of 2h bits, the smallest even
// number of bits that suffices, and is applied again until the result is below n
// ("cycle walking", Black and Rogaway 2002, Ciphers with Arbitrary Finite
// Domains). 4^h < 4n, so fewer than four passes through the network are needed on
// average.
//
// Example: n = 10 works on the 16 numbers of 4 bits; if 3 -> 12 -> 7, at(3) = 7.
//
// Known weakness: it mixes well, but is not cryptographic.
type permutation struct {
	n    uint64
	half uint // bits of one half
	keys [feistelRounds]uint64
}

const feistelRounds = 6

func newPermutation(n int64, seed uint64, epoch int64) permutation {
	p := permutation{n: uint64(n), half: (uint(bits.Len64(uint64(n-1))) + 1) / 2}
	state := scramble(seed) + uint64(epoch)
	for i := range p.keys {
		state = scramble(state + uint64(i) + 1)
		p.keys[i] = state
	}
	return p
}

// at returns the number at position i; both are below n.
func (p *permutation) at(i int64) int64 {
	x := uint64(i)
	for {
		if x = p.network(x); x < p.n {
			return int64(x)
		}
	}
}

func (p *permutation) network(x uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	left, right := x>>p.half, x&mask
	for _, key := range p.keys {
		left, right = right, left^scramble(right^key)&mask
	}
	return left<<p.half | right
}

// scramble is the finalizer of splitmix64 (Steele, Lea and Flood 2014).
func scramble(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
