package main

import (
	"bufio"
	"cmp"
	stdctx "context"
	"errors"
	"io"
	"os"

	"github.com/athanor-llm/athanor/internal/suggest"
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

// wrote is the error of a write.
func wrote(_ int, err error) error { return err }

// writeTo makes a file of what a function writes. On an error there is none; what
// was there before and is no plain file, such as a device, stays.
func writeTo(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return suggest.Add(err, "name a file in a folder that can be written")
	}
	w := bufio.NewWriter(f)
	st, err := f.Stat()
	if err = cmp.Or(err, write(w), w.Flush(), f.Close()); err != nil && st != nil && st.Mode().IsRegular() {
		os.Remove(path)
	}
	return err
}
