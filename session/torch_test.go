package session

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/internal/torch"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// What PyTorch computed for tiny random models: see testdata/torch/README.md.
type fixture struct {
	dir      string
	graph    *graph.Graph
	weights  *safetensors.Set
	free     bool             // gradients are not clipped
	state    plan.StateFormat // how the optimizer's is stored
	updates  optimizer.Optimizer
	terms    optimizer.MuonTerms // if updates are Muon's
	tokens   []int32             // inputs [4*32]
	targets  []int32
	pairs    []float32 // by token a reference's log-probabilities of documents, if the sequences are pairs
	verdicts []float32 // likewise, of single answers
	values   []float32 // by token those of texts, if the model is a regression
	teacher  Teacher   // of these tokens, if the graph has one
	paired   int       // the number of pairs or answers, if so, or of texts with labels
	score    []float64 // rows of a head with labels, if the model has one
	losses   struct {
		Losses, GradNorms     []float64
		Losses64, GradNorms64 []float64
	}
}

var betas = lower.Options{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Capacity: program.NoLimits}

func fixtures(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("../testdata/torch/*/config.json")
	if err != nil || len(dirs) < 6 {
		t.Fatalf("fixtures: %v %v", dirs, err)
	}
	return dirs
}

func load(t *testing.T, config string) *fixture {
	t.Helper()
	f := &fixture{dir: filepath.Dir(config)}
	text, err := os.ReadFile(config)
	check(t, err)
	m, _, err := family.Parse(text)
	check(t, err)
	var rows [][]int32
	torch.JSON(t, filepath.Join(f.dir, "tokens.json"), &rows)
	for _, r := range rows {
		f.tokens = append(f.tokens, r[:len(r)-1]...)
		f.targets = append(f.targets, r[1:]...)
	}
	f.graph, err = graph.Build(m, len(rows[0])-1, graph.F32)
	check(t, err)
	f.weights, err = safetensors.OpenFolder(f.dir)
	check(t, err)
	weights := f.weights // deepen gives them up
	t.Cleanup(func() { weights.Close() })
	var l map[string]json.RawMessage
	torch.JSON(t, filepath.Join(f.dir, "losses.json"), &l)
	for key, v := range map[string]*[]float64{"losses": &f.losses.Losses, "grad_norms": &f.losses.GradNorms, "losses64": &f.losses.Losses64, "grad_norms64": &f.losses.GradNorms64} {
		check(t, json.Unmarshal(l[key], v))
	}
	return f
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open lowers a plan and opens a session with the fixture's weights.
func (f *fixture) open(t *testing.T, pl *plan.Plan, mode lower.Mode) *Session {
	t.Helper()
	opt := f.options()
	opt.Mode = mode
	p, err := lower.Lower(context.Background(), f.graph, pl, opt)
	check(t, err)
	d := cpu.New(cpu.Options{DiskPath: filepath.Join(t.TempDir(), "disk")})
	t.Cleanup(func() { check(t, d.Close()) })
	s, err := Open(f.graph, []device.Device{d}, []*program.Program{p})
	check(t, err)
	t.Cleanup(s.Close)
	check(t, s.Load(f.read))
	return s
}

// read is what session.Loader reads: all of a parameter, since none is larger than a piece.
func (f *fixture) read(p model.Param, _ int, dst []float32) error {
	err := f.readAll(p, dst)
	for i := range dst {
		if zero, is := gone(i); is && p.Masked {
			dst[i] = zero
		}
	}
	return err
}

// readAll returns a parameter's weights without zeros that stay.
func (f *fixture) readAll(p model.Param, dst []float32) error {
	name := p.Name
	switch {
	case f.score != nil && name == f.graph.Model.HeadName():
		for i := range dst {
			dst[i] = float32(f.score[i])
		}
		return nil
	case strings.HasSuffix(name, ".sinks") && f.graph.Model.Family != family.Named("gpt_oss"): // files have none
		p.Std = 1 // as large as scores
	case f.weights != nil && !p.Adapter:
		return torch.Read(f.weights, p, dst)
	case p.Adapter && p.Init == model.Zeros: // with zeros the other factor has no gradient
		p.Init, p.Std = model.Normal, 0.1
	}
	Initial(p, 1, 0, dst)
	return nil
}

// deepen makes the model one of more layers and short sequences, with initial
// weights and the fixture's text.
func (f *fixture) deepen(t *testing.T, layers, sequences int) {
	t.Helper()
	m := *f.graph.Model
	m.Layers, f.weights = layers, nil
	var err error
	f.graph, err = graph.BuildDocuments(&m, len(f.tokens)/sequences, graph.F32, f.graph.Documents)
	check(t, err)
}

// sinks gives attention sinks, which are not in the fixture's files.
func (f *fixture) sinks(t *testing.T) {
	t.Helper()
	m := *f.graph.Model
	m.Sinks = true
	var err error
	f.graph, err = graph.BuildDocuments(&m, f.graph.Seq, f.graph.DType, f.graph.Documents)
	check(t, err)
}

// balance gives the loss a large term that evens out the use of experts.
func (f *fixture) balance(t *testing.T) {
	t.Helper()
	m := *f.graph.Model
	m.Balance = 0.5
	var err error
	f.graph, err = graph.BuildDocuments(&m, f.graph.Seq, f.graph.DType, f.graph.Documents)
	check(t, err)
}

// text returns the fixture's tokens as a batch.
func (f *fixture) text() Batch {
	b := Batch{f.tokens, f.targets, make([]int32, len(f.tokens))}
	data.Starts(b.Starts, b.Tokens, f.graph.Sequence(), f.graph.End())
	return b
}

func (f *fixture) step(t *testing.T, s *Session, n int) Outcome {
	t.Helper()
	sc := Scalars{Rate: 1e-3, Step: n, Beta1: 0.9, Beta2: 0.95, Targets: len(f.targets), Reference: f.pairs, Verdicts: f.verdicts, Teacher: f.teacher, Values: f.values}
	if f.paired > 0 {
		sc.Targets = f.paired
	}
	out, err := s.Step(context.Background(), 0, f.text(), sc)
	check(t, err)
	return out
}

// TestLogits, TestGradients and TestTraining: what the plain plan computes is
// what PyTorch computes.
func TestLogits(t *testing.T) {
	for _, dir := range testkit.Sample(fixtures(t), 3, 100) {
		f := load(t, dir)
		t.Run(filepath.Base(f.dir), func(t *testing.T) {
			s := f.open(t, plan.Plain(f.graph, 4), lower.Logits)
			out := f.step(t, s, 1)
			want := torch.Tensor(t, f.dir, "expected.safetensors", "logits")
			got := make([]float64, len(want))
			check(t, s.Engine(0).ReadBuffer("logits", got))
			if e := torch.Distance(got, want) / torch.Norm(want); e > 1e-5 {
				t.Errorf("logits differ by %.2g", e)
			}
			if e := math.Abs(out.Loss/f.losses.Losses64[0] - 1); e > 1e-6 {
				t.Errorf("loss %v, want %v", out.Loss, f.losses.Losses64[0])
			}
		})
	}
}

func TestGradients(t *testing.T) {
	for _, dir := range testkit.Sample(fixtures(t), 3, 100) {
		f := load(t, dir)
		t.Run(filepath.Base(f.dir), func(t *testing.T) {
			s := f.open(t, plan.Plain(f.graph, 4), lower.Grads)
			f.step(t, s, 1)
			scale := f.losses.GradNorms64[0]
			for i, p := range f.graph.Params {
				if p.State {
					continue
				}
				want := torch.Tensor(t, f.dir, "grads.safetensors", p.Name)
				got32 := make([]float32, len(want))
				check(t, s.Read(i, optimizer.Gradient, got32))
				got := torch.Widened(got32)
				// Relative to the tensor, but not below the rounding of the whole gradient.
				if d, n := torch.Distance(got, want), torch.Norm(want); d > 1e-4*n && d > 1e-7*scale {
					t.Errorf("%s: differs by %.3g of %.3g", p.Name, d, n)
				}
			}
		})
	}
}

func TestTraining(t *testing.T) {
	for _, dir := range testkit.Sample(fixtures(t), 3, 100) {
		f := load(t, dir)
		t.Run(filepath.Base(f.dir), func(t *testing.T) {
			s := f.open(t, plan.Plain(f.graph, 4), lower.Train)
			for n := 1; n <= 10; n++ {
				out := f.step(t, s, n)
				if e := math.Abs(out.Loss/f.losses.Losses64[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: loss %.8f, PyTorch %.8f", n, out.Loss, f.losses.Losses64[n-1])
				}
				if e := math.Abs(out.Norm/f.losses.GradNorms64[n-1] - 1); e > 1e-5 {
					t.Errorf("step %d: gradient norm %.8f, PyTorch %.8f", n, out.Norm, f.losses.GradNorms64[n-1])
				}
			}
		})
	}
}
