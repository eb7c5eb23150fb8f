package config

import (
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/alert"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// Required lists the keys that a run needs.
const Required = "model, data, tokenizer, sequence_length, global_batch, learning_rate, max_steps (or max_tokens, max_epochs, max_time) and out"

// Purpose is what a configuration is read for, which decides which keys it needs.
type Purpose int

const (
	ToTrain Purpose = iota // needs all of Required
	ToPlan                 // needs the model and the batch; text, if given, is read for its documents and vocabulary
	ToRead                 // needs the text and its tokenizer
)

func (p Purpose) needs(key string) bool {
	switch p {
	case ToPlan:
		return key == "model" || key == "sequence_length" || key == "global_batch"
	case ToRead:
		return key == "data" || key == "tokenizer"
	}
	return true
}

// String says what is needed.
func (p Purpose) String() string {
	return [...]string{"a run needs " + Required, "a plan needs model, sequence_length and global_batch (such as sequence_length=4096 global_batch=16), and with data also tokenizer", "reading text needs data and tokenizer"}[p]
}

// validate checks values against each other and fills in derived ones.
func (c *Config) validate(d *decoder, to Purpose) {
	c.countSteps(d)
	missing := c.checkRequired(d, to)
	c.checkRanges(d)
	c.checkInt8(d)
	if c.Precision == FP8 && c.Quantize != "none" {
		d.fail("precision", "fp8 is not built for quantize: weights in 4 bits are multiplied in bf16; hint: leave one of the two out")
	}
	c.checkChoices(d)
	if len(missing) > 0 {
		d.fail(strings.Join(missing, ", "), "missing; hint: "+to.String())
	}
	c.derive()
}

// countSteps converts max_tokens to max_steps. Of these and max_epochs, which has to wait for the corpus, those
// given on the command line count. In one place, max_steps and max_tokens must agree, and max_epochs excludes
// both.
func (c *Config) countSteps(d *decoder) {
	asked := map[string]bool{"max_steps": c.MaxSteps != 0, "max_tokens": c.MaxTokens != 0, "max_epochs": c.MaxEpochs != 0}
	count := func(has func(key string) bool) (n int) {
		for key, ask := range asked {
			if ask && has(key) {
				n++
			}
		}
		return n
	}
	if count(d.overridden) > 0 {
		for key := range asked {
			asked[key] = asked[key] && d.overridden(key)
		}
	}
	if !asked["max_steps"] {
		c.MaxSteps = 0
	}
	if !asked["max_epochs"] {
		c.MaxEpochs = 0
	}
	tokens := c.MaxTokens
	c.MaxTokens = 0
	if c.MaxEpochs != 0 && count(d.given) > 1 {
		d.fail("max_epochs", "cannot be combined with max_steps or max_tokens; hint: leave one of them out, on the command line with max_steps=null")
	}
	if asked["max_tokens"] {
		c.countTokens(d, tokens)
	}
}

func (c *Config) countTokens(d *decoder, tokens Number) {
	steps := int(math.Ceil(float64(tokens) / float64(max(1, c.SequenceLength*c.GlobalBatch))))
	switch {
	case c.SequenceLength < 1 || c.GlobalBatch < 1: // an error already
		c.MaxSteps = maxSteps
	case steps > maxSteps:
		c.MaxSteps = maxSteps
		d.fail("max_tokens", fmt.Sprintf("%d tokens are %d steps, more than the limit of %d; hint: use fewer tokens, or more of them per step", tokens, steps, int(maxSteps)))
	case c.MaxSteps != 0 && c.MaxSteps != steps:
		d.fail("max_tokens", fmt.Sprintf("%d tokens are %d steps, but max_steps is %d; hint: leave one of them out, on the command line with max_steps=null", tokens, steps, c.MaxSteps))
	default:
		c.MaxSteps = steps
	}
}

// checkRequired checks the keys without a default, and fills in the tokenizer of a model's
// folder. It returns the keys that are missing for a purpose, to be reported together.
func (c *Config) checkRequired(d *decoder, to Purpose) (missing []string) {
	need := func(key string, ok bool) {
		if !ok && (to.needs(key) || key == "tokenizer" && len(c.Data) > 0) {
			missing = append(missing, key)
		}
	}
	need("model", c.Model.Name != "" || c.Model.Type != "")
	need("data", len(c.Data) > 0)
	if c.Tokenizer == "" {
		c.Tokenizer = c.Model.Name // a folder brings its own
		need("tokenizer", c.Tokenizer != "")
	}
	count := func(key string, n, most int) {
		if n == 0 && !d.given(key) {
			need(key, false)
		} else if n < 1 || n > most {
			d.fail(key, fmt.Sprintf("%d is out of range; hint: at least 1, at most %d", n, most))
		}
	}
	count("sequence_length", c.SequenceLength, 1<<24)
	count("global_batch", c.GlobalBatch, 1<<20)
	if in := c.MaxEpochs; in < 0 || in > 1e6 || math.IsNaN(in) {
		d.fail("max_epochs", fmt.Sprintf("%v is out of range; hint: more than 0, at most 1e6", in))
	}
	if c.MaxSteps != 0 || c.MaxTime == 0 && c.MaxEpochs == 0 {
		count("max_steps", c.MaxSteps, maxSteps)
	}
	need("out", c.Out != "")
	need("learning_rate", d.given("learning_rate"))
	return missing
}

// leastClip is the least norm to clip to: a float32 can hold its ratio to any norm. A ratio
// that was rounded to 0 would skip updates.
const leastClip = 1e-6

// checkRanges checks the learning rate, the numbers that have defaults, and keys that need
// or exclude each other.
func (c *Config) checkRanges(d *decoder) {
	in := func(key string, v, lo, hi float64) {
		if !(v >= lo && v <= hi) {
			d.fail(key, fmt.Sprintf("%v is out of range; hint: from %v to %v", v, lo, hi))
		}
	}
	notOff := func(section, key string, v float64) {
		if key = section + "." + key; v == 0 && d.given(key) {
			d.fail(key, fmt.Sprintf("0 turns %s off; hint: leave out %s instead, on the command line with %s=null", section, section, section))
		}
	}
	if in("learning_rate", c.LearningRate, 0, 1e3); c.LearningRate == 0 && d.given("learning_rate") {
		d.fail("learning_rate", "0 trains nothing; hint: use more than 0, such as 3e-4")
	}
	if c.Ranks != AutoRanks {
		in("ranks", float64(c.Ranks), 1, 1024)
	}
	c.checkHosts(d)
	c.checkNetwork(d)
	if d.given("min_learning_rate") {
		if in("min_learning_rate", c.MinLearningRate, 0, 1e3); c.MinLearningRate > c.LearningRate && c.Schedule != "constant" {
			d.fail("min_learning_rate", fmt.Sprintf("%v is more than learning_rate, %v, so the rate would rise to it; hint: leave min_learning_rate out, for the schedule's usual one", c.MinLearningRate, c.LearningRate))
		}
	}
	if d.given("warmup_steps") {
		if in("warmup_steps", float64(c.WarmupSteps), 0, 1e9); c.MaxSteps > 0 && c.WarmupSteps > c.MaxSteps {
			d.fail("warmup_steps", fmt.Sprintf("%d is more than max_steps, %d, so learning_rate would never be reached; hint: leave warmup_steps out, for a twentieth of the steps", c.WarmupSteps, c.MaxSteps))
		}
	}
	if d.given("decay_steps") {
		c.checkDecay(d)
	}
	if d.given("expert_balance") {
		in("expert_balance", c.ExpertBalance, 0, 1)
	}
	for _, x := range []struct {
		key       string
		v, lo, hi float64
	}{
		{"weight_decay", c.WeightDecay, 0, 1e3}, {"beta1", c.Beta1, 0, math.Nextafter(1, 0)}, {"beta2", c.Beta2, 0, math.Nextafter(1, 0)},
		{"epsilon", c.Epsilon, 1e-30, 1}, // in fp32 a smaller one may be 0, which would give 0/0 where there was no gradient
	} {
		if d.given(x.key) {
			in(x.key, x.v, x.lo, x.hi)
		}
	}
	if in("gradient_clipping", c.Clip, 0, 1e9); c.Clip > 0 && c.Clip < leastClip {
		d.fail("gradient_clipping", fmt.Sprintf("%v is less than %v; hint: use 1, as is usual, or 0 to clip nothing", c.Clip, leastClip))
	}
	if in("skip_spikes", c.SkipSpikes, 0, 1e3); c.SkipSpikes > 0 && c.Clip == 0 {
		d.fail("skip_spikes", "without gradient_clipping, weights are updated before the gradient norm is known; hint: set gradient_clipping: 1e9, which clips nothing but waits for the norm")
	}
	if in("validation_fraction", c.HeldOut, 0, 0.5); len(c.Validation) > 0 && d.given("validation_fraction") {
		d.fail("validation_fraction", "nothing is held out if validation names files; hint: leave one of the two out, on the command line with validation_fraction=null or validation=null")
	}
	in("eval_every", float64(c.EvalEvery), 0, 1e9)
	in("eval_batches", float64(c.EvalBatches), 1, 1e6)
	in("save_every", float64(c.SaveEvery), 0, 1e9)
	in("keep_checkpoints", float64(c.KeepCheckpoints), 1, 1e6)
	in("sample.tokens", float64(c.Sample.Tokens), 0, 1e6)
	notOff("lora", "rank", float64(c.LoRA.Rank))
	in("lora.rank", float64(c.LoRA.Rank), 0, 1<<16)
	in("lora.alpha", c.LoRA.Alpha, 0, 1e6)
	in("lora.dropout", c.LoRA.Dropout, 0, 0.99)
	in("neftune_alpha", c.NeftuneAlpha, 0, 1e6)
	if l := c.LoRA; !d.given("lora.rank") && (len(l.Targets)+len(l.Whole) > 0 || l.Alpha != 0 || l.Dropout != 0 || l.RSLoRA || l.DoRA) && l.Rank == 0 {
		d.fail("lora.rank", "missing; hint: usually 8 to 64")
	}
	if len(c.Freeze) > 0 && c.LoRA.Rank > 0 {
		d.fail("freeze", "with lora, only adapters are trained; hint: leave out freeze or lora")
	}
	if c.DelinkAt != AutoDelink {
		in("delink_at", float64(c.DelinkAt), 0, maxSteps)
	}
	switch in("tie_layers", float64(c.TieLayers), 0, 1<<16); {
	case c.TieLayers == 0 && c.DelinkAt != 0:
		d.fail("delink_at", "no layers are tied; hint: set tie_layers, such as 4, or leave delink_at out")
	case c.TieLayers > 0 && len(c.Freeze)+c.LoRA.Rank > 0:
		d.fail("tie_layers", "layers that share parameters begin with random weights, and are trained whole; hint: leave out tie_layers, or freeze and lora")
	case c.TieLayers > 0 && c.DelinkAt != 0 && c.MaxTime > 0:
		d.fail("tie_layers", "max_time would begin anew where the layers get parameters of their own; hint: set max_steps instead of max_time, or leave delink_at out")
	}
	c.checkWithin(d)
	if c.KeepMask && c.LoRA.Rank > 0 {
		d.fail("keep_mask", "with lora, no weight of the layers is trained, and zeros stay as they are; hint: leave out keep_mask or lora")
	}
	if _, err := alert.New(alert.Options{Rules: c.Alerts.Rules}); err != nil {
		d.fail("alerts.rules", err.Error())
	}
	if _, err := alert.New(alert.Options{Off: c.Alerts.Off}); err != nil {
		d.fail("alerts.off", err.Error())
	}
	if u, err := url.Parse(c.Alerts.Webhook); c.Alerts.Webhook != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		d.fail("alerts.webhook", fmt.Sprintf("%.100q is no address; hint: such as https://ntfy.sh/my-runs", c.Alerts.Webhook))
	}
	notOff("preference", "beta", c.Preference.Beta)
	if in("preference.beta", c.Preference.Beta, 0, 1e3); d.given("preference") && !d.given("preference.beta") && !(d.given("preference.loss") && c.Preference.Loss == graph.DPO.String()) {
		d.fail("preference.beta", "missing; hint: usually 0.1, for simpo 2, for reward 1")
	}
	c.checkPairLoss(d)
	c.checkLabels(d)
	c.checkDistill(d, in)
	if c.Preference.Beta > 0 && d.given("documents") && c.Documents == Joined {
		d.fail("documents", "joined, but the answers of a pair must not see each other; hint: leave documents out with preference")
	}
	if c.Preference.Beta > 0 && c.ExpertBalance > 0 {
		d.fail("expert_balance", "preference has no such term in its loss; hint: leave out expert_balance or preference")
	}
	if in("early_stop", float64(c.EarlyStop), 0, 1e9); c.EarlyStop > 0 && c.EvalEvery == 0 {
		d.fail("early_stop", "without eval_every, nothing is validated before the end of the run; hint: set eval_every, the steps from one validation to the next")
	}
	if c.KeepBest && c.EvalEvery == 0 {
		d.fail("keep_best", "without eval_every, nothing is validated before the end of the run; hint: set eval_every, the steps from one validation to the next")
	}
	if d.given("sample.prompt") && !d.given("sample.tokens") {
		d.fail("sample.tokens", "missing; hint: set the number of tokens to generate, such as 100")
	}
}

// checkWithin checks train_within, which itself decides what is trained and where it is. A plan.json may be that of the run so far.
func (c *Config) checkWithin(d *decoder) {
	if c.TrainWithin == 0 {
		if d.given("train_within") {
			d.fail("train_within", "nothing can be trained in no memory; hint: such as 2GiB, or leave it out, on the command line with train_within=null")
		}
		return
	}
	for _, other := range []struct {
		key, why string
		given    bool
	}{
		{"freeze", "what is trained is chosen already", len(c.Freeze) > 0},
		{"lora", "with it, only adapters are trained, which seldom lack memory", c.LoRA.Rank > 0},
		{"tie_layers", "its layers begin with random weights, of which trials say nothing", c.TieLayers > 0},
		{"quantize", "the model would depend on what is trained", c.Quantize == NF4},
		{"keep_mask", "sparse weights have no trials", c.KeepMask},
		{"preference", "pairs have no trials", c.Preference.Beta > 0},
		{"labels", "the head that gets labels would have no trials", len(c.Labels) > 0},
		{"carry_optimizer", "the state of what is frozen would be lost", c.CarryOptimizer},
		{"plan", "everything that is trained stays on the device", c.Plan.File == "" && !reflect.ValueOf(c.Plan).IsZero()},
		{"ranks", "each rank would have its own memory", c.Ranks != 1},
		{"hosts", "each host would have its own memory", len(c.Hosts) > 0},
		{"model", "a model of random weights has to be trained whole", c.Model.Name == "" && c.Model.Type != ""},
		{"max_time", "trials take a share of the run's steps, whose number is unknown; set max_steps", c.MaxTime > 0 && c.MaxSteps == 0 && c.MaxEpochs == 0},
	} {
		if other.given {
			d.fail("train_within", fmt.Sprintf("not with %s: %s; hint: leave one of the two out", other.key, other.why))
		}
	}
}

// checkInt8 names what cannot be combined with weights in int8.
func (c *Config) checkInt8(d *decoder) {
	if c.Precision != Int8 {
		return
	}
	for _, other := range []struct {
		key, why string
		given    bool
	}{
		{"device", "its operators are the CPU's alone", device.IsGPU(c.Device)},
		{"lora", "its frozen weights are held in 4 bits by quantize: nf4", c.LoRA.Rank > 0},
		{"quantize", "the weights are in int8 already", c.Quantize != "none"},
		{"keep_mask", "small weights are rounded to zero, and would stay so", c.KeepMask},
		{"optimizer: muon", "it updates matrices as a whole", c.Optimizer == optimizer.Muon.String()},
		{"optimizer_state: bf16", "weights are in int8 already; use bf16_moments", c.OptimizerState == "bf16"},
	} {
		if other.given {
			d.fail("precision", fmt.Sprintf("int8 is not built for %s: %s; hint: leave one of the two out", other.key, other.why))
		}
	}
}

// checkDecay checks the steps in which the learning rate of wsd falls.
func (c *Config) checkDecay(d *decoder) {
	fall, err := optimizer.RateScheduleNamed(c.Schedule)
	switch {
	case c.DecaySteps < 1 || c.DecaySteps > maxSteps:
		d.fail("decay_steps", fmt.Sprintf("%d is out of range; hint: at least 1, or leave it out, for a fifth of the steps", c.DecaySteps))
	case err == nil && !fall.Decays:
		d.fail("decay_steps", fmt.Sprintf("the schedule is %s, which has no steps set apart for it; hint: set schedule: wsd, or leave decay_steps out", c.Schedule))
	case c.MaxSteps > 0 && c.DecaySteps > c.MaxSteps-max(0, c.WarmupSteps):
		d.fail("decay_steps", fmt.Sprintf("%d is more than the steps after the warm-up, of %d; hint: use fewer, such as a fifth", c.DecaySteps, c.MaxSteps))
	}
}

// checkChoices checks the keys whose value is one of a few words.
func (c *Config) checkChoices(d *decoder) {
	one := func(key, v string, of ...string) {
		if !slices.Contains(of, v) {
			d.fail(key, fmt.Sprintf("%q is not one of %s", v, strings.Join(of, ", ")))
		}
	}
	one("documents", c.Documents, Joined, Separate, Whole)
	one("bos", c.BOS, "auto", "none")
	one("on_bad_row", c.OnBadRow, "error", "skip")
	one("device", c.Device, "auto", "cpu", "cuda")
	one("precision", c.Precision, "auto", "fp32", "bf16", FP8, Int8)
	one("quantize", c.Quantize, "none", NF4)
	if o, err := optimizer.Named(c.Optimizer); err != nil {
		d.fail("optimizer", err.Error())
	} else {
		r := o.Rule()
		for _, c := range []struct {
			key   string
			usual float64
		}{{"weight_decay", r.Decay}, {"beta1", r.Beta1}, {"beta2", r.Beta2}, {"epsilon", r.Epsilon}} {
			if c.usual == 0 && d.given(c.key) {
				d.fail(c.key, fmt.Sprintf("%v has none; hint: leave %s out, on the command line with %s=null", o, c.key, c.key))
			}
		}
	}
	c.checkMuon(d)
	states := []string{"auto"}
	for _, f := range plan.StateFormats() {
		states = append(states, f.String())
	}
	one("optimizer_state", c.OptimizerState, states...)
	c.checkPacked(d)
	if _, err := optimizer.RateScheduleNamed(c.Schedule); err != nil {
		d.fail("schedule", err.Error())
	}
}

// checkPairLoss checks the loss of pairs, its margin, and the weights of single answers.
func (c *Config) checkPairLoss(d *decoder) {
	loss, err := graph.PairLossNamed(c.Preference.Loss)
	for key, weight := range map[string]float64{"desirable_weight": c.Preference.DesirableWeight, "undesirable_weight": c.Preference.UndesirableWeight} {
		switch key = "preference." + key; {
		case err != nil || !d.given(key):
		case !loss.Rule().Unpaired && weight == 1: // written out
		case !loss.Rule().Unpaired:
			d.fail(key, fmt.Sprintf("%v compares two answers; hint: set preference.loss: kto, or leave %s out", loss, key))
		case !(weight > 0 && weight <= 1e3):
			d.fail(key, fmt.Sprintf("%v is out of range; hint: above 0, up to 1000, usually 1", weight))
		}
	}
	if p := c.Preference; err == nil && p.Beta > 0 && loss.Rule().Scored {
		c.checkScored(d, "preference.loss: reward", "the loss is of whole answers")
	}
	switch p := c.Preference; {
	case err != nil:
		d.fail("preference.loss", err.Error())
	case p.Margin == derived || !d.given("preference.margin"):
	case loss.Rule().Margin == 0 && p.Margin != 0:
		d.fail("preference.margin", fmt.Sprintf("%v has none; hint: set preference.loss: simpo, or leave margin out", loss))
	case !(p.Margin >= 0 && p.Margin <= 1e3):
		d.fail("preference.margin", fmt.Sprintf("%v is out of range; hint: from 0 to 1000, usually 0.5 to 1.6", p.Margin))
	}
}

// checkPacked refuses what moments in 8 bits are not built for.
func (c *Config) checkPacked(d *decoder) {
	if c.OptimizerState != plan.PackedMoments.String() {
		return
	}
	for _, no := range []struct {
		is        bool
		why, hint string
	}{
		{c.Optimizer == optimizer.Muon.String(), "muon updates whole matrices, and its moments are not kept in 8 bits", "use bf16_moments, or optimizer: adamw"},
		{c.DelinkAt != 0, "moments in 8 bits cannot be divided among layers that get parameters of their own", "use bf16_moments, or leave delink_at out"},
		{c.Plan.Tensor > 1, "blocks of moments in 8 bits would be other blocks in a part of a matrix", "use bf16_moments, or leave plan.tensor out"},
	} {
		if no.is {
			d.fail("optimizer_state", no.why+"; hint: "+no.hint)
		}
	}
}

// checkMuon checks what only optimizer: muon has.
func (c *Config) checkMuon(d *decoder) {
	for key, v := range map[string]float64{"muon.learning_rate": c.Muon.LearningRate, "muon.momentum": c.Muon.Momentum} {
		lo, hi := math.SmallestNonzeroFloat64, 1e3
		if key == "muon.momentum" {
			lo, hi = 0, math.Nextafter(1, 0)
		}
		if d.given(key) && !(v >= lo && v <= hi) {
			d.fail(key, fmt.Sprintf("%v is out of range; hint: a learning rate is more than 0, such as 0.02, and a momentum less than 1, such as 0.95", v))
		}
	}
	if _, err := optimizer.MuonScaleNamed(c.Muon.Scale); err != nil {
		d.fail("muon.scale", err.Error())
	}
	switch muon := c.Optimizer == optimizer.Muon.String(); {
	case !muon && c.Muon != Default().Muon:
		d.fail("muon", fmt.Sprintf("the optimizer is %s; hint: set optimizer: muon, or leave muon out", c.Optimizer))
	case muon && c.Plan.Update == device.HostTier.String():
		d.fail("plan.update", "muon updates matrices on the device wherever their state is, since the host's products have other bits; hint: leave plan.update out")
	}
}

// derive fills in defaults that depend on other keys.
func (c *Config) derive() {
	if len(c.Validation) > 0 {
		c.HeldOut = 0
	}
	if c.Preference.Beta > 0 || len(c.Labels) > 0 {
		c.Documents, c.ExpertBalance = Separate, 0
	}
	if loss, err := graph.PairLossNamed(c.Preference.Loss); err == nil && c.Preference.Margin == derived {
		c.Preference.Margin = loss.Rule().Margin
	}
	if len(c.Hosts) > 0 && c.Ranks == 1 { // the default; given, it is an error
		c.Ranks = len(c.Hosts) + 1
	}
	if c.MaxSteps == 0 && (c.MaxTime > 0 || c.MaxEpochs > 0) { // a plan may be for a run of unknown length
		c.MaxSteps, c.timed = maxSteps, c.MaxEpochs == 0
	} else {
		c.warmUp()
	}
	if fall, err := optimizer.RateScheduleNamed(c.Schedule); err == nil && c.MinLearningRate == derived {
		c.MinLearningRate = fall.End * c.LearningRate
	}
}
