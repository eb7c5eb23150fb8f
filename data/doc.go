// Package data turns files of text into training batches: corpus, tokens,
// windows, and an order that can be resumed.
//
//	files --OpenCorpus--> Corpus --Tokenize--> Tokens --Split, Windows, Mix--> Sampler --Fill--> batch
//
// # Corpus
//
// A corpus is a list of patterns. "*" matches inside a name, "**" any number of
// folders; a name that exists literally is not a pattern. $NAME is an environment variable, ~/ the home;
// $GOROOT is the Go tree even if the variable is not set. Links to folders are followed, each folder once. The
// extension determines the format:
//
//   - .jsonl, .ndjson, .json: one JSON object a line, or one array of them, {"text": ...}, a document each;
//     or {"prompt": ..., "completion": ...}, a document made of both, of which only the
//     completion is learnt; or {"messages": [...]} and the like, a conversation (package
//     chat); or {"prompt": ..., "chosen": ..., "rejected": ...}, a pair of two of these; beside any of
//     these but pairs, if labels are wanted, "label".
//   - .parquet: a table (package parquet), each row of which is such an object: columns are
//     keys, and nulls are left out. Other columns are not read, and where there is a text,
//     only that is.
//   - everything else: plain text, each file a document.
//
// All but tables may be compressed as a whole, with .gz (gzip) or .zst (zstd, windows of
// at most 128 MiB) after the extension. They are decompressed while they are read.
// Common formats that are not read yet (Arrow, other compressed files, UTF-16)
// are reported as ErrNotSupported. Bytes that are not UTF-8 are kept, since the
// tokenizer is byte-level, and counted in Stats; a byte order mark at the beginning
// of a file is dropped.
// Files are read in a fixed shuffled order, in pieces, cut where that has no effect on the tokens, between nearly any
// two words: memory is bounded by the longest stretch of a document without such a place, the longest row of JSON that
// is not one long text, at most 16 MiB, and for tables by their pages, at most 256 MiB at a time.
//
// # Tokens
//
// Tokenize encodes the corpus once, on all cores, into one flat file that later
// runs map into memory (format: tokens.go). Every document is followed by the
// tokenizer's end-of-text token, and begins with what the caller wants, which is not learnt (Options.Begin). Tokens of prompts are marked: they are read, but not
// predicted (Mark, Pairs). So are the tokens of a conversation that are not the assistant's. The file's name is
// a hash of its inputs, so another corpus or tokenizer gives another file. Opening verifies a checksum over
// every byte: CRC-32C runs at memory speed, so the check costs about as much as reading the file once. A file
// that fails is rebuilt.
//
// # Windows and sampling
//
// A Range of tokens is cut into windows of sequence length + 1 tokens, each
// beginning with the last token of the one before, so that every token but the
// first is predicted exactly once in an epoch. Split holds out the last part of
// the corpus for validation; no window spans the cut. A Sampler visits the
// training windows in a pseudo-random order, different in each epoch, which it
// computes instead of storing: its whole state is a Cursor of two numbers,
// which a checkpoint saves.
//
// Windows of several sources are read in turns, each source as often as it asks for (Mix).
//
// Whole documents, and pairs of documents, are packed into windows, with padding after them (Whole,
// Preferences).
//
// # Documents in a window
//
// A window may contain the end of one document, whole documents, and the beginning of
// another. By default attention covers all of it. With documents: separate, each token sees only the part of
// its own document that is in the window; Starts finds where documents begin. An end-of-text token belongs to
// the document that it ends. The loss covers every token either way, including the first of the next document,
// which is predicted at the end of text; with separate, from the document it ends. Positions count through the
// window. Rotary positions are relative, so this does not affect them; with learned positions a document may
// begin at any of them.
//
// # Known weakness
//
// An end-of-text token spelled out in a document that is not a conversation ends that document. Conversations
// are rendered, tables decoded and files decompressed by the one goroutine that reads. A compressed file that
// was cut between two members or frames is not detected. Only whole files are shuffled before the held-out part
// is cut off: a corpus of one file is validated on the end of that file. The cache recognises a changed file by
// size and modification time, as make does, not by content.
package data
