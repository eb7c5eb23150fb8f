// Package config reads the YAML file that describes a run.
//
// At most eight keys are required; everything else is derived or has a default,
// and is printed when the run starts. Reading is strict: an unknown key is an
// error with its line and the nearest name, and so is a value of the wrong kind.
// All errors are reported together.
//
//	model: {type: gpt2, layers: 6, width: 256, heads: 4}
//	data: corpus/*.txt
//	tokenizer: bpe-4096
//	sequence_length: 256
//	global_batch: 16
//	learning_rate: 1.0e-3
//	max_steps: 500
//	out: runs/first
//
// Overrides on the command line, key=value with dots for nested keys, replace
// what the file says: `limits.device=64MiB`. A key whose value is null is left out.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/optimizer"
)

// Config is the configuration of a run after overrides. Sizes are bytes.
type Config struct {
	Model     Model   `yaml:"model"`
	Data      Sources `yaml:"data"`      // files, or patterns with *, ? and ** (any number of folders); {files: ..., times: 2} is read twice in each pass over the corpus
	Documents string  `yaml:"documents"` // joined: a token sees all tokens before it in its window; separate: only those of its document; whole: likewise, and windows do not cut documents
	Tokenizer string  `yaml:"tokenizer"` // gpt2, bpe-4096 (trained on the corpus), or a tokenizer.json or its folder, whose chat template renders conversations
	// ResizeVocab gives the model of a folder the rows of embedding and head that it lacks for the tokenizer; new ones begin as
	// the mean of the others.
	ResizeVocab    bool     `yaml:"resize_vocab"`
	BOS            string   `yaml:"bos"`             // auto: texts, prompts and pairs begin with what the tokenizer puts before a text, such as <s>, unless the run began without; none
	OnBadRow       string   `yaml:"on_bad_row"`      // error; or skip: rows of JSONL and Parquet that are no document are left out, and counted
	TextField      Strings  `yaml:"text_field"`      // of rows of JSONL and Parquet, such as content, or [text, raw_content]: the first that a row has; derived: text
	SequenceLength int      `yaml:"sequence_length"` // tokens, such as 4096 or 4k
	GlobalBatch    int      `yaml:"global_batch"`    // sequences per optimizer step
	LearningRate   float64  `yaml:"learning_rate"`   // the peak
	MaxSteps       int      `yaml:"max_steps"`       // optimizer steps
	MaxTokens      Number   `yaml:"max_tokens"`      // instead of max_steps, into which it is converted
	MaxEpochs      float64  `yaml:"max_epochs"`      // instead of max_steps, into which it is converted: how often the corpus is read
	MaxTime        Duration `yaml:"max_time"`        // stop after this time, last validation included, by which the learning rate falls to its end, whatever max_steps says; alone: as many steps as fit into it
	Out            string   `yaml:"out"`             // the run's folder

	Device string `yaml:"device"` // auto, cpu or cuda
	Ranks  int    `yaml:"ranks"`  // auto: all GPUs that the batch can be divided among; on the CPU one, or one per host
	// Hosts are other machines, on which `athanor serve` waits at address:port, each with an equal share of the ranks.
	Hosts     Strings `yaml:"hosts"`
	Limits    Limits  `yaml:"limits"`
	Precision string  `yaml:"precision"` // fp32, bf16, fp8 (bf16, but products of the layers' matrices), int8 (matrices alone, small models on the CPU), or auto: as the run began, else bf16 on GPUs and fp32 on the CPU
	// Optimizer is how weights are updated: adamw, or one of the others that the guide describes, which need learning
	// rates of their own.
	Optimizer string `yaml:"optimizer"`
	Muon      Muon   `yaml:"muon"` // of optimizer: muon
	// OptimizerState is the storage format of the optimizer's weights and moments: auto, fp32, bf16_moments, 8bit_moments (in blocks, as
	// bitsandbytes has them; of adamw and lion), or bf16 for both.
	OptimizerState string `yaml:"optimizer_state"`
	// CarryOptimizer begins a new run with the optimizer's state of the checkpoint that model names, for other text, batch or seed.
	CarryOptimizer bool   `yaml:"carry_optimizer"`
	Plan           Plan   `yaml:"plan"`
	Resume         string `yaml:"resume"` // auto, never, or the checkpoint that the run starts from
	Seed           uint64 `yaml:"seed"`   // of random weights, the order of the text and rounding

	// Schedule is how the learning rate falls: cosine, linear or constant; wsd: it is constant but for the last steps,
	// decay_steps, in which it falls linearly; wsd-sqrt: it falls there as 1-sqrt.
	Schedule        string  `yaml:"schedule"`
	DecaySteps      int     `yaml:"decay_steps"`       // of wsd and wsd-sqrt; derived: a fifth of the steps after the warm-up
	WarmupSteps     int     `yaml:"warmup_steps"`      // derived: a twentieth of the steps, at most 2000
	MinLearningRate float64 `yaml:"min_learning_rate"` // at the end; derived: a tenth of learning_rate, with wsd and wsd-sqrt 0
	WeightDecay     float64 `yaml:"weight_decay"`      // of matrices; derived, as the next three are: the optimizer's usual one
	Beta1           float64 `yaml:"beta1"`             // of the mean of gradients that weights move by
	Beta2           float64 `yaml:"beta2"`             // of what it is divided by, or of the mean that is kept
	Epsilon         float64 `yaml:"epsilon"`           // added to what it is divided by
	Clip            float64 `yaml:"gradient_clipping"` // global norm; 0: none
	// SkipSpikes skips the update of a step whose gradient norm is this many standard deviations above the mean
	// of the last 128 steps, or not finite; 0: none.
	SkipSpikes float64 `yaml:"skip_spikes"`
	// ExpertBalance is the weight of the loss term that evens out the use of a mixture's experts. Derived: 0.01
	// for random weights, 0 for weights from a folder.
	ExpertBalance float64 `yaml:"expert_balance"`
	NeftuneAlpha  float64 `yaml:"neftune_alpha"` // while training, embeddings get noise of up to alpha/sqrt(sequence_length * width) (NEFTune, 2310.05914), usually 5 to 15; 0: none
	// Labels are the names of what a text can be, such as [question, complaint], or their number. Each row has a text and a "label", a name or its number.
	// If there is one, such as price, its value is learnt (a regression), and "label" is a number.
	Labels Strings `yaml:"labels"`
	// Distill has the model learn from a teacher beside the text.
	Distill Distill `yaml:"distill"`
	// Preference trains on pairs of a chosen and a rejected answer. It implies documents: separate.
	Preference Preference `yaml:"preference"`
	// TieLayers has each so many consecutive layers share parameters, which the planner counts once, until DelinkAt.
	TieLayers int     `yaml:"tie_layers"`
	DelinkAt  int     `yaml:"delink_at"` // steps, after which tied layers have parameters of their own, which begin as copies; auto: when the loss no longer falls fast; 0: never
	Freeze    Strings `yaml:"freeze"`    // name patterns of parameters that are not trained
	// TrainWithin is device memory, such as 2GiB, in which a model from a folder is trained as well as it can be: short trials measure
	// what each group of parameters gains, and the best groups that fit are trained, the others frozen.
	TrainWithin Bytes  `yaml:"train_within"`
	LoRA        LoRA   `yaml:"lora"`
	KeepMask    bool   `yaml:"keep_mask"` // weights of the layers' matrices that are 0 in the model's folder, as `athanor prune` leaves them, stay 0; a plan may then store only the others
	Quantize    string `yaml:"quantize"`  // none, or nf4: the layers' weights that are not trained are held in 4 bits

	Validation      Strings  `yaml:"validation"`          // files or patterns, as for data, to validate on and not to train on; then nothing else is held out
	HeldOut         float64  `yaml:"validation_fraction"` // fraction of the corpus that is held out, at least one sequence; not with validation
	EvalEvery       int      `yaml:"eval_every"`          // steps; 0: at the end only
	EvalBatches     int      `yaml:"eval_batches"`        // global batches per evaluation
	EarlyStop       int      `yaml:"early_stop"`          // validations in a row without a lower loss that end the run; 0: none do
	SaveEvery       int      `yaml:"save_every"`          // steps; 0: as save_after says
	SaveAfter       Duration `yaml:"save_after"`          // time since the last checkpoint, longer where saving takes long
	KeepCheckpoints int      `yaml:"keep_checkpoints"`    // how many of the latest are kept
	KeepBest        bool     `yaml:"keep_best"`           // also the one with the lowest validation loss, saved when eval_every finds it
	Sample          Sample   `yaml:"sample"`
	Alerts          Alerts   `yaml:"alerts"`
	Dashboard       bool     `yaml:"dashboard"` // the run shows itself on a page of this machine, whose address it prints, as `athanor watch` does
	Hardware        Hardware `yaml:"hardware"`

	Lines    `yaml:"-"`
	Launched `yaml:"-"`
	timed    bool // see Timed
}

// Model is a known name, a Hugging Face folder of a model or of an adapter to continue with, its name on the
// hub if it was downloaded, or inline sizes.
type Model struct {
	Name string `yaml:"-"` // a known name or a path; empty if inline

	Type        string  `yaml:"type"`   // a family, by the model_type of config.json, such as gpt2 or llama
	Layers      int     `yaml:"layers"` // of a model with random weights, like all keys below
	Width       int     `yaml:"width"`
	Heads       int     `yaml:"heads"`
	KVHeads     int     `yaml:"kv_heads"` // heads of keys and values; derived: the same as heads
	HeadDim     int     `yaml:"head_dim"`
	FeedForward int     `yaml:"feed_forward"` // of each expert, if there are any
	Experts     int     `yaml:"experts"`
	Active      int     `yaml:"active_experts"` // of each token
	Vocab       int     `yaml:"vocabulary"`     // default: the tokenizer's
	Positions   int     `yaml:"max_positions"`
	RopeTheta   float64 `yaml:"rope_theta"`
	Window      int     `yaml:"window"` // tokens that attention sees; 0: all
	Tied        *bool   `yaml:"tied"`   // embedding and head are one matrix
}

// Limits bound the memory of each tier, such as 20GB; none, which is 0 bytes, leaves the tier out; derived: what is free.
type Limits struct {
	Device   Bytes  `yaml:"device"`    // of each rank
	Host     Bytes  `yaml:"host"`      // of all ranks together, on all hosts: each rank has an equal share
	Disk     Bytes  `yaml:"disk"`      // likewise
	DiskPath string `yaml:"disk_path"` // the folder of the disk tier; derived: spill in the run's folder
	// DiskEndurance is how much may be written to the disk in its life, as its maker states it (TBW), such as 600TB; none:
	// it does not wear; derived: 600 times its size.
	DiskEndurance Bytes `yaml:"disk_endurance"`
}

// Plan is auto, a plan.json, or single decisions that the search must keep.
type Plan struct {
	File string `yaml:"-"` // empty: auto

	MicroBatch int    `yaml:"micro_batch"` // sequences that are computed together
	Group      int    `yaml:"group"`       // micro-batches that go through a layer before the next layer
	HeadRows   int    `yaml:"head_rows"`   // tokens whose logits are held at a time
	FeedRows   int    `yaml:"feed_rows"`   // tokens whose feed-forward is computed at a time; none: all, unless sequences are long
	KVParts    int    `yaml:"kv_parts"`    // parts of their heads in which ranks that share a sequence exchange keys and values; none: as memory asks
	Exchange   string `yaml:"exchange"`    // keys or heads: what ranks that share a sequence exchange for attention; none: what is faster
	Recompute  string `yaml:"recompute"`
	Weights    string `yaml:"weights"`     // device or host: where the weights that operators read are
	Grads      string `yaml:"grads"`       // device or host
	State      string `yaml:"state"`       // device, host or disk: where the optimizer's moments and the fp32 weights are
	Update     string `yaml:"update"`      // host or device: where chunks whose state is not on the device are updated
	Cache      Bytes  `yaml:"cache_bytes"` // device memory that holds weights from one use to the next
	Prefetch   int    `yaml:"prefetch"`    // units whose weights are fetched ahead

	Slots    int    `yaml:"slots"`     // rounding buffers for swapped activations: layers in transfer at once
	Policy   string `yaml:"policy"`    // for activations: memo-paper
	Swap     Shares `yaml:"swap"`      // fraction of each layer's tokens swapped to swap_tier; the last two layers stay unless named
	SwapTier string `yaml:"swap_tier"` // host or disk

	Schedule string `yaml:"schedule"` // of a pipeline, named as in `athanor-lab schedule`
	Pipeline int    `yaml:"pipeline"` // ranks per pipeline; 1: none
	Stages   []int  `yaml:"stages"`   // the first segment of each stage: 0 is the embedding, 1 the first layer
	Slices   int    `yaml:"slices"`   // slices per sequence

	Sequence int `yaml:"sequence"` // ranks that share each sequence, each with part of its tokens; 1: none
	Tensor   int `yaml:"tensor"`   // ranks that share each matrix, each with some heads and some of the feed-forward; 1: none

	VocabularyParts int `yaml:"vocabulary_parts"` // parts of embedding and head, of which one at a time is on the device; none: as memory asks
}

// Shares maps layers to fractions, 0 to 1; EveryLayer stands for all layers not named.
type Shares map[int]float64

// EveryLayer is the key of a fraction given without layers.
const EveryLayer = -1

// UnmarshalYAML reads one fraction, or a mapping from layers to fractions.
func (s *Shares) UnmarshalYAML(n *yaml.Node) error {
	const hint = "hint: use a fraction of the tokens from 0 to 1, or fractions by layer, such as {0: 0.5, 1: 1}"
	list := map[int]float64{}
	if n.Tag == "!!null" {
		return nil
	}
	if n.Kind == yaml.ScalarNode {
		var one float64
		if err := n.Decode(&one); err != nil {
			return fmt.Errorf("%q is not a fraction; %s", n.Value, hint)
		}
		list[EveryLayer] = one
	} else if err := n.Decode(&list); err != nil {
		return fmt.Errorf("expected a fraction, or fractions by layer; %s", hint)
	}
	for l, v := range list {
		if !(v >= 0 && v <= 1) {
			return fmt.Errorf("fraction %v is out of range; %s", v, hint)
		}
		if l < 0 && n.Kind != yaml.ScalarNode {
			return fmt.Errorf("there is no layer %d; %s", l, hint)
		}
	}
	*s = list
	return nil
}

// LoRA are low-rank adapters, which are then all that is trained but for modules_to_save. If the model is an adapter, settings not
// given here are taken from it.
type LoRA struct {
	Rank    int     `yaml:"rank"`    // usually 8 to 64
	Alpha   float64 `yaml:"alpha"`   // the product of an adapter's factors is multiplied by alpha/rank; 0: the rank
	RSLoRA  bool    `yaml:"rslora"`  // multiply by alpha/sqrt(rank) instead
	Dropout float64 `yaml:"dropout"` // probability with which an adapter reads 0 instead of an element of its input, while training; usually 0.05 or 0.1
	DoRA    bool    `yaml:"dora"`    // each output of an adapted weight also has a magnitude, which is trained (2402.09353)
	Targets Strings `yaml:"targets"` // name patterns of the adapted weights; none: all of the layers but experts
	// Whole are modules that are trained whole beside the adapters, such as [embed_tokens, lm_head], and saved with them.
	Whole Strings `yaml:"modules_to_save"`
}

// Muon are the constants of optimizer: muon that its part by AdamW does not have. beta1, beta2 and epsilon are AdamW's, whose
// learning rate is learning_rate; weight_decay is that of both.
type Muon struct {
	LearningRate float64 `yaml:"learning_rate"` // of the layers' matrices, at the peak; derived: as learning_rate
	Momentum     float64 `yaml:"momentum"`      // share of the old mean of gradients
	Scale        string  `yaml:"scale"`         // of a step, by a matrix's shape: match_rms_adamw, which suits AdamW's learning rates, or original, which wants some 0.02
}

// Distill is distillation: the model learns from a teacher's probabilities beside the text (Hinton et al., 1503.02531).
type Distill struct {
	Teacher     string  `yaml:"teacher"`     // folder of a model with the same tokenizer and vocabulary, or an adapter's
	Top         int     `yaml:"top"`         // of each token the teacher's most probable tokens that are stored, 8 bytes each; all others count as one
	Temperature float64 `yaml:"temperature"` // that logits of both models are divided by
	Weight      float64 `yaml:"weight"`      // of what the teacher says; the text has the rest of 1
}

// Preference is preference optimisation, such as DPO (Rafailov et al., 2305.18290), whose reference is the model that
// the run begins with.
type Preference struct {
	Beta              float64 `yaml:"beta"`               // how much a change in log-probabilities counts, usually 0.1; of simpo 2; the weight of orpo's odds, usually 0.1
	Loss              string  `yaml:"loss"`               // dpo or ipo, which compare with the model before the run; simpo or orpo, which do not; kto or apo_zero_unpaired, for single answers that are good or bad; reward: a reward model, see the guide
	Margin            float64 `yaml:"margin"`             // of simpo: by how much the chosen answer should be ahead; derived: 1
	DesirableWeight   float64 `yaml:"desirable_weight"`   // of kto and apo_zero_unpaired: of the losses of good answers
	UndesirableWeight float64 `yaml:"undesirable_weight"` // likewise, of bad ones
}

// FP8 is the value of Config.Precision that multiplies with the layers' matrices in FP8, see model.MultiplyFP8.
const FP8 = "fp8"

// Int8 is the value of Config.Precision that holds and trains matrices in int8, see model.HoldInt8.
const Int8 = "int8"

// NF4 is the value of Config.Quantize that holds weights in 4 bits, see model.Quantize.
const NF4 = "nf4"

// Sample is the text generated at the end of a run.
type Sample struct {
	Prompt string `yaml:"prompt"`
	Tokens int    `yaml:"tokens"` // 0: none
}

// Alerts say what is unusual in a run; the built-in rules are always on. An alert that fires, or is over, is in the log and in
// metrics.jsonl.
type Alerts struct {
	Rules   Strings `yaml:"rules"`   // more of them, such as "mfu < 0.3 for 20" (steps)
	Off     Strings `yaml:"off"`     // names of built-in rules that are not wanted, such as stall
	Webhook string  `yaml:"webhook"` // an address that gets each alert as JSON, by POST
	Command Strings `yaml:"command"` // a program and its arguments, which gets each alert as JSON on its standard input
}

// Hardware is another machine to plan for: a known name, or a file written by
// `probe --out`. Rates throttle links, so that a CPU behaves like a machine with
// slower links.
type Hardware struct {
	Name string `yaml:"name"`
	H2D  Rate   `yaml:"h2d"` // from host to device
	D2H  Rate   `yaml:"d2h"`
	// Peers is the rate of a link between two ranks, each way.
	Peers Rate `yaml:"peers"`
	// Hosts is how many hosts a described machine's ranks are on; 0: as few as hold them.
	Hosts int `yaml:"hosts"`
	// PerHost is how many ranks each of them has: one number, or a list such as [4, 2]; equally many if it is left out.
	PerHost Counts `yaml:"per_host"`
	// Network is the rate at which each of them sends to the others, and receives.
	Network Rate `yaml:"network"`
}

// Unlimited is the Bytes of a tier without a limit.
const Unlimited Bytes = -1

// maxSteps is the length of the longest run, and of one that only max_time ends, until WithSteps is called.
const maxSteps = 1e9

// AutoDelink is the value of DelinkAt where losses decide.
const AutoDelink = math.MinInt32

// AutoRanks is the value of Ranks in a configuration that leaves them to the machine: one that nobody would
// write.
const AutoRanks = math.MinInt32

// derived marks a number that is derived from others unless it is given.
const derived = -1

// Derived is the value of an ExpertBalance, or of one of the optimizer's constants, that is yet to be derived.
const Derived = derived

// Values of Config.Documents.
const (
	Joined   = "joined"
	Separate = "separate"
	Whole    = "whole"
)

// Default returns the configuration before the file is read.
func Default() Config {
	return Config{
		Documents: Joined, BOS: "auto", OnBadRow: "error", Device: "auto", Ranks: 1, Precision: "auto", Quantize: "none", Optimizer: optimizer.AdamW.String(), OptimizerState: "auto", Resume: "auto", Seed: 1,
		Muon:       Muon{LearningRate: Derived, Momentum: optimizer.MuonTerms{}.Usual().Momentum, Scale: optimizer.MatchAdamW.String()},
		Distill:    Distill{Top: 32, Temperature: 1, Weight: 0.5},
		Preference: Preference{Loss: graph.DPO.String(), Margin: derived, DesirableWeight: 1, UndesirableWeight: 1},
		Limits:     Limits{Device: Unlimited, Host: Unlimited, Disk: Unlimited, DiskEndurance: Unlimited},
		Schedule:   "cosine", DecaySteps: derived, MinLearningRate: derived, WarmupSteps: derived, ExpertBalance: Derived,
		WeightDecay: Derived, Beta1: Derived, Beta2: Derived, Epsilon: Derived, Clip: 1,
		HeldOut: 0.01, EvalBatches: 8, SaveAfter: Duration(10 * time.Minute), KeepCheckpoints: 2,
	}
}

// MarshalYAML leaves out keys that have not been derived yet, and those that are off.
func (c Config) MarshalYAML() (any, error) {
	absent := map[string]bool{
		"max_steps":         (c.timed || c.MaxEpochs != 0) && c.MaxSteps == maxSteps,
		"max_epochs":        c.MaxEpochs == 0,
		"warmup_steps":      c.WarmupSteps == derived,
		"decay_steps":       c.DecaySteps == derived,
		"min_learning_rate": c.MinLearningRate == derived,
		"expert_balance":    c.ExpertBalance == Derived,
		"weight_decay":      c.WeightDecay == Derived,
		"beta1":             c.Beta1 == Derived,
		"beta2":             c.Beta2 == Derived,
		"epsilon":           c.Epsilon == Derived,
		"neftune_alpha":     c.NeftuneAlpha == 0,
		"early_stop":        c.EarlyStop == 0,
		"muon":              c.Optimizer != optimizer.Muon.String(),
		"max_tokens":        c.MaxTokens == 0,
		"distill":           c.Distill.Teacher == "",
		"preference":        c.Preference.Beta == 0, "labels": len(c.Labels) == 0,
		"alerts":              reflect.ValueOf(c.Alerts).IsZero(),
		"dashboard":           !c.Dashboard,
		"lora":                c.LoRA.Rank == 0,
		"resize_vocab":        !c.ResizeVocab,
		"keep_mask":           !c.KeepMask,
		"tie_layers":          c.TieLayers == 0,
		"delink_at":           c.DelinkAt == 0,
		"train_within":        c.TrainWithin == 0,
		"validation":          len(c.Validation) == 0,
		"validation_fraction": len(c.Validation) > 0,
	}
	type plain Config // without this method
	var all, kept yaml.Node
	if err := all.Encode(plain(c)); err != nil {
		return nil, err
	}
	kept = all
	kept.Content = nil
	for pair := range slices.Chunk(all.Content, 2) {
		if pair[0].Value == "delink_at" && c.DelinkAt == AutoDelink {
			pair[1].SetString("auto")
		}
		if !absent[pair[0].Value] {
			kept.Content = append(kept.Content, pair...)
		}
	}
	return &kept, nil
}

// MarshalYAML leaves out a learning rate that is that of all else.
func (m Muon) MarshalYAML() (any, error) {
	written := map[string]any{"momentum": m.Momentum, "scale": m.Scale}
	if m.LearningRate != Derived {
		written["learning_rate"] = m.LearningRate
	}
	return written, nil
}

// MarshalYAML writes a name, or sizes.
func (m Model) MarshalYAML() (any, error) {
	if m.Name != "" {
		return m.Name, nil
	}
	type sizes Model
	return sizes(m), nil
}

// MarshalYAML writes the name of a file, or only the decisions that were given.
func (p Plan) MarshalYAML() (any, error) {
	if p.File != "" {
		return p.File, nil
	}
	decided, v := map[string]any{}, reflect.ValueOf(p)
	for i := range v.NumField() {
		if key := v.Type().Field(i).Tag.Get("yaml"); key != "-" && !v.Field(i).IsZero() {
			decided[key] = v.Field(i).Interface()
		}
	}
	if len(decided) == 0 {
		return "auto", nil
	}
	return decided, nil
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (s Shares) MarshalYAML() (any, error) {
	if one, ok := s[EveryLayer]; ok {
		return one, nil
	}
	return map[int]float64(s), nil
}

// maxFile bounds the size of a configuration file.
const maxFile = 1 << 20

// Load reads the file of a run and applies overrides ("key=value"). Relative paths in it
// are relative to the working directory.
func Load(file string, overrides []string) (*Config, error) {
	return LoadTo(ToTrain, file, overrides)
}

// LoadTo is Load for a purpose. To plan, a model can take the place of the file, as it is or after "model=": a known name, a
// folder, the name of a downloaded model, or sizes.
func LoadTo(to Purpose, file string, overrides []string) (*Config, error) {
	st, err := os.Stat(file)
	if to == ToPlan && (err != nil || st.IsDir()) && !isYAML(file) {
		return parse(to, file, nil, append([]string{"model=" + strings.TrimPrefix(file, "model=")}, overrides...))
	}
	switch {
	case err != nil:
		return nil, &Error{File: file, Msg: "cannot read the file: " + errors.Unwrap(err).Error() + "; hint: give the path of a YAML file, see examples/"}
	case st.IsDir() || st.Size() > maxFile:
		return nil, &Error{File: file, Msg: "not a configuration file; hint: give the path of a YAML file, see examples/"}
	}
	text, err := bounded.ReadFile(file, maxFile)
	if err != nil {
		return nil, &Error{File: file, Msg: err.Error()}
	}
	return parse(to, file, text, overrides)
}

func isYAML(file string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, strings.ToLower(filepath.Ext(file)))
}

// Parse is Load on text.
func Parse(file string, text []byte, overrides []string) (*Config, error) {
	return parse(ToTrain, file, text, overrides)
}

func parse(to Purpose, file string, text []byte, overrides []string) (*Config, error) {
	c := Default()
	root, err := document(file, text)
	if err != nil {
		return nil, err
	}
	d := decoder{file: file, lines: map[string]int{}}
	d.override(root, overrides)
	d.decode(root, &c)
	c.Lines = Lines{file, d.lines}
	if len(d.errs) == 0 {
		c.expand(&d)
		c.validate(&d, to)
	}
	return &c, errors.Join(d.errs...)
}

// Rewrite returns the text of a configuration with overrides, and without some keys. Comments stay.
func Rewrite(file string, text []byte, overrides []string, without ...string) ([]byte, error) {
	root, err := document(file, text)
	if err != nil {
		return nil, err
	}
	d := decoder{file: file, lines: map[string]int{}}
	d.override(root, overrides)
	for i := 0; i+1 < len(root.Content); {
		if slices.Contains(without, root.Content[i].Value) {
			root.Content = slices.Delete(root.Content, i, i+2)
		} else {
			i += 2
		}
	}
	if err := errors.Join(d.errs...); err != nil {
		return nil, err
	}
	return yaml.Marshal(root)
}

// expand replaces variables and the home in all keys that may name files, and the names of models downloaded by
// Hugging Face's tools with their folders, so that what is saved and shown says where things are.
func (c *Config) expand(d *decoder) {
	in := func(key string, path *string) {
		out, err := paths.Expand(*path)
		if err != nil {
			d.fail(key, err.Error())
		}
		*path = out
	}
	in("model", &c.Model.Name)
	for _, s := range c.Data {
		for i := range s.Files {
			in("data", &s.Files[i])
		}
	}
	for i := range c.Validation {
		in("validation", &c.Validation[i])
	}
	in("tokenizer", &c.Tokenizer)
	in("out", &c.Out)
	in("limits.disk_path", &c.Limits.DiskPath)
	in("plan", &c.Plan.File)
	in("resume", &c.Resume)
	in("hardware.name", &c.Hardware.Name)
	c.Model.Name, c.Tokenizer = paths.Hub(c.Model.Name), paths.Hub(c.Tokenizer)
}

// document returns the mapping at the top of a YAML file.
func document(file string, text []byte) (*yaml.Node, error) {
	var doc, next yaml.Node
	all := yaml.NewDecoder(bytes.NewReader(text))
	if err := all.Decode(&doc); err != nil && !errors.Is(err, io.EOF) { // EOF if the file has only comments
		return nil, &Error{File: file, Msg: strings.TrimPrefix(err.Error(), "yaml: ") + "; hint: write lines such as max_steps: 500, see examples/"}
	}
	if all.Decode(&next) == nil {
		return nil, &Error{File: file, Line: next.Line, Msg: "a second YAML document begins after ---; hint: use a file of its own for each run"}
	}
	if len(doc.Content) == 0 {
		return &yaml.Node{Kind: yaml.MappingNode}, nil
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return nil, &Error{File: file, Line: doc.Content[0].Line, Msg: "expected `key: value` lines; hint: see examples/"}
	}
	return doc.Content[0], nil
}

// Timed reports whether max_time alone determines how long the run is.
func (c Config) Timed() bool { return c.timed }

// WithSteps returns the configuration of a run of so many steps, in which its learning rate rises and falls.
func (c Config) WithSteps(steps int) Config {
	c.MaxSteps, c.MaxEpochs = min(max(1, steps), maxSteps), 0
	c.warmUp()
	return c
}

// OnCorpus returns the configuration for a corpus with that many training sequences, which gives a run whose length
// is set by max_epochs its steps.
func (c Config) OnCorpus(sequences int64) Config {
	if c.MaxEpochs == 0 {
		return c
	}
	steps := math.Ceil(c.MaxEpochs * float64(sequences) / float64(c.GlobalBatch))
	return c.WithSteps(int(min(steps, maxSteps)))
}

func (c *Config) warmUp() {
	if c.WarmupSteps == derived {
		c.WarmupSteps = min(c.MaxSteps/20, 2000)
	}
}
