package data

// Starts finds for each token the position in its sequence at which its document
// begins. tokens are whole sequences of that many tokens, end is the token that ends
// a document and is the last of it. What goes on from the window before is a document
// of its own.
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
		if token == end {
			start = int32(at) + 1
		}
	}
}

// lengthWindows is how many windows DocumentLength looks at: their mean is off by
// some percent at most, which is what predictions of time are off by anyway. Of long
// ones fewer do, since each has more documents, and lengthTokens are read in a second:
// a search for the longest sequence asks for dozens of lengths.
const lengthWindows, lengthTokens = 2048, 1 << 28

// DocumentLength is the length of documents of which windows of sequence tokens have
// as many pairs of a token and one of its own document up to it as the text's windows
// have in the mean, of which it looks at some all over the text. That many pairs is
// what attention within documents costs.
func (t *Tokens) DocumentLength(sequence int) int {
	sequence = int(min(int64(sequence), t.count))
	windows := windowsOf(t.count, int64(sequence))
	tokens, starts := make([]int32, sequence), make([]int32, sequence)
	var sum int64
	for i := range windows {
		t.Copy(tokens, i*(t.count-int64(sequence))/max(windows-1, 1))
		Starts(starts, tokens, sequence, t.endOfText)
		for at, start := range starts {
			sum += int64(at) - int64(start) + 1
		}
	}
	return lengthOf(sum/windows, sequence)
}

// windowsOf is how many windows of sequence tokens DocumentLength looks at in a text
// of count, which has at least one.
func windowsOf(count, sequence int64) int64 {
	return min(count/sequence, lengthWindows, max(lengthTokens/sequence, 1))
}

// lengthOf is the least length of equal documents, the last one cut off, which gives a
// sequence so many pairs: longer documents have more.
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
