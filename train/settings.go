package train

import (
	"fmt"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/job"
)

// settings are the keys that may change between two starts of a run although they change its results, in the order
// in which changes are reported. A checkpoint records them, and each change since the run began.
type settings []setting

// setting is a key and its value.
type setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func settingsOf(spec *job.Spec) settings {
	return settings{
		{"max_steps", fmt.Sprint(spec.MaxSteps)},
		{"max_time", time.Duration(spec.MaxTime).String()},
		{"learning_rate", fmt.Sprintf("%.6g", spec.LearningRate)},
		{"min_learning_rate", fmt.Sprintf("%.6g", spec.MinLearningRate)},
		{"schedule", spec.Schedule},
		{"decay_steps", decaySteps(spec)},
		{"warmup_steps", fmt.Sprint(spec.WarmupSteps)},
		{"skip_spikes", fmt.Sprint(spec.SkipSpikes)},
		{"delink_at", delinkAt(spec)},
	}
}

// decaySteps is the setting of that name.
func decaySteps(spec *job.Spec) string {
	if spec.DecaySteps == config.Derived {
		return "auto"
	}
	return fmt.Sprint(spec.DecaySteps)
}

// delinkAt is the setting of that name.
func delinkAt(spec *job.Spec) string {
	if spec.DelinkAt == config.AutoDelink {
		return "auto"
	}
	return fmt.Sprint(spec.DelinkAt)
}

// changes lists what is different in now, such as "max_steps from 30 to 60". Keys that only one of them has, as in
// checkpoints of older versions, are not compared.
func (s settings) changes(now settings) (list []string) {
	for _, a := range s {
		for _, b := range now {
			if a.Key == b.Key && a.Value != b.Value {
				list = append(list, fmt.Sprintf("%s from %s to %s", a.Key, a.Value, b.Value))
			}
		}
	}
	return list
}

// conduct is what a checkpoint records of settings.
type conduct struct {
	Settings settings `json:"settings,omitempty"`
	Changes  []string `json:"changes,omitempty"`            // since the run began, in words
	NextRate float64  `json:"next_learning_rate,omitempty"` // of the step after the checkpoint
}

// conducted returns what a checkpoint of this step records.
func (t *Run) conducted() conduct {
	return conduct{t.conduct.Settings, t.conduct.Changes, t.timing.rate(t.Setup.Spec, t.Step)}
}

// settle records the configuration's settings, and reports what they change with respect to the checkpoint that the
// run goes on from.
func (t *Run) settle() {
	spec, before := t.Setup.Spec, t.conduct
	t.conduct.Settings = settingsOf(spec)
	list := before.Settings.changes(t.conduct.Settings)
	if len(list) == 0 {
		return
	}
	what := fmt.Sprintf("after step %d, the configuration changed %s", t.Step, strings.Join(list, ", "))
	t.conduct.Changes = append(t.conduct.Changes, what)
	if now := t.timing.rate(spec, t.Step); now != before.NextRate {
		what += fmt.Sprintf("; the learning_rate of step %d was %.3g and is %.3g", t.Step+1, before.NextRate, now)
	}
	t.Notes = append(t.Notes, what)
}
