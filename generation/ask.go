package generation

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/folder"
)

// Settings are what JSON may say of a request besides its prompt. What it leaves out has a default.
type Settings struct {
	MaxTokens   *int     `json:"max_tokens"`
	Temperature *float64 `json:"temperature"`
	TopK        *int     `json:"top_k"`
	TopP        *float64 `json:"top_p"`
	MinP        *float64 `json:"min_p"`
	Repetition  *float64 `json:"repetition_penalty"`
	Presence    *float64 `json:"presence_penalty"`
	Frequency   *float64 `json:"frequency_penalty"`
	Stop        Texts    `json:"stop"`
	Seed        *int64   `json:"seed"`
}

// maxTokens and maxStops bound what a request may ask for.
const (
	maxTokens = 1 << 20
	maxStops  = 16
)

// Request returns a request with these settings, and with the defaults' where nothing is said.
func (s *Settings) Request(defaults *Request) (*Request, error) {
	r := *defaults
	set(&r.Tokens, s.MaxTokens)
	set(&r.Sampling.Temperature, s.Temperature)
	set(&r.Sampling.TopK, s.TopK)
	set(&r.Sampling.TopP, s.TopP)
	set(&r.Sampling.MinP, s.MinP)
	set(&r.Sampling.Repetition, s.Repetition)
	set(&r.Sampling.Presence, s.Presence)
	set(&r.Sampling.Frequency, s.Frequency)
	if s.Seed != nil {
		r.Sampling.Seed = uint64(*s.Seed)
	}
	if s.Stop != nil {
		r.Stop = s.Stop
	}
	if r.Tokens < 0 || r.Tokens > maxTokens {
		return nil, fmt.Errorf("max_tokens is %d; hint: use 1 to %d", r.Tokens, maxTokens)
	}
	if len(r.Stop) > maxStops {
		return nil, fmt.Errorf("stop has %d texts; hint: use at most %d", len(r.Stop), maxStops)
	}
	return &r, r.Sampling.Check()
}

// set sets a value if there is another.
func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// Texts is a text or a list of texts.
type Texts []string

// UnmarshalJSON reads a string or a list of strings.
func (t *Texts) UnmarshalJSON(raw []byte) error {
	var one *string
	if err := json.Unmarshal(raw, &one); err == nil {
		if one != nil {
			*t = Texts{*one}
		}
		return nil
	}
	if err := json.Unmarshal(raw, (*[]string)(t)); err != nil {
		return errors.New("it is neither a text nor a list of texts")
	}
	return nil
}

// Prompter turns texts and conversations into tokens.
type Prompter struct {
	Tokenizer *bpe.Tokenizer
	template  *chat.Template
	now       time.Time // what templates are told
}

// NewPrompter returns that of a model folder. Its templates are told what time it is now.
func NewPrompter(f *folder.Folder) (*Prompter, error) {
	t, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	template, err := f.Chat()
	return &Prompter{t, template, time.Now()}, err
}

// Text makes a text the prompt of a request.
func (p *Prompter) Text(r *Request, text string) (err error) {
	r.Prompt, err = folder.PromptIDs(p.Tokenizer, text)
	r.Trim = text == ""
	return err
}

// Chat makes a conversation the prompt of a request, whose text is the answer. tools and names are JSON, see
// chat.Conversation; empty: there are none.
func (p *Prompter) Chat(r *Request, messages, tools, names []byte) error {
	c, err := chat.Decode(messages, tools)
	if err == nil && c.Len() == 0 {
		err = errors.New("the conversation has no messages; hint: give at least one")
	}
	if err == nil {
		err = c.SetNames(names)
	}
	if err != nil {
		return err
	}
	ids, end, ok, err := p.template.Prompt(c, p.now)
	if err != nil {
		return err
	}
	r.Prompt, r.Trim, r.Ends = ids, true, nil
	if ok {
		r.Ends = []int32{end}
	}
	return nil
}
