package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/athanor-llm/athanor/api"
	"github.com/athanor-llm/athanor/generation"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/size"
)

type apiCmd struct {
	Model     string `arg:"" help:"Model folder, such as a checkpoint." placeholder:"FOLDER"`
	Listen    string `help:"Address to listen on." default:"127.0.0.1:8000" placeholder:"HOST:PORT"`
	Name      string `help:"The model's name in requests; default: the folder's." placeholder:"NAME"`
	Context   int    `help:"Most tokens of a sequence, prompt and text, up to the model's positions. Memory for them is reserved at the start." default:"4096"`
	Sequences int    `help:"Texts to generate at once." default:"8"`
	Waiting   int    `help:"Texts that may wait for others to end; more are refused (429)." default:"64"`
	compressing
	computing
}

// Help is what api --help says besides the flags.
func (apiCmd) Help() string {
	return "Serves /v1/completions, /v1/chat/completions, /v1/models and /health as OpenAI's API has them. If " + apiKey +
		" is in the environment, clients must send it as their API key."
}

// apiKey is the variable with the key that clients must have.
const apiKey = "ATHANOR_API_KEY"

func (v *apiCmd) Run(c *cli.Context) error {
	switch {
	case v.Context < 2 || v.Context > 1<<24:
		return cli.UsageError(fmt.Sprintf("api: --context is %d; hint: use 2 to 16777216", v.Context))
	case v.Sequences < 1 || v.Sequences > maxSequences:
		return cli.UsageError(fmt.Sprintf("api: --sequences is %d; hint: use 1 to %d", v.Sequences, maxSequences))
	case v.Waiting < 0 || v.Waiting > 1<<16:
		return cli.UsageError(fmt.Sprintf("api: --waiting is %d; hint: use 0 to 65536", v.Waiting))
	}
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	f, o, err := openModel(c, &v.computing, &v.compressing, "api", v.Model)
	if err != nil {
		return err
	}
	defer f.Close()
	l, err := net.Listen("tcp", v.Listen)
	if err != nil {
		return fmt.Errorf("api: %w; hint: choose another address with --listen", err)
	}
	defer l.Close()
	o.Context, o.Sequences = min(v.Context, f.Model.MaxPositions), v.Sequences
	p, err := generation.NewPrompter(f)
	if err != nil {
		return err
	}
	b, err := generation.OpenServed(ctx, f, o, c.Note)
	if err != nil {
		return explained(c, err)
	}
	s := api.New(b, p, api.Options{Model: v.name(), Key: os.Getenv(apiKey), Waiting: v.Waiting, Defaults: generation.Request{Tokens: 16, Sampling: generation.Sampling{Temperature: 1}}})
	for _, n := range b.Notes {
		c.Note(n)
	}
	v.describe(c, l.Addr(), b)
	return errors.Join(s.Serve(ctx, l), b.Close())
}

// name returns the name that clients use.
func (v *apiCmd) name() string {
	if v.Name != "" {
		return v.Name
	}
	if paths.IsHub(v.Model) {
		return v.Model
	}
	if path, err := filepath.Abs(v.Model); err == nil {
		return filepath.Base(path)
	}
	return v.Model
}

// describe says where the model is served, and what that takes.
func (v *apiCmd) describe(c *cli.Context, at net.Addr, b *generation.Batch) {
	m := b.Footprint()
	c.Tellf("%s: OpenAI's API at http://%s/v1, %d texts at once of up to %d tokens, in %s of device and %s of host memory\n",
		v.name(), at, b.Sequences(), b.Context(), size.Format(m.Device), size.Format(m.Host))
	if tcp, ok := at.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && os.Getenv(apiKey) == "" {
		c.Tellf("note: other hosts reach this address, and no key is needed; hint: set %s\n", apiKey)
	}
}
