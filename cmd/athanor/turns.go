package main

import (
	"bufio"
	stdctx "context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"

	"github.com/athanor-llm/athanor/internal/cli"
)

// benchTurnsCmd makes a step for each line of its input, for a process that compares binaries. What it prints is the
// protocol: a line when it is ready, and one after each step.
type benchTurnsCmd struct{ target }

// turnLine is a line of the protocol.
type turnLine struct {
	Predicted float64 `json:"predicted_step_seconds,omitempty"` // of a step; in the first line
	Seconds   float64 `json:"step_seconds,omitempty"`
	Loss      float64 `json:"loss,omitempty"`
}

func (v *benchTurnsCmd) Run(c *cli.Context) error {
	ctx := stdctx.Background()
	s, err := openSide(ctx, c, v.target)
	if err != nil {
		return err
	}
	defer s.close()
	out := json.NewEncoder(c.Stdout)
	if err := out.Encode(turnLine{Predicted: s.predicted}); err != nil {
		return err
	}
	in := bufio.NewScanner(c.Stdin)
	for in.Scan() {
		seconds, loss, err := s.next(ctx)
		if err != nil {
			return err
		}
		if err := out.Encode(turnLine{Seconds: seconds, Loss: loss}); err != nil {
			return err
		}
	}
	return in.Err()
}

// openChild starts another binary that makes the steps.
func openChild(ctx stdctx.Context, c *cli.Context, binary string, t target) (*side, error) {
	cmd := exec.CommandContext(ctx, binary, slices.Concat([]string{"bench", "turns", t.Config}, t.Overrides)...)
	cmd.Stderr = c.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, cli.UsageError(fmt.Sprintf("compare: %v; hint: name a binary of Athanor", err))
	}
	lines := json.NewDecoder(out)
	read := func() (l turnLine, err error) {
		if err = lines.Decode(&l); err != nil {
			err = errors.Join(fmt.Errorf("%s does not make steps: %w; hint: compare binaries that have `bench turns`", binary, err), cmd.Wait())
		}
		return l, err
	}
	ready, err := read()
	if err != nil {
		return nil, err
	}
	return &side{
		predicted: ready.Predicted,
		next: func(stdctx.Context) (seconds, loss float64, err error) {
			if _, err := io.WriteString(in, "step\n"); err != nil {
				return 0, 0, err
			}
			l, err := read()
			return l.Seconds, l.Loss, err
		},
		close: func() {
			in.Close()
			_ = cmd.Wait() // its steps are all that matters
		},
	}, nil
}
