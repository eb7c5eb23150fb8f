package bpe

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"unicode/utf8"
)

// Reading tokenizer.model, SentencePiece's own form.
//
// Approach: the file is a protocol buffer, of which the few fields that determine tokens are read here: pieces with
// their scores, the kind of model, and how text is normalized. The merges of a BPE model are not in it: any two
// pieces whose concatenation is a piece merge, those with the highest score first, and of equal ones the leftmost.

// protoField is a field of a protocol buffer.
type protoField struct {
	number int
	value  uint64 // of a number
	bytes  []byte // of a text or a message
}

var errProto = errors.New("it is not a protocol buffer")

// nextField splits the first field off a message.
func nextField(message []byte) (f protoField, rest []byte, err error) {
	key, n := binary.Uvarint(message)
	if n <= 0 || key>>3 == 0 || key>>3 > 1<<29 {
		return f, nil, errProto
	}
	f.number, rest = int(key>>3), message[n:]
	switch key & 7 {
	case 0:
		if f.value, n = binary.Uvarint(rest); n <= 0 {
			return f, nil, errProto
		}
		return f, rest[n:], nil
	case 1, 5:
		width := 8
		if key&7 == 5 {
			width = 4
		}
		if len(rest) < width {
			return f, nil, errProto
		}
		var padded [8]byte
		copy(padded[:], rest[:width])
		f.value = binary.LittleEndian.Uint64(padded[:])
		return f, rest[width:], nil
	case 2:
		length, n := binary.Uvarint(rest)
		if n <= 0 || length > uint64(len(rest)-n) {
			return f, nil, errProto
		}
		f.bytes = rest[n : n+int(length)]
		return f, rest[n+int(length):], nil
	}
	return f, nil, errProto
}

// eachField calls do for each field of a message.
func eachField(message []byte, do func(f protoField) error) error {
	for len(message) > 0 {
		f, rest, err := nextField(message)
		if err == nil {
			err = do(f)
		}
		if err != nil {
			return err
		}
		message = rest
	}
	return nil
}

// Kinds of pieces.
const (
	normalPiece  = 1
	unknownPiece = 2
	controlPiece = 3
	userPiece    = 4
	unusedPiece  = 5
	bytePiece    = 6
)

type sentencePiece struct {
	text  string
	score float64
	kind  uint64
}

// sentenceModel is the content of a tokenizer.model.
type sentenceModel struct {
	pieces    []sentencePiece
	unigram   bool
	suffix    bool // spaces are at the ends of words
	fallback  bool
	charsmap  []byte
	prefix    bool // a space is put before a text
	trimmed   bool // spaces at the ends and all but one in a row are left out
	unescaped bool // a space is not written as ▁
}

func readSentenceModel(raw []byte) (*sentenceModel, error) {
	m := &sentenceModel{unigram: true, prefix: true, trimmed: true}
	err := eachField(raw, func(f protoField) error {
		switch f.number {
		case 1:
			p := sentencePiece{kind: normalPiece}
			err := eachField(f.bytes, func(f protoField) error {
				switch f.number {
				case 1:
					p.text = string(f.bytes)
				case 2:
					p.score = float64(math.Float32frombits(uint32(f.value)))
				case 3:
					p.kind = f.value
				}
				return nil
			})
			m.pieces = append(m.pieces, p)
			if len(m.pieces) > MaxVocabulary {
				return fmt.Errorf("it has more than %d pieces", MaxVocabulary)
			}
			return err
		case 2:
			return eachField(f.bytes, m.trainer)
		case 3:
			return eachField(f.bytes, m.normalizer)
		}
		return nil
	})
	if err == nil && len(m.pieces) == 0 {
		err = errors.New("it has no pieces")
	}
	return m, err
}

// trainer reads a field of the trainer's settings.
func (m *sentenceModel) trainer(f protoField) error {
	switch f.number {
	case 3:
		if f.value != 1 && f.value != 2 {
			return unsupported("a model of words or characters")
		}
		m.unigram = f.value == 1
	case 24:
		m.suffix = f.value != 0
	case 35:
		m.fallback = f.value != 0
	}
	return nil
}

// normalizer reads a field of the normalizer's settings.
func (m *sentenceModel) normalizer(f protoField) error {
	switch f.number {
	case 2:
		m.charsmap = f.bytes
	case 3:
		m.prefix = f.value != 0
	case 4:
		m.trimmed = f.value != 0
	case 5:
		m.unescaped = f.value == 0
	}
	return nil
}

// parseSentencePiece builds a Tokenizer from a tokenizer.model.
func parseSentencePiece(raw, config []byte) (*Tokenizer, error) {
	m, err := readSentenceModel(raw)
	if err != nil {
		return nil, err
	}
	switch {
	case m.suffix:
		return nil, unsupported("treat_whitespace_as_suffix")
	case m.unescaped:
		return nil, unsupported("escape_whitespaces: false")
	}
	c, err := readSettings(config)
	if err != nil {
		return nil, err
	}
	v := newVocabulary()
	v.underlined, v.fallback, v.chars = true, m.fallback, map[rune]int32{}
	if err := v.spacing(m, c); err != nil {
		return nil, err
	}
	added, err := v.readPieces(m, c)
	if err != nil {
		return nil, err
	}
	if added, err = c.moreAdded(added, nil); err != nil {
		return nil, err
	}
	if err := v.readAdded(added); err != nil {
		return nil, err
	}
	v.addBytes()
	v.starts(c)
	if err := v.configure(c); err != nil {
		return nil, err
	}
	return newTokenizer(v)
}

// spacing sets what is done to a text before it is split.
func (v *vocabulary) spacing(m *sentenceModel, c *settings) error {
	if len(m.charsmap) > 0 {
		n, err := precompiled(m.charsmap)
		if err != nil {
			return err
		}
		v.normal = append(v.normal, n)
	}
	if m.trimmed {
		a, err := compile(" {2,}")
		if err != nil {
			return err
		}
		v.normal = append(v.normal, strip(true, true), replaceMatches(" {2,}", a, " "))
	}
	if v.trims = m.prefix; m.prefix && (c.Legacy == nil || *c.Legacy) {
		v.normal = append(v.normal, prepend(underline))
	}
	v.normal = append(v.normal, replace(underline, " "))
	if m.prefix && c.Legacy != nil && !*c.Legacy {
		v.steps = append(v.steps, step{name: fmt.Sprintf("Metaspace %d", leadFirst), lead: leadFirst, underlined: true})
	}
	return nil
}

// readPieces reads the vocabulary, and returns the added tokens.
func (v *vocabulary) readPieces(m *sentenceModel, c *settings) (added []addedToken, err error) {
	v.tokens = make([][]byte, len(m.pieces))
	v.fuse = true
	ids := make(map[string]int32, len(m.pieces))
	for i, p := range m.pieces {
		id := int32(i)
		if p.text == "" || !utf8.ValidString(p.text) {
			return nil, fmt.Errorf("the piece %d is empty or not UTF-8", i)
		}
		switch p.kind {
		case unknownPiece, controlPiece, userPiece:
			if v.tokens[id] = []byte(p.text); p.kind == unknownPiece {
				v.unknown = id
			}
			added = append(added, addedToken{ID: id, Content: p.text, Special: p.kind != userPiece, Normalized: p.kind == userPiece, inner: p.kind == userPiece})
		case unusedPiece:
			v.tokens[id], v.unreached[id] = []byte(p.text), true
		case normalPiece, bytePiece:
			v.readSpaced(p.text, id)
			ids[string(v.tokens[id])] = id
			if p.kind == bytePiece {
				v.fallback = true
			}
		default:
			return nil, unsupported(fmt.Sprintf("the piece %q of type %d", p.text, p.kind))
		}
	}
	if m.unigram {
		v.scores = make([]float64, len(m.pieces))
		for i, p := range m.pieces {
			v.scores[i] = p.score
		}
		return added, nil
	}
	v.readMerges(m, ids)
	return added, nil
}

// readMerges finds the merges: all ways to divide a piece into two pieces, ranked by its score.
func (v *vocabulary) readMerges(m *sentenceModel, ids map[string]int32) {
	order := make([]int32, 0, len(ids))
	for i := range m.pieces {
		if id := int32(i); m.pieces[i].kind == normalPiece {
			order = append(order, id)
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(m.pieces[b].score, m.pieces[a].score) })
	rank := uint32(0)
	for n, id := range order {
		if n > 0 && m.pieces[id].score != m.pieces[order[n-1]].score {
			rank++
		}
		token := v.tokens[id]
		for i := 1; i < len(token); i++ {
			if !utf8.RuneStart(token[i]) {
				continue
			}
			left, ok := ids[string(token[:i])]
			right, ok2 := ids[string(token[i:])]
			if ok && ok2 && m.pieces[left].kind == normalPiece && m.pieces[right].kind == normalPiece {
				v.merges = append(v.merges, Merge{left, right, id})
				v.ranks = append(v.ranks, rank)
			}
		}
	}
}

// addBytes adds the bytes of added tokens that are not among the pieces.
func (v *vocabulary) addBytes() {
	for _, a := range v.added {
		for int(a.ID) >= len(v.tokens) {
			v.tokens = append(v.tokens, nil)
		}
		if v.tokens[a.ID] == nil {
			v.tokens[a.ID] = []byte(a.Text)
		}
	}
}

// beginning matches the classes of tokenizers that put a token before a text unless told otherwise.
var beginning = regexp.MustCompile(`^(|LlamaTokenizer|CodeLlamaTokenizer|GemmaTokenizer|TokenizersBackend)(Fast)?$`)

// starts sets the token before a text to the one that the class of the tokenizer puts there.
func (v *vocabulary) starts(c *settings) {
	name, err := named("bos_token", c.BOS)
	if err != nil || !beginning.MatchString(c.Class) {
		return
	}
	for _, text := range []string{name, "<s>", "<bos>"} {
		if id := v.find(text); id >= 0 && text != "" {
			v.start = []int32{id}
			return
		}
	}
}

// precompiled reads the table with which SentencePiece normalizes text: a double-array trie of what is replaced, with
// offsets into the texts that replace it. At each place the longest that is in the trie is replaced.
func precompiled(table []byte) (n normalizer, err error) {
	if len(table) < 4 {
		return n, errors.New("the table of normalization is damaged")
	}
	size := int(binary.LittleEndian.Uint32(table))
	if size%4 != 0 || size < 4 || size > len(table)-4 {
		return n, errors.New("the table of normalization is damaged")
	}
	units := make([]uint32, size/4)
	for i := range units {
		units[i] = binary.LittleEndian.Uint32(table[4+4*i:])
	}
	texts := table[4+size:]
	if len(texts) == 0 || texts[len(texts)-1] != 0 {
		return n, errors.New("the table of normalization is damaged")
	}
	find := func(text []byte) (by []byte, width int) {
		at := trieOffset(units[0])
		for i, b := range text {
			at ^= uint32(b)
			if int(at) >= len(units) || units[at]&(1<<31|0xFF) != uint32(b) {
				break
			}
			unit := units[at]
			at ^= trieOffset(unit)
			if unit&(1<<8) != 0 && int(at) < len(units) {
				if value := int(units[at] & (1<<31 - 1)); value < len(texts) {
					by, width = texts[value:], i+1
				}
			}
		}
		if i := slices.Index(by, 0); i >= 0 {
			by = by[:i]
		}
		return by, width
	}
	return normalizer{name: fmt.Sprintf("Precompiled %x", table), apply: func(dst, text []byte, _ Place) []byte {
		for len(text) > 0 {
			by, width := find(text)
			if width == 0 {
				if _, width = utf8.DecodeRune(text); width == 0 {
					width = 1
				}
				by = text[:width]
			}
			dst = append(dst, by...)
			text = text[width:]
		}
		return dst
	}}, nil
}

// trieOffset is where the successors of a unit of a double-array trie are, relative to it.
func trieOffset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
