package chat

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/jinja"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// ErrNone reports that there is no template to render conversations with.
var ErrNone = errors.New("a conversation needs a chat template, and there is none beside the tokenizer.json; " +
	"hint: copy the model's chat_template.jinja there, or set tokenizer to a folder that has one, or has chat_template in its tokenizer_config.json")

// Files of a folder that a template is read from.
const (
	templateFile = "chat_template.jinja"
	toolsFile    = "additional_chat_templates/tool_use.jinja" // not read, but its presence is noted
	configFile   = "tokenizer_config.json"
	mapFile      = "special_tokens_map.json"
)

// maxTemplate bounds a template, maxConfig a file of settings, in bytes.
const maxTemplate, maxConfig = 1 << 20, 64 << 20

// day is the time that templates get in training data, on the date that Llama 3.2's falls back to.
var day = time.Date(2024, 7, 26, 12, 0, 0, 0, time.UTC)

// Template is a chat template with the special tokens that it is given. It is immutable and safe for concurrent
// use. What is wrong with it is reported only when something is to be rendered, since other texts do not need
// it.
type Template struct {
	fault     error
	template  *jinja.Template
	marks     bool            // it has generation blocks
	sources   string          // of all templates
	withTools *jinja.Template // the one for conversations with tools
	unread    error           // why withTools cannot be used
	tokenizer *bpe.Tokenizer
	names     map[string]jinja.Value // bos_token, ...
	where     string                 // the file with the template
	files     map[string][]byte
	hash      [sha256.Size]byte
}

// generation matches the tag that marks what an assistant says.
var generation = regexp.MustCompile(`\{%[-+]?\s*generation\b`)

// Open reads the chat template of a folder, whose tokenizer is given. It returns nil where there is none:
// rendering with nil returns ErrNone.
func Open(dir string, tokenizer *bpe.Tokenizer) *Template {
	t := &Template{tokenizer: tokenizer, names: map[string]jinja.Value{}, files: map[string][]byte{}}
	source, withTools, err := t.open(dir)
	if err == nil && source == nil {
		return nil
	}
	if err == nil {
		t.template, err = jinja.Parse(string(source))
		t.marks = generation.Match(source) || generation.Match(withTools)
		t.sources = string(source) + string(withTools)
		t.withTools = t.template
	}
	if err == nil && withTools != nil {
		t.withTools, err = jinja.Parse(string(withTools))
	}
	if err != nil {
		t.fault = suggest.Add(fmt.Errorf("the chat template %s: %w", t.where, err), "check that it is a chat template for transformers")
	}
	return t
}

// open reads the settings, and returns the source of the template, nil if there is none, and that of the
// template for conversations with tools, nil if it is the same.
func (t *Template) open(dir string) (source, withTools []byte, err error) {
	settings := map[string]json.RawMessage{}
	t.where = dir
	for _, name := range []string{configFile, mapFile} {
		content, err := t.read(dir, name, maxConfig)
		if err != nil {
			return nil, nil, err
		}
		more := map[string]json.RawMessage{}
		if content != nil {
			if err := json.Unmarshal(content, &more); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		for key, v := range more {
			if settings[key] == nil {
				settings[key] = v
			}
		}
	}
	source, err = t.read(dir, templateFile, maxTemplate)
	t.where = filepath.Join(dir, templateFile)
	if err == nil && source == nil {
		t.where = filepath.Join(dir, configFile)
		source, withTools, err = embedded(settings["chat_template"])
	}
	if _, none := os.Stat(filepath.Join(dir, toolsFile)); none == nil {
		t.unread = fmt.Errorf("conversations with tools have a template of their own, %s, which is not read; hint: if it renders other conversations too, move it to %s", filepath.Join(dir, toolsFile), templateFile)
	}
	t.name(settings, source, withTools)
	return source, withTools, err
}

// read reads a file of the folder; nil: there is none.
func (t *Template) read(dir, name string, most int64) ([]byte, error) {
	content, err := bounded.ReadFile(filepath.Join(dir, name), most)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		t.files[name] = slices.Clip(content)
	}
	return content, err
}

// embedded returns the template in tokenizer_config.json: a string, or the one named "default" in a list; and
// the one named "tool_use", if there is one.
func embedded(raw json.RawMessage) (source, withTools []byte, err error) {
	var one string
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil, nil
	}
	if json.Unmarshal(raw, &one) == nil {
		return []byte(one), nil, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, nil, errors.New("chat_template is neither a string nor a list of templates with names")
	}
	var names []string
	for _, t := range list {
		switch t.Name {
		case "default":
			source = []byte(t.Template)
		case "tool_use":
			withTools = []byte(t.Template)
		}
		names = append(names, t.Name)
	}
	if source == nil {
		err = fmt.Errorf("chat_template has the templates %.200q, but none named default; hint: name one of them default", names)
	}
	return source, withTools, err
}

// name takes the special tokens from the settings, and hashes everything that renderings depend on.
func (t *Template) name(settings map[string]json.RawMessage, source, withTools []byte) {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", source)
	if withTools != nil {
		fmt.Fprintf(h, "with tools %q\n", withTools)
	}
	for _, key := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"} {
		var object struct{ Content string }
		var token string
		if json.Unmarshal(settings[key], &token) != nil {
			_ = json.Unmarshal(settings[key], &object) // neither form: there is none
		}
		if token = cmp.Or(token, object.Content); token != "" {
			t.names[key] = jinja.Own(token)
			fmt.Fprintf(h, "%s %q\n", key, token)
		}
	}
	h.Sum(t.hash[:0])
}

// Hash identifies the template and the special tokens: two with the same hash render everything alike.
func (t *Template) Hash() [sha256.Size]byte { return t.hash }

// Files returns the files that the template was read from, by name.
func (t *Template) Files() map[string][]byte { return t.files }

// usable returns why nothing can be rendered.
func (t *Template) usable() error {
	if t == nil {
		return ErrNone
	}
	return t.fault
}

// render renders the first n turns of a conversation.
func (t *Template) render(c *Conversation, n int, prompt bool, now time.Time) (jinja.Text, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	names := map[string]jinja.Value{
		"messages": &jinja.List{Items: c.messages[:n:n]}, "add_generation_prompt": prompt, "tools": jinja.None{}, "documents": jinja.None{},
	}
	template := t.template
	if c.tools != nil {
		if t.unread != nil {
			return nil, t.unread
		}
		template, names["tools"] = t.withTools, c.tools
	}
	for key, v := range t.names {
		names[key] = v
	}
	if c.names != nil {
		if err := c.names.Each(func(name string, v jinja.Value) error {
			if _, taken := names[name]; taken {
				return fmt.Errorf("\"chat_template_kwargs\" sets %s, which is not its own; hint: leave it out", name)
			}
			names[name] = v
			return nil
		}); err != nil {
			return nil, err
		}
	}
	out, err := template.Render(names, now, c.budget())
	if err != nil {
		hint := "leave such conversations out, or change the template"
		if c.parts {
			hint = "some contents are lists of parts; make them strings if the template expects these"
		}
		return nil, suggest.Add(fmt.Errorf("%s: %w", t.where, err), hint)
	}
	return out, nil
}

// budget is what rendering a conversation may cost: far more than templates need, since they copy contents a few
// times.
func (c *Conversation) budget() int { return 5e6 + 100*c.size }

// excerpt returns a little of a text from the place where it departs from another.
func excerpt(t jinja.Text, at int) string {
	return strings.ToValidUTF8(t[at:min(len(t), at+40)].String(), "")
}
