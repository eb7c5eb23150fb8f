package bpe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// classes are the tokenizer_class names of vocab.json and merges.txt whose pipeline is not GPT-2's.
var classes = map[string]struct {
	pattern Pattern
	form    string
}{
	"Qwen2Tokenizer": {PatternQwen2, "NFC"},
}

// likeGPT2 are those whose pipeline is GPT-2's.
var likeGPT2 = []string{"", "GPT2Tokenizer", "CodeGenTokenizer", "PhiTokenizer", "OPTTokenizer", "RobertaTokenizer", "BartTokenizer", "PreTrainedTokenizer", "TokenizersBackend", "GPTNeoXTokenizer"}

// parseMerges reads a vocab.json and a merges.txt, the form in which GPT-2 and OPT are published. How text is split is
// not in them but follows from the tokenizer_class in tokenizer_config.json.
func parseMerges(vocabulary, merges, config []byte) (*Tokenizer, error) {
	m := &model{}
	if err := json.Unmarshal(vocabulary, &m.Vocab.ids); err != nil {
		return nil, err
	}
	for n, line := range strings.Split(string(merges), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" || n == 0 && strings.HasPrefix(line, "#version") {
			continue
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return nil, fmt.Errorf("merges.txt: line %d: %q is not two tokens with a space between them", n+1, line)
		}
		m.Merges = append(m.Merges, mergePair{left, right})
	}
	c, err := readSettings(config)
	if err != nil {
		return nil, err
	}
	v := newVocabulary()
	v.byteLevel = true
	if err := v.pipelineOf(c); err != nil {
		return nil, err
	}
	added, err := c.specials(m.Vocab.ids)
	if err != nil {
		return nil, err
	}
	return v.finish(m, added, config)
}

// pipelineOf sets the pipeline of a class of tokenizers.
func (v *vocabulary) pipelineOf(c *settings) error {
	class := strings.TrimSuffix(c.Class, "Fast")
	if c.Prefix != nil && *c.Prefix {
		v.steps = append(v.steps, step{name: "prefix", lead: leadEach})
	}
	if own, ok := classes[class]; ok {
		v.steps = append(v.steps, own.pattern.step())
		return v.readNormalizers(json.RawMessage(fmt.Sprintf(`{"type":%q}`, own.form)))
	}
	for _, known := range likeGPT2 {
		if class == known {
			v.steps = append(v.steps, PatternGPT2.step())
			return nil
		}
	}
	return fmt.Errorf("the tokenizer_class %s splits text in a way that is not known without a tokenizer.json; "+
		"hint: make one: AutoTokenizer.from_pretrained(...).save_pretrained(...)", c.Class)
}

// specials returns the added tokens of a tokenizer whose files have only a vocabulary: those that tokenizer_config.json
// lists, or the ones that it names; without any, GPT-2's end of text.
func (c *settings) specials(vocab map[string]int32) ([]addedToken, error) {
	var added []addedToken
	seen := map[string]bool{}
	names := []string{}
	for key, raw := range map[string]json.RawMessage{"bos_token": c.BOS, "eos_token": c.EOS, "unk_token": c.UNK, "pad_token": c.PAD} {
		name, err := named(key, raw)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if len(bytes.TrimSpace(c.EOS)) == 0 {
		names = append(names, EndOfText)
	}
	for _, a := range c.Decoder {
		seen[a.Content] = true
	}
	for _, name := range names {
		if id, ok := vocab[name]; ok && name != "" && !seen[name] {
			seen[name] = true
			added = append(added, addedToken{ID: id, Content: name, Special: true})
		}
	}
	return added, nil
}
