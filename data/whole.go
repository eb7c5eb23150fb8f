package data

import "fmt"

// WholeDocuments makes windows of sequence+1 tokens from the whole documents of a range, so that no question is cut off
// from its answer. The rest of a window is padding, which is given. A document that is longer than a window is
// cut, each part beginning with the last token of the one before, so that all its tokens but the first are
// predicted once. A document of one token is left out, and a range with no others is an error.
//
//	documents  aaa bbbb cc ddddddddd        windows of 6 tokens  dddddd  bbbb..  ccdddd  aaa...
func (t *Tokens) WholeDocuments(r Range, sequence int) (Windows, Packing, error) {
	var p Packing
	if err := t.check(r, sequence); err != nil {
		return Windows{}, p, err
	}
	var list []Range
	most, first := int64(sequence)+1, r.First
	for i := r.First; i < r.End; i++ {
		if unmarked(t.At(i)) != t.endOfText && i+1 < r.End {
			continue
		}
		next := i + 1
		if next-first > most {
			p.TooLong++
		}
		for next-first > most {
			list = append(list, Range{first, first + most})
			first += most - 1
			p.Tokens-- // both parts have it
		}
		if next-first > 1 {
			list = append(list, Range{first, next})
		}
		first = next
	}
	if len(list) == 0 {
		return Windows{}, p, fmt.Errorf("no document has at least two tokens; hint: use more text")
	}
	for _, x := range list {
		p.Tokens += x.Len()
	}
	w := Windows{tokens: t, sequence: sequence, packed: packPieces(list, 1, most)}
	w.count = int64(len(w.packed.ends))
	for i := range w.count {
		p.Padding += most - w.taken(i)
	}
	return w, p, nil
}

// WholeLength returns the length of equal documents with which attention would cost as much as it does on windows of whole documents,
// see DocumentLength, of the first lengthTokens; a window's if there are none.
func (t *Tokens) WholeLength(sequence int) int {
	w, p, err := t.WholeDocuments(Range{0, min(t.count, lengthTokens)}, sequence)
	if err != nil {
		return max(sequence, 1)
	}
	return w.packedLength(p)
}

// packedLength is that length for packed windows. Each token of padding is a document.
func (w Windows) packedLength(p Packing) int {
	sum := p.Padding
	for _, r := range w.packed.pieces {
		sum += r.Len() * (r.Len() + 1) / 2
	}
	return lengthOf(sum/w.count, w.sequence)
}

// taken returns how many tokens of a packed window are not padding.
func (w Windows) taken(i int64) (n int64) {
	for _, r := range w.packed.of(i) {
		n += r.Len()
	}
	return n
}
