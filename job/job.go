// Package job is a configuration settled on a machine.
//
//	Settle(purpose, config) --> *Spec     what the configuration leaves open is decided, once
//	Spec.With...            --> *Spec     another job, for what-ifs and comparisons
//	Spec.Machine            --> machine.Request
//	Spec.Latest             the checkpoint that the run goes on from
//
// A configuration may leave to the machine, and to what the run's folder holds, on which device it computes, on how
// many ranks, in which precision, and how the optimizer's state is stored. All that follows is handed a Spec, in which
// these are decided. Keys that need no decision are in it under the names of their fields in config.Config.
//
// Invariants. A Spec never changes; With... return copies. Only this package knows which values a configuration had
// before they were settled.
//
// Where to look:
//
//	job.go      the Spec, and what is settled
//	other.go    jobs that differ from another
//	resume.go   the checkpoint to go on from
//	rate.go     the learning rate
package job

import (
	"fmt"
	"path/filepath"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/machine"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// asked is a configuration, as it was written. Its name keeps what Spec hides of it from other packages.
type asked = config.Config

// Spec is what is to be done. Fields of this struct hide those of the same name in the configuration.
type Spec struct {
	asked
	Device    string      // cpu or cuda; for a described machine, which has its own, as the configuration has it
	Ranks     int         // at least 1
	Precision graph.DType // that is computed in
	Int8      bool        // matrices are held and trained in int8
	FP8       bool        // matrices of layers are multiplied in FP8
	Optimizer optimizer.Optimizer
	// The optimizer's constants are as given, else its usual ones; 0 where it has none.
	WeightDecay, Beta1, Beta2, Epsilon float64
	Muon                               optimizer.MuonTerms
	PairLoss                           graph.PairLoss // with preference
	Labels                             []string       // that the model's head has; nil: it has the vocabulary's
	// OptimizerState lists the formats allowed for the optimizer's state, preferred first: one if the configuration
	// says which or the run goes on from a checkpoint, which has one. The format changes results, so speed never decides
	// it. Where it is open, the state is stored in fp32, and moments in bf16 only if nothing else fits.
	OptimizerState []plan.StateFormat
	Share          int        // ranks that share each sequence, as plan.sequence or the plan.json says; at least 1
	Tensor         int        // ranks that share each matrix, likewise
	Vocabulary     int        // parts of embedding and head, likewise
	Former         *plan.Plan // which the run's folder was last trained with; nil: none
	Begun          *Begun     // the run that is resumed; nil: a new one
	Tied           int        // how many consecutive layers share parameters from here on; 0: each has its own
	Delinks        int        // how many did until here, if that has just ended; else 0
}

// Unpaired reports whether the run learns from single answers that are good or bad.
func (s *Spec) Unpaired() bool { return s.Preference.Beta > 0 && s.PairLoss.Rule().Unpaired }

// Regresses reports whether the run learns from texts with a value each.
func (s *Spec) Regresses() bool { return s.Classifies() && len(s.Labels) == 1 }

// Classifies reports whether the run learns from texts with labels, or with values.
func (s *Spec) Classifies() bool { return len(s.Labels) > 0 && s.Preference.Beta == 0 }

// Mismatched reports whether the loss of single answers is compared with that of answers to other prompts.
func (s *Spec) Mismatched() bool { return s.Unpaired() && s.PairLoss.Rule().Mismatched }

// Settle decides what a configuration leaves open, for this machine or the one that it describes. To read text, no
// machine is needed: then device, ranks and precision stay open. note is told what a user should know.
func Settle(to config.Purpose, c *config.Config, note func(string)) (*Spec, error) {
	s := &Spec{asked: *c}
	var err error
	if s.Optimizer, err = optimizer.Named(c.Optimizer); err != nil {
		return nil, s.Fault("optimizer", err.Error())
	}
	if s.PairLoss, err = graph.PairLossNamed(c.Preference.Loss); err != nil {
		return nil, s.Fault("preference.loss", err.Error())
	}
	if s.Labels = c.LabelNames(); c.Preference.Beta > 0 && s.PairLoss.Rule().Scored {
		s.Labels = model.LabelNames(1)
	}
	s.constants()
	s.Begun, s.Former = s.begun(), former(c.Out, s.Optimizer)
	s.stayOnDevice()
	s.Share, s.Tensor = shared(&s.Plan)
	s.Vocabulary = vocabularyParts(&s.Plan)
	s.tie()
	s.OptimizerState = s.formats()
	if to == config.ToRead {
		return s, nil
	}
	if low := s.Optimizer.Rule().Low; s.LearningRate > 0 && s.LearningRate <= low {
		note(fmt.Sprintf("with optimizer: %v, a learning_rate of %v usually learns hardly anything: its rates are some hundred times AdamW's", s.Optimizer, s.LearningRate))
	}
	if s.Device = c.Device; c.Hardware.Name == "" {
		s.Device = machine.ChooseDevice(c.Device, note)
	}
	s.Ranks = c.Ranks
	if s.Ranks, err = machine.CountRanks(s.Machine()); err != nil {
		return nil, err
	}
	s.choosePrecision()
	if onGPU := machine.OnGPU(s.Machine()); onGPU && s.Int8 {
		hint := "set device: cpu"
		if c.Hardware.Name != "" {
			hint = "leave out hardware.name"
		}
		return nil, s.Fault("precision", "int8 is trained by the CPU's operators alone; hint: "+hint+", or use fp32 or bf16")
	} else if s.FP8 && !onGPU {
		note("a CPU multiplies numbers that are rounded to fp8 in bf16, so precision: fp8 is slower here than bf16: it shows what training in fp8 comes to")
	}
	if s.Precision == graph.F32 && c.OptimizerState == plan.BF16State.String() {
		return nil, s.Fault("optimizer_state", "bf16 leaves no fp32 weights to compute with; hint: set precision: bf16 too, or use bf16_moments")
	}
	return s, nil
}

// stayOnDevice keeps what is trained on the device, if it is to be trained in so much of its memory.
func (s *Spec) stayOnDevice() {
	if here := device.DeviceTier.String(); s.TrainWithin > 0 {
		s.Plan.Weights, s.Plan.Grads, s.Plan.State = here, here, here
	}
}

// constants sets the optimizer's constants.
func (s *Spec) constants() {
	own := func(given, usual float64) float64 {
		if given == config.Derived {
			return usual
		}
		return given
	}
	r := s.Optimizer.Rule()
	s.WeightDecay, s.Beta1 = own(s.asked.WeightDecay, r.Decay), own(s.asked.Beta1, r.Beta1)
	s.Beta2, s.Epsilon = own(s.asked.Beta2, r.Beta2), own(s.asked.Epsilon, r.Epsilon)
	s.Muon = optimizer.MuonTerms{Momentum: s.asked.Muon.Momentum, Rate: 1}
	if own := s.asked.Muon.LearningRate; own != config.Derived && s.LearningRate > 0 { // to plan, it may be left out
		s.Muon.Rate = own / s.LearningRate
	}
	s.Muon.Scale, _ = optimizer.MuonScaleNamed(s.asked.Muon.Scale) // package config refuses others
}

// choosePrecision decides what `precision: auto` stands for: the precision that the run began with, else bf16 on
// GPUs, whose matrix units are several times as fast with it, and fp32 on the CPU, where bf16 gains less. With weights in
// int8, activations are in fp32; with products in FP8, in bf16.
func (s *Spec) choosePrecision() {
	name := s.asked.Precision
	switch {
	case name == "auto" && s.Begun != nil:
		name = s.Begun.Precision
	case name == "auto" && machine.OnGPU(s.Machine()):
		name = graph.BF16.String()
	}
	s.Int8, s.FP8 = name == config.Int8, name == config.FP8
	if s.FP8 || name == graph.BF16.String() {
		s.Precision = graph.BF16
	}
}

// PrecisionName returns the precision as checkpoints record it.
func (s *Spec) PrecisionName() string {
	switch {
	case s.Int8:
		return config.Int8
	case s.FP8:
		return config.FP8
	}
	return s.Precision.String()
}

// formats returns the formats allowed for the optimizer's state, see Spec.
func (s *Spec) formats() []plan.StateFormat {
	var one plan.StateFormat
	if err := one.UnmarshalText([]byte(s.asked.OptimizerState)); err == nil {
		return []plan.StateFormat{one}
	}
	if s.Begun != nil { // what memory there is now does not decide it again: with another it would be another run
		return []plan.StateFormat{s.Begun.OptimizerState}
	}
	if len(s.Optimizer.Moments()) == 0 {
		return []plan.StateFormat{plan.FP32State}
	}
	return []plan.StateFormat{plan.FP32State, plan.BF16Moments} // auto: all else is refused by package config
}

// shared returns how many ranks share each sequence, and each matrix. What is wrong with a plan.json is said when it is judged.
func shared(p *config.Plan) (sequence, tensor int) {
	if p.File == "" {
		return max(p.Sequence, 1), max(p.Tensor, 1)
	}
	if pl := readPlan(p.File); pl != nil {
		return pl.Parts(), pl.Sharers()
	}
	return 1, 1
}

// vocabularyParts returns into how many parts embedding and head are divided.
func vocabularyParts(p *config.Plan) int {
	if p.File == "" {
		return max(p.VocabularyParts, 1)
	}
	if pl := readPlan(p.File); pl != nil {
		return max(pl.VocabularyParts, 1)
	}
	return 1
}

// former reads the plan that a run's folder was last trained with, if it is for the same optimizer.
func former(out string, o optimizer.Optimizer) *plan.Plan {
	if out == "" {
		return nil
	}
	pl := readPlan(filepath.Join(out, "plan.json"))
	if pl == nil || pl.Optimizer != o {
		return nil
	}
	return pl
}

// readPlan reads a plan.json; nil: there is none that can be read, since it was edited, or is by another version.
func readPlan(path string) *plan.Plan {
	const most = 64 << 20 // bytes of a plan.json
	text, err := bounded.ReadFile(path, most)
	if err != nil {
		return nil
	}
	pl, err := plan.Parse(text)
	if err != nil {
		return nil
	}
	return pl
}

// State returns the format of the optimizer's state if that is settled. Where it is open, it is fp32 until
// something else is needed.
func (s *Spec) State() (f plan.StateFormat, settled bool) {
	if len(s.OptimizerState) == 1 {
		return s.OptimizerState[0], true
	}
	return plan.FP32State, false
}

// PerSequence returns the number of ranks that compute with each sequence, because they share it or the matrices.
func (s *Spec) PerSequence() int { return max(s.Share, 1) * max(s.Tensor, 1) }

// Machine returns what the job needs of a machine.
func (s *Spec) Machine() *machine.Request {
	hosts := s.Others
	if len(hosts) == 0 {
		hosts = s.Hosts
	}
	return &machine.Request{Lines: s.Lines, Device: s.Device, Ranks: s.Ranks, Hosts: hosts, Key: s.Key, Over: s.Over, Links: s.Links, Together: s.Together, Limits: s.Limits, Hardware: s.Hardware, Sharing: s.PerSequence(),
		Spill: s.Spill(), Batch: s.GlobalBatch * s.PerSequence(), Sequence: s.SequenceLength}
}

// MarshalYAML writes a configuration in which everything but the format of the optimizer's state is settled: that follows
// from the plan, which is stored too.
func (s *Spec) MarshalYAML() (any, error) {
	c := s.asked
	if c.TrainWithin > 0 { // which says the same
		c.Freeze, c.Plan = nil, config.Plan{}
	}
	c.Device, c.Ranks, c.Precision = s.Device, s.Ranks, "fp32"
	if s.Precision == graph.BF16 {
		c.Precision = "bf16"
	}
	if s.Int8 || s.FP8 {
		c.Precision = s.PrecisionName()
	}
	r := s.Optimizer.Rule()
	for _, has := range []struct {
		usual float64
		to    *float64
		value float64
	}{{r.Decay, &c.WeightDecay, s.WeightDecay}, {r.Beta1, &c.Beta1, s.Beta1}, {r.Beta2, &c.Beta2, s.Beta2}, {r.Epsilon, &c.Epsilon, s.Epsilon}} {
		if has.usual != 0 {
			*has.to = has.value
		}
	}
	return c, nil
}
