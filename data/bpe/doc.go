// Package bpe converts any bytes to token ids and back, with the tokenizers of published models: byte-level BPE (GPT-2,
// Llama 3, Qwen, ...), SentencePiece's BPE (Llama 2, Mistral 7B, Gemma 3; spaced.go) and unigram models (unigram.go).
//
// # How text becomes tokens
//
//  1. Added tokens ("<|endoftext|>") are cut out of the text (added.go), and the rest is normalized (normal.go).
//  2. It is split into pre-tokens, roughly words with the space before them, by regular expressions (split.go). Each is
//     compiled to an automaton when the tokenizer is read (automaton.go), so this is linear in the text whatever the
//     text is.
//  3. Every pre-token starts as its bytes. The adjacent pair with the lowest
//     rank is merged repeatedly until no pair has a rank (encode.go).
//
// So no text is out of vocabulary, invalid UTF-8 included, and Decode(Encode(x))
// is x for all bytes x, as long as the tokenizer has no normalizer (Qwen2 has
// one: text that is not in Unicode's composed form NFC comes back composed).
//
// # Where a tokenizer comes from
//
//   - GPT2: the published 50257-token vocabulary, in the binary.
//   - Load, Parse: a Hugging Face tokenizer.json, SentencePiece's tokenizer.model, or a vocab.json and merges.txt.
//     Whatever would change the ids and is not supported is an error that names it; nothing is skipped.
//   - Train: learns merges from counted words, with the same result as the
//     trainer of Hugging Face tokenizers, whatever the order of the input.
//
// A Tokenizer is immutable and shared; an Encoder holds the scratch memory of
// one goroutine and appends to the slice it is given, without allocating.
//
// # Known weakness
//
// A pre-token longer than 64 KiB (no space in 64 KiB of letters, say) is cut
// there before merging, between characters, so that memory stays bounded; Hugging Face would merge
// across the cut, unless it is between characters that no token has side by side. Letters, numbers and spaces are those of Go's Unicode tables,
// which can be a version older or newer than another program's. Where a
// tokenizer asks for NFC, a joiner is inserted among more than 30 combining marks
// on one letter (UAX 15, Stream-Safe Text Format).
//
// Sources: Sennrich et al. 2016 (arXiv:1508.07909) for BPE, Radford et al. 2019
// for the byte-level variant and the pre-token pattern of GPT-2.
package bpe
