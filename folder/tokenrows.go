package folder

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/model"
)

// Rows of embedding and head that PEFT has trained by themselves (trainable_token_indices), such as those of new tokens. An
// adapter's files have them as they are, in the order of the tokens in its adapter_config.json, and they take the place of the model's.

// tokenRows are the rows of a parameter that an adapter replaces.
type tokenRows struct {
	tensor string // in the adapter's files
	tokens []int
	width  int // of a row
}

// tokenModules returns the tokens by the module whose rows they are. A list is the embedding's.
func (c *adapterConfig) tokenModules(m *model.Model) (map[string][]int, error) {
	var list []int
	if json.Unmarshal(c.Tokens, &list) == nil {
		return map[string][]int{m.PEFT().EmbeddingModule(): list}, nil
	}
	var modules map[string][]int
	if err := json.Unmarshal(c.Tokens, &modules); err != nil {
		return nil, errors.New(`trainable_token_indices is neither a list of tokens nor {"module": [tokens], ...}; hint: save the adapter again`)
	}
	return modules, nil
}

// tokenRows returns the rows that an adapter replaces, by the name of their parameter, and tells the model. Where the head is the
// embedding, so are its rows.
func (c *adapterConfig) tokenRows(m *model.Model) (map[string]tokenRows, error) {
	if len(c.Tokens) == 0 {
		return nil, nil
	}
	modules, err := c.tokenModules(m)
	if err != nil {
		return nil, err
	}
	all := map[string]tokenRows{}
	for module, tokens := range modules {
		if len(tokens) == 0 {
			continue
		}
		p, tensor, ok := m.PEFT().TokenRows(module)
		if !ok {
			return nil, fmt.Errorf("trainable_token_indices: the model has no embedding or head %q; hint: save the adapter again", module)
		}
		if _, _, adapted := m.Factors(p.Name); adapted {
			return nil, fmt.Errorf("trainable_token_indices: %s has an adapter, too, which is not supported; hint: merge the adapter with PEFT's merge_and_unload", p.Name)
		}
		if other, twice := all[p.Name]; twice && !slices.Equal(other.tokens, tokens) {
			return nil, fmt.Errorf("trainable_token_indices has other tokens for the head than for the embedding, but they are one in the model; hint: merge the adapter with PEFT's merge_and_unload")
		}
		all[p.Name] = tokenRows{tensor, tokens, p.Cols}
	}
	l := *m.LoRA
	l.Rows = slices.Sorted(maps.Keys(all))
	m.LoRA = &l
	return all, nil
}

// check refuses rows that a model does not have, or the adapter's files.
func (r tokenRows) check(m *model.Model, set *safetensors.Set) error {
	for _, token := range r.tokens {
		if token < 0 || token >= m.Vocab {
			return fmt.Errorf("trainable_token_indices has the token %d, but the vocabulary has %d; hint: check that the adapter belongs to this model", token, m.Vocab)
		}
	}
	if info, ok := set.Lookup(r.tensor); !ok || !slices.Equal(info.Shape, []int{len(r.tokens), r.width}) {
		return fmt.Errorf("trainable_token_indices has %d tokens, but there is no tensor %s of as many rows of %d; hint: check that the folder is complete", len(r.tokens), r.tensor, r.width)
	}
	return nil
}

// read replaces rows, or parts of them, among the elements of a parameter from index first on.
func (r tokenRows) read(set *safetensors.Set, first int, values []float32) error {
	for i, token := range r.tokens {
		begin := token * r.width
		lo, hi := max(first, begin), min(first+len(values), begin+r.width)
		if lo >= hi {
			continue
		}
		if err := set.ReadFloat32(r.tensor, i*r.width+lo-begin, values[lo-first:hi-first]); err != nil {
			return err
		}
	}
	return nil
}
