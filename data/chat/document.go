package chat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/jinja"
)

// Document is a text, parts of which are learnt.
type Document struct {
	Text    []byte
	Learnt  []jinja.Span // ascending and disjoint
	Control []jinja.Span // where special tokens may be
}

// maxWork bounds the characters that are rendered for a conversation, which is rendered up to each of its answers.
const maxWork = 1 << 29

// Document returns the text of a conversation, parts of which are learnt. Turns after the assistant's last are left out.
//
// Which parts are answers is found by rendering the conversation up to each of them, unless the template itself marks
// them by generation blocks. Some templates write a turn differently once others follow, for instance without its
// thoughts. Then the text is that of the whole conversation, and of the earlier answers it has what the model will read
// later, so it is learnt without what is left out.
func (t *Template) Document(c *Conversation) (*Document, error) {
	if err := cmp.Or(t.usable(), t.reads(c)); err != nil {
		return nil, err
	}
	switch work := c.answers() * c.size; {
	case work == 0:
		return nil, errors.New("the conversation has no assistant message, so nothing is learnt from it; hint: leave it out")
	case work > maxWork:
		return nil, fmt.Errorf("%d answers in a conversation of %d characters take too long to render; hint: split it into several", c.answers(), c.size)
	}
	if t.marks {
		if d, err := t.marked(c); d != nil || err != nil {
			return d, err
		}
	}
	var d draft
	checked := 0 // turns
	for i, role := range c.roles {
		if role != "assistant" {
			continue
		}
		a, err := t.answer(c, i)
		if err != nil {
			return nil, fmt.Errorf("message %d, of the assistant: %w", i+1, err)
		}
		if err := t.said(c, checked, i+1, a.whole); err != nil {
			return nil, err
		}
		checked = i + 1
		if !a.whole[:a.first].HasPrefix(d.text) {
			return t.rewritten(c)
		}
		d.add(a, c.learnt[i])
	}
	return d.finish()
}

// beside are what messages may have beside their content, and the names by which templates read it.
var beside = []struct {
	key   string
	names []string
}{
	{"tool_calls", []string{"tool_calls"}},
	{"function_call", []string{"function_call"}},
	{"reasoning_content", []string{"reasoning_content", "thinking", "reasoning"}},
}

// reads returns an error if an answer has something that no template reads, so that it would silently not be learnt.
func (t *Template) reads(c *Conversation) error {
	for i, role := range c.roles {
		for _, b := range beside {
			v, _ := c.messages[i].(*jinja.Dict).Get(b.key)
			if role == "assistant" && jinja.True(v) && !slices.ContainsFunc(b.names, func(name string) bool { return strings.Contains(t.sources, name) }) {
				return fmt.Errorf("message %d: %s does not read %s, so that it would not be learnt; hint: write it as a part of the content, leave it out, or use a template that reads it", i+1, t.where, strings.Join(b.names, " or "))
			}
		}
	}
	return nil
}

// marked returns the document of a conversation in which the template marks the answers; nil: it marks none.
func (t *Template) marked(c *Conversation) (*Document, error) {
	last := c.lastAnswer()
	whole, err := t.render(c, last+1, false, day)
	if err != nil {
		return nil, err
	}
	spans := whole.Generated()
	if len(spans) == 0 {
		return nil, nil
	}
	if err := t.said(c, 0, last+1, whole); err != nil {
		return nil, err
	}
	learnt := c.learntAnswers()
	if slices.Contains(learnt, false) && len(spans) != len(learnt) {
		return nil, fmt.Errorf("%s marks %d stretches as generated, but there are %d answers, of which some are not to be learnt; hint: leave out weight, loss and train", t.where, len(spans), len(learnt))
	}
	d := draft{text: whole}
	for i, s := range spans {
		if len(spans) != len(learnt) || learnt[i] {
			d.learnt = append(d.learnt, s)
		}
	}
	return d.finish()
}

// rewritten returns the document of a conversation whose template writes turns differently once others follow.
func (t *Template) rewritten(c *Conversation) (*Document, error) {
	last := c.lastAnswer()
	end, err := t.answer(c, last)
	if err != nil {
		return nil, err
	}
	if err := t.said(c, 0, last+1, end.whole); err != nil {
		return nil, err
	}
	d := draft{text: end.whole[:end.end:end.end], tail: end.whole[end.end:]}
	for i, role := range c.roles[:last] {
		if role != "assistant" || !c.learnt[i] {
			continue
		}
		a, err := t.earlier(c, i, end.whole)
		if err != nil {
			return nil, err
		}
		if n := len(d.learnt); a != nil && (n == 0 || d.learnt[n-1].End <= a.first) && a.end <= end.first {
			d.learnt = append(d.learnt, jinja.Span{First: a.first, End: a.end})
		}
	}
	if c.learnt[last] {
		d.learnt = append(d.learnt, jinja.Span{First: end.first, End: end.end})
	}
	return d.finish()
}

// earlier finds an answer in the rendering of a whole conversation, in which others follow it; nil: it cannot be told
// where it begins.
func (t *Template) earlier(c *Conversation, i int, whole jinja.Text) (*answer, error) {
	given, err := t.render(c, i, true, day)
	if err != nil {
		return nil, err
	}
	followed := *c
	followed.messages, followed.roles, followed.learnt = c.messages[:i+1:i+1], c.roles[:i+1:i+1], c.learnt[:i+1:i+1]
	followed.Say("user", "\x00") // a character that no other text begins with
	next, err := t.render(&followed, i+2, false, day)
	if err != nil {
		return nil, err
	}
	common := whole.Common(next)
	if !whole.HasPrefix(given) || common <= len(given) {
		return t.replaced(c, i, whole)
	}
	a := &answer{whole, len(given), common}
	behind := a.first + whole[a.first:common].Said()
	if n := t.turnEnd([]byte(whole[behind:common].String())); n > 0 {
		a.end = behind + characters(whole[behind:], n)
	}
	return a, nil
}

// answer is a rendering up to an assistant's turn, which is whole[first:end]; what follows is not part of it.
type answer struct {
	whole      jinja.Text
	first, end int
}

// replaced finds an answer where not even the text before it stays the same: with another content, the rendering is
// another there and nowhere else.
func (t *Template) replaced(c *Conversation, i int, whole jinja.Text) (*answer, error) {
	m := c.messages[i].(*jinja.Dict).Without()
	if content, _ := m.Get("content"); content == nil {
		return nil, nil
	}
	m.Set("content", jinja.Foreign("\x00"))
	other := *c
	other.messages = slices.Clone(c.messages)
	other.messages[i] = m
	changed, err := t.render(&other, c.lastAnswer()+1, false, day)
	if err != nil {
		return nil, err
	}
	first, behind := whole.Common(changed), len(whole)
	for n := len(changed); behind > first && n > first && whole[behind-1] == changed[n-1]; n-- {
		behind--
	}
	if first == behind {
		return nil, nil
	}
	if n := t.turnEnd([]byte(whole[behind:].String())); n > 0 {
		behind += characters(whole[behind:], n)
	}
	return &answer{whole, first, behind}, nil
}

// answer renders a conversation up to turn i.
func (t *Template) answer(c *Conversation, i int) (*answer, error) {
	given, err := t.render(c, i, true, day)
	if err != nil {
		return nil, err
	}
	whole, err := t.render(c, i+1, false, day)
	if err != nil {
		return nil, err
	}
	if !whole.HasPrefix(given) {
		at := whole.Common(given)
		return nil, fmt.Errorf("%s: before an answer the template writes ... %q, but together with the answer it writes ... %q, so which part is the answer is not known; hint: write the data as prompt and completion",
			t.where, excerpt(given, at), excerpt(whole, at))
	}
	if len(whole) == len(given) {
		return nil, fmt.Errorf("%s: the template writes nothing for this message; hint: leave the message out", t.where)
	}
	a := &answer{whole, len(given), len(whole)}
	behind := a.first + whole[a.first:].Said()
	if n := t.turnEnd([]byte(whole[behind:].String())); n > 0 {
		a.end = behind + characters(whole[behind:], n)
	}
	return a, nil
}

// said refuses contents in parts if the template does not know parts: some templates write the list as Python
// prints it, others nothing. For turns first <= i < end it looks for the parts' texts in their rendering, one
// after the other, except for thoughts (up to </think>), which templates move.
func (t *Template) said(c *Conversation, first, end int, rendered jinja.Text) error {
	if !c.parts {
		return nil
	}
	whole := rendered.String()
	for i := first; i < end; i++ {
		m := c.messages[i].(*jinja.Dict)
		texts, parts, err := contents(m)
		if err != nil || !parts || len(texts) == 0 {
			continue // nothing to look for; errors are Decode's
		}
		list, _ := m.Get("content")
		printed, err := jinja.Repr(list.(*jinja.List).Items[0], c.budget())
		if err != nil {
			return err
		}
		if strings.Contains(whole, printed.String()) || !follow(whole, texts) {
			return fmt.Errorf("message %d: %s does not write the texts of its content, which is a list of parts; hint: make the content one string", i+1, t.where)
		}
	}
	return nil
}

// follow reports whether texts, without thoughts and without space at their ends, occur in a whole, one after the other.
func follow(whole string, texts []jinja.Text) bool {
	for _, text := range texts {
		said := text.String()
		if at := strings.LastIndex(said, thought); at >= 0 {
			said = said[at+len(thought):]
		}
		said = strings.TrimSpace(said)
		at := strings.Index(whole, said)
		if at < 0 {
			return false
		}
		whole = whole[at+len(said):]
	}
	return true
}

// thought ends what a model thinks before it answers.
const thought = "</think>"

// turnEnd returns where a turn ends in the text that a template writes after a content: after the first special
// token and those directly after that, such as the ends of a call, of all calls and of the turn; 0 if there is
// none.
func (t *Template) turnEnd(text []byte) (end int) {
	for {
		id, n, ok := t.tokenizer.FindSpecial(text[end:])
		if !ok || end > 0 && n > len(t.tokenizer.Token(id)) {
			return end
		}
		end += n
	}
}

// characters returns how many characters the first n bytes of a text make up.
func characters(t jinja.Text, n int) int {
	for i := range t {
		if n -= len(string(t[i].Rune())); n <= 0 {
			return i + 1
		}
	}
	return len(t)
}

// draft is a document up to and including its latest answer.
type draft struct {
	text   jinja.Text
	tail   jinja.Text   // what the template writes after it if nothing follows
	learnt []jinja.Span // of characters
}

func (d *draft) add(a *answer, learnt bool) {
	d.text, d.tail = a.whole[:a.end:a.end], a.whole[a.end:]
	if learnt {
		d.learnt = append(d.learnt, jinja.Span{First: a.first, End: a.end})
	}
}

// finish returns the document; nil: nothing is learnt from it.
func (d *draft) finish() (*Document, error) {
	if len(d.learnt) == 0 {
		return nil, nil
	}
	whole := append(d.text, d.tail...)
	doc := &Document{}
	doc.Text, doc.Control = whole.Split()
	at, bytes := 0, 0
	for _, s := range d.learnt {
		bytes += len(whole[at:s.First].String())
		first := bytes
		bytes += len(whole[s.First:s.End].String())
		doc.Learnt = append(doc.Learnt, jinja.Span{First: first, End: bytes})
		at = s.End
	}
	return doc, nil
}

// GivenDocument returns the text of a whole conversation, of which nothing is learnt.
func (t *Template) GivenDocument(c *Conversation) (*Document, error) {
	if err := cmp.Or(t.usable(), t.reads(c)); err != nil {
		return nil, err
	}
	whole, err := t.render(c, c.Len(), false, day)
	if err == nil {
		err = t.said(c, 0, c.Len(), whole)
	}
	if err != nil {
		return nil, err
	}
	d := &Document{}
	d.Text, d.Control = whole.Split()
	return d, nil
}

// Prompt returns the tokens from which a model continues when it is to answer, and the token that ends its
// answer; ok is false if the template has none.
func (t *Template) Prompt(c *Conversation, now time.Time) (ids []int32, end int32, ok bool, err error) {
	given, err := t.render(c, c.Len(), true, now)
	if err != nil {
		return nil, 0, false, err
	}
	answered := *c
	answered.Say("assistant", "x")
	whole, err := t.render(&answered, answered.Len(), false, now)
	if err != nil {
		return nil, 0, false, err
	}
	if n := whole.Common(given); n <= len(whole) {
		rest := whole[n:]
		end, _, ok = t.tokenizer.FindSpecial([]byte(rest[rest.Said():].String()))
	}
	text, control := given.Split()
	e := t.tokenizer.NewEncoder()
	ids, _ = e.Part(nil, text, bpe.AtStart, Controls(control, 0))
	return ids, end, ok, nil
}

// Controls returns a function that reports whether bytes of a part that begins at offset are in one of the spans.
func Controls(spans []jinja.Span, offset int) func(first, end int) bool {
	return func(first, end int) bool {
		i, _ := slices.BinarySearchFunc(spans, first+offset, func(s jinja.Span, at int) int { return s.End - at - 1 })
		return i < len(spans) && spans[i].First <= first+offset && end+offset <= spans[i].End
	}
}
