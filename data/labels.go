package data

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// Texts with labels, numbers from 0. In token files a label follows the end of each document, as with examples. In windows it is in the place
// of the end, as what is learnt at the document's last token; all tokens are given. Of a text that does not fit the end is cut off:
//
//	file     text text . 2  text . 0  ...     windows  text text 2  text 0  . . padding
//	                                                   given        given
//
// Windows of pairs may be labelled likewise, all with 0: that is where a document's one number is, its reward.

// labelHint says how a row has its label.
const labelHint = `hint: write {"text": ..., "label": ...}, {"messages": [...], "label": ...} or {"prompt": ..., "completion": ..., "label": ...}`

// classOf returns the number of the label that is the JSON value of a row.
func classOf(value []byte, classes []string) (*int, error) {
	var name string
	list := strings.Join(classes[:min(len(classes), 8)], ", ")
	switch n, err := strconv.Atoi(string(value)); {
	case len(value) == 0 || string(value) == "null":
		return nil, fmt.Errorf(`"label" is missing; %s, with a number from 0 to %d or one of %s`, labelHint, len(classes)-1, list)
	case err == nil && n >= 0 && n < len(classes):
		return &n, nil
	case err == nil:
		return nil, fmt.Errorf(`"label" is %d, but there are %d labels, 0 to %d; hint: set labels to all of their names, or to their number`, n, len(classes), len(classes)-1)
	case json.Unmarshal(value, &name) != nil:
		return nil, fmt.Errorf(`"label" is %.40s, neither a whole number nor a name; %s`, value, labelHint)
	}
	n := slices.Index(classes, name)
	if n < 0 {
		meant := cmp.Or(suggest.Hint(name, classes), "; hint: correct the row.")
		return nil, fmt.Errorf(`"label" is %.60q, which is none of %s%s Or add it to labels`, name, list, meant)
	}
	return &n, nil
}

// classOf returns the number of a row's label.
func (r *reader) classOf(value []byte) (*int, error) {
	if r.blind {
		return new(int), nil
	}
	return classOf(value, r.classes)
}

// classified is document for texts with labels.
func (f fields) classified(dst []byte) (record, error) {
	prompt, asked, err := f.text("prompt")
	if asked && !f.has("completion") && !f.has("chosen") && !f.has("rejected") {
		return record{dst: append(dst, prompt...), class: f["label"]}, err
	}
	r, err := f.kind(dst, false)
	if err == nil && r.pair != nil {
		err = errors.New("the row is a pair of answers, and no text with a label; " + labelHint)
	}
	r.class = f["label"]
	return r, err
}

// labelledDocuments returns the documents of a range that have labels, without these.
func (t *Tokens) labelledDocuments(r Range) (list []Range, err error) {
	if n, labels := t.stats.Documents(), t.stats.Labels(); n != labels {
		return nil, fmt.Errorf("%d of %d documents have a label, but all need one; hint: use rows of JSONL or Parquet, each with its \"label\"", labels, n)
	}
	first := r.First
	for i := r.First; i < r.End; i++ {
		if unmarked(t.At(i)) != t.endOfText {
			continue
		}
		if i+1 == r.End {
			return nil, unlabelled(i)
		} else if _, ok := LabelOf(t.At(i + 1)); !ok {
			return nil, unlabelled(i)
		}
		list = append(list, Range{first, i + 1})
		first = i + 2
		i++
	}
	return list, nil
}

// Labelled makes windows of sequence+1 tokens from a range that consists of documents with labels.
func (t *Tokens) Labelled(r Range, sequence int) (Windows, Packing, error) {
	var p Packing
	if err := t.check(r, sequence); err != nil {
		return Windows{}, p, err
	}
	list, err := t.labelledDocuments(r)
	if err != nil {
		return Windows{}, p, err
	}
	var pieces []Range // of each document its text and its end
	var lengths []int
	for _, d := range list {
		text := Range{d.First, min(d.End-1, d.First+int64(sequence))}
		if text.Len() == 0 {
			continue
		}
		if text.End < d.End-1 {
			p.TooLong++
		}
		pieces, lengths = append(pieces, text, Range{d.End - 1, d.End}), append(lengths, int(text.Len())+1)
	}
	if len(pieces) == 0 {
		return Windows{}, p, errors.New("there is no text with a label; " + labelHint)
	}
	windows, count := bestFit(lengths, sequence+1)
	w := Windows{tokens: t, sequence: sequence, packed: arrange(pieces, 2, windows, count), apart: 2, count: int64(count), labels: ofFile}
	for i := range w.count {
		n := w.taken(i)
		p.Tokens += n
		p.Padding += int64(sequence) + 1 - n
	}
	return w, p, nil
}

// SplitLabelled cuts all documents with labels into a training range and, after it, a validation range, each of which has at least one, and
// the latter the fraction heldOut.
func (t *Tokens) SplitLabelled(heldOut float64, _ int) (train, validation Range, err error) {
	list, err := t.labelledDocuments(t.All())
	if err != nil {
		return train, validation, err
	}
	if len(list) < 2 {
		return train, validation, fmt.Errorf("there is only %d text with a label, but training and validation need one each; hint: use more texts", len(list))
	}
	held := min(max(int(heldOut*float64(len(list))), 1), len(list)-1)
	cut := list[len(list)-held].First
	return Range{0, cut}, Range{cut, t.count}, nil
}

// LabelledLength returns the length of equal documents with which attention would cost as much as it does on windows of texts with labels,
// see DocumentLength; a window's if there are none.
func (t *Tokens) LabelledLength(sequence int) int {
	w, p, err := t.Labelled(t.All(), sequence)
	if err != nil {
		return max(sequence, 1)
	}
	return w.packedLength(p)
}

// labelling says what the label of a document in windows is.
type labelling uint8

const (
	unlabelledWindows labelling = iota
	ofFile                      // what follows its end in the file
	allAlike                    // 0
)

// Scored returns windows of pairs in which nothing is learnt but the label 0 at the last token of each document.
func (w Windows) Scored() Windows {
	w.labels = allAlike
	w.parts = slices.Clone(w.parts)
	for k := range w.parts {
		w.parts[k].Windows = w.parts[k].Scored()
	}
	return w
}

// label makes all tokens of a window given, and puts labels in the place of documents' ends.
func (w Windows) label(window []int32, pieces []Range) {
	for i, token := range window {
		window[i] = Mark(unmarked(token))
	}
	at := 0
	for k, r := range pieces {
		at += int(r.Len())
		if (k+1)%w.apart == 0 {
			window[at-1] = int32(w.labelBehind(r)) | labelBit
		}
	}
}

// labelBehind returns the label of the document whose last piece is r.
func (w Windows) labelBehind(r Range) int {
	if w.labels == allAlike {
		return 0
	}
	label, _ := LabelOf(w.tokens.At(r.End))
	return label
}

// Ends appends, for each document of window i of texts with labels, 0 <= i < Count, the token of the file with which it ends, in the order in
// which their labels are in the window.
func (w Windows) Ends(dst []int64, i int64) []int64 {
	w, i = w.locate(i)
	for k, r := range w.packed.of(i) {
		if (k+1)%w.apart == 0 {
			dst = append(dst, r.First)
		}
	}
	return dst
}

// LabelCounts returns how many documents of all windows have each of n labels.
func (w Windows) LabelCounts(n int) []int64 {
	counts := make([]int64, n)
	for i := range w.count {
		part, i := w.locate(i)
		for k, r := range part.packed.of(i) {
			if (k+1)%part.apart == 0 {
				counts[part.labelBehind(r)]++
			}
		}
	}
	return counts
}
