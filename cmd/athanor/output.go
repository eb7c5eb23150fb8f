package main

import (
	"bufio"
	stdctx "context"
	"errors"
	"io"
	"os"

	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/run"
)

// plannedOrExplained plans; where nothing fits it prints what JSON promises
// for that.
func (t *target) plannedOrExplained(c *context) (*planned, error) {
	p, err := t.makePlan(stdctx.Background(), c, run.DescribeMachine)
	var misfit *plan.Misfit
	if errors.As(err, &misfit) && c.json {
		return nil, errors.Join(c.print(plan.MisfitReport(misfit)), err)
	}
	return p, err
}

// writeTo makes a file of what a function writes; on an error there is none.
func writeTo(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	err = errors.Join(write(w), w.Flush(), f.Close())
	if err != nil {
		os.Remove(path)
	}
	return err
}
