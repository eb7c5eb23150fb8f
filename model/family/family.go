// Package family has the model families: how the config.json of each becomes a model.Model and back, how its tensors
// are named, and the sizes of published models. Each family is one value in one file, and one line of the list families.
//
//	m, notes, err := family.Parse(text) // of a config.json
//	m, err := family.Known("llama-3.2-1b")
//	text := family.Config(m)
package family

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// families are all families, oldest first.
var families = []*family{
	&gpt2, &opt, &gptNeoX, &llama, &phi, &mistral, &mixtral, &starCoder2, &stableLM, &qwen2, &phi3, &granite, &graniteMoE, &olmoE,
	&olmo2, &qwen3, &qwen3MoE, &gemma3, &smolLM3, &gptOSS, &olmo3,
	&gemma, &seedOSS, &exaone4, &cwm, &ministral3, &glm, &glm4, &ernie, &arcee, &hunyuan, &qwen2MoE, &gemma2, &glm4MoE, &miniMaxM2, &ernieMoE,
	&qwen3Next, &qwen35, &qwen35MoE, &gemma4,
	&deepseek2, &deepseek3, &glm4MoELite, &lfm2, &lfm2MoE, &cohere, &cohere2, &apertus, &graniteHybrid, &falconH1, &nemotronH, &bamba,
}

// refused lists families that people will try, and what they need that is not built.
var refused = map[string]string{
	"mamba2": "models without attention are not supported",
}

// family is a model family.
type family struct {
	model.Family
	class      string      // in transformers
	classifier string      // its class there whose models choose among labels, see model.Classify; "": there is none
	fixed      model.Model // what all its models have, whatever config.json says
	table      []row       // the keys of config.json, in the order in which they are read
	// ignored are keys that published files have, but which transformers does not read for this family.
	ignored []string
	// constant are keys that are written and need not be read: what is computed if transformers reads them.
	constant map[string]any
	typical  string // the published model whose choices a model of given sizes has
	// published has the sizes of models without their weights: the keys of config.json that differ from the defaults.
	published map[string]string
}

// Named returns the family that is "model_type" in config.json; nil: there is none of that name.
func Named(name string) *model.Family {
	if f := find(name); f != nil {
		return &f.Family
	}
	return nil
}

func find(name string) *family {
	for _, list := range [][]*family{families, parts} {
		if i := slices.IndexFunc(list, func(f *family) bool { return f.Name == name }); i >= 0 {
			return list[i]
		}
	}
	return nil
}

// Names lists the families in alphabetical order.
func Names() []string {
	var list []string
	for _, f := range families {
		list = append(list, f.Name)
	}
	slices.Sort(list)
	return list
}

// supported lists the families for messages.
func supported() string {
	return and(Names()) + " are supported, and the text part of " + and(Wrappers())
}

// and joins names as text does: a, b and c.
func and(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// Typical returns a published model of a family, from which other sizes can be made.
func Typical(name string) (*model.Model, error) {
	f := find(name)
	if f == nil || slices.Contains(parts, f) {
		return nil, fmt.Errorf("type %q is not known; hint: %s", name, supported())
	}
	return f.sized(f.published[f.typical]), nil
}
