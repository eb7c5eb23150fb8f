package family

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/model"
)

// Known returns the sizes of a published model by name.
func Known(name string) (*model.Model, error) {
	for _, f := range families {
		if text, ok := f.published[strings.ToLower(name)]; ok {
			return f.sized(text), nil
		}
	}
	if near := suggest.Nearest(name, Published()); near != "" {
		return nil, fmt.Errorf("model %q is not known; hint: did you mean %s? Otherwise give a Hugging Face folder, or sizes inline", name, near)
	}
	return nil, fmt.Errorf("model %q is not known; hint: give a Hugging Face folder, sizes inline, or one of %s", name, strings.Join(Published(), ", "))
}

// Published lists the names that Known knows.
func Published() []string {
	var list []string
	for _, f := range families {
		for name := range f.published {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// sized returns a model of the family from keys of config.json.
func (f *family) sized(text string) *model.Model {
	var raw map[string]json.RawMessage
	err := json.Unmarshal([]byte(text), &raw)
	if err == nil {
		var m *model.Model
		if m, _, err = f.parse(raw); err == nil {
			return m
		}
	}
	panic("family: a published model of " + f.Name + ": " + err.Error()) // tests read them all
}
