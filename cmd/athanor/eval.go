package main

import (
	stdctx "context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/model"
)

type evalCmd struct {
	Model     string   `arg:"" help:"Model folder: config.json and safetensors." placeholder:"FOLDER"`
	Data      []string `arg:"" optional:"" help:"Corpus to evaluate on: files or patterns." placeholder:"GLOB"`
	Tokens    string   `help:"Evaluate on these token ids instead: a JSON list of lists, all of one length; each list's last token is a target only." placeholder:"FILE"`
	Sequence  int      `help:"Tokens per sequence of a corpus; 0: 256 or, of a model with labels, as in training, or the model's positions if there are fewer."`
	TextField []string `help:"Field of rows that holds the text, or several: the first that a row has; without it as in training, else text." placeholder:"NAME"`
	SkipBad   bool     `help:"Leave out rows that are no document."`
	Batches   int      `help:"Most sequences of the corpus to evaluate." default:"64"`
	Separate  bool     `help:"Tokens attend only to their own document, as in training with documents: separate."`
	Quantize  string   `help:"nf4: hold the layers' weights in 4 bits, as training with quantize: nf4 does." enum:"none,nf4" default:"none"`
	computing
	Preference  string  `help:"Of pairs of a chosen and a rejected answer: the loss by which they are compared, dpo, ipo, simpo or orpo; without it as in training." placeholder:"LOSS"`
	Beta        float64 `help:"Of pairs: the loss's beta; 0: as in training, or what is usual." placeholder:"NUMBER"`
	Reference   string  `help:"Of pairs: the folder of the model with which dpo and ipo compare; without it the one that the run began with." placeholder:"FOLDER"`
	Predictions string  `help:"Of a model with labels: write what it says of the text of each row of one file, as JSONL; a reward model's rewards." placeholder:"FILE"`
	Logits      string  `help:"Write the logits as safetensors (with --tokens)." placeholder:"FILE"`
	Grads       string  `help:"Write the gradients of the mean loss under Hugging Face names (with --tokens)." placeholder:"FILE"`
}

type evalReport struct {
	Loss       float64  `json:"loss"`       // nats per token
	Perplexity *float64 `json:"perplexity"` // null: too large for a number
	// BitsPerByte does not depend on the tokenizer. Absent: the folder has none.
	BitsPerByte float64 `json:"bits_per_byte,omitempty"`
	Tokens      int     `json:"tokens"` // predicted
	folder.Footprint
}

func (v *evalCmd) Run(c *cli.Context) error {
	if v.Sequence < 0 || v.Batches < 1 {
		return cli.UsageError(fmt.Sprintf("eval: --sequence is %d and --batches %d; hint: use a --sequence of at least 1, or 0 for the default, and at least 1 for --batches", v.Sequence, v.Batches))
	}
	own, err := filepath.Glob(filepath.Join(paths.Hub(v.Model), "*"))
	if err == nil {
		err = cli.CanWrite(append(own, append(v.Data, v.Tokens)...), v.Logits, v.Grads, v.Predictions)
	}
	if err != nil {
		return err
	}
	ctx := stdctx.Background()
	f, err := folder.OpenAny(v.Model)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Limit, err = v.limit("eval"); err != nil {
		return err
	}
	if f.Device, f.DType = v.deviceAndType(c); v.Precision == "auto" && v.Logits+v.Grads != "" { // these are for comparison
		f.DType = graph.F32
	}
	rewards := len(f.Model.Labels) == 1 && !f.Model.Regression
	switch {
	case model.Classifies(f.Model) && v.Predictions != "":
		return v.predict(ctx, c, f)
	case model.Classifies(f.Model) && !rewards:
		return v.guess(ctx, c, f)
	case v.Predictions != "":
		return cli.UsageError("eval: --predictions needs a model with labels; hint: train one with the key labels")
	}
	if v.Separate {
		if err := f.SeparateDocuments(); err != nil {
			return err
		}
	}
	if v.Quantize == config.NF4 {
		if err := f.Quantize(); err != nil {
			return err
		}
	}
	if rewards || v.comparing() {
		return v.rank(ctx, c, f)
	}
	rows, err := v.rows(ctx, c, f)
	if errors.Is(err, folder.ErrPairs) {
		return v.rank(ctx, c, f)
	}
	if err != nil {
		return err
	}
	e, err := folder.Evaluate(ctx, f, rows, v.Logits != "", v.Grads != "")
	if err != nil {
		return explained(c, err)
	}
	if err := v.write(e, []int{len(rows), len(rows[0]) - 1, f.Model.Vocab}); err != nil {
		return err
	}
	r := evalReport{Loss: e.Loss, BitsPerByte: stat.BitsPerByte(e.Loss*float64(e.Tokens), e.Bytes), Tokens: e.Tokens, Footprint: e.Footprint}
	if p := math.Exp(e.Loss); !math.IsInf(p, 0) {
		r.Perplexity = &p
	}
	if c.JSON {
		return c.Print(r)
	}
	if r.Streamed > 0 {
		c.Tellf("for each batch %s of weights were copied from the host\n", size.Format(r.Streamed))
	}
	perByte := ""
	if r.BitsPerByte > 0 {
		perByte = fmt.Sprintf(", %.4f bits per byte", r.BitsPerByte)
	}
	c.Textf("loss %s nats per token, perplexity %s%s, over %d tokens\n", stat.Number(r.Loss, 6), stat.Number(math.Exp(r.Loss), 2), perByte, r.Tokens)
	return nil
}

// labelReport is evalReport of a model that chooses among labels.
type labelReport struct {
	Loss              float64  `json:"loss"`               // nats per text, or of values the mean squared error
	Accuracy          *float64 `json:"accuracy,omitempty"` // share of the texts whose label is guessed
	*folder.Closeness          // of values
	Texts             int      `json:"texts"`
	folder.Footprint
}

// guess evaluates a model that chooses among labels.
func (v *evalCmd) guess(ctx stdctx.Context, c *cli.Context, f *folder.Folder) error {
	if err := v.labelUsage(); err != nil {
		return err
	}
	show := cli.NewStatus(c.Stderr)
	g, err := folder.Guess(ctx, f, folder.Texts{Patterns: v.Data, TextField: v.TextField, SkipBad: v.SkipBad, Note: c.Note}, v.Sequence, v.Batches, show.Progress)
	show.Done()
	if err != nil {
		return explained(c, err)
	}
	r := labelReport{g.Loss, &g.Accuracy, g.Fit, g.Texts, g.Footprint}
	if g.Fit != nil {
		r.Accuracy = nil
	}
	switch {
	case c.JSON:
		return c.Print(r)
	case g.Fit != nil:
		c.Textf("mean squared error %s, %s, over %d texts\n", stat.Number(r.Loss, 6), g.Fit, r.Texts)
		return nil
	}
	c.Textf("loss %s nats per text, accuracy %.1f %%, over %d texts\n", stat.Number(r.Loss, 6), 100*g.Accuracy, r.Texts)
	return nil
}

// pairReport is evalReport of pairs.
type pairReport struct {
	Loss float64 `json:"loss"` // mean over pairs
	By   string  `json:"preference"`
	folder.Rewards
	folder.Footprint
}

// comparing reports whether flags say how pairs are compared.
func (v *evalCmd) comparing() bool { return v.Preference+v.Reference != "" || v.Beta != 0 }

// rank evaluates a model on pairs of a chosen and a rejected answer.
func (v *evalCmd) rank(ctx stdctx.Context, c *cli.Context, f *folder.Folder) error {
	if v.Tokens+v.Logits+v.Grads != "" || len(v.Data) == 0 {
		return cli.UsageError("eval: pairs of a chosen and a rejected answer come from a corpus, and have no --tokens, --logits and --grads; hint: athanor eval FOLDER pairs.jsonl")
	}
	show := cli.NewStatus(c.Stderr)
	texts := folder.Texts{Patterns: v.Data, TextField: v.TextField, SkipBad: v.SkipBad, Note: c.Note}
	asked := folder.Preference{Loss: v.Preference, Beta: v.Beta, Reference: v.Reference}
	g, err := folder.Rank(ctx, f, texts, asked, v.Sequence, v.Batches, v.Quantize == config.NF4, show.Progress)
	show.Done()
	if err != nil {
		return explained(c, err)
	}
	if c.JSON {
		return c.Print(pairReport{g.Loss, g.By.String(), g.Rewards, g.Footprint})
	}
	c.Textf("%s: loss %.4f%s, %s, over %d pairs\n", g.By, g.Loss, indifference(g.By), g.Means(), g.Pairs)
	return nil
}

// indifference says behind the loss of pairs what it is if both answers have the same reward; "" where that is no constant.
func indifference(loss graph.PairLoss) string {
	if loss == graph.DPO || loss == graph.Reward {
		return " (0.6931 is indifference)"
	}
	return ""
}

// labelUsage refuses what evaluating models with labels does not have.
func (v *evalCmd) labelUsage() error {
	if v.comparing() {
		return cli.UsageError("eval: --preference, --beta and --reference are about pairs, and the model has labels; hint: leave them out")
	}
	if v.Tokens+v.Logits+v.Grads != "" || len(v.Data) == 0 || v.Quantize == config.NF4 {
		return cli.UsageError("eval of a model with labels needs rows of a text and a label, and has no --tokens, --logits, --grads and --quantize; hint: athanor eval FOLDER 'corpus/*.jsonl'")
	}
	return nil
}

// predict writes what a model with labels says of the rows of a file.
func (v *evalCmd) predict(ctx stdctx.Context, c *cli.Context, f *folder.Folder) error {
	if err := v.labelUsage(); err != nil {
		return err
	}
	if v.SkipBad {
		return cli.UsageError("eval: --predictions are of all rows, one line each, but --skip-bad leaves rows out; hint: leave out --skip-bad, and correct the rows that are bad")
	}
	if len(v.Data) > 1 || strings.ContainsAny(v.Data[0], "*?") {
		return cli.UsageError("eval: --predictions are of the rows of one file, in their order; hint: name one file")
	}
	show := cli.NewStatus(c.Stderr)
	list, used, err := folder.Predict(ctx, f, folder.Texts{Patterns: v.Data, TextField: v.TextField, Note: c.Note}, v.Sequence, show.Progress)
	show.Done()
	if err != nil {
		return explained(c, err)
	}
	err = cli.WriteTo(v.Predictions, func(w io.Writer) error {
		to := json.NewEncoder(w)
		for _, p := range list {
			if err := to.Encode(p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || c.JSON {
		return errors.Join(err, c.Print(predicted{len(list), used}))
	}
	c.Textf("%s has the predictions of %d texts\n", v.Predictions, len(list))
	return nil
}

// predicted is the JSON of predictions.
type predicted struct {
	Texts int `json:"texts"`
	folder.Footprint
}

// rows returns the sequences to evaluate on.
func (v *evalCmd) rows(ctx stdctx.Context, c *cli.Context, f *folder.Folder) ([][]int32, error) {
	switch {
	case v.Tokens != "" && len(v.Data) > 0:
		return nil, cli.UsageError("eval: a corpus and --tokens cannot be combined; hint: leave out one of them")
	case v.Tokens != "":
		return readTokens(v.Tokens, f.Model)
	case len(v.Data) == 0 || v.Logits != "" || v.Grads != "":
		return nil, cli.UsageError("eval needs a corpus or --tokens, and --logits and --grads need --tokens; hint: athanor eval FOLDER 'corpus/*.txt'")
	}
	show := cli.NewStatus(c.Stderr)
	defer show.Done()
	return folder.HeldOut(ctx, f, folder.Texts{Patterns: v.Data, TextField: v.TextField, SkipBad: v.SkipBad, Note: c.Note}, v.Sequence, v.Batches, show.Progress)
}

// write writes the tensors that were asked for. shape is that of the logits.
func (v *evalCmd) write(e *folder.Evaluated, shape []int) (err error) {
	if v.Logits != "" {
		err = writeTensors(v.Logits, []safetensors.Tensor{safetensors.Float32s("logits", safetensors.F32, shape, e.Logits)})
	}
	if v.Grads != "" {
		var list []safetensors.Tensor
		for _, g := range e.Grads {
			list = append(list, safetensors.Float32s(g.Name, safetensors.F32, g.Shape, g.Values))
		}
		err = errors.Join(err, writeTensors(v.Grads, list))
	}
	return err
}

// writeTensors writes a safetensors file. On an error it leaves none.
func writeTensors(path string, list []safetensors.Tensor) error {
	return cli.WriteTo(path, func(w io.Writer) error { return safetensors.Write(w, nil, list) })
}

// tokensHint describes the content of the --tokens file.
const tokensHint = "a JSON list of lists of token ids, such as [[1,2,3],[4,5,6]]"

// readTokens reads a list of lists of token ids, and checks that they have one
// length and suit the model.
func readTokens(path string, m *model.Model) ([][]int32, error) {
	f, err := bounded.Open(path)
	if err != nil {
		return nil, cli.Misuse(suggest.Add(err, tokensHint))
	}
	defer f.Close()
	var rows [][]int32
	if err := json.NewDecoder(io.LimitReader(f, 1<<30)).Decode(&rows); err != nil {
		return nil, cli.UsageError(fmt.Sprintf("%s: %v; hint: %s", path, err, tokensHint))
	}
	if len(rows) == 0 || len(rows[0]) < 2 {
		return nil, cli.UsageError(path + ": the first list has fewer than two tokens, or there is no list; hint: " + tokensHint)
	}
	if n := len(rows[0]) - 1; n > m.MaxPositions {
		return nil, cli.UsageError(fmt.Sprintf("%s: the lists have %d tokens before their last, but the model has %d positions; hint: use shorter lists", path, n, m.MaxPositions))
	}
	for i, r := range rows {
		if len(r) != len(rows[0]) {
			return nil, cli.UsageError(fmt.Sprintf("%s: list %d has %d tokens, but the first has %d; hint: make all lists the same length", path, i, len(r), len(rows[0])))
		}
		for _, id := range r {
			if id < 0 || int(id) >= m.Vocab {
				return nil, cli.UsageError(fmt.Sprintf("%s: list %d: token %d is not in the vocabulary of %d; hint: use the model's own tokenizer to make them", path, i, id, m.Vocab))
			}
		}
	}
	return rows, nil
}
