package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/optimizer"
)

// A new run with the optimizer of another one.
//
// A run does not resume with other text or another batch: it would be another run. But what its optimizer has learnt of
// the gradients need not be lost. With carry_optimizer, the moments begin as those of the checkpoint that the weights come
// from, and so does the number of updates, by which they are divided. All else, such as steps, rate and order of the text, begins anew.
//
// Known weakness: moments of another batch are noisier or calmer than its gradients are, for some 1/(1-beta2) steps.

// carried is what a checkpoint records of the run that its optimizer came from.
type carried struct {
	Updates int    `json:"carried_updates,omitempty"` // before the run's first step
	From    string `json:"carried_from,omitempty"`    // the checkpoint
}

// openCarried opens the checkpoint whose optimizer a new run is to begin with.
func (s *Setup) openCarried() (*checkpoint.Checkpoint, origin, error) {
	var from origin
	fault := func(why, hint string) (*checkpoint.Checkpoint, origin, error) {
		return nil, from, s.Spec.Fault("carry_optimizer", why+"; hint: "+hint+", or leave carry_optimizer out")
	}
	fail := func(why string) (*checkpoint.Checkpoint, origin, error) {
		return fault(why, "set model to a checkpoint of a run, such as runs/first/checkpoint-1000")
	}
	if s.Folder == "" || s.lora() != nil {
		return fail("there is no checkpoint with all weights to take the optimizer's state from")
	}
	ck, err := checkpoint.Open(checkpoint.Disk{}, s.Folder)
	if err != nil {
		return fail(fmt.Sprintf("%s is no checkpoint: %v", s.Folder, err))
	}
	if err := json.Unmarshal(ck.Trainer.Plan, &from); err != nil {
		return fail(errors.Join(err, ck.Close()).Error())
	}
	if from.Optimizer != s.Spec.Optimizer {
		_ = ck.Close()
		return fault(fmt.Sprintf("%s was trained with %v, and optimizer is %v", s.Folder, from.Optimizer, s.Spec.Optimizer), fmt.Sprintf("set optimizer: %v", from.Optimizer))
	}
	return ck, from, nil
}

// carryOptimizer loads the moments of the checkpoint that the weights come from.
func carryOptimizer(t *Run) error {
	ck, from, err := t.Setup.openCarried()
	if err != nil {
		return err
	}
	defer ck.Close()
	if err := t.loadState(ck, func(kind optimizer.Kind) bool { return kind != optimizer.Weights }); err != nil {
		return fmt.Errorf("%s: %w", t.Setup.Folder, err)
	}
	t.carried = carried{from.carried.Updates + int(ck.Trainer.Step) - from.Skipped, t.Setup.Folder}
	t.Notes = append(t.Notes, fmt.Sprintf("this is a new run, which begins at step 0 with the weights and the optimizer's state of %s, after %d updates; learning rate, text and batch are those of this configuration",
		t.Setup.Folder, t.carried.Updates))
	return nil
}
