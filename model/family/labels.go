package family

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// What config.json says of models that choose among labels, see model.Classify:
//
//	{"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "good", "1": "bad"}, "label2id": {"good": 0, "bad": 1}, ...}
//
// With one label and "problem_type": "regression" its logit is a value of the text; other models with one label are reward models. Configurations of
// language models may have such names too, which say nothing.

// Classify makes a language model, or a model with as many labels, one that chooses among labels of these names.
func Classify(m *model.Model, labels []string) error {
	switch f := find(m.Family.Name); {
	case m.Inside != "":
		return fmt.Errorf("the text part of a model that also sees or hears cannot get labels: its file would be no model of transformers; hint: use a text model")
	case f.classifier == "":
		return fmt.Errorf("transformers has no class of %s that chooses among labels; hint: use another family, such as %s", m.Family, llama.Name)
	case model.Classifies(m) && len(m.Labels) != len(labels):
		return fmt.Errorf("the model has %d labels (%s), and not %d; hint: name those, or begin with the language model that it was made of", len(m.Labels), shortList(m.Labels), len(labels))
	}
	model.Classify(m, labels)
	return nil
}

// shortList lists some names.
func shortList(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}

// readLabels makes a model that has been read one that chooses among labels, if it is one.
func readLabels(c *config, m *model.Model) (err error) {
	var classes []string
	c.get("architectures", &classes)
	if c.err != nil || !slices.ContainsFunc(classes, func(name string) bool { return strings.HasSuffix(name, classifies) }) {
		return c.err
	}
	problem := ""
	c.get("problem_type", &problem)
	defer func() { m.Regression = err == nil && problem == regression }()
	names, n := map[string]string{}, 0
	c.get("id2label", &names)
	c.get("num_labels", &n)
	if c.err != nil {
		return c.err
	}
	const usual = 2 // of transformers
	n = cmp.Or(len(names), n, usual)
	switch problem {
	case "", "single_label_classification":
	case regression:
		if n != 1 {
			return fmt.Errorf("problem_type is %s, with %d values for each text; hint: only one value is built", problem, n)
		}
	default:
		return fmt.Errorf("problem_type is %q, which is not built; hint: use a model that chooses one label (single_label_classification), or has one value (%s)", problem, regression)
	}
	if len(names) == 0 {
		if n < 1 || n > model.MostLabels {
			return fmt.Errorf("num_labels is %d; hint: it must be from 1 to %d", n, model.MostLabels)
		}
		return Classify(m, model.LabelNames(n))
	}
	labels := make([]string, len(names))
	for i := range labels {
		name, ok := names[strconv.Itoa(i)]
		if !ok {
			return fmt.Errorf("id2label has %d names, but none of label %d; hint: labels are numbered from 0", len(names), i)
		}
		labels[i] = name
	}
	return Classify(m, labels)
}

// regression is the problem_type of a model whose logit is a value.
const regression = "regression"

// classifies is how names of classes end whose models choose among labels.
const classifies = "ForSequenceClassification"

// writeLabels sets the keys that say that a model chooses among labels.
func writeLabels(m *model.Model, set func(key string, value any)) {
	names, numbers := map[string]string{}, map[string]int{}
	for i, name := range m.Labels {
		names[strconv.Itoa(i)], numbers[name] = name, i
	}
	set("architectures", []string{find(m.Family.Name).classifier})
	set("id2label", names)
	set("label2id", numbers)
	if m.Regression {
		set("problem_type", regression)
	}
}

// Padded names in a config.json the token that texts are padded with, unless it names one: without, transformers refuses batches of texts,
// since the last token before the padding is the one that has logits.
func Padded(text []byte, id int32) ([]byte, error) {
	return edit(text, func(whole, _ keys) (bool, error) {
		if v, ok := whole["pad_token_id"]; ok && string(v) != "null" && string(v) != "-1" {
			return false, nil
		}
		whole["pad_token_id"] = json.RawMessage(strconv.Itoa(int(id)))
		return true, nil
	})
}
