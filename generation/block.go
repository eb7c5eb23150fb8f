package generation

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/planner"
	"github.com/athanor-llm/athanor/search"
)

// A model whose weights do not fit the device is generated from in blocks, see search.FindBlock. Sequences then join in groups, since what reads
// the prompt of one brings all weights.

// joinShare is the part of a block's slots that must be free for sequences to join: an eighth of them is idle on average, and prompts
// are read about four times in the time that a text takes.
const joinShare = 4

// mostSequences bounds the sequences of a block unless told.
const mostSequences = 256

// BlockReport says how a block was generated.
type BlockReport struct {
	Batches      int  `json:"batches"`
	Each         int  `json:"sequences_of_a_batch"`
	Near         int  `json:"batches_cached_on_device"`
	HostAttends  bool `json:"host_attends"`
	HiddenOnHost bool `json:"hidden_states_on_host"`
	Reads        int  `json:"prompt_tokens_at_once"`
	// How long a step of all sequences takes, and reading a part of all their prompts, in seconds: as predicted, and how often it was done.
	PredictedStep float64      `json:"predicted_step_seconds"`
	PredictedPart float64      `json:"predicted_part_seconds"`
	PredictedRate float64      `json:"predicted_tokens_per_second"` // for usual lines
	Steps         folder.Timed `json:"steps"`
	Parts         folder.Timed `json:"parts"`
}

// reportBlock describes a block.
func reportBlock(b *search.BlockPlan) *BlockReport {
	r := &BlockReport{Batches: b.Batches, Each: b.Each, Reads: b.Reads[0], PredictedStep: b.StepSeconds, PredictedPart: b.PartSeconds, PredictedRate: b.Rate()}
	for _, q := range b.Plan.Batches {
		if q.Cache == device.DeviceTier {
			r.Near++
		}
		r.HostAttends = r.HostAttends || q.Attend == plan.AttendOnHost
		r.HiddenOnHost = r.HiddenOnHost || q.Hidden == device.HostTier
	}
	return r
}

// usual says for what a block is planned: what sequences usually have, and how many there are at most.
type usual struct{ prompt, tokens, sequences int }

// weightsFit reports whether all weights can stay on the device while a sequence is generated, or the model has no blocks, whatever fits.
func weightsFit(ctx context.Context, f *folder.Folder, o *Options) (bool, error) {
	if model.Remembers(f.Model) {
		return true, nil
	}
	d, err := machine.OpenAlone(o.Device, 0, o.Limit)
	if err != nil {
		return false, folder.Misuse(err)
	}
	fits, err := f.WeightsFit(ctx, d, o.Context, o.DType)
	return fits, errors.Join(err, d.Close())
}

// planBlock finds the block that is predicted to be fastest on this machine. Weights for which the host has no room are in a folder. The machine is
// the caller's.
func planBlock(ctx context.Context, f *folder.Folder, o *Options, u usual, spill string, note func(string)) (*machine.Machine, *search.BlockPlan, error) {
	limits := config.Limits{Device: config.Unlimited, Host: config.Unlimited, Disk: config.Unlimited, DiskEndurance: config.Unlimited}
	if o.Limit > 0 {
		limits.Device = config.Bytes(o.Limit)
	}
	m, err := machine.Find(&machine.Request{Device: o.Device, Ranks: 1, Limits: limits, Spill: spill}, note)
	if err != nil {
		return nil, nil, folder.Misuse(err)
	}
	req := &search.BlockRequest{Model: f.Model, DType: o.DType, Context: o.Context, Sequences: u.sequences, Reads: folder.UsefulBlocks(o.Context),
		Prompt: u.prompt, Tokens: max(1, u.tokens)}
	found, err := planner.Block(ctx, m, req, device.IsGPU(o.Device))
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return m, found, nil
}

// openBlock opens the model for a planned block. It takes ownership of the machine, even on error.
func openBlock(ctx context.Context, f *folder.Folder, o *Options, m *machine.Machine, found *search.BlockPlan) (*Batch, error) {
	devices, err := m.Open(found.Programs[:1])
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	n := found.Sequences()
	return open(f, o.Context, n, max(1, n/joinShare), func() (slots, error) {
		b, err := f.OpenBlock(ctx, devices[0], found)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		return &blockOn{b, m}, nil
	})
}

// OpenServed opens a model for requests that come one by one, of whose lengths nothing is known: in a block if its weights do not fit the device.
func OpenServed(ctx context.Context, f *folder.Folder, o Options, note func(string)) (*Batch, error) {
	if fits, err := weightsFit(ctx, f, &o); err != nil || fits {
		if err != nil {
			return nil, err
		}
		return Open(ctx, f, o)
	}
	m, found, err := planBlock(ctx, f, &o, usual{o.Context / 4, o.Context / 4, o.Sequences}, os.TempDir(), note)
	if err != nil {
		return nil, err
	}
	b, err := openBlock(ctx, f, &o, m, found)
	if err == nil {
		b.hurries = true
	}
	return b, err
}

// usual returns what the lines of a file have on average, and how many are left.
func (run *fileRun) usual(o *Options) usual {
	most := o.Sequences
	if most == 0 {
		most = mostSequences
	}
	lines := run.report.Lines
	return usual{run.prompts / lines, run.texts / lines, min(most, run.left())}
}

// planBlock plans a block for the lines of a file.
func (run *fileRun) planBlock(ctx context.Context, o *Options) (*machine.Machine, *search.BlockPlan, error) {
	return planBlock(ctx, run.folder, o, run.usual(o), filepath.Dir(run.Out), run.note)
}

// blockOn is a block with the machine that its device is on.
type blockOn struct {
	*folder.Block
	machine *machine.Machine
}

// Close closes the device, then the machine.
func (b *blockOn) Close() error { return errors.Join(b.Block.Close(), b.machine.Close()) }

// note passes on what is said about the machine.
func (run *fileRun) note(text string) { run.report.Notes = append(run.report.Notes, text) }

// Explain says how the prompts would be continued, and continues none.
func (file *File) Explain(ctx context.Context, f *folder.Folder) (*Report, error) {
	p, err := NewPrompter(f)
	if err != nil {
		return nil, err
	}
	run := &fileRun{File: file, prompter: p, folder: f}
	if err := run.scan(); err != nil {
		return nil, err
	}
	o, r := run.options(), &run.report
	r.PromptTokens, r.Tokens, r.Context, r.Sequences = run.prompts, run.texts, o.Context, o.Sequences
	if r.Sequences == 0 {
		r.Sequences = min(autoSequences, r.Lines)
	}
	if fits, err := weightsFit(ctx, run.folder, &o); fits || err != nil {
		return r, err
	}
	m, found, err := run.planBlock(ctx, &o)
	if err != nil {
		return nil, err
	}
	r.Sequences, r.Footprint, r.Block = found.Sequences(), folder.FootprintOf(found.Programs), reportBlock(found)
	return r, m.Close()
}
