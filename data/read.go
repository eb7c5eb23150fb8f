package data

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/size"
)

// Reading the corpus in pieces.
//
// Approach: one goroutine reads all files in sequence and emits pieces of about
// pieceSize bytes, which any number of goroutines process. A piece holds many small
// documents or a part of a large one. Documents are cut only where this has no effect on the tokenizer
// (Tokenizer.Boundary, Tokenizer.Cut), so tokens and word counts do not depend on the pieces. Where no such place
// is known for 2 MiB, they are cut before white space all the same, which is counted.
//
// Example: documents "ab", "" and "cd" are one piece, text "abcd" with ends 2
// and 4; the empty one is counted and skipped.

// pieceSize is the size in bytes from which a piece is emitted.
const pieceSize = 1 << 20

// maxLine is the longest row of JSON, in bytes, that is in memory as a whole: see longrow.go.
const maxLine = 16 << 20

// often is how much the heap may grow, in percent, between two collections while a long row is read.
const often = 20

// maxPages is the memory in bytes that pages of a table may take at a time.
const maxPages = 256 << 20

// tooLong says that a row has more than so many bytes.
type tooLong int64

func (t tooLong) Error() string {
	return fmt.Sprintf("a row of more than %s that is not one long text; hint: check that it is text, and break it into several documents", size.Format(int64(t)))
}

// piece is consecutive text of the corpus. Documents end at text[:ends[i].at];
// the last one may continue in the next piece.
type piece struct {
	text   []byte
	ends   []ending
	given  []span // prompts, in order, or the parts of them that are in this piece
	read   int64  // bytes of files read so far
	within bool   // the text begins within a document
}

// ending is where a document ends. A conversation is whole in its piece.
type ending struct {
	at   int
	chat *chat.Document // what is learnt of a conversation; nil: it is not one
	tags []int32        // numbers that follow it in the file; nil: none
}

// span is the bytes first <= i < end of a text.
type span struct{ first, end int }

// clip returns the part of a span in text[first:end], counted from first.
func (s span) clip(first, end int) span {
	return span{max(s.first, first) - first, min(s.end, end) - first}
}

// Stats counts what reading a corpus found.
type Stats struct {
	Text    FormatStats `json:"text"`
	JSONL   FormatStats `json:"jsonl"`
	Parquet FormatStats `json:"parquet"`
	// Empty counts empty files, texts and lines, which are skipped.
	Empty int64 `json:"empty"`
	// InvalidBytes counts the bytes that are not UTF-8, InvalidFiles the files
	// that have some, FirstInvalid names the first.
	InvalidBytes int64  `json:"invalid_bytes"`
	InvalidFiles int64  `json:"invalid_files"`
	FirstInvalid string `json:"first_invalid,omitempty"`
	// Bad counts the rows that Options.SkipBad has left out, FirstBad says where the first is and what is wrong with it.
	Bad      int64  `json:"bad_rows,omitempty"`
	FirstBad string `json:"first_bad_row,omitempty"`
	// Severed counts the places at which documents were cut although it is not known that this has no effect.
	Severed int64 `json:"severed,omitempty"`
}

// FormatStats counts one format. Bytes are those of the documents' text.
type FormatStats struct {
	Files         int64 `json:"files"`
	Documents     int64 `json:"documents"`
	Bytes         int64 `json:"bytes"`
	Prompts       int64 `json:"prompts,omitempty"` // documents of a prompt and a completion
	Conversations int64 `json:"conversations,omitempty"`
	Rendered      int64 `json:"rendered,omitempty"` // documents made from conversations
	Pairs         int64 `json:"pairs,omitempty"`    // of documents, of which the first is preferred
	Tagged        int64 `json:"labels,omitempty"`   // documents whose row has one
	Beside        int64 `json:"beside,omitempty"`   // rows that may have another document too, which is not read
}

// Add adds what reading another corpus found.
func (s *Stats) Add(o Stats) {
	for _, f := range []struct{ to, from *FormatStats }{{&s.Text, &o.Text}, {&s.JSONL, &o.JSONL}, {&s.Parquet, &o.Parquet}} {
		f.to.Files += f.from.Files
		f.to.Documents += f.from.Documents
		f.to.Bytes += f.from.Bytes
		f.to.Prompts += f.from.Prompts
		f.to.Conversations += f.from.Conversations
		f.to.Rendered += f.from.Rendered
		f.to.Beside += f.from.Beside
		f.to.Pairs += f.from.Pairs
		f.to.Tagged += f.from.Tagged
	}
	s.Empty += o.Empty
	s.InvalidBytes += o.InvalidBytes
	s.InvalidFiles += o.InvalidFiles
	s.FirstInvalid = cmp.Or(s.FirstInvalid, o.FirstInvalid)
	s.Bad += o.Bad
	s.FirstBad = cmp.Or(s.FirstBad, o.FirstBad)
	s.Severed += o.Severed
}

// Documents returns the number of non-empty documents.
func (s Stats) Documents() int64 { return s.Text.Documents + s.JSONL.Documents + s.Parquet.Documents }

// Bytes returns the size of their text.
func (s Stats) Bytes() int64 { return s.Text.Bytes + s.JSONL.Bytes + s.Parquet.Bytes }

// Conversations returns the number of conversations.
func (s Stats) Conversations() int64 { return s.JSONL.Conversations + s.Parquet.Conversations }

// Texts returns the number of documents that are not made from conversations.
func (s Stats) Texts() int64 { return s.Documents() - s.rendered() }

// rendered returns the number of documents made from conversations.
func (s Stats) rendered() int64 { return s.JSONL.Rendered + s.Parquet.Rendered }

// Prompts returns the number of documents of a prompt and a completion.
func (s Stats) Prompts() int64 { return s.JSONL.Prompts + s.Parquet.Prompts }

// Pairs returns the number of pairs of documents of which the first is preferred.
func (s Stats) Pairs() int64 { return s.JSONL.Pairs + s.Parquet.Pairs }

// Tagged returns the number of documents whose row has a label: a verdict, or one of Options.Labels.
func (s Stats) Tagged() int64 { return s.JSONL.Tagged + s.Parquet.Tagged }

// String describes in one line what was recognised.
func (s Stats) String() string {
	var out bytes.Buffer
	add := func(format string, args ...any) {
		if out.Len() > 0 {
			out.WriteString("; ")
		}
		fmt.Fprintf(&out, format, args...)
	}
	for _, f := range []struct {
		format Format
		FormatStats
	}{{Text, s.Text}, {JSONL, s.JSONL}, {Parquet, s.Parquet}} {
		if f.Files > 0 {
			add("%v: %d files, %d documents, %d bytes", f.format, f.Files, f.Documents, f.Bytes)
		}
		if f.Prompts > 0 {
			add("of %d documents with a prompt, only the completion is learnt", f.Prompts)
		}
		if f.Pairs > 0 {
			add("%d pairs of a chosen and a rejected answer", f.Pairs)
		}
		if f.Tagged > 0 {
			add("%d documents with a label", f.Tagged)
		}
		if f.Beside > 0 {
			add("of %d rows with several documents, only one is read: the text, if there is one", f.Beside)
		}
		if f.Conversations > 0 {
			add("of %d conversations, only what the assistant says is learnt", f.Conversations)
		}
	}
	if s.Empty > 0 {
		add("%d empty documents skipped", s.Empty)
	}
	if s.InvalidBytes > 0 {
		add("%d bytes in %d files are not UTF-8 (first: %s), kept as they are", s.InvalidBytes, s.InvalidFiles, s.FirstInvalid)
	}
	if s.Severed > 0 {
		add("long text is cut in %d places where a token may differ", s.Severed)
	}
	if s.Bad > 0 {
		add("%d rows are bad and left out (first: %s)", s.Bad, s.FirstBad)
	}
	return out.String()
}

// reader collects text and emits it in pieces.
type reader struct {
	ctx      context.Context
	cut      cutter
	emit     func(piece) error
	most     int64 // bytes of a line; maxLine
	stats    Stats
	read     int64          // bytes read from files
	text     []byte         // not emitted yet; pieces take over the memory
	ends     []ending       // of documents in text
	chat     *chat.Template // for conversations; nil: there is none
	want     wanted         // see Options
	labels   []string       // likewise
	blind    bool           // likewise: Unlabelled
	skipBad  bool           // see Options
	names    []string       // of the field with the text, see Options
	path     string         // of the file
	given    []span         // prompts in text
	searched int            // there is no place to cut before this offset
	within   bool           // the text begins within a document
}

// read emits the corpus in pieces. The order of the files is shuffled, but the same
// for the same number of files: paths sort related text next to each other, and the
// end of the corpus, which is held out for validation, must resemble the rest (the
// last 1 % of Go's tree in path order is tables of hex numbers). emit owns the text
// of its piece.
func (c *Corpus) read(ctx context.Context, o Options, cut cutter, emit func(piece) error) (Stats, error) {
	r := &reader{ctx: ctx, chat: o.Chat, want: o.wanted(), labels: o.Labels, blind: o.Unlabelled, skipBad: o.SkipBad, names: o.names(), cut: cut, emit: emit, most: maxLine}
	order := newPermutation(int64(len(c.files)), 0, 0)
	for i := range int64(len(c.files)) {
		if err := r.file(&c.files[order.at(i)]); err != nil {
			return r.stats, err
		}
	}
	if len(r.text) > 0 {
		if err := r.hand(len(r.text), 0); err != nil {
			return r.stats, err
		}
	}
	if r.stats.Documents() == 0 {
		return r.stats, errors.New("there is no text in any document; hint: name files with text in them")
	}
	return r.stats, nil
}

// counted wraps f to count the bytes read, for progress, and to stop when the context
// ends.
func (r *reader) counted(f io.Reader) io.Reader { return countingReader{f, r} }

type countingReader struct {
	io.Reader
	r *reader
}

func (c countingReader) Read(p []byte) (int, error) {
	if err := c.r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.Reader.Read(p)
	c.r.read += int64(n)
	return n, err
}

func (r *reader) file(f *File) error {
	r.path = f.Path
	in, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	invalid := r.stats.InvalidBytes
	if f.Format == Parquet {
		err = r.rows(in)
	} else {
		err = r.stream(f, r.counted(in))
	}
	if err != nil {
		return r.blame(f, err)
	}
	if r.stats.InvalidBytes > invalid {
		r.stats.InvalidFiles++
		if r.stats.FirstInvalid == "" {
			r.stats.FirstInvalid = f.Path
		}
	}
	return nil
}

// ErrContent marks errors in the content of a corpus file.
var ErrContent = errors.New("content of a file")

// contentError makes errors.Is(err, ErrContent) true.
type contentError struct{ error }

func (contentError) Is(target error) bool { return target == ErrContent }
func (e contentError) Unwrap() error      { return e.error }

// blame names the file that an error comes from, and distinguishes errors in its content from those of the
// system and of the context.
func (r *reader) blame(f *File, err error) error {
	named := fmt.Errorf("%s: %w", f.Path, err)
	if !r.content(err) {
		return named
	}
	return contentError{named}
}

// content reports whether reading a file failed because of what is in it.
func (r *reader) content(err error) bool {
	var system *fs.PathError
	return !errors.As(err, &system) && r.ctx.Err() == nil
}

// stream reads a file from beginning to end.
func (r *reader) stream(f *File, from io.Reader) error {
	unpacked, err := r.unpack(f.packing, from)
	if err != nil {
		return err
	}
	defer unpacked.Close()
	text, err := withoutMark(unpacked)
	if err != nil {
		return err
	}
	if f.Format == JSONL {
		return r.lines(text)
	}
	return r.readDocument(text)
}

// mark is the byte order mark that some editors put before UTF-8. It is not text.
const mark = "\ufeff"

// withoutMark skips a byte order mark. Existing token files that contain one stay valid:
// the cache key has not changed, so a run that continues with one keeps its tokens.
// withoutMark refuses UTF-16, which its own byte order mark reveals: every second byte
// of English would be zero. It also refuses what is no text but would be read as such.
func withoutMark(in io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(in, bounded.LongestBeginning)
	start, _ := b.Peek(bounded.LongestBeginning) // the first Read returns an error again
	if err := refuseOther(start); err != nil {
		return nil, err
	}
	switch {
	case strings.HasPrefix(string(start), mark):
		b.Discard(len(mark))
	case len(start) > 1 && (string(start[:2]) == "\xff\xfe" || string(start[:2]) == "\xfe\xff"):
		return nil, fmt.Errorf("UTF-16 is %w; hint: convert it: iconv -f UTF-16 -t UTF-8", ErrNotSupported)
	}
	return b, nil
}

// readDocument reads a file that is one document.
func (r *reader) readDocument(in io.Reader) error {
	r.stats.Text.Files++
	size := int64(0)
	checked := len(r.text)
	for {
		if cap(r.text)-len(r.text) < 32<<10 {
			grown := make([]byte, len(r.text), max(2*cap(r.text), pieceSize+pieceSize/4))
			copy(grown, r.text)
			r.text = grown
		}
		n, err := in.Read(r.text[len(r.text):cap(r.text)])
		r.text = r.text[:len(r.text)+n]
		size += int64(n)
		if err != nil && err != io.EOF {
			return err
		}
		if err == nil && len(r.text) < pieceSize {
			continue
		}
		// The last character may be incomplete; it is checked with the bytes that
		// follow.
		whole := len(r.text)
		if err == nil {
			whole = lastRuneStart(r.text, checked)
		}
		r.stats.InvalidBytes += invalidBytes(r.text[checked:whole])
		if err == io.EOF {
			r.endDocument(&r.stats.Text, size, ending{})
			return r.drain(nil)
		}
		checked = whole
		if err := r.drain(&checked); err != nil {
			return err
		}
	}
}

// lines reads a file with one JSON object per line, or one that is an array of objects.
func (r *reader) lines(in io.Reader) error {
	r.stats.JSONL.Files++
	buffered := bufio.NewReaderSize(in, 64<<10)
	lines := newLineReader(buffered, r.most, func(begun []byte) bool { return longText(begun, r.names) > 0 })
	if first, err := firstVisible(buffered); err == nil && first == '[' {
		if _, err := buffered.ReadBytes('['); err != nil {
			return err
		}
		lines.array = &nesting{}
	}
	for {
		line, err := lines.next()
		if err == io.EOF {
			return nil
		}
		if errors.As(err, new(tooLong)) || err == errLong {
			err = r.long(lines, err)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 && (lines.array == nil || lines.array.closed && lines.lineNumber == 1) {
			r.stats.Empty++
			continue
		}
		if err := r.row(line, &r.stats.JSONL, lines.place(), lines.lineNumber); err != nil {
			return err
		}
		if err := r.drain(nil); err != nil {
			return err
		}
	}
}

// firstVisible returns the first byte that is not white space, as far as the buffer reaches, without taking it.
func firstVisible(in *bufio.Reader) (byte, error) {
	start, err := in.Peek(4096)
	if start = bytes.TrimLeft(start, " \t\r\n"); len(start) > 0 {
		return start[0], nil
	}
	return 0, cmp.Or(err, io.EOF)
}

// collectOften keeps the heap small until the function that it returns is called.
func collectOften() (end func()) {
	percent := debug.SetGCPercent(often)
	return func() {
		debug.SetGCPercent(percent)
		runtime.GC() // else the next waits until the heap is that large again
	}
}

// row adds the documents of a JSON object; place is a format for its number, which says where that is. A bad one is an error or, if that
// is wanted, counted and left out as a whole.
func (r *reader) row(line []byte, stats *FormatStats, place string, number int) error {
	if len(line) > longLine { // what is made of it and thrown away is many times as large
		defer collectOften()()
	}
	text, ends, given, before, all := len(r.text), len(r.ends), len(r.given), *stats, r.stats.InvalidBytes
	err := r.object(line, stats)
	if err == nil {
		return nil
	}
	if err = fmt.Errorf(place+": %w", number, err); !r.skipBad || errors.Is(err, chat.ErrNone) {
		return err
	}
	r.text, r.ends, r.given, *stats, r.stats.InvalidBytes = r.text[:text], r.ends[:ends], r.given[:given], before, all
	r.leaveOut(err)
	return nil
}

// leaveOut counts a bad row.
func (r *reader) leaveOut(err error) {
	const most = 300 // of the header of a token file
	if r.stats.Bad++; r.stats.Bad == 1 {
		first := r.path + ": " + err.Error()
		r.stats.FirstBad = strings.ToValidUTF8(first[:min(len(first), most)], "")
	}
}

// object adds the documents of a JSON object.
func (r *reader) object(line []byte, stats *FormatStats) error {
	start := len(r.text)
	doc, err := appendText(r.text, line, r.names, r.want)
	if err != nil {
		return err
	}
	if doc.beside {
		stats.Beside++
	}
	if r.want == aLabel {
		if doc.tags, err = r.tagsOf(doc.label); err != nil {
			return err
		}
	}
	if doc.pair != nil {
		return r.pair(doc.pair, stats)
	}
	if doc.turns != nil {
		return r.conversation(doc.turns, doc.tags, stats)
	}
	if r.text = doc.dst; doc.given > 0 {
		r.given = append(r.given, span{start, start + doc.given})
		stats.Prompts++
	}
	r.stats.InvalidBytes += invalidBytes(r.text[start:])
	r.endDocument(stats, int64(len(r.text)-start), ending{tags: doc.tags})
	return nil
}

// conversation adds the document of a conversation.
func (r *reader) conversation(c *chat.Conversation, tags []int32, stats *FormatStats) error {
	document := r.chat.Document
	if r.want == aLabel {
		document = r.chat.GivenDocument
	}
	doc, err := document(c)
	if err != nil {
		return err
	}
	stats.Conversations++
	if doc == nil { // nothing is learnt from it
		return nil
	}
	stats.Rendered++
	text := doc.Text
	doc.Text = nil
	r.text = append(r.text, text...)
	r.endDocument(stats, int64(len(text)), ending{chat: doc, tags: tags})
	return nil
}

// endDocument ends a document of size bytes at the end of r.text.
func (r *reader) endDocument(stats *FormatStats, size int64, end ending) {
	if size == 0 {
		r.stats.Empty++
		return
	}
	stats.Documents++
	stats.Bytes += size
	if end.tags != nil {
		stats.Tagged++
	}
	end.at = len(r.text)
	r.ends = append(r.ends, end)
}

// drain emits pieces while there is enough text. place, if not nil, is an offset into
// r.text that is adjusted.
func (r *reader) drain(place *int) error {
	start, nextEnd := 0, 0
	for len(r.text)-start >= pieceSize {
		at := r.findCut(start, nextEnd)
		if at < 0 {
			break
		}
		if err := r.hand(at, start); err != nil {
			return err
		}
		for nextEnd < len(r.ends) && r.ends[nextEnd].at <= at {
			nextEnd++
		}
		start = at
	}
	if start == 0 {
		return nil
	}
	// The pieces own the old memory: move the rest to new memory.
	rest := make([]byte, len(r.text)-start, max(len(r.text)-start, pieceSize+pieceSize/4))
	copy(rest, r.text[start:])
	ends := make([]ending, 0, 64)
	for _, end := range r.ends[nextEnd:] {
		ends = append(ends, ending{end.at - start, end.chat, end.tags})
	}
	var given []span
	for _, s := range r.given {
		if s.end > start {
			given = append(given, s.clip(start, len(r.text)))
		}
	}
	r.text, r.ends, r.given = rest, ends, given
	r.searched = max(0, r.searched-start)
	if place != nil {
		*place -= start
	}
	return nil
}

// hand emits text[start:at] with the ends of the documents that end in it.
func (r *reader) hand(at, start int) error {
	p := piece{text: r.text[start:at:at], read: r.read, within: r.within}
	r.within = true
	for _, end := range r.ends {
		if end.at > start && end.at <= at {
			p.ends = append(p.ends, ending{end.at - start, end.chat, end.tags})
		}
		r.within = r.within && end.at != at
	}
	for _, s := range r.given {
		if s.first < at && s.end > start {
			p.given = append(p.given, s.clip(start, at))
		}
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	return r.emit(p)
}

// lastRuneStart returns the length of text without an incomplete last character.
func lastRuneStart(text []byte, from int) int {
	for i := len(text) - 1; i >= from && i >= len(text)-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if utf8.FullRune(text[i:]) {
				return len(text)
			}
			return i
		}
	}
	return len(text)
}

// invalidBytes counts the bytes that are not part of a UTF-8 character.
func invalidBytes(text []byte) (n int64) {
	if utf8.Valid(text) {
		return 0
	}
	for i := 0; i < len(text); {
		r, width := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && width == 1 {
			n++
		}
		i += width
	}
	return n
}
