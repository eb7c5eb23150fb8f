package main

import (
	stdctx "context"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
)

type generateCmd struct {
	Model     string `arg:"" help:"Model folder, such as a checkpoint." placeholder:"FOLDER"`
	Prompt    string `help:"Text to continue. The tokens that the tokenizer puts before every text are prepended unless the prompt begins with them."`
	MaxTokens int    `help:"Most tokens to add." default:"100"`
	sampling
}

// sampling has the flags of verbs that generate text.
type sampling struct {
	Temperature float64 `help:"0 always takes the likeliest token; higher values give more varied text." default:"0.8"`
	Seed        uint64  `help:"Seed of the random choices." default:"1"`
	Quantize    string  `help:"nf4: hold the layers' weights in 4 bits, as training with quantize: nf4 does." enum:"none,nf4" default:"none"`
	computing
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
	p = folder.Prompt{Text: text, Tokens: tokens, Temperature: v.Temperature, Seed: v.Seed, Quantize: v.Quantize == config.NF4}
	if p.Limit, err = v.limit(verb); err == nil {
		p.Device, p.DType = v.deviceAndType(c)
	}
	return p, err
}

func (v *generateCmd) Run(c *cli.Context) error {
	if err := v.check("generate", v.MaxTokens); err != nil {
		return err
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
		fmt.Fprintln(c.Stderr, "note:", n)
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
