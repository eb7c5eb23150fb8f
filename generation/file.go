package generation

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/filelock"
	"github.com/athanor-llm/athanor/internal/jsonkeys"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/search"
)

// File is a file of prompts, each a line of JSON, to be continued.
//
//	{"prompt": "Once", "max_tokens": 20, "id": 7}
//	{"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
//
// The texts are written in the order of the prompts. What is interrupted, even by kill -9, goes on where it ended: lines of the
// output are written whole, and begin with what tells from which prompt and settings each was made.
type File struct {
	Prompts, Out string
	Defaults     Request // of what lines leave out
	Options      Options // Context 0: what the longest line needs; Sequences 0: as many as fit, at most autoSequences
	Progress     func(what string, done, total int64)
}

// autoSequences is how many sequences are generated at once unless told.
const autoSequences = 32

// maxLine bounds the bytes of a line.
const maxLine = 16 << 20

// Report says what was done with a file.
type Report struct {
	Lines        int     `json:"lines"`
	Kept         int     `json:"kept_lines"`    // were there before
	PromptTokens int     `json:"prompt_tokens"` // of the other lines
	Tokens       int     `json:"tokens"`        // added
	Time         float64 `json:"seconds"`
	Sequences    int     `json:"sequences"` // at once
	Context      int     `json:"context"`
	folder.Footprint
	Block *BlockReport `json:"block,omitempty"` // if weights are streamed
	Notes []string     `json:"notes,omitempty"`
}

// line is a line of prompts.
type line struct {
	ID       json.RawMessage `json:"id"`
	Prompt   *string         `json:"prompt"`
	Messages json.RawMessage `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
	Names    json.RawMessage `json:"chat_template_kwargs"`
	Settings
}

// written is a line of the output.
type written struct {
	Key          string          `json:"key"` // of what it was made from
	Index        int             `json:"index"`
	ID           json.RawMessage `json:"id,omitempty"`
	Text         string          `json:"text"`
	Reason       string          `json:"finish_reason"`
	PromptTokens int             `json:"prompt_tokens"`
	Tokens       int             `json:"tokens"`
}

// Run continues the prompts.
func (file *File) Run(ctx context.Context, f *folder.Folder) (*Report, error) {
	p, err := NewPrompter(f)
	if err != nil {
		return nil, err
	}
	run := &fileRun{File: file, prompter: p, folder: f, began: time.Now()}
	if err := run.scan(); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(file.Out, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, folder.Misuse(suggest.Add(bounded.Explain(err), "name a file in a folder that is there"))
	}
	defer out.Close()
	if info, err := out.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, folder.Misuse(fmt.Errorf("%s is a device or a pipe; hint: name a file, which can be read again to go on", file.Out))
	}
	if held, err := filelock.Try(out); !held && err == nil {
		return nil, folder.Misuse(fmt.Errorf("%s: another process writes it; hint: wait for it, or name another file", file.Out))
	}
	if err := run.resume(out); err != nil {
		return nil, err
	}
	if run.report.Kept < run.report.Lines {
		err = run.generate(ctx, out)
	}
	run.report.Time = time.Since(run.began).Seconds()
	return &run.report, errors.Join(err, out.Sync())
}

// fileRun is one call of Run.
type fileRun struct {
	*File
	prompter *Prompter
	folder   *folder.Folder
	began    time.Time
	report   Report
	longest  int // tokens that a line needs
	prompts  int // tokens of all prompts
	texts    int // most tokens of all texts
}

// eachLine calls a function for each line that is not blank, by its number from 1 on.
func (run *fileRun) eachLine(do func(number int, text []byte) error) error {
	in, err := bounded.Open(run.Prompts)
	if err != nil {
		return folder.Misuse(suggest.Add(err, "name a file that is there"))
	}
	defer in.Close()
	s := bufio.NewScanner(in)
	s.Buffer(nil, maxLine)
	number := 0
	for s.Scan() {
		number++
		text := bytes.TrimSpace(s.Bytes())
		if number == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if len(text) == 0 {
			continue
		}
		if err := do(number, text); err != nil {
			return err
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return run.fault(number+1, fmt.Errorf("it is longer than %d MiB; hint: check that it is a file of prompts, and shorten them", maxLine>>20))
	}
	return bounded.Explain(s.Err())
}

// fault is what is wrong with a line of the prompts.
func (run *fileRun) fault(number int, err error) error {
	return folder.Misuse(fmt.Errorf("%s: line %d: %w", run.Prompts, number, err))
}

// request reads a line.
func (run *fileRun) request(number int, text []byte) (*Request, *line, error) {
	l := &line{}
	r, err := run.parse(text, l)
	if err != nil {
		return nil, nil, run.fault(number, err)
	}
	return r, l, nil
}

func (run *fileRun) parse(text []byte, l *line) (*Request, error) {
	if err := jsonkeys.Unique(text); err != nil {
		return nil, err
	}
	if err := DecodeStrictly(text, l); err != nil {
		return nil, err
	}
	r, err := l.Request(&run.Defaults)
	if err != nil {
		return nil, err
	}
	switch {
	case (l.Prompt == nil) == (l.Messages == nil):
		return nil, errors.New(`it needs either a prompt or messages; hint: write {"prompt": "..."} or {"messages": [...]}`)
	case l.Prompt != nil && (l.Tools != nil || l.Names != nil):
		return nil, errors.New("tools and chat_template_kwargs belong to messages; hint: leave them out")
	case l.Prompt != nil:
		err = run.prompter.Text(r, *l.Prompt)
	default:
		err = run.prompter.Chat(r, l.Messages, l.Tools, l.Names)
	}
	r.Logprobs = -1
	return r, err
}

// DecodeStrictly decodes one JSON object, all of whose keys must be known.
func DecodeStrictly(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("%w; hint: the guide lists what a request may say", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the object; hint: write one object per line")
	}
	return nil
}

// scan checks all lines before anything is generated, and finds out how much room they need.
func (run *fileRun) scan() error {
	most := run.folder.Model.MaxPositions
	if run.Options.Context > 0 {
		most = min(most, run.Options.Context)
	}
	err := run.eachLine(func(number int, text []byte) error {
		r, _, err := run.request(number, text)
		if err != nil {
			return err
		}
		check := Batch{context: most, vocab: run.folder.Model.Vocab}
		if err := check.Check(r); err != nil {
			return run.fault(number, err)
		}
		run.report.Lines++
		run.longest = max(run.longest, min(most, len(r.Prompt)+r.Tokens))
		run.prompts, run.texts = run.prompts+len(r.Prompt), run.texts+r.Tokens
		return nil
	})
	if err == nil && run.report.Lines == 0 {
		err = folder.Misuse(fmt.Errorf("%s has no lines; hint: write one prompt per line, {\"prompt\": \"...\"}", run.Prompts))
	}
	return err
}

// key identifies what a line of the output is made from: the prompt's line, the defaults, the model's folder and how it computes.
func (run *fileRun) key(text []byte) string {
	h := sha256.New()
	d, m := &run.Defaults, run.folder.Model
	fmt.Fprintf(h, "%s|%v|%s|%v|%d|%v|%q|", run.folder.Path, run.Options.DType, run.Options.Device, m.NF4, d.Tokens, d.Sampling, d.Stop)
	if m.CacheBits > 0 { // else the key is that of versions that had no such caches
		fmt.Fprintf(h, "caches %d|", m.CacheBits)
	}
	h.Write(text)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// resume keeps the lines that are whole, which must have been made from the first prompts, and removes what is after them.
func (run *fileRun) resume(out *os.File) error {
	old := bufio.NewReader(out)
	var end int64
	err := run.eachLine(func(number int, text []byte) error {
		have, err := old.ReadBytes('\n')
		if err != nil { // io.EOF: the last line is not whole, or there is none
			return err
		}
		var w written
		if err := json.Unmarshal(have, &w); err != nil || w.Key != run.key(text) {
			return folder.Misuse(fmt.Errorf("%s: line %d was not made from line %d of %s with these settings; hint: name another file, or remove this one", run.Out, run.report.Kept+1, number, run.Prompts))
		}
		end += int64(len(have))
		run.report.Kept++
		return nil
	})
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if more, _ := old.ReadBytes('\n'); err == nil && len(more) > 0 {
		return folder.Misuse(fmt.Errorf("%s has more lines than %s; hint: name another file, or remove this one", run.Out, run.Prompts))
	}
	if err := out.Truncate(end); err != nil {
		return err
	}
	_, err = out.Seek(end, io.SeekStart)
	return err
}

// open opens the model for as many sequences as are asked for or, if nothing is said, as fit or, if weights are to be streamed, are
// fastest.
func (run *fileRun) open(ctx context.Context) (*Batch, error) {
	o := run.options()
	if fits, err := weightsFit(ctx, run.folder, &o); err != nil || !fits {
		if err != nil {
			return nil, err
		}
		m, found, err := run.planBlock(ctx, &o)
		if err != nil {
			return nil, err
		}
		return openBlock(ctx, run.folder, &o, m, found)
	}
	if o.Sequences > 0 {
		return Open(ctx, run.folder, o)
	}
	for o.Sequences = min(autoSequences, run.left()); ; o.Sequences /= 2 {
		b, err := Open(ctx, run.folder, o)
		if o.Sequences == 1 || !errors.Is(err, search.ErrDoesNotFit) {
			return b, err
		}
	}
}

// options returns those with which the model is opened.
func (run *fileRun) options() Options {
	o := run.Options
	if o.Context = min(o.Context, run.folder.Model.MaxPositions); o.Context == 0 {
		o.Context = run.longest
	}
	return o
}

// left returns how many lines are left.
func (run *fileRun) left() int { return run.report.Lines - run.report.Kept }

// generate continues the prompts that are left.
func (run *fileRun) generate(ctx context.Context, out *os.File) error {
	b, err := run.open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	run.report.Notes, run.report.Footprint = append(run.report.Notes, b.Notes...), b.Footprint()
	run.report.Sequences, run.report.Context = b.Sequences(), b.Context()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &inOrder{out: out, run: run, next: run.report.Kept, room: make(chan struct{}, 4*b.Sequences()+64), waiting: map[int]*written{}, fail: stop}
	requests := make(chan *Request, b.Sequences())
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(requests)
		failed = run.send(ctx, w, requests)
	}()
	err = b.Run(ctx, requests)
	stop()
	<-done
	if block, ok := b.slots.(*blockOn); ok {
		run.report.Block = reportBlock(block.BlockPlan)
		run.report.Block.Steps, run.report.Block.Parts = block.Stepped, block.Passed
	}
	for _, first := range []error{w.err, failed} {
		if first != nil && !errors.Is(first, context.Canceled) {
			return first
		}
	}
	return err
}

// send sends the prompts that are left, never far ahead of what is written.
func (run *fileRun) send(ctx context.Context, w *inOrder, requests chan<- *Request) error {
	index := 0
	return run.eachLine(func(number int, text []byte) error {
		if index++; index <= run.report.Kept {
			return nil
		}
		select {
		case w.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		r, l, err := run.request(number, text)
		if err != nil {
			return err
		}
		result := &written{Key: run.key(text), Index: index - 1, ID: l.ID, PromptTokens: len(r.Prompt)}
		r.Done = func(said *Result, err error) { w.add(result, said, err) }
		select {
		case requests <- r:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// inOrder writes results in the order of their prompts. Those that are early wait.
type inOrder struct {
	out     io.Writer
	run     *fileRun
	next    int                // index of the next line
	room    chan struct{}      // has an element for each prompt that was sent and whose result is not written
	waiting map[int]*written   // by index
	fail    context.CancelFunc // ends the run
	err     error
}

// add adds a result, or the error that a request ended in.
func (w *inOrder) add(line *written, said *Result, err error) {
	if w.err != nil {
		return
	}
	if err == nil {
		line.Text, line.Reason, line.Tokens = said.Text, said.Reason, said.Added
		w.waiting[line.Index] = line
		err = w.write()
	}
	if err != nil {
		w.err = err
		w.fail()
	}
}

// write writes the lines whose turn it is.
func (w *inOrder) write() error {
	for {
		line := w.waiting[w.next]
		if line == nil {
			return nil
		}
		var text bytes.Buffer
		e := json.NewEncoder(&text) // ends the line
		e.SetEscapeHTML(false)
		if err := e.Encode(line); err != nil {
			return err
		}
		if _, err := w.out.Write(text.Bytes()); err != nil {
			return err
		}
		delete(w.waiting, w.next)
		w.next++
		<-w.room
		r := &w.run.report
		r.Tokens, r.PromptTokens = r.Tokens+line.Tokens, r.PromptTokens+line.PromptTokens
		if w.run.Progress != nil {
			w.run.Progress("generating", int64(w.next-r.Kept), int64(r.Lines-r.Kept))
		}
	}
}
