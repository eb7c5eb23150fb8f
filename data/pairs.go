package data

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/data/chat"
)

// Pairs of documents, the first of which is preferred to the second. In token files they are two ordinary
// documents, one after the other, each with its prompt given. They are the same in windows, which hold as many
// pairs as fit:
//
//	prompt chosen .  prompt rejected .  prompt chosen .  prompt rejected .  . . . padding
//	given  learnt    given  learnt      given  learnt    given  learnt      given

// pair reads {"prompt", "chosen", "rejected"}: strings, or lists of messages. Lists without a prompt are conversations whose last answers
// differ; so are lists of several messages next to a prompt that is a string and their beginning.
func (f fields) pair() (*[2]record, error) {
	const hint = `hint: write {"prompt": ..., "chosen": ..., "rejected": ...}, either all strings or all lists of messages`
	pair := &[2]record{}
	for k, key := range []string{"chosen", "rejected"} {
		answer, isText, err := f.text(key)
		prompt, asked, err2 := f.text("prompt")
		if isText && !f.has("prompt") {
			if prompt, answer, err2 = f.shared(key); len(prompt) == 0 && err2 == nil {
				return nil, fmt.Errorf(`"prompt", "chosen" and "rejected" are not all given, and the answers do not begin alike; %s`, hint)
			}
		}
		if isText {
			err2 = errors.Join(err2, f.refuse("system", "history", "tools"))
		}
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
			return nil, fmt.Errorf(`"prompt", "chosen" and "rejected" are not all given, or not all of the same kind; %s`, hint)
		}
	}
	if (pair[0].turns == nil) != (pair[1].turns == nil) {
		return nil, fmt.Errorf(`one of "chosen" and "rejected" is a string and the other a list; %s`, hint)
	}
	return pair, nil
}

// shared divides the answer of a pair without a prompt: the prompt is what both answers begin with, but for a space at
// its end, as TRL has it.
func (f fields) shared(key string) (prompt, answer []byte, err error) {
	chosen, isText, err := f.text("chosen")
	rejected, isText2, err2 := f.text("rejected")
	if err := errors.Join(err, err2); err != nil || !isText || !isText2 {
		return nil, nil, err
	}
	n := 0
	for n < len(chosen) && n < len(rejected) && chosen[n] == rejected[n] {
		n++
	}
	for n > 0 && n < len(chosen) && !utf8.RuneStart(chosen[n]) {
		n--
	}
	if n > 0 && chosen[n-1] == ' ' {
		n--
	}
	if key == "chosen" {
		return chosen[:n:n], chosen[n:], nil
	}
	return rejected[:n:n], rejected[n:], nil
}

// preferred returns the conversation of a prompt and one of its answers, of which only the last turn is learnt.
func (f fields) preferred(key string, asked bool) (*chat.Conversation, error) {
	list, prompt := bytes.TrimSpace(f[key]), bytes.TrimSpace(f["prompt"])
	switch {
	case len(prompt) > 0 && prompt[0] == '[':
		list = join(prompt, list)
	case len(prompt) > 0 && !asked && string(prompt) != "null":
		return nil, errors.New(`"prompt" is neither a string nor a list of messages; hint: write [{"role": "user", "content": ...}]`)
	}
	c, err := f.decode(key, list)
	if err == nil && asked && c.Turns() == 1 {
		c, err = f.decode(key, join(fmt.Appendf(nil, `[{"role": "user", "content": %s}]`, prompt), list))
	}
	if err != nil {
		return nil, err
	}
	if err := c.LearnLast(); err != nil {
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

// pair adds the two documents of a pair, or, if verdicts are wanted, two that have one each.
func (r *reader) pair(pair *[2]record, stats *FormatStats) error {
	before := stats.Documents
	for k, doc := range pair {
		if r.want == aVerdict {
			doc.tags = []int32{1 - int32(k)}
		}
		if doc.turns != nil {
			if err := r.conversation(doc.turns, doc.tags, stats); err != nil {
				return err
			}
			continue
		}
		start := len(r.text)
		r.text = append(r.text, doc.dst...)
		r.given = append(r.given, span{start, start + doc.given})
		r.stats.InvalidBytes += invalidBytes(r.text[start:])
		r.endDocument(stats, int64(len(r.text)-start), ending{tags: doc.tags})
	}
	if n := stats.Documents - before; n != 2 {
		return fmt.Errorf("the chat template turns a pair into %d documents, not 2; hint: write the prompt and both answers as strings", n)
	}
	if r.want != aVerdict {
		stats.Pairs++
	}
	return nil
}

// Preferences makes windows of sequence+1 tokens from a range that consists of pairs. Pairs with more tokens
// are left out. A range in which no pair fits is an error.
func (t *Tokens) Preferences(r Range, sequence int) (Windows, Packing, error) {
	var p Packing
	if err := t.check(r, sequence); err != nil {
		return Windows{}, p, err
	}
	documents, left, err := t.pairs(r, sequence)
	if err != nil {
		return Windows{}, p, err
	}
	p.TooLong = left
	for i := 0; i < len(documents); i += 2 {
		if t.same(documents[i], documents[i+1]) {
			p.Alike++
		}
	}
	w := Windows{tokens: t, sequence: sequence, packed: packPieces(documents, 2, int64(sequence)+1), apart: 1}
	w.count = int64(len(w.packed.ends))
	for i := range w.count {
		n := w.taken(i)
		p.Tokens += n
		p.Padding += int64(sequence) + 1 - n
	}
	return w, p, nil
}

// same reports whether two ranges have the same tokens, of which the same are learnt.
func (t *Tokens) same(a, b Range) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if t.At(a.First+i) != t.At(b.First+i) {
			return false
		}
	}
	return true
}

// SplitPairs cuts all pairs into a training range and, after it, a validation range. Of the pairs that fit into
// windows, each range has at least one, and the validation range the fraction heldOut.
func (t *Tokens) SplitPairs(heldOut float64, sequence int) (train, validation Range, err error) {
	documents, _, err := t.pairs(t.All(), sequence)
	if err != nil {
		return train, validation, err
	}
	n := len(documents) / 2
	if n < 2 {
		return train, validation, fmt.Errorf("only %d pair fits into a window, but training and validation need one each; hint: use a longer sequence_length, or more pairs", n)
	}
	held := min(max(int(heldOut*float64(n)), 1), n-1)
	cut := documents[2*(n-held)].First
	return Range{0, cut}, Range{cut, t.count}, nil
}

// pairs finds the documents of those pairs of a range that fit into windows, and counts the pairs that do not.
func (t *Tokens) pairs(r Range, sequence int) (documents []Range, left int64, err error) {
	if n, pairs := t.stats.Documents(), t.stats.Pairs(); n != 2*pairs || pairs == 0 {
		return nil, 0, fmt.Errorf("%d of %d documents belong to pairs of a chosen and a rejected answer, but preference needs all of them to; hint: write each row as {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}", 2*pairs, n)
	}
	all, first, second := int64(0), r.First, int64(-1)
	for i := r.First; i < r.End; i++ {
		switch {
		case unmarked(t.At(i)) != t.endOfText:
			continue
		case i == max(first, second):
			return nil, 0, fmt.Errorf("token %d, an end-of-text token, is the only token of a document of a pair: prompt and answer are empty; hint: give a prompt, and use a chat template that writes it", i)
		case second < 0:
			second = i + 1
			continue
		case i+1-first > int64(sequence)+1:
			left++
		default:
			documents = append(documents, Range{first, second}, Range{second, i + 1})
		}
		first, second = i+1, -1
		all++
	}
	if first != r.End || r == t.All() && all != t.stats.Pairs() {
		return nil, 0, fmt.Errorf("the tokens cannot be divided into the pairs of the text (%d found, the text has %d): the end-of-text token occurs inside the text; hint: remove it from the text", all, t.stats.Pairs())
	}
	if len(documents) == 0 {
		return nil, 0, fmt.Errorf("none of %d pairs fits into a window of %d tokens; hint: use a longer sequence_length, or shorter pairs", all, sequence+1)
	}
	return documents, left, nil
}

// PairLength returns the length of equal documents with which attention would cost as much as it does on the windows of pairs, see
// DocumentLength; half a window if there are none.
func (t *Tokens) PairLength(sequence int) int {
	w, p, err := t.Preferences(t.All(), sequence)
	if err != nil {
		return max(sequence/2, 1)
	}
	return w.packedLength(p)
}

// Pairs returns the number of pairs in the windows of pairs before window i, 0 <= i <= Count.
func (w Windows) Pairs(i int64) int64 { return w.Documents(i) / 2 }

// Documents returns the number of documents in the windows of pairs or of examples before window i, 0 <= i <= Count.
func (w Windows) Documents(i int64) (n int64) {
	for _, part := range w.parts {
		if i <= part.count {
			return n + part.Documents(i)
		}
		n += part.Documents(part.count)
		i -= part.count
	}
	return w.packed.before(i) / int64(w.apart)
}

// Begins appends the positions in window i of pairs or of examples, 0 <= i < Count, where its documents begin; of pairs, of chosen and
// rejected ones alternately.
func (w Windows) Begins(dst []int, i int64) []int {
	w, i = w.locate(i)
	at := 0
	for k, r := range w.packed.of(i) {
		if k%w.apart == 0 {
			dst = append(dst, at)
		}
		at += int(r.Len())
	}
	return dst
}
