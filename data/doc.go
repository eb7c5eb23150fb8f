// Package data turns files of text into training batches: corpus, tokens,
// windows, an order that can be resumed.
//
//	files --OpenCorpus--> Corpus --Tokenize--> Tokens --Split, Windows--> Sampler --Fill--> batch
//
// # Corpus
//
// A corpus is a list of patterns. "*" matches inside a name, "**" any number of
// folders, $NAME an environment variable, and $GOROOT the Go tree that every
// machine with Go has, set or not. Links to folders are followed, each folder once. Two formats are recognised by the extension:
//
//   - .jsonl, .ndjson, .json: one JSON object a line, {"text": ...}, a document each.
//   - everything else: plain text, a file is a document.
//
// Either may be compressed by gzip, with .gz behind the extension.
// Formats that people have and that are not read yet (Parquet, other compressed
// files, chat data, UTF-16) are errors that say so (ErrNotSupported). Bytes that are
// not UTF-8 are kept, since the tokenizer is byte-level, and counted in Stats; a byte
// order mark at the beginning of a file is dropped.
// Files are read in a fixed shuffled order, in pieces, cut at line breaks between
// visible characters: memory is bounded by the longest stretch of a document without
// one, which may be 1 GiB.
//
// # Tokens
//
// Tokenize encodes the corpus once, on all cores, into one flat file that later
// runs map into memory (format: tokens.go). Every document is followed by the
// tokenizer's end-of-text token. The file's name is a hash of what it was made
// from, so another corpus or tokenizer makes another file. Opening verifies a
// checksum over every byte: CRC-32C runs at the speed of memory, so the check
// costs about as much as reading the file once. A file that fails is made anew.
//
// # Windows and sampling
//
// A Range of tokens is cut into windows of sequence length + 1 tokens, each
// beginning with the last token of the one before, so that every token but the
// first is predicted exactly once in an epoch. Split holds out the last part of
// the corpus for validation; no window reaches across. A Sampler visits the
// training windows in a pseudo-random order, another one in each epoch, that it
// computes instead of storing: its whole state is a Cursor of two numbers,
// which a checkpoint saves.
//
// # Documents in a window
//
// A window has what it cuts out of the text: the end of one document, whole ones, the
// beginning of another. Either attention looks at all of it, across ends of text, or,
// with documents: separate, each token sees its own document only, as far as it is in
// the window: Starts finds where those begin. An end of text belongs to the document
// that it ends. Everything is trained either way, also that the next document begins
// with the token that it begins with, which the end of text predicts; separate, it
// predicts that from the document it ends. Positions count through the window:
// rotary ones are relative, so that makes no difference to them, but with learned
// ones a document may begin at any of them.
//
// # Known weakness
//
// An end of text that is written out in a document is one that ends it.
// Only whole files are shuffled before the held-out part is cut off: a corpus
// of one file is validated on the end of that file. The cache recognises a changed
// file by size and time of change, as make does, not by content.
package data
