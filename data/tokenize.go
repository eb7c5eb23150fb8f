package data

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/internal/filelock"
)

// Options configures the functions that read the whole corpus.
type Options struct {
	// Workers is the number of goroutines that work alongside the reader; 0: one per core.
	Workers int
	// Chat renders conversations; nil: they are an error.
	Chat *chat.Template
	// Pairs takes the pair from a line that has both a pair and another document.
	Pairs bool
	// Verdicts wants rows of a prompt, a completion and a verdict, their "label", true or false. A pair is two of these.
	Verdicts bool
	// Labels are the names of labels, with one of which each row has a text: {"text", "label"}, or another document and a "label", a name or its
	// number in the list; if there is one name, each row has a value of that name, a number. None: rows have no labels.
	Labels []string
	// Unlabelled ignores the labels of rows with Labels: all have the first, or the value 0.
	Unlabelled bool
	// SkipBad leaves out lines, and rows of Parquet, that are no document, and counts them; else one is an error.
	SkipBad bool
	// TextField is the field of rows in which the text of a document is: the first of these that is there; none: text.
	TextField []string
	// Begin is put before every document that is not a conversation (templates write their own), and is not learnt;
	// see bpe.Tokenizer.Start.
	Begin []int32
	// Progress, if not nil, is called from time to time with the bytes of files
	// processed, by one goroutine at a time.
	Progress func(done, total int64)
}

func (o Options) workers() int {
	if o.Workers > 0 {
		return o.Workers
	}
	return runtime.GOMAXPROCS(0)
}

func (o Options) names() []string {
	if len(o.TextField) == 0 {
		return usualField
	}
	return o.TextField
}

func (o Options) wanted() wanted {
	switch {
	case len(o.Labels) > 0:
		return aLabel
	case o.Verdicts:
		return aVerdict
	case o.Pairs:
		return aPair
	}
	return anything
}

func (o Options) progress(done, total int64) {
	if o.Progress != nil {
		o.Progress(min(done, total), total)
	}
}

// rowsVersion changes when rows come to mean other documents.
const rowsVersion = 3

// cacheKey identifies everything that the tokens depend on: the format, the tokenizer, the
// chat template, whether pairs are wanted, and the fingerprint of the corpus.
func cacheKey(c *Corpus, t *bpe.Tokenizer, o Options) (key [sha256.Size]byte, err error) {
	h := sha256.New()
	tokenizer := t.Hash()
	fmt.Fprintf(h, "%s %d %x\n", magic, formatVersion, tokenizer)
	if o.Chat != nil {
		fmt.Fprintf(h, "chat %x\n", o.Chat.Hash())
	}
	if o.Pairs {
		fmt.Fprintln(h, "pairs")
	}
	if o.Verdicts {
		fmt.Fprintln(h, "verdicts")
	}
	if len(o.Labels) > 0 {
		fmt.Fprintf(h, "labels %q %v\n", o.Labels, o.Unlabelled)
	}
	if o.SkipBad {
		fmt.Fprintln(h, "without bad rows")
	}
	if !slices.Equal(o.names(), usualField) {
		fmt.Fprintf(h, "text in %q\n", o.names())
	}
	if len(o.Begin) > 0 {
		fmt.Fprintf(h, "begin %d\n", o.Begin)
	}
	if slices.ContainsFunc(c.files, func(f File) bool { return f.Format != Text }) {
		fmt.Fprintf(h, "rows %d\n", rowsVersion)
	}
	files, err := c.Fingerprint()
	h.Write(files[:])
	h.Sum(key[:0])
	return key, err
}

// ErrNoEnd means that a tokenizer has no token to end documents with.
var ErrNoEnd = errors.New("it has no end-of-text token to put between documents; " +
	"hint: name one as eos_token in the tokenizer_config.json beside the tokenizer.json")

// Tokenize returns the tokens of the corpus from a file in the folder dir, which
// is created if it is missing. It reuses the file of an earlier call with the same
// corpus and tokenizer if its checksums hold. A new file gets its name only when it
// is complete and synced.
func Tokenize(ctx context.Context, c *Corpus, t *bpe.Tokenizer, dir string, o Options) (*Tokens, error) {
	if _, ok := t.EndOfText(); !ok {
		return nil, fmt.Errorf("tokenizer: %w", ErrNoEnd)
	}
	key, err := cacheKey(c, t, o)
	if err != nil {
		return nil, fmt.Errorf("reading the corpus: %w", err)
	}
	path := filepath.Join(dir, "tokens-"+hex.EncodeToString(key[:8])+".bin")
	if old, err := OpenTokens(path); err == nil {
		if old.key == key {
			return old, nil
		}
		old.Close() // another corpus whose key has the same prefix
	}
	if err := build(ctx, c, t, path, key, o); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return nil, fmt.Errorf("tokenizing: %w; hint: free some space in %s, where the token file takes up to four bytes for each byte of text",
				err, dir)
		}
		return nil, fmt.Errorf("reading the corpus: %w", err)
	}
	return OpenTokens(path)
}

// build writes the token file: to a temporary name, synced, renamed.
func build(ctx context.Context, c *Corpus, t *bpe.Tokenizer, path string, key [sha256.Size]byte, o Options) (err error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	removeLeftovers(dir)
	out := takeOver(dir, name)
	if out == nil {
		if out, err = os.CreateTemp(dir, name+".*"+temporary); err != nil {
			return err
		}
		_, _ = filelock.Try(out) // where there are no locks, nobody takes over anything
	}
	left := false // what the next build goes on with
	defer func() {
		if err == nil {
			return
		}
		out.Close()
		if !left {
			os.Remove(out.Name())
		}
	}()
	if left, err = writeTokens(ctx, c, t, out, key, o); err != nil {
		return err
	}
	if err := out.Chmod(0o644); err != nil { // CreateTemp makes it private
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	if err := filelock.Publish(out, path); err != nil {
		return err
	}
	return checkpoint.Disk{}.SyncDir(dir)
}

// writeTokens writes the tokens in as few bytes as their ids, and any marks, need: a corpus whose ids need two
// bytes is started over when its first prompt is found. It goes on with what an earlier build left in out, and reports
// whether it leaves something there itself when ctx ends.
func writeTokens(ctx context.Context, c *Corpus, t *bpe.Tokenizer, out *os.File, key [sha256.Size]byte, o Options) (left bool, err error) {
	end, _ := t.EndOfText()
	h := header{width: 4, key: key, vocabulary: t.VocabularySize(), endOfText: end}
	if h.vocabulary <= 1<<16 {
		h.width = 2
	}
	content := sha256.New()
	before, err := goOn(out, &h, content)
	if err != nil {
		before = &unfinished{}
		content.Reset()
	}
	left, err = h.fill(ctx, c, t, out, content, before, o)
	for errors.Is(err, errMarked) || errors.Is(err, errOtherPieces) {
		if errors.Is(err, errMarked) {
			h.width = 4
		}
		content.Reset()
		left, err = h.fill(ctx, c, t, out, content, &unfinished{}, o)
	}
	return left, err
}

// fill writes the whole file, from what was there before on: the tokens, then the header, which has their checksum. Until then the
// header says how far it is; left is whether that is something when ctx ends.
func (h *header) fill(ctx context.Context, c *Corpus, t *bpe.Tokenizer, out *os.File, content hash.Hash, before *unfinished, o Options) (left bool, err error) {
	if before.Pieces == 0 {
		h.count, h.checksum = 0, 0
		if err := out.Truncate(0); err != nil { // also the header
			return false, err
		}
		if _, err := out.Seek(headerSize, io.SeekStart); err != nil {
			return false, err
		}
	}
	w := &tokenWriter{header: h, out: bufio.NewWriterSize(out, 1<<20), content: content}
	done := *before
	h.stats, err = encodeAll(ctx, c, t, o, before, func(j *job) error {
		if err := w.write(j.ids); err != nil {
			return err
		}
		if err := w.out.Flush(); err != nil {
			return err
		}
		done.add(j.text)
		return done.leave(out, h)
	})
	if err != nil {
		return ctx.Err() != nil && done.Pieces > 0, err
	}
	content.Sum(h.content[:0])
	page, err := h.encode()
	if err != nil {
		return false, err
	}
	_, err = out.WriteAt(page, 0)
	return false, err
}

// temporary is how the names of files end that are not complete.
const temporary = ".tmp"

// removeLeftovers deletes what interrupted and killed builds left if nobody has gone on with it for a week.
func removeLeftovers(dir string) {
	const age = 7 * 24 * time.Hour
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), "tokens-") || strings.HasSuffix(e.Name(), ".bin") {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > age {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// tokenWriter writes tokens in the header's width and updates its count and checksums.
type tokenWriter struct {
	header  *header
	out     *bufio.Writer
	content hash.Hash
	buffer  []byte
}

// errMarked reports a marked or inner token in a file of two bytes per token.
var errMarked = errors.New("a marked token takes four bytes")

func (w *tokenWriter) write(ids []int32) error {
	w.buffer = w.buffer[:0]
	if w.header.width == 2 {
		for _, id := range ids {
			if id < 0 || id >= 1<<16 {
				return errMarked
			}
			w.buffer = binary.LittleEndian.AppendUint16(w.buffer, uint16(id))
		}
	} else {
		for _, id := range ids {
			w.buffer = binary.LittleEndian.AppendUint32(w.buffer, uint32(id))
		}
	}
	w.header.count += int64(len(ids))
	w.header.checksum = crc32.Update(w.header.checksum, castagnoli, w.buffer)
	w.content.Write(w.buffer)
	_, err := w.out.Write(w.buffer)
	return err
}

// encodeAll passes the encoded pieces of the corpus, from those on that were done before, to write, in order: one goroutine
// reads, workers encode, and the caller's goroutine collects the pieces in the
// order in which they were read.
func encodeAll(ctx context.Context, c *Corpus, t *bpe.Tokenizer, o Options, before *unfinished, write func(*job) error) (Stats, error) {
	ctx, cancel := context.WithCancel(ctx)
	workers := o.workers()
	todo := make(chan *job, workers)
	inOrder := make(chan *job, 2*workers) // bounds the pieces in memory
	free := make(chan []int32, 3*workers) // buffers for reuse
	var group sync.WaitGroup
	defer group.Wait() // after cancel
	defer cancel()

	var stats Stats
	var readError error
	var known unfinished // of what was done before
	group.Go(func() {
		defer close(inOrder)
		defer close(todo)
		stats, readError = c.read(ctx, o, t, func(p piece) error {
			if known.Pieces < before.Pieces {
				o.progress(p.read, c.bytes)
				if known.add(p.text); known.Pieces == before.Pieces && !before.same(&known) {
					return errOtherPieces
				}
				return nil
			}
			j := &job{piece: p, done: make(chan struct{})}
			if err := send(ctx, inOrder, j); err != nil {
				return err
			}
			return send(ctx, todo, j)
		})
	})
	end, _ := t.EndOfText()
	for range workers {
		group.Go(func() { (&encoder{t.NewEncoder(), o.Begin, end}).jobs(todo, free) })
	}
	for j := range inOrder {
		select {
		case <-j.done:
		case <-ctx.Done():
			return Stats{}, ctx.Err() // the reader still counts
		}
		if err := write(j); err != nil {
			return Stats{}, err
		}
		o.progress(j.read, c.bytes)
		select {
		case free <- j.ids:
		default:
		}
	}
	if readError == nil && known.Pieces < before.Pieces {
		readError = errOtherPieces
	}
	return stats, readError
}

// job is a piece of the corpus to encode; ids has its tokens when done is closed.
type job struct {
	piece
	ids  []int32
	done chan struct{}
}

func send(ctx context.Context, to chan<- *job, j *job) error {
	select {
	case to <- j:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// encoder encodes pieces with the memory of one goroutine.
type encoder struct {
	*bpe.Encoder
	begin     []int32 // before every document but conversations
	endOfText int32
}

// jobs encodes jobs until todo is closed. It takes buffers from free as far as
// there are any.
func (e *encoder) jobs(todo <-chan *job, free <-chan []int32) {
	for j := range todo {
		select {
		case j.ids = <-free:
		default:
		}
		j.ids = e.piece(j.ids[:0], j.piece)
		close(j.done)
	}
}

// piece appends the tokens of a piece, those of prompts marked, and the end of text
// after every document that ends in it.
func (e *encoder) piece(ids []int32, p piece) []int32 {
	start := 0
	for _, end := range p.ends {
		if end.chat != nil {
			ids = e.conversation(ids, p.text[start:end.at], end.chat)
		} else {
			ids = append(e.document(ids, &p, start, end.at), e.endOfText)
		}
		for _, tag := range end.tags {
			ids = append(ids, tagged(tag))
		}
		start = end.at
	}
	return e.document(ids, &p, start, len(p.text))
}

// document appends the tokens of text[start:end], one document or a part of one. It takes the prompt with
// which it begins, if any, from p.given.
func (e *encoder) document(ids []int32, p *piece, start, end int) []int32 {
	if start == end {
		return ids
	}
	place, first := bpe.Within, len(ids)
	begins := start > 0 || !p.within
	if begins {
		place = bpe.AtStart
	}
	given := first
	if len(p.given) > 0 && p.given[0].first < end {
		prompt := p.given[0]
		p.given = p.given[1:]
		ids, _ = e.Part(ids, p.text[prompt.first:prompt.end], place, nil)
		start, place, given = prompt.end, bpe.Within, len(ids)
	}
	ids, _ = e.Part(ids, p.text[start:end], place, nil)
	for i := first; i < given; i++ {
		ids[i] = Mark(ids[i])
	}
	if begins {
		ids = e.beginning(ids, first)
	}
	return ids
}

// beginning puts what documents begin with before the document ids[first:], unless it is there, and marks it.
func (e *encoder) beginning(ids []int32, first int) []int32 {
	same := func(i int) bool { return first+i < len(ids) && unmarked(ids[first+i]) == e.begin[i] }
	for i := range e.begin {
		if !same(i) {
			ids = slices.Insert(ids, first, e.begin...)
			break
		}
	}
	for i := range e.begin {
		ids[first+i] = Mark(unmarked(ids[first+i]))
	}
	return ids
}

// conversation appends the tokens of a conversation, those that are not learnt marked. The end of text after it
// is not learnt: an answer ends with its turn. Where turns end with that token too, all but the last are inner
// ones.
func (e *encoder) conversation(ids []int32, text []byte, d *chat.Document) []int32 {
	first, at, place := len(ids), 0, bpe.AtStart
	control := chat.Controls(d.Control, 0)
	part := func(end int, given bool) {
		end = max(at, e.Reach(text, end, control))
		start := len(ids)
		ids, place = e.Part(ids, text[at:end], place, chat.Controls(d.Control, at))
		for i := start; i < len(ids); i++ {
			if ids[i] == e.endOfText {
				ids[i] = inner(e.endOfText)
			}
			if given {
				ids[i] = Mark(ids[i])
			}
		}
		at = end
	}
	for _, s := range d.Learnt {
		part(s.First, true)
		part(s.End, false)
	}
	part(len(text), true)
	last := len(ids) - 1
	switch {
	case last < first || ID(ids[last]) != e.endOfText:
		return append(ids, Mark(e.endOfText))
	case Given(ids[last]):
		ids[last] = Mark(e.endOfText)
	default:
		ids[last] = e.endOfText
	}
	return ids
}

// TrainTokenizer trains a byte-level BPE tokenizer of size tokens on the corpus.
// The result does not depend on the number of workers. Progress counts the bytes
// read, since reading takes nearly all of the time.
func TrainTokenizer(ctx context.Context, c *Corpus, size int, o Options) (*bpe.Tokenizer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := o.workers()
	todo := make(chan piece, 2*workers)
	counters := make([]*bpe.Counter, workers)
	var group sync.WaitGroup
	for i := range counters {
		counters[i] = bpe.NewCounter(trainPattern)
		group.Go(func() {
			for p := range todo {
				start := 0
				for _, end := range append(p.ends, ending{at: len(p.text)}) {
					counters[i].Add(p.text[start:end.at])
					start = end.at
				}
			}
		})
	}
	_, err := c.read(ctx, Options{SkipBad: o.SkipBad, TextField: o.TextField, Verdicts: o.Verdicts, Labels: o.Labels}, trainPattern, func(p piece) error {
		o.progress(p.read, c.bytes)
		todo <- p
		return nil
	})
	close(todo)
	group.Wait()
	if err != nil {
		return nil, fmt.Errorf("training a tokenizer: %w", err)
	}
	for _, other := range counters[1:] {
		counters[0].Merge(other)
	}
	return bpe.Train(ctx, counters[0], size, nil)
}

// trainPattern splits the text that a tokenizer is trained on. It joins
// punctuation with the line break after it and groups digits by three, which
// takes fewer tokens than GPT-2's pattern for code and tables.
const trainPattern = bpe.PatternLlama3

// OpenTokenizer resolves the configuration's tokenizer: the known name gpt2, a
// tokenizer.json or a folder with one, or bpe-N, which trains N tokens on the
// corpus.
func OpenTokenizer(ctx context.Context, name string, c *Corpus, o Options) (*bpe.Tokenizer, error) {
	if name == "gpt2" {
		return bpe.GPT2(), nil
	}
	if digits, ok := strings.CutPrefix(name, "bpe-"); ok {
		if size, err := strconv.Atoi(digits); err == nil {
			return TrainTokenizer(ctx, c, size, o)
		}
	}
	t, err := bpe.Load(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%q is neither a file nor a folder with a tokenizer.json; "+
			"hint: use gpt2, bpe-4096 (trained on the corpus), or the path of a tokenizer.json", name)
	}
	return t, err
}
