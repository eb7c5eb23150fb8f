package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// identity is what must be equal for a run to be resumed. Plan and memory limits
// are not part of it: they affect speed only.
type identity struct {
	Model          string              `json:"model"`
	Base           string              `json:"base_weights,omitempty"` // fingerprint of the weights that adapters are trained on
	Teacher        string              `json:"teacher,omitempty"`      // fingerprint of the weights of a teacher
	SequenceLength int                 `json:"sequence_length"`
	GlobalBatch    int                 `json:"global_batch"`
	Precision      string              `json:"precision"`
	OptimizerState plan.StateFormat    `json:"optimizer_state,omitempty"` // absent: fp32
	Documents      string              `json:"documents,omitempty"`       // absent: joined
	Seed           uint64              `json:"seed"`
	Tokens         string              `json:"tokens"`                  // number of tokens and hash of the tokenizer
	Text           string              `json:"text,omitempty"`          // hash of the tokens; not compared if absent, as in older checkpoints
	Begin          string              `json:"bos,omitempty"`           // tokens with which texts begin; absent: none
	Chat           string              `json:"chat_template,omitempty"` // hash of the template of conversations; absent: there are none
	WeightDecay    float64             `json:"weight_decay"`
	Clip           float64             `json:"gradient_clipping"`
	Optimizer      optimizer.Optimizer `json:"optimizer,omitempty"`           // absent: adamw
	Adam           string              `json:"adam,omitempty"`                // the optimizer's beta1, beta2 and epsilon; not compared if absent, as in older checkpoints
	Muon           string              `json:"muon,omitempty"`                // its terms; absent: another optimizer
	KeepMask       bool                `json:"keep_mask,omitempty"`           // weights that are 0 stay so
	TieLayers      int                 `json:"tie_layers,omitempty"`          // as it was configured; which share parameters at present is no part of the identity
	Mixture        string              `json:"mixture,omitempty"`             // tokens of each source, and how often a pass reads it; absent: one source, read once
	Held           string              `json:"validation_fraction,omitempty"` // fraction held out, or none; not compared if absent
	LabelWeights   string              `json:"label_weights,omitempty"`       // of desirable and undesirable answers; absent: 1 and 1, or none
	LabelNames     string              `json:"label_names,omitempty"`         // in their order; absent: there are no labels
	Pairs          string              `json:"validation,omitempty"`          // tokens of a validation corpus of pairs, whose reference was computed at the beginning
}

// origin is what a checkpoint records of the run that wrote it. Only the identity
// is checked; the hashes inform people, since a run may resume with another plan.
type origin struct {
	identity
	PlanHash string `json:"plan_hash"`
	RunHash  string `json:"run_hash"` // of the plan and the identity
	spread
	guard
	conduct
	carried
	stall
	tying
	Tied       int                `json:"tied,omitempty"`              // how many consecutive layers share parameters
	Validation int64              `json:"validation_tokens,omitempty"` // of a separate validation corpus
	TextField  []string           `json:"text_field,omitempty"`        // of rows, for those who evaluate; absent: text
	Labels     []string           `json:"labels,omitempty"`            // their names, likewise, since an adapter's folder has none
	Regression bool               `json:"regression,omitempty"`        // the one label is a value, likewise
	Preference *folder.Preference `json:"preference,omitempty"`        // how pairs are compared, likewise
}

// configured fills in what the configuration determines.
func (a *identity) configured(spec *job.Spec) {
	a.SequenceLength, a.GlobalBatch, a.Seed = spec.SequenceLength, spec.GlobalBatch, spec.Seed
	a.Precision, a.Documents = spec.PrecisionName(), windowsOf(spec)
	a.Held = fmt.Sprint(spec.HeldOut)
	if len(spec.Validation) > 0 {
		a.Held = "none"
	}
	a.Optimizer, a.KeepMask, a.TieLayers = spec.Optimizer, spec.KeepMask, spec.TieLayers
	if len(spec.Labels) > 0 {
		a.LabelNames = fmt.Sprintf("%q", spec.Labels)
	}
	a.WeightDecay, a.Clip, a.Adam = spec.WeightDecay, spec.Clip, fmt.Sprintf("beta1 %v, beta2 %v, epsilon %v", spec.Beta1, spec.Beta2, spec.Epsilon)
	if p := spec.Preference; p.DesirableWeight != 1 || p.UndesirableWeight != 1 {
		a.LabelWeights = fmt.Sprintf("desirable %v, undesirable %v", p.DesirableWeight, p.UndesirableWeight)
	}
	if !spec.Optimizer.Rule().Elementwise {
		a.Muon = fmt.Sprintf("momentum %v, rate %.6g, scale %v", spec.Muon.Momentum, spec.Muon.Rate, spec.Muon.Scale)
	}
	if state, settled := spec.State(); settled {
		a.OptimizerState = state
	}
}

// windowsOf says how documents become windows.
func windowsOf(spec *job.Spec) string {
	switch {
	case spec.Classifies():
		return "texts with labels (best fit)"
	case spec.Unpaired():
		return "answers (best fit)"
	case spec.Preference.Beta > 0:
		return "pairs (best fit)"
	case spec.Documents == config.Whole:
		return "whole (best fit)"
	}
	return spec.Documents
}

// prepared also fills in what text and model determine.
func (a *identity) prepared(s *Setup) {
	a.configured(s.Spec)
	hash := s.Tokenizer.Hash()
	if len(s.Begin) > 0 && s.Stats().Texts() > 0 {
		a.Begin = fmt.Sprint(s.Begin)
	}
	if s.Stats().Conversations() > 0 {
		hash := s.Chat.Hash()
		a.Chat = fmt.Sprintf("%x", hash[:8])
	}
	if s.Mixed() {
		var parts []string
		for _, source := range s.Sources {
			parts = append(parts, fmt.Sprintf("%v times %d tokens", source.Times, source.Tokens.Len()))
		}
		a.Mixture = strings.Join(parts, ", ")
	}
	if n := s.validationTokens(); n > 0 && s.Spec.Preference.Beta > 0 {
		a.Pairs = fmt.Sprintf("%d tokens", n)
	}
	a.Model, a.Tokens, a.Base = plan.Fingerprint(untied(s.Graph)), fmt.Sprintf("%d %x", s.Len(), hash[:8]), s.base
	a.Text, a.Teacher = s.hash(s.Spec), s.teacher
}

// untied returns a graph for the name of its model alone: without what is shared at present.
func untied(g *graph.Graph) *graph.Graph {
	own, m := *g, *g.Model
	m.Shares = 0
	own.Model = &m
	return &own
}

func (t *Run) identity() (id identity) {
	id.prepared(t.Setup)
	id.OptimizerState = t.Plan.Plan.State
	return id
}

// record returns what a checkpoint records of this run.
func (t *Run) record() (origin, error) {
	id := t.identity()
	text, err := json.Marshal(id)
	hash := t.programs[0].PlanHash
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s", hash, text))
	return origin{id, hash, hex.EncodeToString(sum[:8]), t.timing.record(), t.guard, t.conducted(), t.carried, t.stall, t.tying, t.Setup.Spec.Tied, t.Setup.validationTokens(), t.Setup.Spec.TextField, t.Setup.Spec.Labels, t.Setup.Spec.Regresses(), t.Setup.preferred()}, err
}

// difference names the first field in which two runs differ, "" if none.
func (a identity) difference(b identity) string {
	fields := func(v identity) map[string]any {
		text, err := json.Marshal(v)
		m := map[string]any{}
		if err == nil {
			exact := json.NewDecoder(bytes.NewReader(text))
			exact.UseNumber() // seeds have 64 bits
			err = exact.Decode(&m)
		}
		if err != nil {
			panic("run: identity: " + err.Error())
		}
		m["optimizer"], m["optimizer_state"], m["keep_mask"], m["tie_layers"] = v.Optimizer.String(), v.OptimizerState.String(), v.KeepMask, v.TieLayers // even if absent
		if v.Documents == "" {
			m["documents"] = config.Joined
		}
		return m
	}
	if a.Adam == "" {
		b.Adam = ""
	}
	if a.Held == "" {
		b.Held = ""
	}
	if a.Text == "" {
		b.Text = ""
	}
	x, y := fields(a), fields(b)
	for _, k := range []string{"model", "base_weights", "teacher", "sequence_length", "global_batch", "precision", "optimizer", "optimizer_state", "documents", "seed", "chat_template", "bos", "tokens", "mixture", "weight_decay", "gradient_clipping", "adam", "muon", "keep_mask", "tie_layers", "label_weights", "label_names", "validation_fraction", "validation", "text"} {
		if x[k] != y[k] {
			if k == "text" {
				return fmt.Sprintf("text is of other tokens, though as many (hash %v there and %v here)", x[k], y[k])
			}
			there, here := differingWords(fmt.Sprint(x[k]), fmt.Sprint(y[k]))
			if k == "model" {
				there, here = sizesInWords(there), sizesInWords(here)
			}
			return fmt.Sprintf("%s is %s there and %s here", k, there, here)
		}
	}
	return ""
}

// differingWords reduces two texts of equally many words to the words that differ, each with
// the word before it that names it ("frozen 11/d70c2137"). Other texts are returned
// whole.
func differingWords(a, b string) (there, here string) {
	sep := " "
	if strings.Contains(a, ", ") {
		sep = ", "
	}
	x, y := strings.Split(a, sep), strings.Split(b, sep)
	if len(x) != len(y) {
		return a, b
	}
	var left, right []string
	for i := range x {
		names := i+1 < len(x) && x[i+1] != y[i+1] && !strings.ContainsAny(x[i], "0123456789")
		if x[i] != y[i] || names {
			left, right = append(left, x[i]), append(right, y[i])
		}
	}
	return strings.Join(left, sep), strings.Join(right, sep)
}

// sizesInWords writes the abbreviations of plan.Fingerprint as keys of the configuration: "l2 d64" is layers 2 width 64.
func sizesInWords(text string) string {
	keys := map[byte]string{'l': "layers ", 'd': "width ", 'h': "heads/kv_heads/head_dim ", 'f': "feed_forward ", 'v': "vocabulary ", 'p': "max_positions "}
	words := strings.Split(text, " ")
	for i, w := range words {
		if len(w) > 1 && keys[w[0]] != "" && w[1] >= '0' && w[1] <= '9' {
			words[i] = keys[w[0]] + w[1:]
		}
	}
	return strings.Join(words, " ")
}

// belongs refuses to resume another run's checkpoint. know fills in what is known
// of this run so far; the rest is assumed equal.
func belongs(spec *job.Spec, ck *checkpoint.Checkpoint, path string, know func(*identity)) error {
	var there identity
	if err := json.Unmarshal(ck.Trainer.Plan, &there); err != nil {
		return fmt.Errorf("%s was not written by a training run: %w", path, err)
	}
	here := there
	know(&here)
	if d := there.difference(here); d != "" {
		return spec.Fault("resume", fmt.Sprintf("%s belongs to another run: %s; hint: make the two equal; or set `out` to another folder, and model to this checkpoint to start from its weights", path, d))
	}
	return nil
}
