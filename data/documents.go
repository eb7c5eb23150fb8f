package data

// Starts writes to starts, for each token, the position in its sequence at which its
// document begins. tokens holds whole sequences of sequence tokens, without marks; end is the last token of
// each document, except where it is an inner one, or a tag is in its place. A document cut by the start of a sequence counts as beginning
// there.
//
//	tokens  a b . c d e . f      a second sequence  g . h ...
//	starts  0 0 0 3 3 3 3 7                         0 0 2
func Starts(starts, tokens []int32, sequence int, end int32) {
	start := int32(0)
	for i, token := range tokens {
		at := i % sequence
		if at == 0 {
			start = 0
		}
		starts[i] = start
		if token == end || token&tagBit != 0 {
			start = int32(at) + 1
		}
	}
}

// lengthWindows is the number of windows that DocumentLength samples: the error of
// their mean is a few percent at most, like that of time predictions. lengthTokens
// bounds the tokens sampled, about a second's reading, since a search for the longest
// sequence asks for dozens of lengths; long windows have more documents, so fewer suffice.
const lengthWindows, lengthTokens = 2048, 1 << 28

// DocumentLength returns the length of equal documents with which attention within
// documents would cost as much as it does on this text: a window of sequence tokens
// would have as many (query, key) pairs as windows sampled evenly from the text have
// on average.
func (t *Tokens) DocumentLength(sequence int) int {
	sequence = int(min(int64(sequence), t.count))
	windows := windowsOf(t.count, int64(sequence))
	tokens, starts := make([]int32, sequence), make([]int32, sequence)
	var sum int64
	for i := range windows {
		t.Copy(tokens, i*(t.count-int64(sequence))/max(windows-1, 1))
		for i := range tokens {
			tokens[i] = unmarked(tokens[i])
		}
		Starts(starts, tokens, sequence, t.endOfText)
		for at, start := range starts {
			sum += int64(at) - int64(start) + 1
		}
	}
	return lengthOf(sum/windows, sequence)
}

// windowsOf returns the number of windows of sequence tokens that DocumentLength
// samples from a text of count >= sequence tokens.
func windowsOf(count, sequence int64) int64 {
	return min(count/sequence, lengthWindows, max(lengthTokens/sequence, 1))
}

// lengthOf returns the least length of equal documents, the last one cut off, that
// gives a sequence at least the given number of pairs. Pairs grow with the length.
func lengthOf(pairs int64, sequence int) int {
	of := func(n int) int64 { return int64(n) * int64(n+1) / 2 }
	lo, hi := 1, sequence
	for lo < hi {
		if n := (lo + hi) / 2; int64(sequence/n)*of(n)+of(sequence%n) < pairs {
			lo = n + 1
		} else {
			hi = n
		}
	}
	return lo
}
