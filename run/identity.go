package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/program"
)

// identity is what must be the same for a run to be continued. The plan and
// the memory limits are not in it: they change the speed only.
type identity struct {
	Model          string  `json:"model"`
	SequenceLength int     `json:"sequence_length"`
	GlobalBatch    int     `json:"global_batch"`
	Precision      string  `json:"precision"`
	OptimizerState string  `json:"optimizer_state,omitempty"` // as in plans: fp32 if left out
	Documents      string  `json:"documents,omitempty"`       // joined if left out
	Seed           uint64  `json:"seed"`
	Tokens         string  `json:"tokens"` // number of tokens and hash of the tokenizer
	WeightDecay    float64 `json:"weight_decay"`
	Clip           float64 `json:"gradient_clipping"`
	Adam           string  `json:"adam,omitempty"`                // beta1, beta2 and epsilon; not compared if left out, as older runs do
	Held           string  `json:"validation_fraction,omitempty"` // what is not trained on; not compared if left out
}

// origin is where a checkpoint came from. What of it is not the identity is for
// people: a run goes on with another plan.
type origin struct {
	identity
	PlanHash string `json:"plan_hash"`
	RunHash  string `json:"run_hash"` // what the ranks agreed on
	spread
}

// spread is how many steps a timed run's learning rate was spread over, and what time
// that was for: a run that goes on in the same time keeps them, whatever is predicted by then.
type spread struct {
	Time  config.Duration `json:"spread_time,omitempty"`
	Steps int             `json:"spread_steps,omitempty"`
}

// configured fills in what the configuration says.
func (a *identity) configured(c *config.Config) {
	a.SequenceLength, a.GlobalBatch, a.Seed = c.SequenceLength, c.GlobalBatch, c.Seed
	a.Precision, a.Documents = precision(c).String(), c.Documents
	a.Held = fmt.Sprint(c.Validation)
	a.WeightDecay, a.Clip, a.Adam = c.WeightDecay, c.Clip, fmt.Sprintf("beta1 %v, beta2 %v, epsilon %v", c.Beta1, c.Beta2, c.Epsilon)
	if c.OptimizerState != "auto" {
		a.OptimizerState = stateOf(c)
	}
}

// prepared fills in what text and model say, too.
func (a *identity) prepared(s *Setup) {
	a.configured(s.Config)
	hash := s.Tokenizer.Hash()
	a.Model, a.Tokens = program.Fingerprint(s.Graph), fmt.Sprintf("%d %x", s.Tokens.Len(), hash[:8])
}

func (t *Trainer) identity() (id identity) {
	id.prepared(t.Setup)
	id.OptimizerState = t.Plan.Plan.State
	return id
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
		if v.OptimizerState == "" {
			m["optimizer_state"] = program.StateNames()[0]
		}
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
	x, y := fields(a), fields(b)
	for _, k := range []string{"model", "sequence_length", "global_batch", "precision", "optimizer_state", "documents", "seed", "tokens", "weight_decay", "gradient_clipping", "adam", "validation_fraction"} {
		if x[k] != y[k] {
			there, here := apart(fmt.Sprint(x[k]), fmt.Sprint(y[k]))
			return fmt.Sprintf("%s is %s there and %s here", k, there, here)
		}
	}
	return ""
}

// apart leaves of two texts the words in which they differ, if they have as many words, and before
// a word the one that names it ("frozen 11/d70c2137").
func apart(a, b string) (there, here string) {
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

// belongs refuses to continue a checkpoint of another run. What know does not fill in is
// not known yet, and taken to be the same.
func belongs(c *config.Config, ck *checkpoint.Checkpoint, path string, know func(*identity)) error {
	var there identity
	if err := json.Unmarshal(ck.Trainer.Plan, &there); err != nil {
		return fmt.Errorf("%s was not written by a training run: %w", path, err)
	}
	here := there
	know(&here)
	if d := there.difference(here); d != "" {
		return c.Fault("resume", fmt.Sprintf("%s belongs to another run: %s; hint: make them the same, or set `out` to another folder, and model to this one to start from its weights", path, d))
	}
	return nil
}
