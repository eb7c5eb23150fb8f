package train

import (
	"encoding/json"
	"path/filepath"

	"github.com/athanor-llm/athanor/job"
)

// samplesFile has the texts that a run's checkpoints generated, a line each.
const samplesFile = "samples.jsonl"

// Sample is a text that the model of a step generated.
type Sample struct {
	Step   int    `json:"step"`
	Prompt string `json:"prompt"`
	Text   string `json:"text"` // prompt included
}

// AddSample keeps a text in the run's folder.
func AddSample(spec *job.Spec, s Sample) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return outError(appendFile(filepath.Join(spec.Out, samplesFile), append(line, '\n')))
}
