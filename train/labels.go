package train

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/job"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
	"github.com/athanor-llm/athanor/session"
)

// Texts with labels. A text's label is what is learnt at its last token (data.Tokens.Labelled), so batches, steps and losses are those of
// language models; the loss is a mean over texts. What is known besides is how many labels are guessed, or how far numbers are off: by the
// logits of the validation, whose programs return them.

// giveLabels gives a model the labels that a run asks for.
func giveLabels(spec *job.Spec, m *model.Model) error {
	key := "labels"
	if spec.PairLoss.Rule().Scored {
		key = "preference.loss"
	}
	switch has := strings.Join(m.Labels, ", "); {
	case len(spec.Labels) == 0 && m.Regression:
		return spec.Fault("labels", fmt.Sprintf("missing, but the model gives each text a number, %s; hint: set labels: [%[1]s], or use the language model that it was made of", has))
	case len(spec.Labels) == 0 && len(m.Labels) == 1:
		return spec.Fault("model", "it is a reward model, which can only be trained on pairs; hint: set preference: {loss: reward, beta: 1}, or use the language model that it was made of")
	case len(spec.Labels) == 0 && model.Classifies(m):
		return spec.Fault("labels", fmt.Sprintf("missing, but the model chooses among %s; hint: set labels: [%[1]s], or use the language model that it was made of", has))
	case len(spec.Labels) == 0:
		return nil
	case m.LoRA != nil && !model.Classifies(m):
		return spec.Fault(key, fmt.Sprintf("the model is an adapter of a language model; hint: `athanor merge %s FOLDER` first, and set model to that folder", spec.Model.Name))
	}
	if has := m.Labels; len(has) == len(spec.Labels) && !slices.Equal(has, model.LabelNames(len(has))) && !slices.Equal(has, spec.Labels) {
		return spec.Fault(key, fmt.Sprintf("the model chooses among %s, in this order, and other names would give its answers another meaning; hint: set labels: [%[1]s], or begin with the language model that it was made of", strings.Join(has, ", ")))
	}
	if err := family.Classify(m, spec.Labels); err != nil {
		return spec.Fault(key, err.Error())
	}
	m.Regression = spec.Regresses()
	return nil
}

// newHead returns the name of the head that a model has more than the one in its folder; "": none.
func newHead(s *Setup) (string, error) {
	if !model.Classifies(s.Model) || s.Adapter != "" {
		return "", nil
	}
	text, err := folder.ReadConfig(s.Folder)
	if err != nil {
		return "", err
	}
	m, _, err := family.Parse(text)
	if err != nil || model.Classifies(m) {
		return "", err
	}
	return s.Model.HeadName(), nil
}

// mostNamed is how many labels are named in a line.
const mostNamed = 8

// namesOf lists labels, the first mostNamed of them.
func namesOf(labels []string) string {
	if len(labels) > mostNamed {
		labels = append(labels[:mostNamed:mostNamed], "...")
	}
	return strings.Join(labels, ", ")
}

// valued says how many texts windows have, and what their values are.
func (s *Setup) valued(w data.Windows) string {
	list, sum := w.AllValues(), 0.0
	for _, v := range list {
		sum += float64(v)
	}
	return fmt.Sprintf("%d (%s from %.4g to %.4g, mean %.4g)", len(list), s.Spec.Labels[0], slices.Min(list), slices.Max(list), sum/float64(len(list)))
}

// labelled says how many texts with which labels windows have.
func (s *Setup) labelled(w data.Windows) string {
	if s.Spec.Regresses() {
		return s.valued(w)
	}
	names, counts := s.Spec.Labels, w.LabelCounts(len(s.Spec.Labels))
	all, list := int64(0), []string{}
	for i, n := range counts {
		if all += n; i < mostNamed {
			list = append(list, fmt.Sprintf("%s %d", names[i], n))
		}
	}
	if len(names) > mostNamed {
		list = append(list, "...")
	}
	return fmt.Sprintf("%d (%s)", all, strings.Join(list, ", "))
}

// oneSided returns a note on labels that only one of training and validation has; "": there are none.
func (s *Setup) oneSided() string {
	if !s.Spec.Classifies() || s.Spec.Regresses() {
		return ""
	}
	train, held := s.Train.LabelCounts(len(s.Spec.Labels)), s.Held.LabelCounts(len(s.Spec.Labels))
	var never, only []string
	for i, name := range s.Spec.Labels {
		switch {
		case train[i] == 0:
			never = append(never, name)
		case held[i] == 0:
			only = append(only, name)
		}
	}
	var notes []string
	if len(never) > 0 {
		notes = append(notes, "no text to train on has the labels "+namesOf(never))
	}
	if len(only) > 0 && s.Validation == nil {
		notes = append(notes, fmt.Sprintf("no text that is held out has the labels %s: what is held out is the end of the text; hint: shuffle the rows, or name other files as validation", namesOf(only)))
	}
	return strings.Join(notes, "; ")
}

// guess adds to what is known of a validation the latest batch: how many labels are guessed, or values beside what the model says.
func (t *Run) guess(correct *int, fit *folder.Fit) error {
	logits, err := session.Logits(t.Session, evaluating)
	if err != nil {
		return err
	}
	labels := len(t.Setup.Spec.Labels)
	if len(logits) != labels*len(t.batch.Targets) {
		return errors.New("the validation has returned other logits than those of its batch")
	}
	if t.Setup.Spec.Regresses() {
		fit.Add(logits, t.batch.Targets, t.pairs.values)
		return nil
	}
	*correct += folder.Correct(logits, t.batch.Targets, labels)
	return nil
}
