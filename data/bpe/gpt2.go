package bpe

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"sync"
)

// gpt2Merges holds the 50000 merges of GPT-2 in rank order, four bytes each:
// the ids of the two halves, little endian. The 256 byte tokens have the ids
// 0..255 in alphabet order, merge r makes token 256+r, and the last id is the
// end of text. That is 200 KB instead of the 1.5 MB of the published files. Origin
// and licence: gpt2.NOTICE.
//
//go:embed gpt2.merges
var gpt2Merges []byte

// GPT2 returns the tokenizer of GPT-2: 50257 tokens, the last one the end of
// text. It is built once, in a few milliseconds, and needs no network.
var GPT2 = sync.OnceValue(func() *Tokenizer {
	merges := make([]Merge, len(gpt2Merges)/4)
	for rank := range merges {
		entry := gpt2Merges[4*rank:]
		merges[rank] = Merge{
			Left:  int32(binary.LittleEndian.Uint16(entry)),
			Right: int32(binary.LittleEndian.Uint16(entry[2:])),
			ID:    int32(256 + rank),
		}
	}
	t, err := fromMerges(PatternGPT2, merges)
	if err != nil {
		panic(fmt.Sprintf("bpe: the embedded GPT-2 vocabulary is damaged: %v", err))
	}
	return t
})

// fromMerges builds a vocabulary numbered like GPT-2's: 256 bytes, the results of
// the merges, end of text. IDs must first appear in increasing order.
func fromMerges(pattern Pattern, merges []Merge) (*Tokenizer, error) {
	tokens := make([][]byte, 0, 257+len(merges))
	for _, b := range byteOrder {
		tokens = append(tokens, []byte{b})
	}
	for rank, m := range merges {
		if m.Left < 0 || m.Right < 0 || int(max(m.Left, m.Right)) >= len(tokens) || int(m.ID) > len(tokens) {
			return nil, fmt.Errorf("merge %d uses a token that does not exist yet", rank)
		}
		if int(m.ID) == len(tokens) {
			left, right := tokens[m.Left], tokens[m.Right]
			tokens = append(tokens, append(append(make([]byte, 0, len(left)+len(right)), left...), right...))
		}
	}
	end := int32(len(tokens))
	return newTokenizer(vocabulary{
		steps:     []step{pattern.step()},
		unknown:   -1,
		tokens:    append(tokens, []byte(EndOfText)),
		merges:    merges,
		added:     []Added{{ID: end, Text: EndOfText, Special: true}},
		endOfText: end,
	})
}
