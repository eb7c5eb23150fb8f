package train

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/session"
)

// numeric returns the error for the latest step, whose numbers are not finite: what is to blame and what
// is worth trying. cursor is where its batch began. It executes the step once more, and the session must not
// be used afterwards.
func (t *Run) numeric(out session.Outcome, sc session.Scalars, cursor data.Cursor) error {
	err := fmt.Errorf("step %d: loss %v, gradient norm %v: %w", t.Step, out.Loss, out.Norm, folder.ErrNumeric)
	if t.guard.Broken > 1 {
		err = fmt.Errorf("%w; so were the %d steps before, which were skipped", err, t.guard.Broken-1)
	}
	if !out.Skipped { // the state before the step is gone
		list := []string{"use a lower learning_rate or more warmup_steps", t.lastCheckpoint()}
		if t.Setup.Spec.Clip == 0 {
			list = append(list, "with gradient_clipping (1e9 clips nothing) updates wait for the norm, and the cause can be named")
		}
		return fmt.Errorf("%w; hint: %s", err, strings.Join(list, "; "))
	}
	c, failed := t.Session.Diagnose(session.Batch(t.batch), sc)
	if failed != nil {
		return fmt.Errorf("%w; the search for the cause failed: %w", err, failed)
	}
	hint := strings.Join(t.advice(c), "; ")
	if c == nil {
		return fmt.Errorf("%w\n  computed a second time, all numbers of the step are finite\nhint: %s", err, hint)
	}
	text := c.String()
	if c.Last > 0 {
		place, failed := t.place(c, cursor)
		if failed != nil {
			return fmt.Errorf("%w; the search for the cause failed: %w", err, failed)
		}
		text += "\n  " + place
	}
	return fmt.Errorf("%w\n  %s\nhint: %s", err, text, hint)
}

// advice returns what is worth trying, given what was found.
func (t *Run) advice(c *session.Culprit) (list []string) {
	spec := t.Setup.Spec
	switch {
	case c == nil:
		return []string{"the same program on the same numbers gives the same bits, so suspect the hardware, such as memory or clock rate", t.lastCheckpoint()}
	case c.Before && t.Step == t.guard.Skipped && t.Setup.Folder != "": // no step has changed a weight
		return []string{fmt.Sprintf("the weights in %s have it already: use another copy of them", t.Setup.Folder)}
	case c.Before && t.saved == "":
		return []string{"it comes from an update before this step: start again with a lower learning_rate"}
	case c.Before:
		return []string{"it comes from an update before this step: set resume to an earlier checkpoint, out to another folder, and a lower learning_rate"}
	case c.Instr.Key.Dir == program.Optimizer:
		list = append(list, "every gradient is finite, only their norm is not: a lower learning_rate")
	case c.Forward() && c.Segment == "head":
		list = append(list, "logits have grown too large: a lower learning_rate, more weight_decay")
	case c.Forward() && c.Instr.Op == graph.Attention:
		list = append(list, "attention's scores have grown too large: a lower learning_rate")
	case c.Forward():
		list = append(list, "activations have grown too large: a lower learning_rate")
	default:
		list = append(list, "gradients have grown too large: a lower learning_rate, a larger global_batch")
	}
	if t.Step <= spec.WarmupSteps {
		list = append(list, fmt.Sprintf("the learning rate is still rising: more than %d warmup_steps", spec.WarmupSteps))
	}
	switch {
	case spec.SkipSpikes == 0:
		list = append(list, "skip_spikes: 6 leaves such steps out")
	case t.saved != "":
		list = append(list, "resume from an earlier checkpoint")
	}
	return append(list, t.lastCheckpoint(), "if nothing is changed, the run fails at the same step again")
}

// lastCheckpoint says what is left of the run.
func (t *Run) lastCheckpoint() string {
	if t.saved == "" {
		return "there is no checkpoint yet"
	}
	return t.saved + " is intact"
}

// quoted is how many tokens of the text are quoted.
const quoted = 16

// place says where in the batch, and where in the corpus, the sequences of a culprit are.
func (t *Run) place(c *session.Culprit, cursor data.Cursor) (string, error) {
	spec := t.Setup.Spec
	if c.Last-c.First > 1 {
		return fmt.Sprintf("it comes from sequences %d to %d of the %d in the batch", c.First+1, c.Last, spec.GlobalBatch), nil
	}
	at := *t.sampler
	if err := at.Seek(cursor); err != nil {
		return "", err
	}
	at.Skip(int64(c.First))
	// The text up to the token that is to blame, or the beginning.
	end := quoted
	if c.Token >= 0 {
		end = c.Token + 1
	}
	end = min(end, spec.SequenceLength)
	sequence := t.batch.Tokens[c.First*spec.SequenceLength:][:spec.SequenceLength]
	text, err := t.Setup.Tokenizer.Decode(sequence[max(0, end-quoted):end])
	if err != nil {
		return "", err
	}
	list := t.Setup.Train.Stretches(at.Window())
	token, r, first := "", list[0], list[0].First
	if n := int64(c.Token); n >= 0 {
		for len(list) > 1 && n >= list[0].Len() {
			n, list = n-list[0].Len(), list[1:]
		}
		token, r, first = fmt.Sprintf(", token %d", c.Token+1), list[0], min(list[0].First+n, list[0].End-1) // after the documents there may be padding
	} else if len(list) > 1 {
		token = fmt.Sprintf(", of %d documents, the first of which is", len(list))
	}
	return fmt.Sprintf("it comes from sequence %d of the %d in the batch%s: tokens %d to %d of %s, document %d, at %q",
		c.First+1, spec.GlobalBatch, token, r.First, r.End, t.Setup.nameOf(r.Tokens), r.Tokens.Document(first)+1, text), nil
}
