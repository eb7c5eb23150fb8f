package bpe

import (
	"fmt"
	"slices"
	"strings"
)

// Pieces is a vocabulary of characters as software needs it that merges by the scores of tokens, as SentencePiece does: of any two
// neighbours that are a token together, the one with the highest score first, and of equal ones the leftmost.
type Pieces struct {
	List   []Piece // by id
	Added  []Added
	Prefix bool // a space is put before a text, and after each added token
}

// Piece is a token: ▁ is a space in it, and a byte is written as <0x0A>. One that the tokenizer does not have has no text.
type Piece struct {
	Text    string
	Score   float32
	Byte    bool // stands for a byte of a character that has no token
	Unknown bool // stands for a character without a token
}

// Pieces returns the tokenizer in this form; ok is false if it has none: where it normalizes or splits text otherwise, or not every
// byte has a token. A token's score is the rank of the first merge that makes it, below zero: so the order of merges stays where
// each pair that makes a token is a merge, as it is in what was SentencePiece's.
func (t *Tokenizer) Pieces() (p Pieces, ok bool) {
	if t.chars == nil || t.unigram != nil || t.whole != nil || slices.Contains(t.byteID[:], -1) || len(t.steps) > 1 {
		return p, false
	}
	for _, n := range t.normal {
		switch n.name {
		case prepend(underline).name, prepend(" ").name:
			p.Prefix = true
		case replace(underline, " ").name, replace(" ", underline).name:
		default:
			return p, false
		}
	}
	if len(t.steps) == 1 && (!strings.HasPrefix(t.steps[0].name, "Metaspace") || t.steps[0].lead != leadNever) {
		return p, false // a space before text that does not begin with one
	}
	p.List, p.Added = make([]Piece, len(t.tokens)), t.added
	isAdded := t.addedIDs()
	for id, token := range t.tokens {
		text := string(token)
		if !isAdded[int32(id)] {
			text = strings.ReplaceAll(text, " ", underline)
		}
		p.List[id] = Piece{Text: text, Score: float32(-len(t.merges)), Unknown: int32(id) == t.unknown}
	}
	for rank, m := range slices.Backward(t.merges) {
		p.List[m.ID].Score = float32(-rank)
	}
	for b, id := range t.byteID {
		p.List[id] = Piece{Text: fmt.Sprintf("<0x%02X>", b), Byte: true}
	}
	return p, true
}
