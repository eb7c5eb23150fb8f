package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/jinja"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folder makes a folder with a template and some settings.
func folder(t *testing.T, template, config string) *Template {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{templateFile: template, configFile: config} {
		if content != "" {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
		}
	}
	tokenizer, err := bpe.Load("testdata/chatml")
	must(t, err)
	return Open(dir, tokenizer)
}

const special = `{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}`

// TestDocuments: with every template, a conversation's last document is what transformers renders from it, what
// comes before an answer is what it renders from the turns before it with the generation prompt, and each
// answer is learnt once, with its content.
func TestDocuments(t *testing.T) {
	var conversations map[string]json.RawMessage
	var renderings map[string]struct{ Text, Error *string }
	for name, into := range map[string]any{"conversations": &conversations, "renderings": &renderings} {
		text, err := os.ReadFile("../jinja/testdata/" + name + ".json")
		must(t, err)
		must(t, json.Unmarshal(text, into))
	}
	files, err := filepath.Glob("../jinja/testdata/templates/*")
	must(t, err)
	made := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		must(t, err)
		template := folder(t, string(source), special)
		for name, text := range conversations {
			var whole struct{ Messages, Tools json.RawMessage }
			if text[0] == '{' {
				must(t, json.Unmarshal(text, &whole))
			} else {
				whole.Messages = text
			}
			c, err := Decode(whole.Messages, whole.Tools)
			must(t, err)
			key := filepath.Base(file) + "/" + name
			docs, err := documents(template, c)
			if err != nil {
				if !strings.Contains(err.Error(), "hint: ") || len(err.Error()) > 1000 {
					t.Errorf("%s: %v", key, err)
				}
				continue
			}
			made++
			if c.roles[len(c.roles)-1] == "assistant" && !strings.Contains(string(text), "tool_calls") {
				if whole := renderings[key+"/whole"].Text; whole == nil || string(docs[len(docs)-1].Text) != *whole {
					t.Errorf("%s: %q, in transformers %q", key, docs[len(docs)-1].Text, *whole)
				}
			}
			var learnt []string
			for _, d := range docs {
				at := 0
				for _, s := range d.Learnt {
					if s.First < at || s.End <= s.First || s.End > len(d.Text) {
						t.Fatalf("%s: learnt is %v of %d", key, d.Learnt, len(d.Text))
					}
					learnt = append(learnt, string(d.Text[s.First:s.End]))
					at = s.End
				}
			}
			turn := 0
			for i, role := range c.roles {
				if role != "assistant" {
					continue
				}
				if turn == len(learnt) {
					t.Fatalf("%s: %d answers learnt", key, turn)
				}
				texts, _, err := contents(c.messages[i].(*jinja.Dict))
				must(t, err)
				said := ""
				for _, text := range texts {
					said += text.String()
				}
				if said = strings.TrimSpace(said); !strings.Contains(learnt[turn], said) && !strings.Contains(said, "</think>") {
					t.Errorf("%s: answer %d is %q, learnt as %q", key, turn, said, learnt[turn])
				}
				turn++
			}
			if turn != len(learnt) {
				t.Errorf("%s: %d answers, %d learnt", key, turn, len(learnt))
			}
		}
	}
	if made < 180 {
		t.Errorf("only %d conversations are documents", made)
	}
}

// documents returns the document of a conversation, if there is one.
func documents(t *Template, c *Conversation) ([]Document, error) {
	d, err := t.Document(c)
	if d == nil {
		return nil, err
	}
	return []Document{*d}, err
}

// TestTools: the template named tool_use is the one for conversations with tools, what tools say is text, and a
// template that is not read is not silently skipped.
func TestTools(t *testing.T) {
	const messages, tools = `[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`, `[{"name":"f<|im_end|>"}]`
	const body = "{% for m in messages %}{{ m.content }}{% endfor %}"
	config := func(more string) string {
		return `{"chat_template": [` + more + `{"name": "default", "template": "one {{ tools is none }} ` + body + `"}]}`
	}
	const use = `{"name": "tool_use", "template": "{{ tools[0].name }} ` + body + `"}, `
	render := func(template *Template, tools string) string {
		t.Helper()
		c, err := Decode([]byte(messages), []byte(tools))
		must(t, err)
		docs, err := documents(template, c)
		must(t, err)
		for _, s := range docs[0].Control {
			if strings.Contains(string(docs[0].Text[s.First:s.End]), "im_end") {
				t.Errorf("%q is a control token", docs[0].Text[s.First:s.End])
			}
		}
		return string(docs[0].Text)
	}
	for _, x := range []struct{ config, tools, want string }{
		{config(use), tools, "f<|im_end|> ab"}, {config(use), "", "one True ab"}, {config(use), "[]", "one True ab"}, {config(""), tools, "one False ab"},
	} {
		if got := render(folder(t, "", x.config), x.tools); got != x.want {
			t.Errorf("%s with %s: %q, want %q", x.config, x.tools, got, x.want)
		}
	}
	if a, b := folder(t, "", config(use)), folder(t, "", config("")); a.Hash() == b.Hash() {
		t.Error("with and without a template for tools there is one hash")
	}
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(toolsFile)), 0o755))
	for _, name := range []string{templateFile, toolsFile} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644))
	}
	tokenizer, err := bpe.Load("testdata/chatml")
	must(t, err)
	template := Open(dir, tokenizer)
	if got := render(template, ""); got != "ab" {
		t.Errorf("%q", got)
	}
	c, err := Decode([]byte(messages), []byte(tools))
	must(t, err)
	if _, err := template.Document(c); err == nil || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("a template for tools that is not read: %v", err)
	}
}

// TestParts: contents in parts are passed on as they are; templates that drop or print them instead of writing
// their texts are detected.
func TestParts(t *testing.T) {
	const refused = "does not write the texts"
	const index = "{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}"
	for _, x := range []struct{ template, content, answer, want string }{
		{index, `[{"type":"text","text":"a"},{"type":"text","text":"b"}]`, `[{"type":"text","text":"c"}]`, "a|b|c|"},
		{index, `[{"type":"text","text":" a "}]`, `[{"type":"text","text":"<think>x</think>c"}]`, " a |<think>x</think>c|"},
		{"{% for m in messages %}{{ m.content[0].text.split('</think>')[-1] }}{% endfor %}", `[{"type":"text","text":"a"}]`, `[{"type":"text","text":"<think>x</think>c"}]`, "ac"},
		{"{% for m in messages %}{{ m.content[0].text }}{% endfor %}", `[{"type":"text","text":"a"},{"type":"text","text":"b"}]`, `[{"type":"text","text":"c"}]`, refused},
		{"{% for m in messages %}{{ m.content }}{% endfor %}", `[{"type":"text","text":"a"}]`, `"c"`, refused},
		{"{% for m in messages %}{{ m.content }}{% endfor %}", `"a"`, `[{"type":"text","text":"it's"}]`, refused},
		{"{% for m in messages %}<{{ m.content if m.content is string }}>{% endfor %}", `"a"`, `[{"type":"text","text":"c"}]`, refused},
		{"{% for m in messages %}{{ m.content + '.' }}{% endfor %}", `[{"type":"text","text":"a"}]`, `"c"`, "hint: "},
	} {
		c, err := Decode([]byte(`[{"role":"user","content":`+x.content+`},{"role":"assistant","content":`+x.answer+`}]`), nil)
		must(t, err)
		docs, err := documents(folder(t, x.template, special), c)
		switch {
		case err != nil && (!strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "hint: ")):
			t.Errorf("%s: %v", x.template, err)
		case err == nil && string(docs[0].Text) != x.want:
			t.Errorf("%s: %q, want %q", x.template, docs[0].Text, x.want)
		}
	}
}

// TestReasoning: what an answer was thought out with reaches the template under the name that it reads, whatever the data
// calls it; without it, and if it is null, there is nothing.
func TestReasoning(t *testing.T) {
	for _, name := range []string{"reasoning_content", "thinking", "reasoning"} {
		for _, read := range []string{"reasoning_content", "thinking"} {
			for value, want := range map[string]string{`"two and two"`: "q<two and two>r", `null`: "q<>r", `""`: "q<>r"} {
				c, err := Decode([]byte(`[{"role":"user","content":"q"},{"role":"assistant","content":"r","`+name+`":`+value+`}]`), nil)
				must(t, err)
				docs, err := documents(folder(t, "{% for m in messages %}{% if m.role == 'assistant' %}<{{ m."+read+" or '' }}>{% endif %}{{ m.content }}{% endfor %}", special), c)
				if err != nil || string(docs[0].Text) != want {
					t.Errorf("%s: %s, of which the template reads %s: %v, %v, want %q", name, value, read, docs, err, want)
				}
			}
		}
	}
}

// TestRewritten: where a template writes earlier turns differently once there are later ones, the document is the
// whole conversation as it is rendered in the end, with every answer learnt as it is there; where it cannot be
// determined what to learn, it is refused.
func TestRewritten(t *testing.T) {
	read := func(name string) string {
		source, err := os.ReadFile("../jinja/testdata/templates/" + name + ".jinja")
		must(t, err)
		return string(source)
	}
	const two = `[{"role":"user","content":"a"},{"role":"assistant","content":"<think>t</think>b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]`
	const system = `[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`
	const user, assistant = "<|im_start|>user\n", "<|im_start|>assistant\n"
	for _, c := range []struct{ template, conversation, want string }{
		{"qwen3", two, user + "a<|im_end|>\n" + assistant + "[b<|im_end|>]\n" + user + "c<|im_end|>\n" + assistant + "[<think>\n\n</think>\n\nd<|im_end|>]\n"},
		{"chatml", two, user + "a<|im_end|>\n" + assistant + "[<think>t</think>b<|im_end|>]\n" + user + "c<|im_end|>\n" + assistant + "[d<|im_end|>]\n"},
		{"deepseek-r1", two, "but together with the answer"},
		{"mistral-v0.3", system, "but together with the answer"},
		{"gemma2", system, "the template refuses this: System role not supported"},
	} {
		turns, err := Decode([]byte(c.conversation), nil)
		must(t, err)
		docs, err := documents(folder(t, read(c.template), special), turns)
		var got []string
		for _, d := range docs {
			text := d.Text
			for _, s := range slices.Backward(d.Learnt) {
				text = slices.Concat(text[:s.First], []byte("["), text[s.First:s.End], []byte("]"), text[s.End:])
			}
			got = append(got, string(text))
		}
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hint: ") {
				t.Errorf("%s: %v", c.template, err)
			}
		} else if all := strings.Join(got, "|"); all != c.want {
			t.Errorf("%s:\n%q, want\n%q", c.template, all, c.want)
		}
	}
}

// TestTurnEnd: a turn ends after the first special token after its content and those directly after that.
func TestTurnEnd(t *testing.T) {
	c, err := Decode([]byte(`[{"role":"user","content":"a"},{"role":"assistant","content":"b<|im_end|>"}]`), nil)
	must(t, err)
	for end, want := range map[string]string{
		"":                          "b<|im_end|>",
		".":                         "b<|im_end|>.",
		"<|im_end|>":                "b<|im_end|><|im_end|>",
		"<|im_end|>\n":              "b<|im_end|><|im_end|>",
		"<|im_end|>\n<|endoftext|>": "b<|im_end|><|im_end|>",
		"\n<|im_end|><|endoftext|>": "b<|im_end|>\n<|im_end|><|endoftext|>",
		"é<think><|im_end|>é":       "b<|im_end|>é<think><|im_end|>",
	} {
		docs, err := documents(folder(t, "{% for m in messages %}{{ m.content + '"+strings.ReplaceAll(end, "\n", "\\n")+"' }}{% endfor %}", special), c)
		must(t, err)
		s := docs[0].Learnt[0]
		if got := string(docs[0].Text[s.First:s.End]); got != want || string(docs[0].Text) != "a"+end+"b<|im_end|>"+end {
			t.Errorf("%q: learnt is %q of %q, want %q", end, got, docs[0].Text, want)
		}
	}
}

// TestLong: a conversation that would take too long to render up to each answer is refused at once.
func TestLong(t *testing.T) {
	c := &Conversation{}
	for range 400 {
		c.Say("user", strings.Repeat("gold ", 1000))
		c.Say("assistant", "b")
	}
	_, err := folder(t, "{% for m in messages %}{{ m.content }}{% endfor %}", "").Document(c)
	if err == nil || !strings.Contains(err.Error(), "hint: split it into several") {
		t.Error(err)
	}
}

// TestOpen: where templates and special tokens are found, and what is wrong with others.
func TestOpen(t *testing.T) {
	c, err := Decode([]byte(`[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`), nil)
	must(t, err)
	const template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
	quoted, err := json.Marshal(template)
	must(t, err)
	for _, x := range []struct{ template, config, want string }{
		{template, special, "<s>ab"},
		{template, "", "ab"},
		{template, `{"bos_token": null}`, "ab"},
		{"", `{"bos_token": "<s>", "chat_template": ` + string(quoted) + `}`, "<s>ab"},
		{"", `{"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": ` + string(quoted) + `}]}`, "ab"},
		{template, `{"bos_token": "<s>", "chat_template": "other"}`, "<s>ab"}, // the file has precedence
		{"", `{"chat_template": [{"name": "rag", "template": "x"}]}`, "name one of them default"},
		{"", `{"chat_template": 5}`, "neither a string nor a list"},
		{"", `{"chat_template": null}`, "needs a chat template"},
		{"", `{`, "tokenizer_config.json"},
		{"", "", "needs a chat template"},
		{"{{", "", "line 1"},
	} {
		docs, err := documents(folder(t, x.template, x.config), c)
		switch {
		case err != nil && (!strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "hint: ")):
			t.Errorf("%q, %q: %v", x.template, x.config, err)
		case err == nil && string(docs[0].Text) != x.want:
			t.Errorf("%q, %q: %q", x.template, x.config, docs[0].Text)
		}
	}
	if a, b := folder(t, template, special), folder(t, template+" ", special); a.Hash() == b.Hash() {
		t.Error("two templates have one hash")
	}
	if a, b := folder(t, template, special), folder(t, template, ""); a.Hash() == b.Hash() {
		t.Error("two templates with other tokens have one hash")
	}
}

// TestPrompt: a prompt has control tokens where the template has them, and the token that ends the answer is
// found.
func TestPrompt(t *testing.T) {
	source, err := os.ReadFile("testdata/chatml/chat_template.jinja")
	must(t, err)
	template := folder(t, string(source), special)
	c := &Conversation{}
	c.Say("user", "a<|im_end|>")
	ids, end, ok, err := template.Prompt(c, time.Now())
	must(t, err)
	text, err := template.tokenizer.Decode(ids)
	must(t, err)
	if string(text) != "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n" {
		t.Errorf("%q", text)
	}
	n := 0
	for _, id := range ids {
		if id == end {
			n++
		}
	}
	if !ok || n != 1 || string(template.tokenizer.Token(end)) != "<|im_end|>" || c.Len() != 1 {
		t.Errorf("%d ends of turns, %q", n, template.tokenizer.Token(end))
	}
}

// FuzzDecode: no list of messages makes rendering panic, and what is learnt is within the documents.
func FuzzDecode(f *testing.F) {
	f.Add(`[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`, `[{"type":"function"}]`)
	f.Add(`[{"from":"human","value":"a"},{"from":"gpt","value":"b","weight":0}]`, `"[{\"name\": null}]"`)
	f.Add(`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"b"}]}]`, "")
	f.Add(`[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":[1,2.5,null]}}}]}]`, "[]")
	tokenizer, err := bpe.Load("testdata/chatml")
	if err != nil {
		f.Fatal(err)
	}
	template := Open("testdata/chatml", tokenizer)
	f.Fuzz(func(t *testing.T, s, tools string) {
		c, err := Decode([]byte(s), []byte(tools))
		if err != nil {
			return
		}
		docs, err := documents(template, c)
		if err != nil {
			return
		}
		for _, d := range docs {
			for _, spans := range [][]jinja.Span{d.Learnt, d.Control} {
				at := 0
				for _, s := range spans {
					if s.First < at || s.End <= s.First || s.End > len(d.Text) {
						t.Fatalf("%v of %d bytes", spans, len(d.Text))
					}
					at = s.End
				}
			}
		}
	})
}
