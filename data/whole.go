package data

import "fmt"

// Windows of whole documents, so that no question is cut from its answer.
//
// Approach: documents stay in the order of the corpus. A window takes the next ones as long as they fit; what is left of it
// is padding, which is given. A document that is longer than a window is cut into windows of its own, each beginning with the
// last token of the one before, so that all its tokens but the first are predicted once.
//
//	documents  aaa bbbb cc ddddddddd e        windows of 6 tokens  aaa...  bbbbcc  dddddd  dddd..  e.....
//
// Known weakness: documents about half as long as windows leave a quarter of them empty. Packing out of order would
// leave less, but then windows were no ranges of the corpus any more, and what is to be held out could not be cut from its end.

// Packing is what Whole or Preferences made of tokens.
type Packing struct {
	Tokens  int64 // in windows, without what overlaps
	Padding int64 // behind them
	TooLong int64 // documents that are longer than a window and were cut, or pairs that were left out
	Enough  int64 // of pairs: the sequence length at which 99 of 100 would fit
}

// Add adds that of other tokens.
func (p *Packing) Add(o Packing) {
	p.Tokens, p.Padding, p.TooLong, p.Enough = p.Tokens+o.Tokens, p.Padding+o.Padding, p.TooLong+o.TooLong, max(p.Enough, o.Enough)
}

// Whole puts the documents of a range into windows of sequence+1 tokens. A range without two tokens in a document is an error.
func (t *Tokens) Whole(r Range, sequence int) (Windows, Packing, error) {
	var p Packing
	if r.First < 0 || r.End > t.count || r.First > r.End {
		return Windows{}, p, fmt.Errorf("tokens %d to %d of %d: no such range", r.First, r.End, t.count)
	}
	if sequence < 1 {
		return Windows{}, p, fmt.Errorf("sequence length %d: must be at least 1", sequence)
	}
	var list []Range
	most := int64(sequence) + 1
	add := func(first, end int64) {
		if end-first < 2 { // nothing is predicted
			return
		}
		list = append(list, Range{first, end})
		p.Tokens += end - first
		p.Padding += most - (end - first)
	}
	first, end := r.First, r.First // of the documents in the present window
	for i := r.First; i < r.End; i++ {
		if unmarked(t.At(i)) != t.endOfText && i+1 < r.End {
			continue
		}
		next := i + 1 // where the document ends that begins at end
		if next-first > most {
			add(first, end)
			first = end
		}
		if next-first > most {
			p.TooLong++
		}
		for next-first > most {
			add(first, first+most)
			first += most - 1
			p.Tokens-- // which both have
		}
		end = next
	}
	add(first, end)
	if len(list) == 0 {
		return Windows{}, p, fmt.Errorf("no document has two tokens; hint: more text")
	}
	return Windows{tokens: t, first: r.First, count: int64(len(list)), sequence: sequence, whole: list}, p, nil
}

// copyPadded writes some tokens and padding, which is given, to a window.
func (t *Tokens) copyPadded(dst []int32, r Range) {
	n := int(r.Len())
	t.Copy(dst[:n], r.First)
	for i := n; i < len(dst); i++ {
		dst[i] = Mark(t.endOfText)
	}
}
