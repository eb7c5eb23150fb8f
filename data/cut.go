package data

import (
	"slices"
	"unicode/utf8"
)

// Where the corpus is cut into pieces.
//
// Approach: behind pieceSize bytes, at the first place that two characters show to be harmless (Boundary). Where there is none
// before maxStretch, what is read so far is split from its beginning to find one (Cut). If none is found so either,
// as in a run of combining marks that a normalizer would change, the text is cut before white space, and this is counted.

// maxStretch is the longest stretch of a document, in bytes, that is not cut because no place is known.
const maxStretch = 2 << 20

// cutter knows where a text may be cut.
type cutter interface {
	Boundary(text []byte, i int) bool       // may it be cut at i?
	Cut(text []byte, within bool) (end int) // at the latest; 0: not known; see Tokenizer.Cut
}

// findCut returns an offset at which text[start:] may be cut, at least pieceSize behind start if possible: the end of a
// document or a place inside it. It returns -1 if there is none yet.
func (r *reader) findCut(start, nextEnd int) int {
	from, limit := max(start+pieceSize, r.searched), len(r.text)
	for _, end := range r.ends[nextEnd:] {
		if end.at >= from {
			if limit = end.at; end.chat != nil {
				return limit
			}
			break
		}
	}
	isEnd := limit < len(r.text) || len(r.ends) > 0 && r.ends[len(r.ends)-1].at == limit
	stop := min(limit, start+maxStretch)
	for i := from; i < stop; i++ {
		if r.cut.Boundary(r.text, i) {
			return i
		}
	}
	switch {
	case stop == start+maxStretch:
		return r.sever(start, stop)
	case isEnd:
		return limit
	}
	r.searched = stop
	return -1
}

// sever returns where text[start:end], in which there is no boundary from pieceSize on, is cut: at the end of a document, where it
// has no effect if such a place is known, or else before white space.
func (r *reader) sever(start, end int) int {
	for i := len(r.ends) - 1; i >= 0; i-- {
		if at := r.ends[i].at; at > start && at < end {
			return at
		}
	}
	if !slices.ContainsFunc(r.given, func(s span) bool { return s.first < end && s.end > start }) { // a prompt is encoded on its own
		if n := r.cut.Cut(r.text[start:end], r.within); n > 0 {
			return start + n
		}
	}
	r.stats.Severed++
	for i := end - 1; i > start+(end-start)/2; i-- {
		if isSpace(r.text[i]) && !isSpace(r.text[i-1]) {
			return i
		}
	}
	for i := end - 1; i > end-utf8.UTFMax; i-- {
		if utf8.RuneStart(r.text[i]) {
			return i
		}
	}
	return end
}

// isSpace reports whether a byte is white space.
func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\r' || b == '\t' }
