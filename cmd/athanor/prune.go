package main

import (
	stdctx "context"
	"fmt"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/prune"
)

type pruneCmd struct {
	From      string   `arg:"" help:"Model folder, such as a checkpoint." placeholder:"FOLDER"`
	Folder    string   `arg:"" help:"The model folder to make; it must not exist." placeholder:"NEW"`
	Sparsity  string   `help:"Share of each matrix's weights that become zero, such as 0.5, or how many of a group of inputs stay, such as 2:4." required:"" placeholder:"SHARE"`
	Data      []string `help:"Text like that on which the model will be used: files or patterns." required:"" placeholder:"GLOB"`
	Method    string   `help:"sparsegpt: the weights that stay make up for those that go, layer by layer. magnitude: the smallest go, and the others stay as they are." enum:"sparsegpt,magnitude" default:"sparsegpt"`
	Samples   int      `help:"Most sequences of the text." default:"128"`
	Sequence  int      `help:"Tokens per sequence; 0: 256, or the model's positions if there are fewer."`
	TextField []string `help:"Field of rows that holds the text, or several: the first that a row has; without it as in training, else text." placeholder:"NAME"`
	SkipBad   bool     `help:"Leave out rows that are no document."`
}

type pruneReport struct {
	folderReport
	Sparsity string               `json:"sparsity"`
	Method   string               `json:"method"`
	Tokens   int                  `json:"tokens"` // of the text
	Zeros    int64                `json:"zeros"`
	Weights  int64                `json:"weights"` // of the layers' matrices
	Layers   []folder.PrunedLayer `json:"layers"`
}

func (v *pruneCmd) Run(c *cli.Context) error {
	pattern, err := prune.Parse(v.Sparsity)
	if err != nil {
		return cli.UsageError("prune: --sparsity: " + err.Error())
	}
	if v.Samples < 1 || v.Sequence < 0 {
		return cli.UsageError(fmt.Sprintf("prune: --samples is %d and --sequence %d; hint: use at least 1 for --samples, and a --sequence of at least 1, or 0 for the default", v.Samples, v.Sequence))
	}
	ctx := stdctx.Background()
	f, err := folder.Open(v.From)
	if err != nil {
		return err
	}
	defer f.Close()
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	rows, err := folder.HeldOut(ctx, f, folder.Texts{Patterns: v.Data, TextField: v.TextField, SkipBad: v.SkipBad, Note: c.Note}, v.Sequence, v.Samples, show.Progress)
	if err != nil {
		return err
	}
	r := pruneReport{folderReport: folderReport{v.Folder}, Sparsity: pattern.String(), Method: v.Method, Tokens: len(rows) * (len(rows[0]) - 1)}
	layer := func(l folder.PrunedLayer) {
		r.Layers, r.Zeros, r.Weights = append(r.Layers, l), r.Zeros+l.Zeros, r.Weights+l.Weights
		if !c.JSON {
			show.Done()
			c.Textf("layer %-3d error %8.4f %%  %7.1f s\n", l.Layer, 100*l.Error, l.Seconds)
		}
	}
	if err := f.Prune(ctx, v.Folder, folder.Pruning{Pattern: pattern, Magnitude: v.Method == "magnitude", Rows: rows, Layer: layer, Progress: show.Progress}); err != nil {
		return err
	}
	show.Done()
	if c.JSON {
		return c.Print(r)
	}
	_, err = fmt.Fprintf(c.Stdout, "%.2f %% of %d weights are zero, written to %s\n", 100*float64(r.Zeros)/float64(r.Weights), r.Weights, v.Folder)
	return err
}
