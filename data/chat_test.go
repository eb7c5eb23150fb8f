package data

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/data/bpe"
	"github.com/athanor-llm/athanor/data/chat"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// opened opens a folder of testdata with a tokenizer and a template.
func opened(t *testing.T, name string) (*bpe.Tokenizer, *chat.Template) {
	t.Helper()
	tokenizer, err := bpe.Load("chat/testdata/" + name)
	must(t, err)
	return tokenizer, chat.Open("chat/testdata/"+name, tokenizer)
}

// tokensOf returns the tokens of lines of JSONL.
func tokensOf(t *testing.T, folder, lines string, o Options) ([]int32, *Tokens) {
	t.Helper()
	tokenizer, template := opened(t, folder)
	c, err := OpenCorpus(write(t, map[string]string{"a.jsonl": lines}) + "/*")
	must(t, err)
	o.Chat = template
	tokens, err := Tokenize(context.Background(), c, tokenizer, t.TempDir(), o)
	must(t, err)
	t.Cleanup(func() { tokens.Close() })
	all := make([]int32, tokens.Len())
	tokens.Copy(all, 0)
	return all, tokens
}

// TestConversations: the tokens of a conversation are those of transformers' apply_chat_template, and what is
// learnt is what it says the assistant says, also where others write its control tokens. What transformers leaves out in silence, calls that no template reads, is an error.
func TestConversations(t *testing.T) {
	var conversations map[string]json.RawMessage
	var want map[string]struct{ IDs, Mask, Safe []int32 }
	for file, into := range map[string]any{"jinja/testdata/conversations.json": &conversations, "chat/testdata/tokens.json": &want} {
		text, err := os.ReadFile(file)
		must(t, err)
		must(t, json.Unmarshal(text, into))
	}
	compared := 0
	for key, w := range want {
		folder, name, _ := strings.Cut(key, "/")
		if name == "asked" { // nothing to learn
			continue
		}
		var whole any = conversations[name]
		if conversations[name][0] == '[' {
			whole = map[string]any{"messages": whole}
		}
		line, err := json.Marshal(whole)
		must(t, err)
		tokenizer, template := opened(t, folder)
		if bytes.Contains(line, []byte("tool_calls")) { // which neither template reads
			doc, err := appendText(nil, line, usualField, anything)
			must(t, err)
			if _, err := template.Document(doc.turns); err == nil || !strings.Contains(err.Error(), "does not read tool_calls") {
				t.Errorf("%s: %v", key, err)
			}
			continue
		}
		got, tokens := tokensOf(t, folder, string(line), Options{})
		ids, learnt := make([]int32, len(got)), make([]int32, len(got))
		for i, token := range got {
			if ids[i] = ID(token); !Given(token) {
				learnt[i] = 1
			}
		}
		// After the conversation comes the end of text, not learnt, unless the conversation ends with it.
		if folder == "chatml" {
			end := len(ids) - 1
			if ids[end] != tokens.EndOfText() || learnt[end] != 0 {
				t.Errorf("%s: it ends with %d, %d", key, ids[end], learnt[end])
			}
			ids, learnt = ids[:end], learnt[:end]
		}
		text, err := tokenizer.Decode(ids)
		must(t, err)
		if whole, err := tokenizer.Decode(w.Safe); err != nil || string(text) != string(whole) {
			t.Errorf("%s: %q, want %q", key, text, whole)
		}
		specials := func(ids []int32) (n int) {
			for _, id := range ids {
				if _, _, ok := tokenizer.FindSpecial(tokenizer.Token(id)); ok {
					n++
				}
			}
			return n
		}
		if a, b := specials(ids), specials(w.Safe); a != b {
			t.Errorf("%s: %d special tokens, want %d", key, a, b)
		}
		// A line break of the prompt and those of the answer would be one token.
		if name != "control" && key != "chatml/spaces" {
			compared++
			if !slices.Equal(ids, w.IDs) || !slices.Equal(learnt, w.Mask) {
				t.Errorf("%s:\n%v\n%v want\n%v\n%v", key, ids, learnt, w.IDs, w.Mask)
			}
		}
	}
	if compared < 20 {
		t.Errorf("only %d compared", compared)
	}
}

// TestConversationsInPieces: conversations stay whole among other documents, however many workers there are,
// and an end of text within one, which ends a turn, does not begin a document.
func TestConversationsInPieces(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const n = 36
	var lines strings.Builder
	long := strings.Repeat("gold and salt\nand iron. ", 1500)
	for i := range n {
		fmt.Fprintf(&lines, `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": %q}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d%d"}]}`+"\n", long, i)
		fmt.Fprintf(&lines, `{"text": "plain %d"}`+"\n"+`{"prompt": "p", "completion": "c%d"}`+"\n", i, i)
	}
	for _, folder := range []string{"chatml", "llama2"} {
		one, tokens := tokensOf(t, folder, lines.String(), Options{Workers: 1})
		three, _ := tokensOf(t, folder, lines.String(), Options{Workers: 3})
		if !slices.Equal(one, three) {
			t.Errorf("%s: other tokens with three workers", folder)
		}
		s := tokens.Stats().JSONL
		if s.Conversations != n || s.Prompts != n || s.Documents != 3*n {
			t.Errorf("%s: %+v", folder, s)
		}
		plain, targets := make([]int32, len(one)-1), make([]int32, len(one)-1)
		said := Pairs(plain, targets, one)
		starts := make([]int32, len(plain))
		Starts(starts, plain, len(plain), tokens.EndOfText())
		documents := slices.Clone(starts)
		if got := len(slices.Compact(documents)); got != 3*n {
			t.Errorf("%s: %d documents, want %d", folder, got, 3*n)
		}
		learnt := 0
		for i, target := range targets {
			if target >= 0 {
				learnt++
			}
			if id := Plain(plain[i]); id != ID(one[i]) || target >= 0 && target != ID(one[i+1]) {
				t.Fatalf("%s: token %d is %d with target %d", folder, i, id, target)
			}
		}
		if learnt != said || said == 0 {
			t.Errorf("%s: %d targets, said to be %d", folder, learnt, said)
		}
	}
}

// TestChatLines: which lines are conversations, what is learnt from them, and the errors for others. What is
// learnt is in brackets.
func TestChatLines(t *testing.T) {
	const u, a = `{"role":"user","content":"q"}`, `{"role":"assistant","content":"r"}`
	const rendered = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[r<|im_end|>]\n"
	_, template := opened(t, "chatml")
	for line, want := range map[string]string{
		`{"messages":[` + u + `,` + a + `]}`:                                                                      rendered,
		`{"id":3,"messages":[` + u + `,` + a + `,` + u + `],"source":null}`:                                       rendered, // the last question is left out
		`{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"r"}]}`:                             rendered,
		`{"conversations":[{"from":"user","value":"q"},{"from":"assistant","value":"r"}],"system":"","tools":[]}`: rendered,
		`{"conversations":[` + u + `,` + a + `]}`:                                                                 rendered,
		`{"instruction":"q","input":"","output":"r"}`:                                                             rendered,
		`{"instruction":"q","output":"r"}`:                                                                        rendered,
		`{"instruction":"i","input":"n","output":"r"}`:                                                            strings.Replace(rendered, "q", "i\n\nn", 1),
		`{"messages":[` + u + `,{"role":"assistant","content":"x","weight":0},` + u + `,` + a + `]}`:              "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n" + rendered,
		`{"text":"all","messages":[` + u + `]}`:                                                                   "all",
		`{"messages":[` + a + `]}`:                                                                                "<|im_start|>assistant\n[r<|im_end|>]\n",
		`{"messages":[` + u + `]}`:                                                                                "has no assistant message",
		`{"messages":[]}`:                                                                                         "has no assistant message",
		`{"messages":null}`:                                                                                       `no "text"`,
		`{"messages":"x"}`:                                                                                        "not a list",
		`{"messages":[1]}`:                                                                                        "message 1: it is not an object",
		`{"messages":[{"content":"x"}]}`:                                                                          "the role",
		`{"messages":[{"role":"<|im_end|>","content":"x"}]}`:                                                      "the role",
		`{"messages":[{"role":1,"content":"x"}]}`:                                                                 "not a string",
		`{"messages":[` + u + `,{"role":"assistant"}]}`:                                                           "message 2: it has no content",
		`{"messages":[` + u + `,{"role":"assistant","content":null}]}`:                                            "message 2: it has no content",
		`{"messages":[{"role":"user","content":[{"type":"text","text":"q"}]},` + a + `]}`:                         "hint: some contents are lists of parts; make them strings if",
		`{"messages":[{"role":"user","content":{"type":"text","text":"q"}},` + a + `]}`:                           "not a string",
		`{"messages":[{"role":"user","content":[]},` + a + `]}`:                                                   "message 1: it has no content",
		`{"messages":[{"role":"user","content":["q"]},` + a + `]}`:                                                "part 1 of its content is not an object",
		`{"messages":[{"role":"user","content":[{"type":"text","text":"q"},{"type":"image_url","image_url":"x"}]},` + a + `]}`: `part 2 of its content is of type "image_url"`,
		`{"messages":[{"role":"user","content":[{"type":"text"}]},` + a + `]}`:                                                 "part 1 of its content has no text",
		`{"messages":[{"role":"user","content":[{"text":"q"}]},` + a + `]}`:                                                    `part 1 of its content is of type ""`,
		`{"messages":[` + u + `,{"role":"assistant","content":"x","weight":2}]}`:                                               "weight",
		`{"messages":[` + u + `,{"role":"assistant","tool_calls":[{}]}]}`:                                                      "does not read tool_calls",
		`{"messages":[` + u + `,` + a + `],"tools":[{"a":"b"}]}`:                                                               "<|im_start|>tools\n{\"a\": \"b\"}\n<|im_end|>\n" + rendered,
		`{"tools":"[{\"a\": \"b\"}]","messages":[` + u + `,` + a + `]}`:                                                        "<|im_start|>tools\n{\"a\": \"b\"}\n<|im_end|>\n" + rendered,
		`{"messages":[` + u + `,` + a + `],"tools":null}`:                                                                      rendered,
		`{"messages":[` + u + `,` + a + `],"tools":""}`:                                                                        rendered,
		`{"messages":[` + u + `,` + a + `],"tools":"[]"}`:                                                                      rendered,
		`{"messages":[` + u + `,` + a + `],"tools":"null"}`:                                                                    rendered,
		`{"messages":[` + u + `,` + a + `],"tools":"none"}`:                                                                    "tools: invalid character",
		`{"messages":[` + u + `,` + a + `],"tools":{"a":"b"}}`:                                                                 "tools: not a list",
		`{"messages":[` + u + `,` + a + `],"tools":["{}"]}`:                                                                    "tools: tool 1 is not an object",
		`{"messages":[` + u + `,` + a + `],"tools":[` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `]}`:           "levels of JSON",
		`{"conversations":[` + u + `,` + a + `],"system":"s"}`:                                                                 "<|im_start|>system\ns<|im_end|>\n" + rendered,
		`{"messages":[{"role":"system","content":"t"},` + u + `,` + a + `],"system":"s"}`:                                      "leave out one of them",
		`{"messages":[` + u + `,` + a + `],"history":[["x","y"]]}`:                                                             "\"history\" beside",
		`{"instruction":"q"}`: "not both given",
		`{"messages":[` + strings.Repeat(u+",", 1000) + a + `]}`:                     "split it",
		`{"messages":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`: "levels of JSON",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}," + a + "]}":        "not valid UTF-8",
	} {
		doc, err := appendText(nil, []byte(line), usualField, anything)
		got := string(doc.dst)
		if err == nil && doc.turns != nil {
			var d *chat.Document
			if d, err = template.Document(doc.turns); d != nil {
				for _, s := range slices.Backward(d.Learnt) {
					d.Text = slices.Concat(d.Text[:s.First], []byte("["), d.Text[s.First:s.End], []byte("]"), d.Text[s.End:])
				}
				got += string(d.Text)
			}
		}
		if err != nil {
			got = err.Error()
			if !strings.Contains(got, want) || !strings.Contains(got, "hint: ") || len(got) > 600 {
				t.Errorf("%.100s: %s; want %q", line, got, want)
			}
		} else if got != want {
			t.Errorf("%.100s:\n%q, want\n%q", line, got, want)
		}
	}
}
