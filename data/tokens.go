package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"

	"github.com/athanor-llm/athanor/data/bpe"
)

// The token file. All numbers are little endian; the header is one page:
//
//	offset  size  field
//	     0     8  magic "ATHTOKEN"
//	     8     4  version, 2
//	    12     4  bytes per token, 2 (ids below 65536) or 4
//	    16     8  number of tokens
//	    24    32  key: SHA-256 of the file's inputs (cacheKey)
//	    56     4  CRC-32C of all tokens
//	    60     4  length of the description
//	    64     4  vocabulary size
//	    68     4  id of the end-of-text token
//	    72    32  SHA-256 of all tokens
//	   104     n  description: Stats as JSON, then zeros
//	  4092     4  CRC-32C of the 4092 bytes before
//	  4096        tokens, of 4 bytes if there are marked ones, which are negative,
//	              inner ones or tags (see Mark, inner, tagged)
//
// CRC-32C (Castagnoli) finds every burst of up to 32 wrong bits and all but one
// in 4e9 of other damage, and the processor computes it at several GB/s. It does
// not protect against an adversary, so ids are also compared with the vocabulary size.
const (
	magic         = "ATHTOKEN"
	formatVersion = 2
	headerSize    = 4096
	fieldsSize    = 104
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header holds the fields of the first page.
type header struct {
	width      int
	count      int64
	key        [sha256.Size]byte
	checksum   uint32
	vocabulary int
	endOfText  int32
	content    [sha256.Size]byte
	stats      Stats
}

func (h *header) encode() ([]byte, error) {
	description, err := json.Marshal(h.stats)
	if err != nil {
		return nil, err
	}
	if len(description) > headerSize-fieldsSize-4 {
		// A path can be as long as a page: leave it out.
		stats := h.stats
		stats.FirstInvalid = "..."
		if description, err = json.Marshal(stats); err != nil {
			return nil, err
		}
	}
	page := make([]byte, headerSize)
	le := binary.LittleEndian
	copy(page, magic)
	le.PutUint32(page[8:], formatVersion)
	le.PutUint32(page[12:], uint32(h.width))
	le.PutUint64(page[16:], uint64(h.count))
	copy(page[24:], h.key[:])
	le.PutUint32(page[56:], h.checksum)
	le.PutUint32(page[60:], uint32(len(description)))
	le.PutUint32(page[64:], uint32(h.vocabulary))
	le.PutUint32(page[68:], uint32(h.endOfText))
	copy(page[72:], h.content[:])
	copy(page[fieldsSize:], description)
	le.PutUint32(page[headerSize-4:], crc32.Checksum(page[:headerSize-4], castagnoli))
	return page, nil
}

// decodeHeader reads and checks the first page of a file of size bytes.
func decodeHeader(page []byte, size int64) (h header, err error) {
	le := binary.LittleEndian
	if len(page) < headerSize || string(page[:8]) != magic {
		return h, errors.New("it is not a token file, or is truncated in its header")
	}
	if v := le.Uint32(page[8:]); v != formatVersion {
		return h, fmt.Errorf("its version is %d, but this program reads version %d", v, formatVersion)
	}
	if le.Uint32(page[headerSize-4:]) != crc32.Checksum(page[:headerSize-4], castagnoli) {
		return h, errors.New("its header is damaged (checksum)")
	}
	h.width = int(le.Uint32(page[12:]))
	h.count = int64(le.Uint64(page[16:]))
	copy(h.key[:], page[24:])
	h.checksum = le.Uint32(page[56:])
	h.vocabulary = int(le.Uint32(page[64:]))
	h.endOfText = int32(le.Uint32(page[68:]))
	copy(h.content[:], page[72:])
	if h.width != 2 && h.width != 4 {
		return h, fmt.Errorf("it has %d bytes per token, neither 2 nor 4", h.width)
	}
	// Bounds before conversions: a hostile number must not wrap around.
	if le.Uint32(page[64:]) > bpe.MaxVocabulary || le.Uint32(page[68:]) >= le.Uint32(page[64:]) {
		return h, fmt.Errorf("its vocabulary of %d tokens is too large, or does not contain its end-of-text token, %d", le.Uint32(page[64:]), le.Uint32(page[68:]))
	}
	if h.count < 0 || h.count > math.MaxInt64/8 || headerSize+h.count*int64(h.width) != size {
		return h, fmt.Errorf("its %d bytes do not match its %d tokens: it is truncated, or has grown", size, h.count)
	}
	length := int64(le.Uint32(page[60:]))
	if length > headerSize-fieldsSize-4 {
		return h, errors.New("its description is longer than the header")
	}
	if err := json.Unmarshal(page[fieldsSize:fieldsSize+length], &h.stats); err != nil {
		return h, fmt.Errorf("its description: %w", err)
	}
	return h, nil
}

// Mark marks a token as given: one that is read, as a part of a prompt, but not
// predicted. Windows and batches have marked tokens as they are in the file.
func Mark(id int32) int32 { return ^id }

// innerBit is above all ids.
const innerBit = 1 << 24

// tagBit marks tags, and is above innerBit.
const (
	tagShift = 25
	tagBit   = 1 << tagShift
)

// tagged returns what a tag below innerBit is in a file. Tags follow the end of a document: the number of its label, the halves of its value (see
// valueTags), or its verdict, 1 or 0. Windows have a label, unmarked, in the place of the end, and the others not at all.
func tagged(tag int32) int32 { return Mark(tag | tagBit) }

// TagOf returns the tag that a token of a file is.
func TagOf(token int32) (tag int, ok bool) {
	id := unmarked(token)
	return int(id &^ tagBit), id&tagBit != 0
}

// inner returns the end-of-text token that ends not a document, but a turn of a conversation. It may be marked too.
func inner(id int32) int32 { return id | innerBit }

// ID returns the id of a token, which may be marked or inner.
func ID(token int32) int32 { return Plain(unmarked(token)) }

// Plain returns the id of an unmarked token, which may be inner, or a tag.
func Plain(token int32) int32 { return token &^ (innerBit | tagBit) }

// unmarked returns a token that may be marked without the mark.
func unmarked(token int32) int32 {
	if token < 0 {
		return ^token
	}
	return token
}

// Given reports whether a token is marked.
func Given(token int32) bool { return token < 0 }

// Pairs writes the inputs of a window to tokens and the token after each to targets, or -1 if that is given. It
// returns the number of targets that are not. window has one token more than either. Tokens may be inner, which
// Starts needs to know; Plain removes that.
func Pairs(tokens, targets, window []int32) (learnt int) {
	for i := range tokens {
		tokens[i], targets[i] = unmarked(window[i]), -1
		if next := window[i+1]; !Given(next) {
			targets[i] = ID(next)
			learnt++
		}
	}
	return learnt
}

// Tokens is a token file, mapped into memory and verified. It is immutable and
// safe for concurrent use until Close. Meanwhile the file may be deleted or replaced
// by rename, but must not be written to or truncated: reading a mapped page that the
// file no longer has kills the program (SIGBUS).
type Tokens struct {
	header
	path    string
	file    []byte // the whole file
	body    []byte // the tokens
	unmap   func() error
	largest int32 // id
}

// OpenTokens maps a token file and verifies all its checksums.
func OpenTokens(path string) (*Tokens, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	defer in.Close()
	t, err := openTokens(in)
	if err != nil {
		return nil, fmt.Errorf("token file %s: %w; hint: delete it; it is made again from the corpus", path, err)
	}
	t.path = path
	return t, nil
}

func openTokens(in *os.File) (*Tokens, error) {
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	page := make([]byte, headerSize)
	if _, err := io.ReadFull(in, page); err != nil {
		return nil, fmt.Errorf("it is truncated in its header (%d bytes)", info.Size())
	}
	h, err := decodeHeader(page, info.Size())
	if err != nil {
		return nil, err
	}
	file, unmap, err := mapFile(in, info.Size())
	if err != nil {
		return nil, err
	}
	t := &Tokens{header: h, file: file, body: file[headerSize:], unmap: unmap}
	if crc32.Checksum(t.body, castagnoli) != h.checksum {
		return nil, errors.Join(errors.New("its tokens are damaged (checksum)"), unmap())
	}
	if t.largest = t.maximum(); int(t.largest) >= h.vocabulary {
		return nil, errors.Join(fmt.Errorf("it has the token %d, beyond its vocabulary of %d", t.largest, h.vocabulary), unmap())
	}
	return t, nil
}

// maximum returns the largest id.
func (t *Tokens) maximum() (largest int32) {
	if t.width == 2 {
		for at := 0; at < len(t.body); at += 2 {
			largest = max(largest, int32(binary.LittleEndian.Uint16(t.body[at:])))
		}
		return largest
	}
	for at := 0; at < len(t.body); at += 4 {
		token := int32(binary.LittleEndian.Uint32(t.body[at:]))
		id := token ^ token>>31                                       // unmarked, without branches
		largest = max(largest, id&^innerBit&^(id<<(31-tagShift)>>31)) // 0 of a tag
	}
	return largest
}

// Largest returns the largest id.
func (t *Tokens) Largest() int32 { return t.largest }

// Close releases the mapping. The Tokens and its Windows must not be used afterwards.
func (t *Tokens) Close() error {
	t.body, t.file = nil, nil
	return t.unmap()
}

// Len returns the number of tokens, including end-of-text tokens.
func (t *Tokens) Len() int64 { return t.count }

// Hash returns the SHA-256 of all tokens, marks included.
func (t *Tokens) Hash() [sha256.Size]byte { return t.content }

// EndOfText returns the token after every document.
func (t *Tokens) EndOfText() int32 { return t.endOfText }

// Stats returns the statistics of the corpus the file was made from.
func (t *Tokens) Stats() Stats { return t.stats }

// Path returns the path of the token file.
func (t *Tokens) Path() string { return t.path }

// At returns token i, 0 <= i < Len, which may be marked.
func (t *Tokens) At(i int64) int32 {
	if t.width == 2 {
		return int32(binary.LittleEndian.Uint16(t.body[2*i:]))
	}
	return int32(binary.LittleEndian.Uint32(t.body[4*i:]))
}

// Copy fills dst with the tokens starting at first.
func (t *Tokens) Copy(dst []int32, first int64) {
	if t.width == 2 {
		from := t.body[2*first : 2*(first+int64(len(dst)))]
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint16(from[2*i:]))
		}
		return
	}
	from := t.body[4*first : 4*(first+int64(len(dst)))]
	for i := range dst {
		dst[i] = int32(binary.LittleEndian.Uint32(from[4*i:]))
	}
}

// Document returns how many documents end before token i. It reads all tokens before it.
func (t *Tokens) Document(i int64) (n int64) {
	for k := range i {
		if unmarked(t.At(k)) == t.endOfText {
			n++
		}
	}
	return n
}

// Range is the tokens First <= i < End.
type Range struct {
	First int64 `json:"first"`
	End   int64 `json:"end"`
}

// Len returns the number of tokens.
func (r Range) Len() int64 { return r.End - r.First }

// All returns the range of all tokens.
func (t *Tokens) All() Range { return Range{0, t.count} }

// Stretch is a range of tokens of a file.
type Stretch struct {
	Tokens *Tokens
	Range
}

// Entropy returns the unigram entropy of text, of one tokenizer, in nats per token, -sum p ln p over
// the frequencies of tokens that are not given: the loss of the best model that ignores
// context. It is 0 for no text.
func Entropy(text ...Stretch) float64 {
	var counts []int64
	n := 0.0
	for _, s := range text {
		if counts == nil {
			counts = make([]int64, s.Tokens.vocabulary)
		}
		for i := s.First; i < s.End; i++ {
			if token := s.Tokens.At(i); !Given(token) {
				counts[ID(token)]++
				n++
			}
		}
	}
	sum := 0.0
	for _, c := range counts {
		if c > 0 {
			sum -= float64(c) / n * math.Log(float64(c)/n)
		}
	}
	return sum
}
