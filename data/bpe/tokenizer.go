package bpe

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// MaxVocabulary is the largest number of tokens that a tokenizer may have.
const MaxVocabulary = 1 << 20

// EndOfText is the text of the token that ends a document in GPT-2's
// vocabulary and in those trained here.
const EndOfText = "<|endoftext|>"

// Merge says that the adjacent tokens Left and Right become the token ID.
// All three are token ids.
type Merge struct{ Left, Right, ID int32 }

// Tokenizer is a tokenizer. It is immutable: any number of goroutines may use it
// at once, each through its own Encoder.
type Tokenizer struct {
	normal     []normalizer
	steps      []step
	tokens     [][]byte    // bytes of every id; nil for an id that no token has
	byteID     [256]int32  // the token of each single byte; -1: none
	repair     *normalizer // replaces bytes that are in no text and that no token has; nil: there are none
	merges     []Merge     // the index is the rank: lower merges first
	pairs      pairTable
	unigram    *unigram         // nil: tokens are merged
	added      []Added          // longest first
	control    map[int32]bool   // added tokens that are no content
	plain      finder           // those that are looked for in the text as it is
	normalized finder           // those that are looked for in the normalized text
	strips     bool             // added tokens take white space
	whole      map[string]int32 // with ignore_merges: pre-tokens that are tokens
	sealed     []uint64         // pairs of adjacent bytes within added tokens, one bit each; nil: no text may be cut
	lasts      [256]bool        // bytes with which added tokens end, if something is put before text behind them
	endOfText  int32            // -1: none known
	start      []int32          // tokens that transformers puts before a text
	chars      map[rune]int32   // the tokens of characters; nil: merges start from bytes
	unknown    int32            // the token of a character that has none, nor its bytes; -1: none
	fuse       bool             // several such characters in a row are one token
	joints     joints           // with chars
	parted     bool             // with chars: words end at joints
	trims      bool             // the decoder removes a leading space
	sources    []File           // the files that were read; nil: none
	hash       [32]byte
}

// vocabulary holds the inputs of newTokenizer.
type vocabulary struct {
	normal       []normalizer
	growth       int // how many times as long they can make a text
	steps        []step
	tokens       [][]byte
	merges       []Merge
	ranks        []uint32  // of merges; nil: their indexes
	scores       []float64 // of tokens of a unigram model; nil: tokens are merged
	added        []Added
	ignoreMerges bool
	endOfText    int32
	start        []int32
	chars        map[rune]int32
	bytes        [256]int32     // with chars: the tokens of bytes; -1: none
	unreached    map[int32]bool // tokens that no text has
	unknown      int32
	fuse         bool
	trims        bool

	byteLevel  bool // reading: merges start from bytes
	underlined bool // reading: from here on, ▁ is a space
	fallback   bool // reading: characters without a token become bytes
}

// newTokenizer checks the vocabulary and builds the lookup tables.
func newTokenizer(v vocabulary) (*Tokenizer, error) {
	t := &Tokenizer{normal: v.normal, steps: v.steps, tokens: v.tokens, merges: v.merges, added: v.added, endOfText: v.endOfText,
		start: v.start, chars: v.chars, byteID: v.bytes, unknown: v.unknown, fuse: v.fuse, trims: v.trims}
	for _, id := range t.start {
		if t.Token(id) == nil {
			return nil, fmt.Errorf("the token %d, which is added before a text, is not in the vocabulary", id)
		}
	}
	isAdded := t.addedIDs()
	for _, a := range t.added {
		if t.chars != nil && !a.Special { // merges may make it too
			delete(isAdded, a.ID)
		}
	}
	t.control = map[int32]bool{}
	for _, a := range t.added {
		if a.Special {
			t.control[a.ID] = true
		}
	}
	skip := func(id int32) bool { return isAdded[id] || v.unreached[id] }
	if err := t.indexBytes(skip); err != nil {
		return nil, err
	}
	t.pairs = newPairTable(len(t.merges))
	for i, m := range t.merges {
		if err := t.checkMerge(m); err != nil {
			return nil, fmt.Errorf("merge %d: %w", i, err)
		}
		rank := uint32(i)
		if v.ranks != nil {
			rank = v.ranks[i]
		}
		t.pairs.insert(m, rank)
	}
	if v.ignoreMerges {
		t.whole = make(map[string]int32, len(t.tokens))
		for id, token := range t.tokens {
			if token != nil && !skip(int32(id)) {
				t.whole[string(token)] = int32(id)
			}
		}
		for r, id := range t.chars { // rather than the tokens of their bytes
			t.whole[string(r)] = id
		}
	}
	if v.scores != nil {
		t.unigram = newUnigram(t.tokens, v.scores, skip)
	}
	t.findJoints(skip)
	if err := t.indexAdded(); err != nil {
		return nil, err
	}
	t.seal()
	t.hash = t.fingerprint()
	return t, nil
}

// impossible reports whether no text in UTF-8 has a byte.
func impossible(b int) bool { return b == 0xC0 || b == 0xC1 || b >= 0xF5 }

// indexBytes finds the tokens of single bytes. Bytes that are in no text may lack one, as they do in vocabularies made
// from text alone: where they occur all the same, they become U+FFFD, as in Python's errors="replace".
func (t *Tokenizer) indexBytes(skip func(id int32) bool) error {
	if t.chars != nil {
		if t.unknown < 0 {
			for b, id := range t.byteID {
				if id < 0 {
					return fmt.Errorf("the vocabulary has neither a token for the byte 0x%02x nor one for what is unknown; "+
						"hint: use a tokenizer whose vocabulary has all 256 bytes", b)
				}
			}
		}
		return nil
	}
	for i := range t.byteID {
		t.byteID[i] = -1
	}
	for id, token := range t.tokens {
		if len(token) == 1 && !skip(int32(id)) {
			t.byteID[token[0]] = int32(id)
		}
	}
	var lacking []byte
	for b, id := range t.byteID {
		switch {
		case id >= 0:
		case impossible(b):
			lacking = append(lacking, byte(b))
		case t.unknown >= 0 && !t.fuse:
			t.byteID[b] = t.unknown
		default:
			return fmt.Errorf("the vocabulary has no token for the byte 0x%02x; "+
				"hint: use a tokenizer whose vocabulary has all bytes of text", b)
		}
	}
	if lacking != nil {
		r := without(lacking)
		t.repair = &r
	}
	return nil
}

// findJoints finds where words of a vocabulary of characters end.
func (t *Tokenizer) findJoints(skip func(id int32) bool) {
	if t.chars == nil {
		return
	}
	reached := make([][]byte, 0, len(t.tokens))
	for id, token := range t.tokens {
		if !skip(int32(id)) {
			reached = append(reached, token)
		}
	}
	t.joints = newJoints(reached)
	_, t.parted = t.chars[' '] // else a space may be fused with unknown characters
	_, line := t.chars['\n']
	t.joints.lines = t.joints.lines && (line || t.byteID['\n'] >= 0)
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

// fingerprint hashes everything that determines the ids of a text.
func (t *Tokenizer) fingerprint() (sum [32]byte) {
	h := sha256.New()
	buffer := make([]byte, 0, 1<<16)
	word := func(values ...int) {
		if len(buffer) > cap(buffer)/2 {
			h.Write(buffer)
			buffer = buffer[:0]
		}
		for _, v := range values {
			buffer = binary.LittleEndian.AppendUint64(buffer, uint64(v))
		}
	}
	whole := 0
	if t.whole != nil {
		whole = 1
	}
	pattern, composed, lead, more := t.summary()
	word(pattern, int(t.endOfText), whole, composed, len(t.tokens), len(t.merges), len(t.added))
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
		word(lead)
	}
	buffer = append(buffer, more...)
	h.Write(buffer)
	h.Sum(sum[:0])
	return sum
}

// summary describes everything but the vocabulary: by three numbers, as files of tokens have it from when there was
// nothing else, and by a text, which is empty where the numbers say all.
func (t *Tokenizer) summary() (pattern, composed, lead int, more string) {
	var all []string
	for i := range t.normal {
		all = append(all, t.normal[i].name)
	}
	for i := range t.steps {
		s := &t.steps[i]
		all = append(all, fmt.Sprintf("%s %d %v", s.name, s.behavior, s.invert))
	}
	more = strings.Join(all, "\n")
	if t.chars == nil {
		rest, isComposed := strings.CutPrefix(more, "NFC\n")
		for p := range patterns {
			if rest == fmt.Sprintf("%s %d %v", patterns[p].regex, isolated, false) {
				pattern, more = p, ""
				if isComposed {
					composed = 1
				}
			}
		}
	} else if n := slices.Index(spacings, more); n >= 0 {
		lead, more = max(0, n-1), "" // the first two put no space before a text
	}
	if more != "" {
		pattern = int(patternOther)
	}
	for _, a := range t.added {
		if a.LeftStrip || a.RightStrip || a.SingleWord || a.Normalized && (t.chars != nil || more != "") {
			more += fmt.Sprintf("\n%d %v %v %v %v", a.ID, a.LeftStrip, a.RightStrip, a.SingleWord, a.Normalized)
		}
	}
	if t.unigram != nil {
		more += fmt.Sprintf("\nunigram %v", t.unigram.scores)
	}
	if t.repair != nil || t.unknown >= 0 && slices.Contains(t.byteID[:], -1) {
		more += fmt.Sprintf("\nunknown %d %v", t.unknown, t.fuse)
	}
	return pattern, composed, lead, more
}

// spacings are the ways to put spaces into text that have numbers in summary.
var spacings = []string{
	"Metaspace 0 0 false",
	`Replace "▁" " "`,
	"Prepend \"▁\"\nReplace \"▁\" \" \"",
	"Metaspace 2 0 false",
	"Metaspace 3 0 false",
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

// Bytes returns the number of bytes of text that ids stand for: none for an id that no token has, nor for control tokens,
// which are in no text.
func (t *Tokenizer) Bytes(ids []int32) (n int64) {
	for _, id := range ids {
		if id >= 0 && !t.control[id] {
			n += int64(len(t.Token(id)))
		}
	}
	return n
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

// seal finds out where a text may be cut.
func (t *Tokenizer) seal() {
	pairs, ok := t.inside()
	split := false
	for i := range t.steps {
		ok = ok && !(split && t.steps[i].auto == nil) // a space is put before pieces, also those that a cut makes
		split = split || t.steps[i].auto != nil
	}
	for i := range t.normal {
		ok = ok && t.normal[i].cuts
	}
	leads := slices.ContainsFunc(t.steps, func(s step) bool { return s.lead != leadNever })
	if !leads && !slices.ContainsFunc(t.normal, func(n normalizer) bool { return n.leads }) {
		t.lasts = [256]bool{}
	}
	if !ok {
		return
	}
	t.sealed = make([]uint64, 1<<16/64)
	for pair := range pairs {
		two := int(pair[0])<<8 | int(pair[1])
		t.sealed[two/64] |= 1 << (two % 64)
	}
}

// Boundary reports whether text can be cut at i so that encoding both parts, the second with Continue,
// gives the ids of the whole. It lets long text be encoded in parallel, and in little memory.
//
// Example: with nearly every tokenizer a text can be cut between a letter and a space; with one whose tokens are made of characters
// and that splits nothing, between two that are neighbours in no token.
func (t *Tokenizer) Boundary(text []byte, i int) bool {
	if t.sealed == nil || i < 1 || i >= len(text) || !t.severable(text, i) {
		return false
	}
	before, _ := utf8.DecodeLastRune(text[:i])
	after, _ := utf8.DecodeRune(text[i:])
	bits, ends := uint8(unseen), false
	if t.parted && before != ' ' {
		ends = after == ' ' && !t.joints.spaces[text[i-1]] || after == '\n' && t.joints.lines || t.unigram == nil && t.separable(before, after)
	}
	for k := range t.steps {
		if s := &t.steps[k]; s.auto != nil {
			b := s.auto.placeBetween(before, after)
			bits &= b
			ends = ends || s.covers() && b&ended != 0
		}
	}
	return bits != 0 && ends
}

// severable reports whether text[i] is in no added token with what is before it, nor is one changed because of the other.
func (t *Tokenizer) severable(text []byte, i int) bool {
	before, width := utf8.DecodeLastRune(text[:i])
	after, width2 := utf8.DecodeRune(text[i:])
	two := int(text[i-1])<<8 | int(text[i])
	switch {
	case before == utf8.RuneError && width == 1, after == utf8.RuneError && width2 == 1, string(before) == underline,
		t.sealed[two/64]&(1<<(two%64)) != 0, t.lasts[text[i-1]],
		t.strips && !inWord(before) && (unicode.IsSpace(before) || unicode.IsSpace(after)):
		return false
	}
	return len(t.normal) == 0 || !unicode.Is(unicode.M, before) && norm.NFC.Properties(text[i:]).BoundaryBefore() && norm.NFKC.Properties(text[i:]).BoundaryBefore() &&
		t.keeps(text[i-width:i]) && t.keeps(text[i:i+width2])
}

// keeps reports whether the normalizers leave a character as it is.
func (t *Tokenizer) keeps(character []byte) bool {
	e := &Encoder{t: t}
	return bytes.Equal(e.normalize(character, Within), character)
}

// Boundary is the method of tokenizers, for the text that a tokenizer is trained on.
func (p Pattern) Boundary(text []byte, i int) bool {
	if i < 1 || i >= len(text) {
		return false
	}
	before, _ := utf8.DecodeLastRune(text[:i])
	after, _ := utf8.DecodeRune(text[i:])
	return patterns[p].compiled().placeBetween(before, after) == unseen|ended
}
