package data

import (
	"fmt"
	"slices"
)

// Examples: documents of a prompt and an answer of which it is known whether it is good. In token files 1 or 0 follows the end of each
// document. Windows hold as many examples as fit, without these:
//
//	file     prompt answer . 1  prompt answer . 0         windows  prompt answer .  prompt answer .  . . padding
//	         given  learnt      given  learnt                      given  learnt    given  learnt    given
//
// Mismatched windows have the same prompts in the same order, each with the answer to another prompt: that of the example before it in
// the range, or of the nearest one before that whose prompt is another; before the first comes the last. An answer that
// does not fit is cut, and then its last token is the end of the document, and given.

// example is a document with a verdict.
type example struct {
	document Range // without the verdict
	answer   int64 // the first token that is learnt
}

func (e example) prompt() Range { return Range{e.document.First, e.answer} }

// Examples makes windows of sequence+1 tokens from a range that consists of documents with verdicts, of which those that are longer are left
// out, and, if mismatched, mismatched windows beside them.
func (t *Tokens) Examples(r Range, sequence int, mismatched bool) (Windows, Packing, error) {
	var p Packing
	if err := t.check(r, sequence); err != nil {
		return Windows{}, p, err
	}
	list, left, err := t.examples(r, sequence)
	if err != nil {
		return Windows{}, p, err
	}
	p.TooLong = left
	most := sequence + 1
	var documents, others []Range
	lengths := make([]int, len(list))
	for i, e := range list {
		documents = append(documents, e.document)
		lengths[i] = int(e.document.Len())
	}
	if mismatched {
		if len(list) < 2 {
			return Windows{}, p, fmt.Errorf("only %d answer fits into a window, but there is none to another prompt to compare it with; hint: use a longer sequence_length, or more answers", len(list))
		}
		for i, k := range t.mismatch(list) {
			answer := Range{list[k].answer, list[k].document.End}
			answer.End = min(answer.End, answer.First+int64(most)-list[i].prompt().Len())
			others = append(others, list[i].prompt(), answer)
			lengths[i] = max(lengths[i], int(list[i].prompt().Len()+answer.Len()))
		}
	}
	windows, count := bestFit(lengths, most)
	w := Windows{tokens: t, sequence: sequence, packed: arrange(documents, 1, windows, count), apart: 1, count: int64(count)}
	if mismatched {
		w.others = arrange(others, 2, windows, count)
	}
	for i := range w.count {
		n := w.taken(i)
		p.Tokens += n
		p.Padding += int64(most) - n
	}
	return w, p, nil
}

// mismatch returns for each example the one whose answer its prompt gets, see above. Where all prompts are the same, it is the one before.
func (t *Tokens) mismatch(list []example) []int {
	same := func(a, b int) bool {
		x, y := list[a].prompt(), list[b].prompt()
		if x.Len() != y.Len() {
			return false
		}
		for i := range x.Len() {
			if t.At(x.First+i) != t.At(y.First+i) {
				return false
			}
		}
		return true
	}
	others, last := make([]int, len(list)), len(list)-1
	others[0] = last
	for k := last; k > 0; k-- {
		if !same(k, 0) {
			others[0] = k
			break
		}
	}
	uniform := same(others[0], 0)
	for i := 1; i < len(list); i++ {
		if others[i] = i - 1; !uniform && same(i, i-1) {
			others[i] = others[i-1]
		}
	}
	return others
}

// examples finds the documents of a range that fit into windows and have something to learn, and counts those that do not fit.
func (t *Tokens) examples(r Range, sequence int) (list []example, left int64, err error) {
	if n, labels := t.stats.Documents(), t.stats.Tagged(); n != labels || n == 0 {
		return nil, 0, fmt.Errorf("%d of %d documents have a label, but this loss needs one of each; hint: write each row as {\"prompt\": ..., \"completion\": ..., \"label\": true}", labels, n)
	}
	documents, err := t.taggedDocuments(r)
	if err != nil {
		return nil, 0, err
	}
	for _, d := range documents {
		e := example{document: d, answer: d.First + 1} // nothing comes before the first token, so it is given
		for e.answer < d.End && Given(t.At(e.answer)) {
			e.answer++
		}
		switch {
		case d.Len() > int64(sequence)+1:
			left++
		case e.answer < d.End:
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return nil, 0, fmt.Errorf("none of %d answers fits into a window of %d tokens; hint: use a longer sequence_length, or shorter answers", t.stats.Documents(), sequence+1)
	}
	return list, left, nil
}

func untagged(i int64) error {
	return fmt.Errorf("no label follows the end of a document at token %d: the end-of-text token occurs inside the text; hint: remove it from the text", i)
}

// SplitExamples cuts all examples into a training range and, after it, a validation range. Of those that fit into windows, each range
// has at least two, and the validation range the fraction heldOut.
func (t *Tokens) SplitExamples(heldOut float64, sequence int) (train, validation Range, err error) {
	list, _, err := t.examples(t.All(), sequence)
	if err != nil {
		return train, validation, err
	}
	const least = 2 // see Examples
	if len(list) < 2*least {
		return train, validation, fmt.Errorf("only %d answers fit into windows, but training and validation need %d each; hint: use a longer sequence_length, or more answers", len(list), least)
	}
	held := min(max(int(heldOut*float64(len(list))), least), len(list)-least)
	cut := list[len(list)-held].document.First
	return Range{0, cut}, Range{cut, t.count}, nil
}

// ExampleLength returns the length of equal documents with which attention would cost as much as it does on the windows of examples, see
// DocumentLength; half a window if there are none.
func (t *Tokens) ExampleLength(sequence int, mismatched bool) int {
	w, p, err := t.Examples(t.All(), sequence, mismatched)
	if err != nil {
		return max(sequence/2, 1)
	}
	return w.packedLength(p)
}

// Mismatched returns the mismatched windows of examples: as many as there are windows, with as many documents in each.
func (w Windows) Mismatched() Windows {
	w.packed, w.others = w.others, nil
	w.apart = 2
	w.parts = slices.Clone(w.parts)
	for k := range w.parts {
		w.parts[k].Windows = w.parts[k].Mismatched()
	}
	return w
}

// Good appends for each document in window i of examples, 0 <= i < Count, whether its answer is a good one.
func (w Windows) Good(dst []bool, i int64) []bool {
	w, i = w.locate(i)
	for _, r := range w.packed.of(i) {
		verdict, _ := TagOf(w.tokens.At(r.End))
		dst = append(dst, verdict == 1)
	}
	return dst
}

// Verdicts counts the good and the bad answers of all windows of examples.
func (w Windows) Verdicts() (good, bad int64) {
	for i := range w.count {
		for _, x := range w.Good(nil, i) {
			if x {
				good++
			} else {
				bad++
			}
		}
	}
	return good, bad
}
