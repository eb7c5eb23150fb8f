package data

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// Texts with labels, numbers from 0. In token files its label follows the end of each document, as a tag. In windows it is in the place
// of the end, as what is learnt at the document's last token; all tokens are given. Of a text that does not fit the end is cut off:
//
//	file     text text . 2  text . 0  ...     windows  text text 2  text 0  . . padding
//	                                                   given        given
//
// Windows of pairs may be labelled likewise, all with 0: that is where a document's one number is, its reward. So are windows of texts with
// a value each, see Values.

// labelHint says how a row has its label.
const labelHint = `hint: write {"text": ..., "label": ...}, {"messages": [...], "label": ...} or {"prompt": ..., "completion": ..., "label": ...}`

// labelOf returns the number of the label that is the JSON value of a row.
func labelOf(value []byte, names []string) (int, error) {
	var name string
	list := strings.Join(names[:min(len(names), 8)], ", ")
	switch n, err := strconv.Atoi(string(value)); {
	case err == nil && n >= 0 && n < len(names):
		return n, nil
	case err == nil:
		return 0, fmt.Errorf(`"label" is %d, but there are %d labels, 0 to %d; hint: set labels to all of their names, or to their number`, n, len(names), len(names)-1)
	case json.Unmarshal(value, &name) != nil:
		return 0, fmt.Errorf(`"label" is %.40s, neither a whole number nor a name; %s`, value, labelHint)
	}
	n := slices.Index(names, name)
	if n < 0 {
		meant := cmp.Or(suggest.Hint(name, names), "; hint: correct the row.")
		return 0, fmt.Errorf(`"label" is %.60q, which is none of %s%s Or add it to labels`, name, list, meant)
	}
	return n, nil
}

// valueOf returns the value that is the JSON value of a row.
func valueOf(value []byte, name string) (float32, error) {
	var x *float64
	if err := json.Unmarshal(value, &x); err != nil || x == nil {
		return 0, fmt.Errorf(`"label" is %.40s, but with one label (%s) each row has a number; hint: write it without quotes, or name two labels or more to choose among`, value, name)
	}
	if v := float32(*x); math.Abs(float64(v)) <= math.MaxFloat32 {
		return v, nil
	}
	return 0, fmt.Errorf(`"label" is %.40s, which is too large for a number of 32 bits; hint: scale the values down, best to about -1 to 1`, value)
}

// tagsOf returns the tags that a row's label is in the file.
func (r *reader) tagsOf(value []byte) ([]int32, error) {
	switch {
	case r.blind:
		return make([]int32, tagsPerDocument(r.labels)), nil
	case len(value) == 0 || string(value) == "null":
		what := "the number that it has as " + r.labels[0]
		if n := len(r.labels); n > 1 {
			what = fmt.Sprintf("a number from 0 to %d or one of %s", n-1, strings.Join(r.labels[:min(n, 8)], ", "))
		}
		return nil, fmt.Errorf(`"label" is missing; %s, with %s`, labelHint, what)
	case len(r.labels) == 1:
		v, err := valueOf(value, r.labels[0])
		return valueTags(v), err
	}
	n, err := labelOf(value, r.labels)
	return []int32{int32(n)}, err
}

// tagsPerDocument is how many tags follow each document of texts with labels.
func tagsPerDocument(names []string) int {
	if len(names) == 1 {
		return len(valueTags(0))
	}
	return 1
}

// valueTags returns the tags that are a value: the upper and the lower half of its bits.
func valueTags(v float32) []int32 {
	bits := math.Float32bits(v)
	return []int32{int32(bits >> 16), int32(bits & 0xffff)}
}

// labelled is document for texts with labels.
func (f fields) labelled(dst []byte) (record, error) {
	prompt, asked, err := f.text("prompt")
	if asked && !f.has("completion") && !f.has("chosen") && !f.has("rejected") {
		return record{dst: append(dst, prompt...), label: f["label"]}, err
	}
	r, err := f.kind(dst, false)
	if err == nil && r.pair != nil {
		err = errors.New("the row is a pair of answers, and no text with a label; " + labelHint)
	}
	r.label = f["label"]
	return r, err
}

// taggedDocuments returns the documents of a range that have tags, without these.
func (t *Tokens) taggedDocuments(r Range) (list []Range, err error) {
	if n, with := t.stats.Documents(), t.stats.Tagged(); n != with {
		return nil, fmt.Errorf("%d of %d documents have a label, but all need one; hint: use rows of JSONL or Parquet, each with its \"label\"", with, n)
	}
	first := r.First
	for i := r.First; i < r.End; i++ {
		if unmarked(t.At(i)) != t.endOfText {
			continue
		}
		end := i + 1
		for i+1 < r.End {
			if _, is := TagOf(t.At(i + 1)); !is {
				break
			}
			i++
		}
		if i < end {
			return nil, untagged(i)
		}
		list = append(list, Range{first, end})
		first = i + 1
	}
	return list, nil
}

// Labelled makes windows of sequence+1 tokens from a range that consists of documents with labels.
func (t *Tokens) Labelled(r Range, sequence int) (Windows, Packing, error) {
	var p Packing
	if err := t.check(r, sequence); err != nil {
		return Windows{}, p, err
	}
	list, err := t.taggedDocuments(r)
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
	list, err := t.taggedDocuments(t.All())
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

// Scored returns windows of pairs, or of texts with values, in which nothing is learnt but the label 0 at the last token of each document.
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
			window[at-1] = int32(w.labelBehind(r)) | tagBit
		}
	}
}

// Values writes to dst, which has an element for each token that window i predicts, the values of its texts, each at the text's last token, and
// elsewhere 0. The windows are of texts with a value each.
func (w Windows) Values(dst []float32, i int64) {
	clear(dst)
	w, i = w.locate(i)
	at := 0
	for k, r := range w.packed.of(i) {
		if at += int(r.Len()); (k+1)%w.apart == 0 {
			dst[at-2] = w.valueBehind(r) // the last element is in the place of the end
		}
	}
}

// AllValues returns the values of the texts of all windows.
func (w Windows) AllValues() (list []float32) {
	for i := range w.count {
		part, i := w.locate(i)
		for k, r := range part.packed.of(i) {
			if (k+1)%part.apart == 0 {
				list = append(list, part.valueBehind(r))
			}
		}
	}
	return list
}

// valueBehind returns the value of the document whose last piece is r.
func (w Windows) valueBehind(r Range) float32 {
	high, _ := TagOf(w.tokens.At(r.End))
	low, _ := TagOf(w.tokens.At(r.End + 1))
	return math.Float32frombits(uint32(high)<<16 | uint32(low))
}

// labelBehind returns the label of the document whose last piece is r.
func (w Windows) labelBehind(r Range) int {
	if w.labels == allAlike {
		return 0
	}
	label, _ := TagOf(w.tokens.At(r.End))
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
