package bpe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/jsonkeys"
)

// configFile has the settings with which transformers uses a tokenizer.
const configFile = "tokenizer_config.json"

// settings is what a tokenizer_config.json says about tokens.
type settings struct {
	Class   string                `json:"tokenizer_class"`
	EOS     json.RawMessage       `json:"eos_token"`
	BOS     json.RawMessage       `json:"bos_token"`
	UNK     json.RawMessage       `json:"unk_token"`
	PAD     json.RawMessage       `json:"pad_token"`
	AddBOS  *bool                 `json:"add_bos_token"`
	Prefix  *bool                 `json:"add_prefix_space"`
	Legacy  *bool                 `json:"legacy"`
	Decoder map[string]addedToken `json:"added_tokens_decoder"` // by id
}

// readConfig reads the tokenizer_config.json of a folder; nil: there is none.
func readConfig(dir string) ([]byte, error) {
	config, err := bounded.ReadFile(filepath.Join(dir, configFile), maxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return config, nil
}

func readSettings(config []byte) (*settings, error) {
	c := &settings{}
	if config != nil {
		if err := cmp.Or(json.Unmarshal(config, c), jsonkeys.Unique(config)); err != nil {
			err = jsonkeys.Explain(config, err)
			return nil, fmt.Errorf("%s: %w", configFile, err)
		}
	}
	return c, nil
}

// decoded returns the tokens of added_tokens_decoder in order of id.
func (c *settings) decoded() ([]addedToken, error) {
	var list []addedToken
	for key, a := range c.Decoder {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 {
			return nil, fmt.Errorf("%s: added_tokens_decoder has the key %q, which is not an id", configFile, key)
		}
		a.ID = int32(id)
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b addedToken) int { return int(a.ID) - int(b.ID) })
	return list, nil
}

// moreAdded returns the added tokens of tokenizer.json and those that only added_tokens_decoder has, which transformers
// adds: a token of the vocabulary keeps its id, others are numbered behind it.
func (c *settings) moreAdded(added []addedToken, vocab map[string]int32) ([]addedToken, error) {
	list, err := c.decoded()
	if err != nil {
		return nil, err
	}
	size := int32(0)
	for _, id := range vocab {
		size = max(size, id+1)
	}
	known := map[string]bool{}
	for _, a := range added {
		known[a.Content] = true
		size = max(size, a.ID+1)
	}
	for _, a := range list {
		if known[a.Content] || a.Content == "" {
			continue
		}
		known[a.Content] = true
		if id, ok := vocab[a.Content]; ok {
			a.ID = id
		} else {
			a.ID = size
			size++
		}
		added = append(added, a)
	}
	return added, nil
}

// named returns the text of a token: a string, or an object with the string in "content"; "" if there is none.
func named(key string, raw json.RawMessage) (string, error) {
	var name string
	if null(raw) || json.Unmarshal(raw, &name) == nil {
		return name, nil
	}
	var object struct {
		Content string `json:"content"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return "", fmt.Errorf("%s: %s: %w", configFile, key, err)
	}
	return object.Content, nil
}

// configure sets the token that ends a document, and the token before a text if
// tokenizer_config.json sets add_bos_token.
func (v *vocabulary) configure(c *settings) error {
	if c.AddBOS != nil {
		name, err := named("bos_token", c.BOS)
		if err != nil {
			return err
		}
		v.start = nil
		if id := v.find(name); *c.AddBOS && id >= 0 {
			v.start = []int32{id}
		}
	}
	name, err := named("eos_token", c.EOS)
	if err != nil {
		return err
	}
	if name != "" {
		if v.endOfText = v.find(name); v.endOfText < 0 {
			return fmt.Errorf("%s: eos_token %q is not in added_tokens", configFile, name)
		}
		return nil
	}
	for _, name := range endNames {
		if v.endOfText = v.find(name); v.endOfText >= 0 {
			break
		}
	}
	return nil
}
