package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/golden"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/machine"
)

type goldenCmd struct {
	Write goldenWriteCmd `cmd:"" help:"Write what a configuration's plan needs of memory, for a described machine (hardware.name)."`
	Check goldenCheckCmd `cmd:"" help:"Plan again, and say what needs something else than the files have."`
}

type goldenWriteCmd struct {
	target
	Out string `help:"File to write." default:"athanor.golden" placeholder:"FILE"`
}

func (v *goldenWriteCmd) Run(c *cli.Context) error {
	if err := cli.CanWrite([]string{v.Config}, v.Out); err != nil {
		return err
	}
	f, err := fingerprint(c, v.target)
	if err != nil {
		return err
	}
	if err := cli.WriteTo(v.Out, func(w io.Writer) error { _, err := f.WriteTo(w); return err }); err != nil {
		return err
	}
	if c.JSON {
		return c.Print(map[string]string{"file": v.Out})
	}
	fmt.Fprintln(c.Stdout, "wrote", v.Out)
	return nil
}

// fingerprint plans a configuration for the machine that it describes.
func fingerprint(c *cli.Context, t target) (*golden.Fingerprint, error) {
	named, overrides := t.Config, t.Overrides
	ctx := stdctx.Background()
	p, err := t.readFor(ctx, c, config.ToPlan)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if p.spec().Hardware.Name == "" {
		return nil, p.spec().Fault("hardware.name", "missing: what a plan of this machine needs depends on what it can do today; hint: name a described machine, such as hardware.name=l4")
	}
	if err := p.search(ctx, c, machine.Describe); err != nil {
		return nil, err
	}
	programs, err := p.task().Programs(ctx, p.result.Best)
	if err != nil {
		return nil, err
	}
	return golden.New(named, overrides, programs), nil
}

type goldenCheckCmd struct {
	Files []string `arg:"" help:"Files of golden write. Configurations are found from this folder, as they were named." placeholder:"FILE"`
}

// errChanged is that of a check which finds a difference.
var errChanged = errors.New("what plans need has changed")

func (v *goldenCheckCmd) Run(c *cli.Context) error {
	changed := map[string]string{}
	for _, name := range v.Files {
		file, err := bounded.Open(name)
		if err != nil {
			return fmt.Errorf("%w; hint: athanor golden write makes such a file", err)
		}
		was, err := golden.Read(file)
		file.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		now, err := fingerprint(c, target{cli.Target{Config: was.Config, Overrides: was.Overrides}})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		text := was.Difference(now)
		switch {
		case text == "" && !c.JSON:
			c.Textf("%s: as it was\n", name)
		case text != "":
			changed[name] = text
			if !c.JSON {
				fmt.Fprintf(c.Stdout, "%s: %s", name, text)
			}
		}
	}
	if c.JSON {
		if err := c.Print(map[string]any{"changed": changed}); err != nil {
			return err
		}
	}
	if len(changed) > 0 {
		return fmt.Errorf("%w in %d of %d; hint: if that is intended, athanor golden write with the same configuration and --out accepts it", errChanged, len(changed), len(v.Files))
	}
	return nil
}
