package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/generation"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/machine"
)

type generateCmd struct {
	Model     string `arg:"" help:"Model folder, such as a checkpoint." placeholder:"FOLDER"`
	Prompt    string `help:"Text to continue. The tokens that the tokenizer puts before every text are prepended unless the prompt begins with them." xor:"prompt"`
	MaxTokens int    `help:"Most tokens to add." default:"100"`
	sampling
	Prompts   string `help:"Continue each line of this file, many at once: {\"prompt\": ...} or {\"messages\": [...]}, with settings of its own if it has them. Needs --out." xor:"prompt" placeholder:"FILE.jsonl"`
	Out       string `help:"Where to write the texts, a line for each line of --prompts. If it exists, lines that are missing are added." placeholder:"FILE.jsonl"`
	Sequences int    `help:"With --prompts, texts to generate at once; 0: as many as fit, at most 32."`
	Explain   bool   `help:"With --prompts, say how they would be generated, and how fast if weights have to be copied for every token, and generate nothing."`
	Context   int    `help:"With --prompts, most tokens of a prompt and its text, for which memory is reserved; 0: what the longest line needs."`
}

// Help is what generate --help says besides the flags.
func (generateCmd) Help() string {
	return "Lines of --prompts may have id, max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, stop and seed; " +
		"with messages, tools and chat_template_kwargs too. After an interruption, the same command goes on where it ended."
}

// sampling has the flags of verbs that generate text.
type sampling struct {
	Temperature float64 `help:"0 always takes the likeliest token; higher values give more varied text." default:"0.8"`
	Seed        uint64  `help:"Seed of the random choices." default:"1"`
	compressing
	computing
}

// compressing has the flags that change what a model generates, to take less memory.
type compressing struct {
	Quantize  string `help:"nf4: hold the layers' weights in 4 bits, as training with quantize: nf4 does." enum:"none,nf4" default:"none"`
	CacheBits int    `help:"8 or 4: hold the keys and values of texts in so many bits; 0: as they are computed." default:"0"`
}

// apply makes a model compute as the flags say.
func (v *compressing) apply(f *folder.Folder) error {
	if v.Quantize == config.NF4 {
		if err := f.Quantize(); err != nil {
			return err
		}
	}
	if v.CacheBits != 0 {
		return f.CompressCaches(v.CacheBits)
	}
	return nil
}

// computing has the flags of verbs that run a model folder.
type computing struct {
	Device    string `help:"auto, cpu or cuda." enum:"auto,cpu,cuda" default:"auto"`
	Precision string `help:"Precision of weights and activations: fp32, bf16, or auto, which is bf16 on a GPU." enum:"auto,fp32,bf16" default:"auto"`
	Memory    string `help:"Most device memory to use, such as 8GB. Weights that do not fit stay on the host and are copied when they are needed." placeholder:"SIZE" name:"device-memory"`
}

// limit returns the bytes of --device-memory; 0: none are named.
func (v *computing) limit(verb string) (int64, error) {
	if v.Memory == "" {
		return 0, nil
	}
	n, err := size.Parse(v.Memory)
	if err == nil && n < 1 {
		err = errors.New("nothing fits into it; hint: leave it out to use all available memory")
	}
	if err != nil {
		return 0, cli.UsageError(fmt.Sprintf("%s: --device-memory %s: %v", verb, v.Memory, err))
	}
	return n, nil
}

// deviceAndType returns the device and the type to compute with.
func (v *computing) deviceAndType(c *cli.Context) (name string, dtype graph.DType) {
	name = machine.ChooseDevice(v.Device, c.Note)
	if v.Precision == "bf16" || v.Precision == "auto" && device.IsGPU(name) {
		dtype = graph.BF16
	}
	return name, dtype
}

// check refuses settings out of range.
func (v *sampling) check(verb string, tokens int) error {
	if tokens < 1 || tokens > 1<<20 {
		return cli.UsageError(fmt.Sprintf("%s: --max-tokens is %d; hint: use 1 to 1048576", verb, tokens))
	}
	if !(v.Temperature >= 0 && v.Temperature <= 100) {
		return cli.UsageError(fmt.Sprintf("%s: --temperature is %v; hint: use 0 to 100", verb, v.Temperature))
	}
	return nil
}

func (v *sampling) prompt(c *cli.Context, verb, text string, tokens int) (p folder.Prompt, err error) {
	p = folder.Prompt{Text: text, Tokens: tokens, Temperature: v.Temperature, Seed: v.Seed, Quantize: v.Quantize == config.NF4, CacheBits: v.CacheBits}
	if p.Limit, err = v.limit(verb); err == nil {
		p.Device, p.DType = v.deviceAndType(c)
	}
	return p, err
}

func (v *generateCmd) Run(c *cli.Context) error {
	if err := v.check("generate", v.MaxTokens); err != nil {
		return err
	}
	if v.Prompts != "" {
		return v.continueFile(c)
	}
	if v.Out != "" || v.Sequences != 0 || v.Context != 0 || v.Explain {
		return cli.UsageError("generate: --out, --sequences, --context and --explain belong to --prompts; hint: leave them out, or name a file with --prompts")
	}
	p, err := v.prompt(c, "generate", v.Prompt, v.MaxTokens)
	if err != nil {
		return err
	}
	streams := c.Terminal && !c.JSON
	if streams { // a terminal shows the text grow; a pipe gets all of it or nothing
		p.Each = func(text []byte) { c.Stdout.Write(text) }
	}
	s, err := folder.Sample(stdctx.Background(), v.Model, p)
	if err != nil {
		return explained(c, err)
	}
	switch {
	case c.JSON:
		if err := c.Print(s); err != nil {
			return err
		}
	case streams:
		fmt.Fprintln(c.Stdout)
	default:
		if _, err := fmt.Fprintln(c.Stdout, s.Text); err != nil {
			return err
		}
	}
	for _, n := range s.Notes {
		c.Note(n)
	}
	fmt.Fprintln(c.Stderr, describe(s))
	return nil
}

// describe reports the speed of generation, and why it ended early.
func describe(s *folder.Sampled) string {
	line := fmt.Sprintf("prompt of %d tokens in %.2f s", s.PromptTokens, s.PromptTime)
	if s.Tokens > 1 { // the first follows from the prompt
		line += fmt.Sprintf(", then %d tokens at %.1f per second", s.Tokens, float64(s.Tokens-1)/s.Time)
	}
	if s.Streamed > 0 {
		line += fmt.Sprintf("; for each token %s of weights were copied from the host", size.Format(s.Streamed))
	}
	if s.Full {
		line += "; the model's context is full"
	}
	return line
}

// continueFile continues the lines of a file.
func (v *generateCmd) continueFile(c *cli.Context) error {
	switch {
	case v.Out == "" && !v.Explain:
		return cli.UsageError("generate: --prompts needs --out; hint: name the file for the texts")
	case v.Sequences < 0 || v.Sequences > maxSequences:
		return cli.UsageError(fmt.Sprintf("generate: --sequences is %d; hint: use 1 to %d, or 0 for as many as fit", v.Sequences, maxSequences))
	case v.Context < 0 || v.Context > 1<<24:
		return cli.UsageError(fmt.Sprintf("generate: --context is %d; hint: use 1 to 16777216, or 0 for what the longest line needs", v.Context))
	}
	if !v.Explain {
		if err := cli.CanWrite([]string{v.Prompts}, v.Out); err != nil {
			return err
		}
	}
	f, o, err := openModel(c, &v.computing, &v.compressing, "generate", v.Model)
	if err != nil {
		return err
	}
	defer f.Close()
	o.Context, o.Sequences = v.Context, v.Sequences
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	show, began := cli.NewStatus(c.Stderr), time.Now()
	file := &generation.File{Prompts: v.Prompts, Out: v.Out, Options: o, Defaults: v.defaults(v.MaxTokens)}
	if v.Explain {
		r, err := file.Explain(ctx, f)
		if err != nil {
			return explained(c, err)
		}
		if c.JSON {
			return c.Print(r)
		}
		fmt.Fprintln(c.Stdout, describePlan(r))
		return nil
	}
	file.Progress = func(what string, done, total int64) { show.Count(what, done, total, began) }
	r, err := file.Run(ctx, f)
	show.Done()
	if errors.Is(err, stdctx.Canceled) {
		return fmt.Errorf("%w: %s has the lines that were ready", errPaused, v.Out)
	}
	if err != nil {
		return explained(c, err)
	}
	for _, n := range r.Notes {
		c.Note(n)
	}
	if c.JSON {
		return c.Print(r)
	}
	fmt.Fprintln(c.Stderr, describeFile(r))
	return nil
}

// maxSequences bounds the texts that are generated at once.
const maxSequences = 1024

// errPaused reports a signal while a file was continued.
var errPaused = errors.New("stopped by a signal; start the same command again to go on")

// openModel opens a model folder, and says how it computes.
func openModel(c *cli.Context, v *computing, less *compressing, verb, dir string) (f *folder.Folder, o generation.Options, err error) {
	if o.Limit, err = v.limit(verb); err != nil {
		return nil, o, err
	}
	o.Device, o.DType = v.deviceAndType(c)
	if f, err = folder.Open(dir); err != nil {
		return nil, o, err
	}
	if err := less.apply(f); err != nil {
		return nil, o, errors.Join(err, f.Close())
	}
	return f, o, nil
}

// defaults returns what requests leave out.
func (v *sampling) defaults(tokens int) generation.Request {
	return generation.Request{Tokens: tokens, Sampling: generation.Sampling{Temperature: v.Temperature, Seed: v.Seed}, Logprobs: -1}
}

// describeFile reports what was done with a file, and how fast.
func describeFile(r *generation.Report) string {
	text := fmt.Sprintf("%d lines", r.Lines-r.Kept)
	if r.Kept > 0 {
		text += fmt.Sprintf(" (%d were there)", r.Kept)
	}
	if r.Kept == r.Lines {
		return text + ": nothing is left to do"
	}
	text += fmt.Sprintf(": %d tokens of prompts and %d more in %s, %.1f per second, %d texts at once of up to %d tokens", r.PromptTokens, r.Tokens, stat.Seconds(r.Time), float64(r.Tokens)/r.Time, r.Sequences, r.Context)
	if r.Streamed > 0 {
		text += fmt.Sprintf("; for each step %s of weights were copied from the host", size.Format(r.Streamed))
	}
	if b := r.Block; b != nil {
		text += "\n" + describeBlock(b)
	}
	return text
}

// describePlan says how a file would be continued.
func describePlan(r *generation.Report) string {
	text := fmt.Sprintf("%d lines, %d tokens of prompts and at most %d more, %d texts at once of up to %d tokens", r.Lines, r.PromptTokens, r.Tokens, r.Sequences, r.Context)
	b := r.Block
	if b == nil {
		return text + "\nall weights are on the device"
	}
	return text + fmt.Sprintf("\n%s on the device and %s on the host; for each step %s of weights are copied from the host\n%s\npredicted: a token of each text in %s, %d tokens of each prompt in %s, %.1f tokens per second",
		size.Format(r.Device), size.Format(r.Host), size.Format(r.Streamed), describePolicy(b), stat.Seconds(b.PredictedStep), b.Reads, stat.Seconds(b.PredictedPart), b.PredictedRate)
}

// describePolicy says what a block is.
func describePolicy(b *generation.BlockReport) string {
	text := fmt.Sprintf("%d at a time of %d texts for each reading of the weights", b.Each, b.Batches*b.Each)
	if far := b.Batches - b.Near; far > 0 {
		text += fmt.Sprintf(", the caches of %d of %d batches on the host", far, b.Batches)
		if b.HostAttends {
			text += ", whose cores attend to them"
		}
	}
	if b.HiddenOnHost {
		text += ", hidden states on the host"
	}
	return text
}

// describeBlock says which policy was chosen, and how long its parts took beside what was predicted.
func describeBlock(b *generation.BlockReport) string {
	text := describePolicy(b)
	for _, p := range []struct {
		what      string
		predicted float64
		took      folder.Timed
	}{{"a token of each", b.PredictedStep, b.Steps}, {fmt.Sprintf("%d tokens of each prompt", b.Reads), b.PredictedPart, b.Parts}} {
		if p.took.Times > 0 {
			text += fmt.Sprintf("; %s took %s, %s predicted", p.what, stat.Seconds(p.took.Seconds/float64(p.took.Times)), stat.Seconds(p.predicted))
		}
	}
	return text
}
