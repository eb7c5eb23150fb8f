package bpe

import (
	"container/heap"
	"context"
	"fmt"
)

// Training.
//
// Approach: the corpus is reduced to its distinct pre-tokens and how often each
// occurs. The most frequent adjacent pair over all of them becomes a token, and so
// on until the vocabulary has its size. For every pair the words that contain it
// are recorded, so a merge touches only those; counts in the heap may be too high
// and are corrected when they reach the top.
//
// Example: "low" 5 times, "lower" 2, "newest" 6: e+s (6), es+t (6), l+o (7)
// in the order l+o, lo+w, e+s, ... by count. Ties go to the pair with the
// smaller left id, then the smaller right id, so the result depends on the
// counts alone, not on any order.
//
// Known weakness: all distinct pre-tokens are in memory (about 100 bytes each).

// minCount is the number of times a pair must occur to become a token.
const minCount = 2

// maxTrainWord is the longest pre-token, in bytes, that is trained on. Longer
// ones are data, not language (base64, generated tables), and each would be
// distinct.
const maxTrainWord = 4096

// Counter counts pre-tokens. It is not safe for concurrent use; give each
// goroutine one and Merge them.
type Counter struct {
	pattern Pattern
	far     scan
	words   map[string]*int64
}

// NewCounter returns an empty counter of the pre-tokens of pattern.
func NewCounter(pattern Pattern) *Counter {
	return &Counter{pattern: pattern, words: make(map[string]*int64)}
}

// Add counts the pre-tokens of text; it does not recognise added tokens.
func (c *Counter) Add(text []byte) {
	c.far.reset()
	a := patterns[c.pattern].compiled()
	for at := 0; at < len(text); {
		end := a.match(text, at, &c.far)
		if end-at <= maxTrainWord {
			c.add(text[at:end], 1)
		}
		at = end
	}
}

func (c *Counter) add(word []byte, n int64) {
	if count := c.words[string(word)]; count != nil {
		*count += n
		return
	}
	first := n // not &n: that would allocate in every call
	c.words[string(word)] = &first
}

// Merge adds the counts of other.
func (c *Counter) Merge(other *Counter) {
	for word, n := range other.words {
		if count := c.words[word]; count != nil {
			*count += *n
		} else {
			c.words[word] = n
		}
	}
}

// Train returns a tokenizer of size tokens, numbered like GPT-2's: 256 bytes, the
// merges, the end of text. If the text has too few repeated pairs it is smaller;
// see VocabularySize. progress, if not nil, is called with the tokens made so far.
func Train(ctx context.Context, words *Counter, size int, progress func(made, size int)) (*Tokenizer, error) {
	if size < 257 || size > MaxVocabulary {
		return nil, fmt.Errorf("a vocabulary cannot have %d tokens; hint: use 257 (256 bytes and the end of text) to %d",
			size, MaxVocabulary)
	}
	if len(words.words) == 0 {
		return nil, fmt.Errorf("training a tokenizer: the corpus has no words of at most %d bytes, and longer ones are not used; hint: use another tokenizer, such as gpt2", maxTrainWord)
	}
	tr := newTrainer(words)
	for len(tr.tokens) < size-1 && tr.step() {
		if len(tr.merges)%64 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if progress != nil {
				progress(len(tr.tokens)+1, size)
			}
		}
	}
	t, err := fromMerges(words.pattern, tr.merges)
	if err != nil {
		return nil, fmt.Errorf("training a tokenizer: %w", err)
	}
	if progress != nil {
		progress(t.VocabularySize(), t.VocabularySize())
	}
	return t, nil
}

// trainer is the state between two merges.
type trainer struct {
	symbols []int32 // of all words, one after the other
	words   []trainWord
	pairs   map[uint64]*trainPair
	queue   pairQueue
	tokens  []string // bytes of every token so far
	ids     map[string]int32
	merges  []Merge
	touched []uint64 // pairs whose counts the current merge raised
}

// trainWord is a distinct pre-token: symbols[start:start+length].
type trainWord struct {
	start, length int
	count         int64
}

// trainPair is an adjacent pair: how often it occurs, and the words that contain it.
// Some words may have lost it since or be listed twice.
type trainPair struct {
	count   int64
	words   []int32
	touched bool
}

// pairQueue is a heap, the most frequent pair on top.
type pairQueue []queued

type queued struct {
	count int64
	key   uint64 // left<<32 | right
}

func (q pairQueue) Len() int { return len(q) }
func (q pairQueue) Less(i, j int) bool {
	if q[i].count != q[j].count {
		return q[i].count > q[j].count
	}
	return q[i].key < q[j].key
}
func (q pairQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *pairQueue) Push(x any)   { *q = append(*q, x.(queued)) }
func (q *pairQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

func newTrainer(words *Counter) *trainer {
	tr := &trainer{pairs: make(map[uint64]*trainPair), ids: make(map[string]int32)}
	var byteID [256]int32
	for id, b := range byteOrder {
		byteID[b] = int32(id)
		tr.tokens = append(tr.tokens, string([]byte{b}))
		tr.ids[string([]byte{b})] = int32(id)
	}
	for word, count := range words.words {
		w := trainWord{len(tr.symbols), len(word), *count}
		for i := range len(word) {
			tr.symbols = append(tr.symbols, byteID[word[i]])
		}
		tr.words = append(tr.words, w)
		for i := w.start; i+1 < w.start+w.length; i++ {
			tr.count(tr.symbols[i], tr.symbols[i+1], w.count, int32(len(tr.words)-1))
		}
	}
	tr.enqueue()
	return tr
}

// count adds n to the count of a pair that occurs in the word with this index.
func (tr *trainer) count(left, right int32, n int64, word int32) {
	key := pairKey(left, right)
	p := tr.pairs[key]
	if p == nil {
		p = &trainPair{}
		tr.pairs[key] = p
	}
	p.count += n
	if n < 0 {
		return
	}
	if last := len(p.words) - 1; last < 0 || p.words[last] != word {
		p.words = append(p.words, word)
	}
	if !p.touched {
		p.touched = true
		tr.touched = append(tr.touched, key)
	}
}

// enqueue queues the touched pairs with their current counts.
func (tr *trainer) enqueue() {
	for _, key := range tr.touched {
		p := tr.pairs[key]
		p.touched = false
		if p.count >= minCount {
			heap.Push(&tr.queue, queued{p.count, key})
		}
	}
	tr.touched = tr.touched[:0]
}

// step merges the most frequent pair. It reports false if none is left.
func (tr *trainer) step() bool {
	for len(tr.queue) > 0 {
		top := heap.Pop(&tr.queue).(queued)
		p := tr.pairs[top.key]
		if p == nil || p.count < minCount {
			continue
		}
		if p.count != top.count {
			heap.Push(&tr.queue, queued{p.count, top.key})
			continue
		}
		delete(tr.pairs, top.key)
		left, right := int32(top.key>>32), int32(uint32(top.key))
		text := tr.tokens[left] + tr.tokens[right]
		id, known := tr.ids[text]
		if !known { // else another pair already makes the same text
			id = int32(len(tr.tokens))
			tr.ids[text] = id
			tr.tokens = append(tr.tokens, text)
		}
		merge := Merge{left, right, id}
		tr.merges = append(tr.merges, merge)
		for _, word := range p.words {
			tr.apply(merge, word)
		}
		delete(tr.pairs, top.key) // apply may have inserted it again
		tr.enqueue()
		return true
	}
	return false
}

// apply merges every occurrence in one word, left to right, and updates the counts of
// the pairs that disappear and appear.
func (tr *trainer) apply(m Merge, word int32) {
	w := &tr.words[word]
	s := tr.symbols[w.start : w.start+w.length]
	n := 0 // symbols written; s[:n] is done
	for i := 0; i < len(s); i++ {
		if s[i] != m.Left || i+1 >= len(s) || s[i+1] != m.Right {
			s[n] = s[i]
			n++
			continue
		}
		if n > 0 {
			tr.count(s[n-1], m.Left, -w.count, word)
			tr.count(s[n-1], m.ID, w.count, word)
		}
		if i+2 < len(s) {
			tr.count(m.Right, s[i+2], -w.count, word)
			tr.count(m.ID, s[i+2], w.count, word)
		}
		s[n] = m.ID
		n++
		i++
	}
	w.length = n
}
