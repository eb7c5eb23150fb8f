package main

import (
	stdctx "context"
	"fmt"

	"github.com/athanor-llm/athanor/run"
)

type mergeCmd struct {
	Adapter string `arg:"" help:"Folder of an adapter: a checkpoint of a run with lora, or one of PEFT's." placeholder:"ADAPTER"`
	Folder  string `arg:"" help:"The model folder to make; it must not exist." placeholder:"FOLDER"`
}

type mergeReport struct {
	Folder string `json:"folder"`
}

func (v *mergeCmd) Run(c *context) error {
	show := newStatus(c.stderr)
	err := run.Merge(stdctx.Background(), v.Adapter, v.Folder, show.progress)
	show.done()
	if err != nil {
		return err
	}
	if c.json {
		return c.print(mergeReport{v.Folder})
	}
	_, err = fmt.Fprintln(c.stdout, "merged into", v.Folder)
	return err
}
