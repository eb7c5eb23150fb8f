package chat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/data/jinja"
)

// Conversation is a list of turns.
type Conversation struct {
	messages []jinja.Value // mappings
	roles    []string
	learnt   []bool      // of assistants' turns
	tools    *jinja.List // mappings; nil: none
	names    *jinja.Dict // more of what the template is given; nil: nothing
	parts    bool        // some contents are lists of parts
	size     int         // characters and values in all messages and tools
}

// roles are the names of roles. Templates build control tokens from them ('<|' + role + '|>'), so they count as
// written by the template.
var roles = strings.Fields("system developer user assistant tool function ipython tool_results")

// senders maps ShareGPT's names to roles.
var senders = map[string]string{"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}

// maxTurns bounds the messages of a conversation, which is rendered up to each of its answers.
const maxTurns = 1000

// maxBytes bounds a conversation's messages and tools as JSON: more than a million tokens. In memory each character takes four bytes,
// several times.
const maxBytes = 8 << 20

// Decode reads a list of messages: {"role", "content"} as in OpenAI's format, or {"from", "value"} as in
// ShareGPT's. tools is the JSON of what may be called, see decodeTools.
func Decode(list, tools []byte) (*Conversation, error) {
	if n := len(list) + len(tools); n > maxBytes {
		return nil, fmt.Errorf("the conversation has %d bytes, more than %d; hint: split it into several", n, maxBytes)
	}
	if !utf8.Valid(list) || !utf8.Valid(tools) {
		return nil, errors.New("the conversation is not valid UTF-8; hint: convert the file to UTF-8")
	}
	v, err := jinja.DecodeJSON(list)
	if err != nil {
		return nil, fmt.Errorf(`%w; hint: write [{"role": ..., "content": ...}, ...]`, err)
	}
	turns, ok := v.(*jinja.List)
	if !ok {
		return nil, errors.New(`the conversation is not a list; hint: write [{"role": ..., "content": ...}, ...]`)
	}
	if n := len(turns.Items); n > maxTurns {
		return nil, fmt.Errorf("the conversation has %d messages, more than %d; hint: split it into several", n, maxTurns)
	}
	c := &Conversation{}
	if err := c.SetTools(tools); err != nil {
		return nil, err
	}
	for i, m := range turns.Items {
		message, ok := m.(*jinja.Dict)
		if ok {
			err = c.add(message)
		} else {
			err = errors.New("it is not an object")
		}
		if err != nil {
			return nil, fmt.Errorf(`message %d: %w; hint: write {"role": "user" or "assistant", "content": "..."}`, i+1, err)
		}
	}
	return c, nil
}

// decodeTools reads a list of schemas, or a string with the JSON of one, as in many data sets. null, and an
// empty list or string, become nil: an empty list means that there are no tools, but some templates (Llama
// 3.1's) introduce tools for it.
func decodeTools(text []byte) (*jinja.List, error) {
	if len(text) == 0 {
		return nil, nil
	}
	v, err := jinja.DecodeJSON(text)
	if inside, ok := v.(jinja.Text); ok && err == nil {
		if len(inside) == 0 {
			return nil, nil
		}
		v, err = jinja.DecodeJSON([]byte(inside.String()))
	}
	if err != nil {
		return nil, err
	}
	if _, none := v.(jinja.None); none {
		return nil, nil
	}
	list, ok := v.(*jinja.List)
	if !ok {
		return nil, errors.New("not a list")
	}
	for i, tool := range list.Items {
		if _, ok := tool.(*jinja.Dict); !ok {
			return nil, fmt.Errorf("tool %d is not an object", i+1)
		}
	}
	if len(list.Items) == 0 {
		list = nil
	}
	return list, nil
}

// Say adds a turn.
func (c *Conversation) Say(role, content string) {
	m := jinja.NewDict()
	m.Set("role", jinja.Foreign(role))
	m.Set("content", jinja.Foreign(content))
	if err := c.add(m); err != nil {
		panic(err) // only for an unknown role
	}
}

// LearnLast restricts what is learnt to the last turn, which must be the assistant's.
func (c *Conversation) LearnLast() error {
	n := len(c.roles)
	if n == 0 || c.roles[n-1] != "assistant" {
		return errors.New("it does not end with an assistant message; hint: make the answer the last message")
	}
	clear(c.learnt)
	c.learnt[n-1] = true
	return nil
}

// LearnFrom restricts what is learnt to the turns from the given one on.
func (c *Conversation) LearnFrom(turn int) { clear(c.learnt[:turn]) }

// SetTools sets what may be called, see decodeTools.
func (c *Conversation) SetTools(tools []byte) (err error) {
	if c.tools, err = decodeTools(tools); err != nil {
		return fmt.Errorf(`tools: %w; hint: write a list of JSON schemas, [{"type": "function", "function": {"name": ...}}, ...]`, err)
	}
	if c.tools != nil {
		c.size += jinja.Size(c.tools)
	}
	return nil
}

// SetNames sets what else the template is given, by name: an object, or a string with the JSON of one.
func (c *Conversation) SetNames(object []byte) error {
	if len(object) == 0 || string(object) == "null" {
		return nil
	}
	v, err := jinja.DecodeJSON(object)
	if inside, ok := v.(jinja.Text); ok && err == nil && len(inside) > 0 {
		v, err = jinja.DecodeJSON([]byte(inside.String()))
	}
	names, ok := v.(*jinja.Dict)
	if err != nil || !ok {
		return errors.New(`"chat_template_kwargs" is not an object; hint: write {"name": value, ...}`)
	}
	c.names = names.Without()
	c.size += jinja.Size(c.names)
	return nil
}

// Roles returns the role of each turn.
func (c *Conversation) Roles() []string { return c.roles }

// Turns returns the number of turns but for system prompts.
func (c *Conversation) Turns() (n int) {
	for _, role := range c.roles {
		if role != "system" {
			n++
		}
	}
	return n
}

// Len returns the number of turns.
func (c *Conversation) Len() int { return len(c.messages) }

// answers returns how many turns are the assistant's.
func (c *Conversation) answers() (n int) {
	for _, role := range c.roles {
		if role == "assistant" {
			n++
		}
	}
	return n
}

// lastAnswer returns the last turn that is the assistant's, or -1.
func (c *Conversation) lastAnswer() int {
	for i := len(c.roles) - 1; i >= 0; i-- {
		if c.roles[i] == "assistant" {
			return i
		}
	}
	return -1
}

// learntAnswers says which of the assistant's turns are learnt.
func (c *Conversation) learntAnswers() (learnt []bool) {
	for i, role := range c.roles {
		if role == "assistant" {
			learnt = append(learnt, c.learnt[i])
		}
	}
	return learnt
}

// add adds a message as apply_chat_template passes it to a template: without keys whose value is null.
func (c *Conversation) add(message *jinja.Dict) error {
	m := message.Without()
	role, err := sender(m)
	if err != nil {
		return err
	}
	texts, parts, err := contents(m)
	if err != nil {
		return err
	}
	if _, calls := m.Get("tool_calls"); texts == nil && !calls {
		return errors.New("it has no content")
	}
	c.parts = c.parts || parts
	named(m)
	learnt, err := weight(m, role)
	if err != nil {
		return err
	}
	c.messages, c.roles, c.learnt = append(c.messages, m), append(c.roles, role), append(c.learnt, learnt && role == "assistant")
	c.size += jinja.Size(m)
	return nil
}

// named gives a message's reasoning the names that templates have for it, as transformers does.
func named(m *jinja.Dict) {
	for _, name := range []string{"reasoning_content", "thinking", "reasoning"} {
		if v, ok := m.Get(name); ok {
			m.Set("reasoning_content", v)
			if _, has := m.Get("thinking"); !has {
				m.Set("thinking", v)
			}
			return
		}
	}
}

// sender returns the role of a message. A ShareGPT message gets OpenAI's keys.
func sender(m *jinja.Dict) (string, error) {
	for _, both := range [][2]string{{"role", "from"}, {"content", "value"}} {
		_, has := m.Get(both[0])
		if _, other := m.Get(both[1]); has && other {
			return "", fmt.Errorf("it has %q and %q", both[0], both[1])
		}
	}
	t, err := text(m, "role")
	if t == nil && err == nil {
		t, err = text(m, "from")
		if v, ok := m.Get("value"); ok {
			m.Set("content", v)
		}
		if err == nil && t.String() == "function_call" {
			err = called(m)
		}
	}
	role := cmp.Or(senders[t.String()], t.String())
	if err == nil && !slices.Contains(roles, role) {
		err = fmt.Errorf("the role %.40q is not known", role)
	}
	m.Set("role", jinja.Own(role))
	return role, err
}

// contents returns the text of a message's content, or the texts of its parts; nil if there is none.
func contents(m *jinja.Dict) (texts []jinja.Text, parts bool, err error) {
	v, _ := m.Get("content")
	list, parts := v.(*jinja.List)
	if !parts {
		one, err := text(m, "content")
		if one != nil {
			texts = []jinja.Text{one}
		}
		return texts, false, err
	}
	for i, item := range list.Items {
		said, err := partOf(item)
		if err != nil {
			return nil, true, fmt.Errorf("part %d of its content %w", i+1, err)
		}
		texts = append(texts, said)
	}
	return texts, true, nil
}

// partOf returns the text of a part of a content, {"type": "text", "text": ...}.
func partOf(v jinja.Value) (jinja.Text, error) {
	part, ok := v.(*jinja.Dict)
	if !ok {
		return nil, errors.New("is not an object")
	}
	kind, err := text(part, "type")
	if err == nil && kind.String() != "text" {
		err = fmt.Errorf("is of type %.40q, but only text is supported", kind)
	}
	if err != nil {
		return nil, err
	}
	said, err := text(part, "text")
	if said == nil && err == nil {
		err = errors.New("has no text")
	}
	return said, err
}

// text returns a text of a message, nil if there is none.
func text(m *jinja.Dict, key string) (jinja.Text, error) {
	v, ok := m.Get(key)
	if !ok {
		return nil, nil
	}
	t, ok := v.(jinja.Text)
	if !ok {
		return nil, fmt.Errorf("%q is not a string", key)
	}
	return t, nil
}

// called turns the content of a ShareGPT function_call, {"name": ..., "arguments": ...} or a list of these, into
// tool_calls.
func called(m *jinja.Dict) error {
	const hint = `hint: write {"name": ..., "arguments": {...}} in it`
	said, err := text(m, "content")
	if err != nil {
		return err
	}
	v, err := jinja.DecodeJSON([]byte(said.String()))
	if err != nil {
		return fmt.Errorf("a function_call is not JSON: %w; %s", err, hint)
	}
	calls, ok := v.(*jinja.List)
	if !ok {
		calls = &jinja.List{Items: []jinja.Value{v}}
	}
	for i, call := range calls.Items {
		function, ok := call.(*jinja.Dict)
		if !ok {
			return fmt.Errorf("a function_call is not an object; %s", hint)
		}
		entry := jinja.NewDict()
		entry.Set("type", jinja.Own("function"))
		entry.Set("function", function)
		calls.Items[i] = entry
	}
	m.Set("tool_calls", calls)
	m.Set("content", jinja.Foreign(""))
	return nil
}

// unknownMarks are what other trainers, or their users, call such marks; which way round they mean it differs.
var unknownMarks = []string{"train_detail", "training_detail", "loss_scale", "mask", "is_masked", "trainable", "learn", "loss_mask", "ignore"}

// weight reads the marks of turns that are not learnt: OpenAI's "weight", and "loss", "train", "training" and, the other
// way round, "masked" of other trainers.
func weight(m *jinja.Dict, role string) (learnt bool, err error) {
	learnt = true
	for _, key := range []string{"weight", "loss", "train", "training", "masked"} {
		v, ok := m.Get(key)
		if !ok {
			continue
		}
		on := v == true || v == int64(1) || v == 1.0
		if on && role != "assistant" && (key == "train" || key == "training") {
			return false, fmt.Errorf("%q of a %s's message: only what the assistant says can be learnt; hint: leave it out", key, role)
		}
		if off := v == false || v == int64(0) || v == 0.0; !on && !off {
			return false, fmt.Errorf("%q is not 0 or 1, true or false", key)
		}
		learnt = learnt && on != (key == "masked")
	}
	for _, key := range unknownMarks {
		if _, ok := m.Get(key); ok {
			return false, fmt.Errorf("%q, which says what of a message is learnt, is not supported; hint: write \"weight\": 0 for what is not, and leave it out elsewhere", key)
		}
	}
	return learnt, nil
}
