package bpe

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxVocabulary is the largest number of tokens that a tokenizer may have.
const MaxVocabulary = 1 << 20

// EndOfText is the text of the token that ends a document in GPT-2's
// vocabulary and in those trained here.
const EndOfText = "<|endoftext|>"

// Merge says that the adjacent tokens Left and Right become the token ID.
// All three are token ids.
type Merge struct{ Left, Right, ID int32 }

// Added is a token that is cut out of the text before the text is split.
type Added struct {
	ID      int32
	Text    string
	Special bool // a control token, not content
}

// Tokenizer is a BPE tokenizer. It is immutable: any number of goroutines may use it
// at once, each through its own Encoder.
type Tokenizer struct {
	pattern      Pattern
	tokens       [][]byte   // bytes of every id; nil for an id that no token has
	byteID       [256]int32 // the token of each single byte
	merges       []Merge    // the index is the rank: lower merges first
	pairs        pairTable
	added        []Added // longest first
	starts       []uint64
	whole        map[string]int32 // with ignore_merges: pre-tokens that are tokens
	composed     bool             // text is brought to NFC first
	uncut        bool             // an added token has a newline in it
	endOfText    int32            // -1: none known
	start        []int32          // tokens that transformers puts before a text
	chars        map[rune]int32   // SentencePiece: the tokens of characters; nil: merges start from bytes
	leading      leading          // SentencePiece
	breaks       string           // SentencePiece: a word ends before any of these
	trims        bool             // the decoder removes a leading space
	source       []byte           // the tokenizer.json that was read; nil: none
	sourceConfig []byte           // the tokenizer_config.json next to it; nil: none
	hash         [32]byte
}

// vocabulary holds the inputs of newTokenizer.
type vocabulary struct {
	pattern      Pattern
	tokens       [][]byte
	merges       []Merge
	added        []Added
	ignoreMerges bool
	composed     bool
	endOfText    int32
	start        []int32
	chars        map[rune]int32
	bytes        [256]int32 // with chars: the tokens of bytes; -1: none
	leading      leading
	breaks       string
	trims        bool
}

// newTokenizer checks the vocabulary and builds the lookup tables.
func newTokenizer(v vocabulary) (*Tokenizer, error) {
	t := &Tokenizer{pattern: v.pattern, tokens: v.tokens, merges: v.merges,
		added: v.added, composed: v.composed, endOfText: v.endOfText, start: v.start}
	t.chars, t.byteID, t.leading, t.breaks, t.trims = v.chars, v.bytes, v.leading, v.breaks, v.trims
	if t.chars == nil {
		for i := range t.byteID {
			t.byteID[i] = -1
		}
	}
	for _, added := range t.added {
		if added.Text == "" {
			return nil, fmt.Errorf("added token %d is empty", added.ID)
		}
	}
	for _, id := range t.start {
		if t.Token(id) == nil {
			return nil, fmt.Errorf("the token %d, which is added before a text, is not in the vocabulary", id)
		}
	}
	isAdded := t.addedIDs()
	for id, token := range t.tokens {
		if t.chars == nil && len(token) == 1 && !isAdded[int32(id)] {
			t.byteID[token[0]] = int32(id)
		}
	}
	for b, id := range t.byteID {
		if id < 0 {
			return nil, fmt.Errorf("the vocabulary has no token for the byte 0x%02x; "+
				"hint: use a tokenizer whose vocabulary has all 256 bytes", b)
		}
	}
	t.pairs = newPairTable(len(t.merges))
	for rank, m := range t.merges {
		if err := t.checkMerge(m); err != nil {
			return nil, fmt.Errorf("merge %d: %w", rank, err)
		}
		t.pairs.insert(m, uint32(rank))
	}
	if v.ignoreMerges {
		t.whole = make(map[string]int32, len(t.tokens))
		for id, token := range t.tokens {
			if token != nil && !isAdded[int32(id)] {
				t.whole[string(token)] = int32(id)
			}
		}
	}
	t.indexAdded()
	t.hash = t.fingerprint()
	return t, nil
}

func (t *Tokenizer) addedIDs() map[int32]bool {
	ids := make(map[int32]bool, len(t.added))
	for _, added := range t.added {
		ids[added.ID] = true
	}
	return ids
}

func (t *Tokenizer) checkMerge(m Merge) error {
	for _, id := range []int32{m.Left, m.Right, m.ID} {
		if id < 0 || int(id) >= len(t.tokens) || len(t.tokens[id]) == 0 {
			return fmt.Errorf("there is no token %d", id)
		}
	}
	left, right, both := t.tokens[m.Left], t.tokens[m.Right], t.tokens[m.ID]
	if len(left)+len(right) != len(both) || !bytes.HasPrefix(both, left) || !bytes.HasSuffix(both, right) {
		return fmt.Errorf("token %q is not %q followed by %q", both, left, right)
	}
	return nil
}

// indexAdded sorts the added tokens longest first and records the pairs of bytes
// they start with, so that text without them is searched at memory speed.
func (t *Tokenizer) indexAdded() {
	if len(t.added) == 0 {
		return
	}
	sort.SliceStable(t.added, func(i, j int) bool { return len(t.added[i].Text) > len(t.added[j].Text) })
	t.uncut = slices.ContainsFunc(t.added, func(a Added) bool { return strings.Contains(a.Text, "\n") })
	t.starts = make([]uint64, 1<<16/64)
	for _, added := range t.added {
		first := int(added.Text[0]) << 8
		low, high := first, first+255 // a token of one byte: whatever follows
		if len(added.Text) > 1 {
			low = first + int(added.Text[1])
			high = low
		}
		for two := low; two <= high; two++ {
			t.starts[two/64] |= 1 << (two % 64)
		}
	}
}

// findAdded returns the offset and the index in t.added of the first added token in
// text at or after from, the longest if several start there; index -1: none. Special tokens count only where
// control, if not nil, says so.
func (t *Tokenizer) findAdded(text []byte, from int, control func(first, end int) bool) (at, index int) {
	if t.starts == nil {
		return len(text), -1
	}
	for i := from; i < len(text); i++ {
		two := int(text[i]) << 8
		if i+1 < len(text) {
			two |= int(text[i+1])
		}
		if t.starts[two/64]&(1<<(two%64)) == 0 {
			continue
		}
		for index, added := range t.added {
			rest := text[i:]
			if len(rest) >= len(added.Text) && string(rest[:len(added.Text)]) == added.Text &&
				(control == nil || !added.Special || control(i, i+len(added.Text))) {
				return i, index
			}
		}
	}
	return len(text), -1
}

// FindSpecial returns the first special token in text and where it ends; ok is false if there is none.
func (t *Tokenizer) FindSpecial(text []byte) (id int32, end int, ok bool) {
	for at := 0; ; {
		first, index := t.findAdded(text, at, nil)
		if index < 0 {
			return 0, 0, false
		}
		if at = first + len(t.added[index].Text); t.added[index].Special {
			return t.added[index].ID, at, true
		}
	}
}

// fingerprint hashes everything that determines the ids of a text.
func (t *Tokenizer) fingerprint() (sum [32]byte) {
	h := sha256.New()
	var buffer []byte
	word := func(values ...int) {
		for _, v := range values {
			buffer = binary.LittleEndian.AppendUint64(buffer, uint64(v))
		}
	}
	whole, composed := 0, 0
	if t.whole != nil {
		whole = 1
	}
	if t.composed {
		composed = 1
	}
	word(int(t.pattern), int(t.endOfText), whole, composed, len(t.tokens), len(t.merges), len(t.added))
	for _, token := range t.tokens {
		word(len(token))
		buffer = append(buffer, token...)
	}
	for _, m := range t.merges {
		word(int(m.Left), int(m.Right), int(m.ID))
	}
	for _, added := range t.added {
		word(int(added.ID), len(added.Text))
		buffer = append(buffer, added.Text...)
	}
	if t.chars != nil {
		word(int(t.leading))
	}
	h.Write(buffer)
	h.Sum(sum[:0])
	return sum
}

// Hash identifies the tokenizer: two with the same hash give the same ids for
// every text.
func (t *Tokenizer) Hash() [32]byte { return t.hash }

// VocabularySize returns the largest id plus one: the rows of the embedding.
func (t *Tokenizer) VocabularySize() int { return len(t.tokens) }

// EndOfText returns the token that ends a document; ok is false if none is known.
func (t *Tokenizer) EndOfText() (id int32, ok bool) { return t.endOfText, t.endOfText >= 0 }

// Start returns the tokens that transformers puts before a prompt, such as Llama 3's
// <|begin_of_text|>; usually none. Encode does not add them, and neither does training,
// which marks the end of documents instead.
func (t *Tokenizer) Start() []int32 { return t.start }

// Token returns the bytes of one token, which the caller must not change; nil
// for an id that no token has.
func (t *Tokenizer) Token(id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) {
		return nil
	}
	return t.tokens[id]
}

// AppendDecode appends the text of ids to dst. Bytes come back as they were:
// the result is UTF-8 only where the ids make it so. An id outside the
// vocabulary is an error.
func (t *Tokenizer) AppendDecode(dst []byte, ids []int32) ([]byte, error) {
	for i, id := range ids {
		token := t.Token(id)
		if token == nil {
			return dst, fmt.Errorf("token %d of the sequence: the vocabulary has no id %d (it has %d tokens)",
				i, id, len(t.tokens))
		}
		dst = append(dst, token...)
	}
	return dst, nil
}

// Decode returns the text of ids; see AppendDecode.
func (t *Tokenizer) Decode(ids []int32) ([]byte, error) { return t.AppendDecode(nil, ids) }

// Encode returns the ids of text; for many texts an Encoder is faster.
func (t *Tokenizer) Encode(text []byte) []int32 { return t.NewEncoder().Encode(nil, text) }

// Boundary reports whether text can be cut at i so that encoding both parts
// gives the ids of the whole: right after a single newline between two visible
// characters, the second of which is not a slash. It holds for every pattern (a newline ends a pre-token, in
// PatternO200k with the slashes after it, and nothing before it depends on what follows) and lets long text be
// encoded in parallel.
func Boundary(text []byte, i int) bool {
	return i >= 2 && i < len(text) && text[i-1] == '\n' && text[i] != '/' && visible(utf8.DecodeLastRune(text[:i-1])) && visible(utf8.DecodeRune(text[i:]))
}

// Boundary is the function Boundary for this tokenizer: it is never true if an added
// token contains a newline or a space is inserted before a text.
func (t *Tokenizer) Boundary(text []byte, i int) bool {
	return !t.uncut && t.chars == nil && Boundary(text, i)
}

// visible reports whether r, decoded from the given number of bytes, is valid and
// neither white space nor control.
func visible(r rune, bytes int) bool {
	return r > ' ' && r != 0x7F && !unicode.IsSpace(r) && !(r == utf8.RuneError && bytes <= 1)
}
