package folder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/machine"
)

// Chat is a conversation with the model in a folder, by its chat template.
//
// For each answer the whole conversation is rendered and encoded anew, as it would be for a model that has read nothing of
// it. The generator keeps the part that it has already read: everything up to the latest question, unless the template now
// renders earlier turns differently, or the answer's text is encoded as other tokens than those it was generated from.
type Chat struct {
	folder       *Folder
	template     *chat.Template
	generator    *Generator
	conversation chat.Conversation
	prompt       Prompt
	ends         []int32
	random       *rand.Rand
	// Notes list the settings of generation_config.json that are ignored.
	Notes []string
}

// Answer is what a model answered.
type Answer struct {
	Question string `json:"question"`
	Sampled
	// Known is how many of the prompt's tokens had been read for earlier answers.
	Known int `json:"known_tokens"`
}

// OpenChat opens a conversation of up to length tokens. p.Text is the system message, "" if there is none; the rest of p
// applies to each answer. Close the Chat after use.
func OpenChat(ctx context.Context, dir string, length int, p Prompt) (*Chat, error) {
	f, err := Open(dir)
	if err != nil {
		return nil, err
	}
	c := &Chat{folder: f, prompt: p, random: p.random()}
	if err := c.open(ctx, length); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return c, nil
}

func (c *Chat) open(ctx context.Context, length int) error {
	f := c.folder
	if err := f.compress(&c.prompt); err != nil {
		return err
	}
	tokenizer, err := f.Tokenizer()
	if err != nil {
		return err
	}
	if c.template, err = f.Chat(); err == nil && c.template == nil {
		err = misuse{fmt.Errorf("%s: %w", f.Path, chat.ErrNone)}
	}
	if err != nil {
		return err
	}
	if c.ends, err = f.Ends(tokenizer); err != nil {
		return err
	}
	if c.Notes, err = f.SetAside(); err != nil {
		return err
	}
	if c.prompt.Text != "" {
		c.conversation.Say("system", c.prompt.Text)
	}
	d, err := machine.OpenAlone(c.prompt.Device, 0, c.prompt.Limit)
	if err != nil {
		return misuse{err}
	}
	c.generator, err = f.Generator(ctx, d, min(length, f.Model.MaxPositions), c.prompt.DType)
	return err
}

// Close closes the generator and the folder.
func (c *Chat) Close() error { return errors.Join(c.generator.Close(), c.folder.Close()) }

// Ask adds a question and returns the answer, whose pieces each receives as they are generated. After an error the
// conversation is unchanged.
func (c *Chat) Ask(ctx context.Context, question string, each func(text []byte)) (*Answer, error) {
	asked := c.conversation
	asked.Say("user", question)
	ids, end, ok, err := c.template.Prompt(&asked, time.Now())
	if err != nil {
		return nil, misuse{err}
	}
	g := c.generator
	if most := g.context; len(ids) >= most {
		return nil, misuse{fmt.Errorf("the conversation has %d tokens, but only %d fit, including the answer; hint: start a new conversation, or raise --context to at most %d, the model's positions", len(ids), most, c.folder.Model.MaxPositions)}
	}
	p := c.prompt
	p.Text, p.Each = "", each
	w := &writer{prompt: &p, tokenizer: c.folder.tokenizer, ends: c.ends}
	if ok {
		w.ends = append(w.ends[:len(w.ends):len(w.ends)], end)
	}
	known := g.Keep(ids)
	if err := w.read(ctx, g, ids[known:]); err != nil {
		return nil, c.folder.Blame(err)
	}
	w.out.PromptTokens = len(ids)
	if err := w.grow(ctx, g, c.random); err != nil {
		return nil, c.folder.Blame(err)
	}
	asked.Say("assistant", w.out.Text)
	c.conversation = asked
	return &Answer{question, w.out, known}, nil
}
