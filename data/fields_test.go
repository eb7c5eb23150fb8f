package data

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestFields: a field that changes what is learnt is in what is rendered, or an error names it. [ and ] are around what
// is learnt.
func TestFields(t *testing.T) {
	const u, a = `{"role":"user","content":"q"}`, `{"role":"assistant","content":"r"}`
	const user, assistant, end = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"
	const asked = user + "q" + end + assistant
	_, template := opened(t, "chatml")
	for line, want := range map[string]string{
		`{"system":"s","instruction":"q","output":"r"}`:                                                                                                  "<|im_start|>system\ns" + end + asked + "[r<|im_end|>]\n",
		`{"instruction":"q","output":"r","history":[["x","y"]]}`:                                                                                         user + "x" + end + assistant + "[y<|im_end|>]\n" + asked + "[r<|im_end|>]\n",
		`{"instruction":"q","output":"r","history":[],"system":null}`:                                                                                    asked + "[r<|im_end|>]\n",
		`{"instruction":"q","output":"r","history":[["x"]]}`:                                                                                             "not a question and an answer",
		`{"instruction":"q","output":"r","history":{"x":1}}`:                                                                                             "not a list of questions",
		`{"instruction":"q","output":"r","system":["s"]}`:                                                                                                `"system" beside`,
		`{"prompt":"q","completion":"r","system":"s"}`:                                                                                                   `"system" beside`,
		`{"prompt":"q","completion":"r","tools":[{"name":"f"}]}`:                                                                                         `"tools" beside`,
		`{"prompt":"q","chosen":"r","rejected":"x","system":"s"}`:                                                                                        `"system" beside`,
		`{"prompt":[` + u + `],"completion":[` + a + `]}`:                                                                                                asked + "[r<|im_end|>]\n",
		`{"prompt":[` + u + `,` + a + `,` + u + `],"completion":[` + a + `]}`:                                                                            asked + "r" + end + asked + "[r<|im_end|>]\n",
		`{"prompt":[` + u + `],"completion":[` + u + `]}`:                                                                                                "no assistant message",
		`{"prompt":"q","completion":[` + a + `]}`:                                                                                                        "nor both as lists",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","loss":false},` + u + `,` + a + `]}`:                                                   asked + "r" + end + asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","train":0},` + u + `,` + a + `]}`:                                                      asked + "r" + end + asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","training":true}]}`:                                                                    asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","loss":"no"}]}`:                                                                        `"loss" is not`,
		`{"messages":[` + u + `,{"role":"assistant","content":"r","loss":0.5}]}`:                                                                         `"loss" is not`,
		`{"messages":[` + u + `,{"role":"assistant","content":"r","mask":true}]}`:                                                                        `"mask", which says what`,
		`{"messages":[` + u + `,{"role":"assistant","content":"r","is_masked":true}]}`:                                                                   `"is_masked", which says what`,
		`{"messages":[` + u + `,{"role":"assistant","content":"r","trainable":false}]}`:                                                                  `"trainable", which says what`,
		`{"messages":[{"role":"user","content":"q","train":true},` + a + `]}`:                                                                            `"train" of a user's message`,
		`{"messages":[{"role":"user","content":"q","training":1},` + a + `]}`:                                                                            `"training" of a user's message`,
		`{"messages":[{"role":"user","content":"q","train":false},` + a + `]}`:                                                                           asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","reasoning_content":"t"}]}`:                                                            "does not read reasoning_content",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","thinking":"t"}]}`:                                                                     "does not read reasoning_content",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}]}]}`:          "does not read tool_calls",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","function_call":{"name":"f","arguments":"{}"}}]}`:                                      "does not read function_call",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","reasoning":"","tool_calls":[],"function_call":null}]}`:                                asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,{"role":"assistant","content":"r","train_detail":[]}]}`:                                                                  `"train_detail"`,
		`{"messages":[` + u + `,` + a + `],"chat_template_kwargs":{"messages":[]}}`:                                                                      "sets messages",
		`{"messages":[` + u + `,` + a + `],"chat_template_kwargs":{"enable_thinking":false}}`:                                                            asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,` + a + `],"chat_template_kwargs":[1]}`:                                                                                  "not an object",
		`{"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"no"}]}`:                                                         "not JSON",
		`{"messages":[` + u + `,{"role":"assistant","content":"x","weight":0.0},` + u + `,` + a + `]}`:                                                   asked + "x" + end + asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,{"role":"assistant","content":"x","masked":true},` + u + `,{"role":"assistant","content":"r","weight":1.0,"masked":0}]}`: asked + "x" + end + asked + "[r<|im_end|>]\n",
		`{"messages":[` + u + `,` + a + `],"functions":[{"name":"f"}]}`:                                                                                  `"functions" beside`,
		`{"messages":[` + u + `,` + a + `],"images":["a.png"]}`:                                                                                          `"images" beside`,
		`{"messages":[` + u + `,` + a + `],"rejected_response":"no"}`:                                                                                    `"rejected_response" beside`,
		`{"messages":[` + u + `,` + a + `],"documents":[{"text":"x"}],"system":"s"}`:                                                                     `"documents" beside`,
		`{"instruction":"q","output":"r","system_prompt":"s"}`:                                                                                           `"system_prompt" beside`,
		`{"prompt":"q","completion":"r","label":false}`:                                                                                                  `"label", which says`,
		`{"prompt":[` + u + `],"completion":[` + a + `],"label":true}`:                                                                                   `"label", which says`,
		`{"prompt":"q","completion":"r","label":"spam","images":[],"documents":null,"system_prompt":""}`:                                                 "qr",
		`{"prompt":"q","chosen":"r","rejected":"x","videos":["a.mp4"]}`:                                                                                  `"videos" beside`,
		`{"instruction":"q","input":["x"],"output":"r"}`:                                                                                                 `"input" is not a string`,
		`{"instruction":"q","input":5,"output":"r"}`:                                                                                                     `"input" is not a string`,
		`{"instruction":"q","input":null,"output":"r","text":null}`:                                                                                      asked + "[r<|im_end|>]\n",
		`{"text":null,"prompt":"q","completion":"r"}`:                                                                                                    "qr",
		`{"messages":null,"instruction":"q","output":"r","chosen":null}`:                                                                                 asked + "[r<|im_end|>]\n",
		`{"prompt":null,"completion":null,"messages":[` + u + `,` + a + `],"tools":null}`:                                                                asked + "[r<|im_end|>]\n",
		`{"prompt":null,"text":null,"chosen":null,"rejected":null,"conversations":null}`:                                                                 `"text" is not a string`,
		`{"prompt":null,"completion":"r"}`:                                                                                                               "not both given",
		`{"text":null,"messages":null}`:                                                                                                                  `"text" is not a string`,
		`{"messages":[` + u + `,` + a + `],"label":false}`:                                                                                               `"label", which says`,
		`{"instruction":"q","output":"r","history":[["x",null]]}`:                                                                                        "not a question and an answer",
		`{"messages":[` + u + `,` + a + `],"history":[["x","y"]]}`:                                                                                       `"history" beside`,
		`{"conversations":[{"from":"human","value":"q","content":"x"},{"from":"gpt","value":"r"}]}`:                                                      `"content" and "value"`,
		`{"messages":[{"role":"user","from":"system","content":"q"},` + a + `]}`:                                                                         `"role" and "from"`,
		`{"text":"a","text":"b"}`:                                                `"text" is given twice`,
		`{"prompt":"q","completion":"r","prompt":"p"}`:                           `"prompt" is given twice`,
		`{"messages":[` + u + `,` + a + `],"messages":null}`:                     `"messages" is given twice`,
		`{"messages":[{"role":"user","content":"q","role":"system"},` + a + `]}`: `"role" is given twice`,
	} {
		doc, err := appendText(nil, []byte(line), usualField, anything)
		got := string(doc.dst)
		if err == nil && doc.turns != nil {
			d, err2 := template.Document(doc.turns)
			if err = err2; d != nil {
				for _, s := range slices.Backward(d.Learnt) {
					d.Text = slices.Concat(d.Text[:s.First], []byte("["), d.Text[s.First:s.End], []byte("]"), d.Text[s.End:])
				}
				got = string(d.Text)
			}
		}
		if err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint: ")) || err == nil && got != want {
			t.Errorf("%s: %q, %v; want %q", line, got, err, want)
		}
	}
}

// TestArray: a file that is a JSON array has the documents of its elements, as lines would.
func TestArray(t *testing.T) {
	dir := write(t, map[string]string{
		"a.json": ` [{"text": "one"}, {"prompt": "q", "completion": "r"},` + "\n" + `{"text": "three"}]`,
		"b.json": `[{"text": "one"}, {"text": "two"}`,
		"c.json": `[{"text": "one"}, 5]`,
		"d.json": `[{"text": "one"}]` + "\n" + `[{"text": "two"}]`,
		"e.json": `[{"text": "one"},]`,
		"f.json": `[{"text": "one"} {"text": "two"}]`,
		"g.json": "\n[\n{\n\"text\": \"one\"},\n\n{\"prompt\": \"q\",\n\"id\": [{}, \"\\\"]},[\"], \"completion\": \"r\"}, {\"text\": \"three\"}\n] \n",
		"h.json": ` [ ` + "\n" + `] `,
		"i.json": `[{"text": "one}, {"text": "two"}]`,
	})
	for name, want := range map[string]string{"a.json": "", "b.json": "does not end", "c.json": "element 2", "d.json": "more after the array", "e.json": "element 2",
		"f.json": "element 1", "g.json": "", "h.json": "no text in any", "i.json": "does not end"} {
		c, err := OpenCorpus(dir + "/" + name)
		must(t, err)
		got, _, err := documents(c)
		if want == "" && (err != nil || !slices.Equal(got, []string{"one", "qr", "three"})) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := OpenCorpus(write(t, map[string]string{"a.csv": "x,y"}) + "/*"); err == nil || !strings.Contains(err.Error(), "CSV is not supported") {
		t.Error(err)
	}
}

// TestBegin: documents begin with the given tokens, which are not learnt, unless they have them or are conversations.
func TestBegin(t *testing.T) {
	lines := strings.Join([]string{
		`{"text":"one"}`, `{"text":"<|im_start|>two"}`, `{"prompt":"three","completion":" four"}`, `{"prompt":"","completion":"x"}`,
		`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"r"}]}`,
	}, "\n")
	tokenizer, _ := opened(t, "chatml")
	begin := tokenizer.Encode([]byte("<|im_start|>"))
	if len(begin) != 1 {
		t.Fatal(begin)
	}
	plain, _ := tokensOf(t, "chatml", lines, Options{})
	got, tokens := tokensOf(t, "chatml", lines, Options{Begin: begin})
	end := tokens.EndOfText()
	var want []int32
	first, n := true, 0
	for _, token := range plain {
		if first && n < 4 {
			want = append(want, Mark(begin[0]))
		}
		if !(first && n == 1) { // it has the token
			want = append(want, token)
		}
		if first = unmarked(token) == end; first {
			n++
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v, without %v", got, want, plain)
	}
	if texts := tokens.Stats().Texts(); texts != 4 {
		t.Errorf("%d texts", texts)
	}
	// A document of many pieces begins once.
	long := `{"text":"` + strings.Repeat("a word, ", 400000) + `"}`
	got, _ = tokensOf(t, "chatml", long, Options{Begin: begin})
	if at := slices.Index(got, Mark(begin[0])); at != 0 || slices.Contains(got[1:], Mark(begin[0])) {
		t.Errorf("it begins at %d", at)
	}
}

// TestLargest: ids beyond the vocabulary are found when a token file is opened, though its checksums hold.
func TestLargest(t *testing.T) {
	_, tokens := tokensOf(t, "chatml", `{"prompt":"a","completion":"b"}`, Options{})
	if tokens.Largest() != tokens.EndOfText() && int(tokens.Largest()) >= tokens.vocabulary {
		t.Errorf("largest is %d", tokens.Largest())
	}
	c, err := OpenCorpus(write(t, map[string]string{"a.txt": "some text"}) + "/*")
	must(t, err)
	tokenizer, _ := opened(t, "chatml")
	dir := t.TempDir()
	good, err := Tokenize(context.Background(), c, tokenizer, dir, Options{})
	must(t, err)
	h := good.header
	h.vocabulary = int(good.Largest())
	h.endOfText = 0
	must(t, good.Close())
	page, err := h.encode()
	must(t, err)
	rewrite(t, good.Path(), page)
	if _, err := OpenTokens(good.Path()); err == nil || !strings.Contains(err.Error(), "beyond its vocabulary") {
		t.Error(err)
	}
}

// rewrite writes the first page of a file anew.
func rewrite(t *testing.T, path string, page []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append(page, raw[len(page):]...), 0o644))
}
