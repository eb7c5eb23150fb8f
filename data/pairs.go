package data

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/data/chat"
)

// Pairs of documents, of which the first is preferred to the second. In token files they are two documents like others, with the
// prompt given, one behind the other. As windows they have one each:
//
//	prompt chosen .  prompt rejected .  . . . padding
//	given  learnt    given  learnt      given

// pair reads {"prompt", "chosen", "rejected"}: strings, or lists of messages. Lists without a prompt are conversations whose last answers
// differ; so are lists of several messages beside a prompt that is a string, with which they begin.
func (f fields) pair() (*[2]record, error) {
	const hint = `hint: {"prompt": ..., "chosen": ..., "rejected": ...}, of which all are strings, or lists of messages`
	pair := &[2]record{}
	for k, key := range []string{"chosen", "rejected"} {
		answer, isText, err := f.text(key)
		prompt, asked, err2 := f.text("prompt")
		switch err = errors.Join(err, err2); {
		case err != nil:
			return nil, err
		case isText && len(prompt) > 0:
			pair[k] = record{dst: append(prompt, answer...), given: len(prompt)}
		case isText && asked:
			return nil, fmt.Errorf("the prompt of a pair is empty; %s", hint)
		case !isText && len(f[key]) > 0 && f[key][0] == '[':
			if pair[k].turns, err = f.preferred(key, asked); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf(`"prompt", "chosen" and "rejected" are not all there, or not of one kind; %s`, hint)
		}
	}
	if (pair[0].turns == nil) != (pair[1].turns == nil) {
		return nil, fmt.Errorf(`of "chosen" and "rejected" one is a string and one is a list; %s`, hint)
	}
	return pair, nil
}

// preferred returns the conversation of a prompt and one of its answers, of which the last turn is learnt.
func (f fields) preferred(key string, asked bool) (*chat.Conversation, error) {
	list, prompt := bytes.TrimSpace(f[key]), bytes.TrimSpace(f["prompt"])
	switch {
	case len(prompt) > 0 && prompt[0] == '[':
		list = join(prompt, list)
	case len(prompt) > 0 && !asked && string(prompt) != "null":
		return nil, errors.New(`"prompt" is neither a string nor a list of messages; hint: [{"role": "user", "content": ...}]`)
	}
	c, err := chat.Decode(list, f["tools"])
	if err == nil && asked && c.Len() == 1 {
		c, err = chat.Decode(join(fmt.Appendf(nil, `[{"role": "user", "content": %s}]`, prompt), list), f["tools"])
	}
	if err == nil {
		err = c.LearnLast()
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", key, err)
	}
	return c, nil
}

// join joins two JSON arrays.
func join(a, b []byte) []byte {
	inside := func(list []byte) []byte { return bytes.TrimSpace(list[1 : len(list)-1]) }
	parts := [][]byte{}
	for _, list := range [][]byte{inside(a), inside(b)} {
		if len(list) > 0 {
			parts = append(parts, list)
		}
	}
	return bytes.Join([][]byte{[]byte("["), bytes.Join(parts, []byte(",")), []byte("]")}, nil)
}

// pair adds the two documents of a pair.
func (r *reader) pair(pair *[2]record, stats *FormatStats) error {
	before := stats.Documents
	for _, doc := range pair {
		if doc.turns != nil {
			if err := r.conversation(doc.turns, stats); err != nil {
				return err
			}
			continue
		}
		start := len(r.text)
		r.text = append(r.text, doc.dst...)
		r.given = append(r.given, span{start, start + doc.given})
		r.stats.InvalidBytes += invalidBytes(r.text[start:])
		r.endDocument(stats, int64(len(r.text)-start), nil)
	}
	if n := stats.Documents - before; n != 2 {
		return fmt.Errorf("the chat template makes %d documents of a pair; hint: write what the model is to read and say as strings", n)
	}
	stats.Pairs++
	return nil
}

// twins are the tokens of a pair: the documents first <= i < second, and second <= i < end.
type twins struct{ first, second, end int64 }

// Preferences makes windows of sequence+1 tokens of a corpus that consists of pairs, in its order. Pairs that have more tokens are
// left out. A corpus without any that fits is an error.
func (t *Tokens) Preferences(sequence int) (Windows, Packing, error) {
	var p Packing
	list, err := t.pairs()
	if err != nil {
		return Windows{}, p, err
	}
	lengths := make([]int64, len(list))
	for i, x := range list {
		lengths[i] = x.end - x.first
	}
	slices.Sort(lengths)
	p.Enough = lengths[(len(list)*99+99)/100-1] - 1
	all := list[:0]
	for _, x := range list {
		if x.end-x.first > int64(sequence)+1 {
			p.TooLong++
			continue
		}
		all = append(all, x)
		p.Tokens += x.end - x.first
		p.Padding += max(0, int64(sequence)-(x.end-x.first))
	}
	if len(all) == 0 {
		return Windows{}, p, fmt.Errorf("0 of %d pairs have at most the %d tokens of a window; hint: a longer sequence_length, or shorter pairs", len(list), sequence+1)
	}
	return Windows{tokens: t, first: all[0].first, count: int64(len(all)), sequence: sequence, pairs: all}, p, nil
}

// HoldOut divides windows of pairs. It holds out the last ones: at least one, and the fraction heldOut.
func (w Windows) HoldOut(heldOut float64) (train, held Windows, err error) {
	if w.count < 2 {
		return train, held, fmt.Errorf("%d pair fits into a window, one for training and one for validation are needed; hint: a longer sequence_length, or more pairs", w.count)
	}
	cut := w.count - min(max(int64(heldOut*float64(w.count)), 1), w.count-1)
	train, held = w, w
	train.pairs, train.count = w.pairs[:cut], cut
	held.pairs, held.count, held.first = w.pairs[cut:], w.count-cut, w.pairs[cut].first
	return train, held, nil
}

// pairs finds the documents of a corpus of pairs.
func (t *Tokens) pairs() ([]twins, error) {
	if n, pairs := t.stats.Documents(), t.stats.Pairs(); n != 2*pairs || pairs == 0 {
		return nil, fmt.Errorf("%d of %d documents are of pairs, of which one is preferred; hint: all, as {\"prompt\", \"chosen\", \"rejected\"}", 2*pairs, n)
	}
	list := make([]twins, 0, t.stats.Pairs())
	first, second := int64(0), int64(-1)
	for i := range t.count {
		switch {
		case unmarked(t.At(i)) != t.endOfText:
		case second < 0:
			second = i + 1
		default:
			list = append(list, twins{first, second, i + 1})
			first, second = i+1, -1
		}
	}
	if int64(len(list)) != t.stats.Pairs() || first != t.count {
		return nil, fmt.Errorf("the tokens are %d pairs, the text has %d: it has the end-of-text token inside; hint: take it out of the text", len(list), t.stats.Pairs())
	}
	return list, nil
}

// PairLength returns the length of equal documents with which attention would cost as much as it does on the windows of pairs, see
// DocumentLength; half a window if there are none.
func (t *Tokens) PairLength(sequence int) int {
	w, p, err := t.Preferences(sequence)
	if err != nil {
		return max(sequence/2, 1)
	}
	of := func(n int64) int64 { return n * (n + 1) / 2 }
	sum := p.Padding // a document for each
	for _, x := range w.pairs {
		sum += of(x.second-x.first) + of(x.end-x.second)
	}
	return lengthOf(sum/w.count, sequence)
}

// copyPair writes a pair and padding, which is given, to a window. So is the first token of each document: nothing is before it.
func (t *Tokens) copyPair(dst []int32, x twins) {
	t.copyPadded(dst, Range{x.first, x.end})
	for _, i := range []int64{0, x.second - x.first} {
		if !Given(dst[i]) {
			dst[i] = Mark(dst[i])
		}
	}
}
