package main

import (
	"bufio"
	stdctx "context"
	"fmt"
	"io"
	"strings"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/cli"
)

type chatCmd struct {
	Model   string `arg:"" help:"Model folder with a chat template, such as a checkpoint." placeholder:"FOLDER"`
	System  string `help:"System message that begins the conversation."`
	Context int    `help:"Most tokens of the conversation, up to the model's positions." default:"4096"`
	sampling
	MaxTokens int `help:"Most tokens of an answer." default:"1000"`
}

type chatReport struct {
	Answers []*folder.Answer `json:"answers"`
	Notes   []string         `json:"notes,omitempty"`
}

// Run answers each line of standard input.
func (v *chatCmd) Run(c *cli.Context) error {
	if err := v.check("chat", v.MaxTokens); err != nil {
		return err
	}
	if v.Context < 2 || v.Context > 1<<24 {
		return cli.UsageError(fmt.Sprintf("chat: --context is %d; hint: use 2 to 16777216", v.Context))
	}
	p, err := v.prompt(c, "chat", v.System, v.MaxTokens)
	if err != nil {
		return err
	}
	ctx := stdctx.Background()
	t, err := folder.OpenChat(ctx, v.Model, v.Context, p)
	if err != nil {
		return explained(c, err)
	}
	defer t.Close()
	r := chatReport{Answers: []*folder.Answer{}, Notes: t.Notes}
	for _, n := range t.Notes {
		c.Note(n)
	}
	lines := bufio.NewScanner(c.Stdin)
	lines.Buffer(nil, 1<<20)
	for v.asks(c); lines.Scan(); v.asks(c) {
		question := strings.TrimSpace(lines.Text())
		if question == "" {
			continue
		}
		a, err := t.Ask(ctx, question, func(text []byte) {
			if !c.JSON {
				c.Stdout.Write(text)
			}
		})
		if err != nil {
			return err
		}
		if r.Answers = append(r.Answers, a); !c.JSON {
			fmt.Fprintln(c.Stdout)
		}
		if a.Full {
			fmt.Fprintln(c.Stderr, "the answer is cut off: the context is full")
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading the questions: %w; hint: write each question on one line of less than 1 MiB", err)
	}
	if c.JSON {
		return c.Print(r)
	}
	return nil
}

// asks shows on a terminal that a question is awaited.
func (v *chatCmd) asks(c *cli.Context) {
	if c.Terminal && !c.JSON {
		io.WriteString(c.Stdout, "> ")
	}
}
