package main

import (
	stdctx "context"
	"fmt"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/cli"
)

type mergeCmd struct {
	Adapter string `arg:"" help:"Adapter folder: a checkpoint of a run with lora, or a PEFT adapter." placeholder:"ADAPTER"`
	Folder  string `arg:"" help:"The model folder to make; it must not exist." placeholder:"FOLDER"`
}

type folderReport struct {
	Folder string `json:"folder"`
}

func (v *mergeCmd) Run(c *cli.Context) error {
	return makeFolder(c, v.Folder, "merged into", func(p folder.Progress) error {
		return folder.Merge(stdctx.Background(), v.Adapter, v.Folder, p)
	})
}

type exportCmd struct {
	From      string `arg:"" help:"Model folder, such as a checkpoint, or adapter folder." placeholder:"FOLDER"`
	Folder    string `arg:"" help:"The model folder to make; it must not exist." placeholder:"NEW"`
	Precision string `help:"Data type of the weights: fp32, bf16, or files, which keeps that of the files." enum:"files,fp32,bf16" default:"files"`
}

func (v *exportCmd) Run(c *cli.Context) error {
	as := map[string]safetensors.DType{"fp32": safetensors.F32, "bf16": safetensors.BF16}[v.Precision]
	return makeFolder(c, v.Folder, "written to", func(p folder.Progress) error {
		return folder.Export(stdctx.Background(), v.From, v.Folder, as, p)
	})
}

// makeFolder makes a folder and says so.
func makeFolder(c *cli.Context, made, what string, write func(folder.Progress) error) error {
	show := cli.NewStatus(c.Stderr)
	err := write(show.Progress)
	show.Done()
	if err != nil {
		return err
	}
	if c.JSON {
		return c.Print(folderReport{made})
	}
	_, err = fmt.Fprintln(c.Stdout, what, made)
	return err
}
