package generation

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/machine"
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

// weightsFit reports whether all weights can stay on the device while a sequence is generated.
func (run *fileRun) weightsFit(ctx context.Context, o *Options) (bool, error) {
	d, err := machine.OpenAlone(o.Device, 0, o.Limit)
	if err != nil {
		return false, folder.Misuse(err)
	}
	fits, err := run.folder.WeightsFit(ctx, d, o.Context, o.DType)
	return fits, errors.Join(err, d.Close())
}

// planBlock finds the block that is predicted to be fastest on this machine, of as many sequences as are asked for at most. The machine is
// the caller's.
func (run *fileRun) planBlock(ctx context.Context, o *Options) (*machine.Machine, *search.BlockPlan, error) {
	limits := config.Limits{Device: config.Unlimited, Host: config.Unlimited, Disk: config.Unlimited, DiskEndurance: config.Unlimited}
	if o.Limit > 0 {
		limits.Device = config.Bytes(o.Limit)
	}
	m, err := machine.Find(&machine.Request{Device: o.Device, Ranks: 1, Limits: limits, Spill: filepath.Dir(run.Out)}, run.note)
	if err != nil {
		return nil, nil, folder.Misuse(err)
	}
	most := o.Sequences
	if most == 0 {
		most = mostSequences
	}
	lines := run.report.Lines
	req := &search.BlockRequest{Model: run.folder.Model, DType: o.DType, Context: o.Context, Sequences: min(most, run.left()), Reads: folder.UsefulBlocks(o.Context),
		Prompt: run.prompts / lines, Tokens: max(1, run.texts/lines)}
	found, err := planner.Block(ctx, m, req, device.IsGPU(o.Device))
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return m, found, nil
}

// openBlock opens the model for a planned block.
func (run *fileRun) openBlock(ctx context.Context, o *Options) (*Batch, error) {
	m, found, err := run.planBlock(ctx, o)
	if err != nil {
		return nil, err
	}
	devices, err := m.Open(found.Programs[:1])
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	n := found.Sequences()
	return open(run.folder, o.Context, n, max(1, n/joinShare), func() (slots, error) {
		b, err := run.folder.OpenBlock(ctx, devices[0], found)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		return &blockOn{b, m}, nil
	})
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
	if fits, err := run.weightsFit(ctx, &o); fits || err != nil {
		return r, err
	}
	m, found, err := run.planBlock(ctx, &o)
	if err != nil {
		return nil, err
	}
	r.Sequences, r.Footprint, r.Block = found.Sequences(), folder.FootprintOf(found.Programs), reportBlock(found)
	return r, m.Close()
}
