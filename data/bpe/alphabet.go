package bpe

import "unicode/utf8"

// Vocabulary files are text, so they write each byte as one printable
// character: bytes that are printable in Latin-1 stand for themselves, the
// other 68 become U+0100, U+0101, ... in byte order. A space is U+0120.
// GPT-2 numbers its 256 byte tokens in the order of these characters, and so
// do tokenizers trained here.

// alphabet maps a byte to its character, byteOf a character below U+0144 back
// to its byte (-1: no such character), byteOrder an id 0..255 to its byte.
var alphabet, byteOf, byteOrder = makeAlphabet()

func makeAlphabet() (runes [256]rune, back [0x144]int16, order [256]byte) {
	next := rune(0x100)
	for b := range runes {
		printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE
		if printable {
			runes[b] = rune(b)
		} else {
			runes[b] = next
			next++
		}
	}
	for i := range back {
		back[i] = -1
	}
	for b, r := range runes {
		back[r] = int16(b)
	}
	n := 0
	for _, b := range back {
		if b >= 0 {
			order[n] = byte(b)
			n++
		}
	}
	return runes, back, order
}

// appendPrintable appends token, each byte written as its character of the alphabet.
func appendPrintable(dst []byte, token []byte) []byte {
	for _, b := range token {
		dst = utf8.AppendRune(dst, alphabet[b])
	}
	return dst
}

// appendBytes is the inverse of appendPrintable. It reports false if a character
// does not belong to the alphabet.
func appendBytes(dst []byte, printable string) ([]byte, bool) {
	for _, r := range printable {
		if r >= rune(len(byteOf)) || byteOf[r] < 0 {
			return dst, false
		}
		dst = append(dst, byte(byteOf[r]))
	}
	return dst, true
}
