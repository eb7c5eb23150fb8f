package family

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/model"
)

// TestProblems: a folder whose one label is a value says so, and is read as it was written; what is not built is refused by name.
func TestProblems(t *testing.T) {
	m, err := Known("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	model.Classify(m, []string{"price"})
	m.Regression = true
	text := string(Config(m))
	if got, _, err := Parse([]byte(text)); err != nil || !got.Regression || got.Labels[0] != "price" {
		t.Fatalf("%v, %+v", err, got)
	}
	m.Regression = false
	amended, err := Amend(m, []byte(text))
	if err != nil || strings.Contains(string(amended), "regression") {
		t.Errorf("%v, a reward model made of a regression: %s", err, amended)
	}
	const said = `"problem_type": "regression"`
	for other, want := range map[string]string{
		`"problem_type": null`:                          "",
		`"problem_type": "single_label_classification"`: "",
		`"problem_type": "multi_label_classification"`:  `problem_type is "multi_label_classification", which is not built; hint: `,
		`"problem_type": "guess"`:                       `hint: `,
	} {
		got, _, err := Parse([]byte(strings.Replace(text, said, other, 1)))
		if want == "" && (err != nil || got.Regression) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", other, err)
		}
	}
	two := strings.Replace(text, `"0": "price"`, `"0": "price", "1": "weight"`, 1)
	if _, _, err := Parse([]byte(two)); err == nil || !strings.Contains(err.Error(), "2 values for each text") {
		t.Error(err)
	}
}
