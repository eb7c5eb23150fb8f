package main

import (
	stdctx "context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/train"
)

type dataCmd struct {
	What      []string `arg:"" help:"A run's YAML file and overrides, or files and globs." placeholder:"CONFIG|GLOB"`
	Tokenizer string   `help:"For globs: gpt2, bpe-N (trained on them), a tokenizer.json, or a folder with one and a chat template." default:"gpt2"`
	TextField []string `help:"For globs: field of rows that holds the text, or several: the first that a row has; without it text." placeholder:"NAME"`
	Labels    []string `help:"For globs: names of the labels that rows have, or their number, as the key labels." placeholder:"NAME"`
	Sample    int      `help:"Tokens to show from the start." default:"48"`
}

type dataReport struct {
	Files      int        `json:"files"`
	Formats    data.Stats `json:"formats"`
	Documents  int64      `json:"documents"`
	Bytes      int64      `json:"bytes"` // of text
	Tokens     int64      `json:"tokens"`
	Tokenizer  string     `json:"tokenizer"`
	Vocabulary int        `json:"vocabulary"`
	Entropy    float64    `json:"unigram_entropy"` // nats per token
	Cache      string     `json:"cache"`           // file of the tokens, of the first source
	Sample     []piece    `json:"sample"`

	Sources    []sourceReport `json:"sources,omitempty"`    // of a mixture
	Validation *sourceReport  `json:"validation,omitempty"` // a separate corpus
}

// sourceReport describes a part of the corpus, or the corpus to validate with.
type sourceReport struct {
	Name    string     `json:"name"` // its patterns
	Formats data.Stats `json:"formats"`
	Tokens  int64      `json:"tokens"`
	Cache   string     `json:"cache"`
	Times   float64    `json:"times,omitempty"` // how often a pass reads it
	Share   float64    `json:"share,omitempty"` // of the tokens of a pass
}

func reportOf(s *train.Source, share float64) sourceReport {
	return sourceReport{s.Name, s.Tokens.Stats(), s.Tokens.Len(), s.Tokens.Path(), s.Times, share}
}

// piece is a token and its text.
type piece struct {
	ID    int32  `json:"id"`
	Text  string `json:"text"`
	Given bool   `json:"given,omitempty"` // not learnt
}

func (v *dataCmd) Run(c *cli.Context) error {
	if v.Sample < 0 {
		return cli.UsageError("data: --sample cannot be negative; hint: use 0 or more tokens")
	}
	spec, err := v.job(c)
	if err != nil {
		return err
	}
	show := cli.NewStatus(c.Stderr)
	text, err := train.OpenText(stdctx.Background(), spec, show.Progress)
	show.Done()
	if err != nil {
		return err
	}
	defer text.Close()
	for _, n := range text.Notes {
		c.Note(n)
	}
	first := text.Sources[0].Tokens
	r := dataReport{
		Files: len(text.Corpus().Files()), Formats: text.Stats(), Tokens: text.Len(),
		Tokenizer: spec.Tokenizer, Vocabulary: text.Tokenizer.VocabularySize(),
		Cache: first.Path(), Sample: []piece{},
	}
	r.Documents, r.Bytes = r.Formats.Documents(), r.Formats.Bytes()
	var all []data.Stretch
	for k, s := range text.Sources {
		all = append(all, data.Stretch{Tokens: s.Tokens, Range: s.Tokens.All()})
		if text.Mixed() {
			r.Sources = append(r.Sources, reportOf(&s, text.Share(k)))
		}
	}
	if text.Validation != nil {
		own := reportOf(text.Validation, 0)
		r.Validation = &own
	}
	r.Entropy = data.Entropy(all...)
	for i := range min(int64(v.Sample), first.Len()) {
		token := first.At(i)
		if label, is := data.TagOf(token); is {
			name := fmt.Sprintf("label %d", label)
			switch {
			case spec.Regresses():
				name = "half of a value"
			case spec.Classifies():
				name = "label " + spec.Labels[label]
			}
			r.Sample = append(r.Sample, piece{int32(label), name, false})
			continue
		}
		b, err := text.Tokenizer.Decode([]int32{data.ID(token)})
		if err != nil {
			return err
		}
		r.Sample = append(r.Sample, piece{data.ID(token), visible(b), data.Given(token) || spec.Classifies()})
	}
	if c.JSON {
		return c.Print(r)
	}
	r.print(c, text)
	return nil
}

// job returns what a run's configuration reads, or the globs.
func (v *dataCmd) job(c *cli.Context) (*job.Spec, error) {
	switch strings.ToLower(filepath.Ext(v.What[0])) {
	case ".yaml", ".yml":
		return (&cli.Target{Config: v.What[0], Overrides: v.What[1:]}).Load(c, config.ToRead)
	}
	cfg := config.Default()
	cfg.Data, cfg.Tokenizer, cfg.TextField = config.Files(v.What...), v.Tokenizer, v.TextField
	cfg.Labels = v.Labels
	return job.Settle(config.ToRead, &cfg, c.Note)
}

func (r *dataReport) print(c *cli.Context, text *train.Text) {
	c.Textf("%d files: %v\n", r.Files, r.Formats)
	c.Textf("%s of text, %d tokens of %s (vocabulary %d), %.2f bytes per token\n",
		size.Format(r.Bytes), r.Tokens, r.Tokenizer, r.Vocabulary, float64(r.Bytes)/float64(max(r.Tokens, 1)))
	for k := range r.Sources {
		c.Textf("  %v, %.1f %% of the tokens of a pass\n", text.Sources[k], 100*text.Share(k))
	}
	if s := text.Validation; s != nil {
		c.Textf("validation: %v; %d tokens\n", s.Tokens.Stats(), s.Tokens.Len())
	}
	c.Textf("unigram entropy %.4f nats per token: a model that learns anything from context gets below it\n", r.Entropy)
	if len(r.Sample) == 0 {
		return
	}
	fmt.Fprintf(c.Stdout, "\nthe first %d tokens", len(r.Sample))
	if r.Formats.Prompts()+r.Formats.Conversations()+r.Formats.Pairs()+r.Formats.Tagged() > 0 {
		fmt.Fprint(c.Stdout, ", (given) or [learnt]")
	}
	fmt.Fprintln(c.Stdout, ":")
	for _, p := range r.Sample {
		form := "[%s]"
		if p.Given {
			form = "(%s)"
		}
		fmt.Fprintf(c.Stdout, form, p.Text)
		if strings.HasSuffix(p.Text, `\n`) {
			fmt.Fprintln(c.Stdout)
		}
	}
	fmt.Fprintln(c.Stdout)
}

// visible formats a token's bytes so that outer spaces, line breaks and invalid
// UTF-8 show.
func visible(b []byte) string {
	quoted := fmt.Sprintf("%q", b)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
