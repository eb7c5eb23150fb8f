package main

import (
	stdctx "context"
	"fmt"
	"io"

	"github.com/athanor-llm/athanor/checkpoint/gguf"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/paths"
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
	GGUF      string `help:"Write one file for llama.cpp instead, named NEW, with matrices as f32, f16, bf16, q8_0, q6_k or q4_k_m." enum:"none,f32,f16,bf16,q8_0,q6_k,q4_k_m" default:"none"`
	Precision string `help:"Data type of the weights: fp32, bf16, or files, which keeps that of the files." enum:"files,fp32,bf16" default:"files"`
}

func (v *exportCmd) Run(c *cli.Context) error {
	if v.GGUF != "none" {
		return v.writeGGUF(c)
	}
	as := map[string]safetensors.DType{"fp32": safetensors.F32, "bf16": safetensors.BF16}[v.Precision]
	return makeFolder(c, v.Folder, "written to", func(p folder.Progress) error {
		return folder.Export(stdctx.Background(), v.From, v.Folder, as, p)
	})
}

// writeGGUF writes a file for llama.cpp.
func (v *exportCmd) writeGGUF(c *cli.Context) error {
	if v.Precision != "files" {
		return cli.UsageError("export: --gguf has a type of its own, and --precision is of folders; hint: leave --precision out")
	}
	if paths.Exists(v.Folder) {
		return cli.UsageError(v.Folder + " already exists; hint: name a new file")
	}
	as, err := gguf.TypeNamed(v.GGUF)
	if err != nil {
		return err
	}
	return makeFolder(c, v.Folder, "written to", func(p folder.Progress) error {
		return cli.WriteTo(v.Folder, func(w io.Writer) error { return folder.WriteGGUF(stdctx.Background(), v.From, w, as, p) })
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
