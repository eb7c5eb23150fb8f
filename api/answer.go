package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/athanor-llm/athanor/generation"
)

// form is how answers to one kind of request look.
type form interface {
	// kind is the value of "object".
	kind(streams bool) string
	// choice is text i of an answer, whole.
	choice(s *Server, i int, r *generation.Result) any
	// opening is what a stream begins with for text i; nil: nothing.
	opening(i int) any
	// part is a part of text i. reason is "" before its last part.
	part(s *Server, i int, p generation.Part, reason string) any
}

// answer is an answer under way.
type answer struct {
	server  *Server
	id      string
	streams bool
	usage   bool // a stream ends with it
	form    form
}

// answer returns an answer to what is asked, which it does not keep: bodies may be large.
func (s *Server) answer(prefix string, q *asked, f form) *answer {
	return &answer{s, newID(prefix), q.Stream, q.StreamOptions != nil && q.StreamOptions.Usage, f}
}

// object is the JSON of an answer, or of a part of one that streams.
type object struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []any  `json:"choices"`
	Usage   *usage `json:"usage,omitempty"`
}

func (a *answer) object(streams bool, choices ...any) *object {
	if choices == nil {
		choices = []any{}
	}
	return &object{a.id, a.form.kind(streams), now(), a.server.Model, choices, nil}
}

// answering is a handler that reads a request, starts its texts and answers with them.
func (s *Server) answering(read func(w http.ResponseWriter, r *http.Request) (*answer, []*generation.Request, error)) func(w http.ResponseWriter, r *http.Request) error {
	start := func(w http.ResponseWriter, r *http.Request) (*answer, []*job, error) {
		if r.ContentLength < 0 || r.ContentLength > largeBody {
			select {
			case s.large <- struct{}{}:
				defer func() { <-s.large }()
			case <-r.Context().Done():
				return nil, nil, context.Cause(r.Context())
			}
		}
		a, list, err := read(w, r)
		if err != nil {
			return nil, nil, err
		}
		jobs, err := s.submit(r.Context(), list)
		return a, jobs, err
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		a, jobs, err := start(w, r)
		switch {
		case err != nil:
			return err
		case a.streams:
			return a.stream(w, r, jobs)
		}
		return a.sendAtOnce(w, r, jobs)
	}
}

// sendAtOnce answers with whole texts, when all have ended.
func (a *answer) sendAtOnce(w http.ResponseWriter, r *http.Request, jobs []*job) error {
	out, u := a.object(false), &usage{}
	for i, j := range jobs {
		result, err := j.wait(r.Context())
		if err != nil {
			return err
		}
		out.Choices = append(out.Choices, a.form.choice(a.server, i, result))
		u.add(j)
	}
	out.Usage = u
	reply(w, http.StatusOK, out)
	return nil
}

// stream answers with parts of the texts as they come: server-sent events. Errors after the first are events too.
func (a *answer) stream(w http.ResponseWriter, r *http.Request, jobs []*job) error {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	e := &events{w: w, to: http.NewResponseController(w)}
	type news struct {
		i     int
		parts []generation.Part
		ended bool
		err   error
	}
	came := make(chan news)
	for i, j := range jobs {
		if o := a.form.opening(i); o != nil {
			e.send(a.object(true, o))
		}
		go func() {
			for {
				parts, ended, err := j.next(r.Context())
				select {
				case came <- news{i, parts, ended, err}:
				case <-r.Context().Done():
					return
				}
				if ended || err != nil {
					return
				}
			}
		}()
	}
	u := &usage{}
	for left := len(jobs); left > 0 && e.err == nil; {
		var n news
		select {
		case n = <-came:
		case <-r.Context().Done():
			return nil // the client has left
		}
		if n.err != nil {
			e.send(failure(n.err, http.StatusInternalServerError))
			return nil
		}
		for _, p := range n.parts {
			e.send(a.object(true, a.form.part(a.server, n.i, p, "")))
		}
		if n.ended {
			left--
			u.add(jobs[n.i])
			e.send(a.object(true, a.form.part(a.server, n.i, generation.Part{}, jobs[n.i].result.Reason)))
		}
	}
	if a.usage {
		last := a.object(true)
		last.Usage = u
		e.send(last)
	}
	e.write("data: [DONE]\n\n")
	return nil
}

// events writes server-sent events.
type events struct {
	w   http.ResponseWriter
	to  *http.ResponseController
	err error // the first; nothing is written after it
}

func (e *events) send(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		e.err = err
		return
	}
	e.write(fmt.Sprintf("data: %s\n\n", text))
}

func (e *events) write(text string) {
	if e.err != nil {
		return
	}
	e.to.SetWriteDeadline(time.Now().Add(writeTime))
	if _, e.err = e.w.Write([]byte(text)); e.err == nil {
		e.err = e.to.Flush()
	}
}

// completionForm is that of continued texts.
type completionForm struct {
	echo    bool
	prompts []string
}

type completionChoice struct {
	Text     string              `json:"text"`
	Index    int                 `json:"index"`
	Logprobs *completionLogprobs `json:"logprobs"`
	Reason   *string             `json:"finish_reason"`
}

type completionLogprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []*float64           `json:"token_logprobs"` // null: there is none
	Top      []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"` // in characters
}

func (completionForm) kind(bool) string { return "text_completion" }

func (f *completionForm) choice(s *Server, i int, r *generation.Result) any {
	c := completionChoice{Text: r.Text, Index: i, Logprobs: tokensByText(s, r.Tokens), Reason: &r.Reason}
	if f.echo {
		c.Text = f.prompts[i] + r.Text
	}
	return c
}

func (f *completionForm) opening(i int) any {
	if !f.echo {
		return nil
	}
	return completionChoice{Text: f.prompts[i], Index: i}
}

func (f *completionForm) part(s *Server, i int, p generation.Part, reason string) any {
	return completionChoice{Text: p.Text, Index: i, Logprobs: tokensByText(s, p.Tokens), Reason: finishReason(reason)}
}

// finishReason is nil for "".
func finishReason(reason string) *string {
	if reason == "" {
		return nil
	}
	return &reason
}

// tokensByText returns what is reported of tokens; nil: there are none.
func tokensByText(s *Server, list []generation.Token) *completionLogprobs {
	if len(list) == 0 {
		return nil
	}
	l, at := &completionLogprobs{}, 0
	for i := range list {
		t := &list[i]
		l.Tokens, l.Offsets = append(l.Tokens, printable(t.Text)), append(l.Offsets, at)
		at += len([]rune(string(t.Text)))
		if t.First {
			l.Logprobs, l.Top = append(l.Logprobs, nil), append(l.Top, nil)
			continue
		}
		p := bounded(t.Logprob)
		l.Logprobs = append(l.Logprobs, &p)
		l.Top = append(l.Top, likeliestByText(t.Top, func(id int32) string { return printable(s.prompter.Tokenizer.Token(id)) }))
	}
	return l
}

// chatForm is that of answers in conversations.
type chatForm struct{}

type chatMessage struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  *chatMessage  `json:"message,omitempty"`
	Delta    *chatMessage  `json:"delta,omitempty"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Reason   *string       `json:"finish_reason"`
}

type chatLogprobs struct {
	Content []chatToken `json:"content"`
}

type chatToken struct {
	Token   string      `json:"token"`
	Logprob float64     `json:"logprob"`
	Bytes   []int       `json:"bytes"`
	Top     []chatToken `json:"top_logprobs,omitempty"`
}

func (chatForm) kind(streams bool) string {
	if streams {
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

func (chatForm) choice(s *Server, i int, r *generation.Result) any {
	return chatChoice{Index: i, Message: &chatMessage{"assistant", &r.Text}, Logprobs: tokensInChat(s, r.Tokens), Reason: &r.Reason}
}

func (chatForm) opening(i int) any {
	return chatChoice{Index: i, Delta: &chatMessage{"assistant", new(string)}}
}

func (chatForm) part(s *Server, i int, p generation.Part, reason string) any {
	c := chatChoice{Index: i, Delta: &chatMessage{}, Logprobs: tokensInChat(s, p.Tokens), Reason: finishReason(reason)}
	if p.Text != "" {
		c.Delta.Content = &p.Text
	}
	return c
}

func tokensInChat(s *Server, list []generation.Token) *chatLogprobs {
	if len(list) == 0 {
		return nil
	}
	l := &chatLogprobs{}
	for i := range list {
		t := newChatToken(list[i].Text, list[i].Logprob)
		for _, r := range list[i].Top {
			t.Top = append(t.Top, newChatToken(s.prompter.Tokenizer.Token(r.ID), r.Logprob))
		}
		l.Content = append(l.Content, t)
	}
	return l
}

func newChatToken(text []byte, logprob float64) chatToken {
	t := chatToken{Token: printable(text), Logprob: bounded(logprob), Bytes: []int{}}
	for _, b := range text {
		t.Bytes = append(t.Bytes, int(b))
	}
	return t
}
