package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/data/chat"
)

// What the fields of a line mean. A field that changes what is learnt is understood, or it is an error that names it.

// document appends a prompt and its completion to dst, or returns a conversation or a pair. given is -1 if the
// fields are none of these.
func (f fields) document(dst []byte, want wanted) (record, error) {
	if want == aLabel {
		return f.labelled(dst)
	}
	r, err := f.kind(dst, want != anything)
	if err == nil && want == aVerdict && r.pair == nil {
		r.tags, err = f.verdict()
	}
	if err != nil || r.given < 0 && r.turns == nil && r.pair == nil {
		return r, err
	}
	for _, u := range unbuilt {
		if f.given(u.key) {
			return r, fmt.Errorf("%q beside a prompt or messages is %w; hint: %s", u.key, ErrNotSupported, u.hint)
		}
	}
	if label := string(f["label"]); want != aVerdict && r.pair == nil && (label == "true" || label == "false") {
		return r, fmt.Errorf(`"label", which says whether an answer is a good one, is %w here; hint: set preference: {loss: kto, beta: 0.1}; or leave out the rows with bad ones, and the field`, ErrNotSupported)
	}
	answers := 0
	for _, key := range answerKeys {
		if f.given(key) {
			answers++
		}
	}
	r.beside = answers > 1
	return r, nil
}

// unbuilt are keys that change what is given or learnt in ways that are not built, and what to write instead.
var unbuilt = []struct{ key, hint string }{
	{"images", "leave out the rows with images: only text is learnt"},
	{"videos", "leave out the rows with videos: only text is learnt"},
	{"audios", "leave out the rows with sound: only text is learnt"},
	{"functions", `write {"tools": [{"type": "function", "function": ...}, ...]}`},
	{"documents", `write {"chat_template_kwargs": {"documents": ...}}`},
	{"system_prompt", `call it "system" beside messages`},
	{"rejected_response", `write {"prompt": ..., "chosen": ..., "rejected": ...}`},
}

// kind is document for what the fields may be, whatever is beside it.
func (f fields) kind(dst []byte, pairs bool) (record, error) {
	prompt, hasPrompt, err := f.text("prompt")
	completion, hasCompletion, err2 := f.text("completion")
	both := f.has("chosen") || f.has("rejected")
	switch none := (record{dst: dst, given: -1}); {
	case err != nil || err2 != nil:
		return none, errors.Join(err, err2)
	case both && (pairs || !hasCompletion && f["messages"] == nil && f["conversations"] == nil && f["instruction"] == nil):
		none.pair, err = f.pair()
		return none, err
	case hasPrompt && hasCompletion:
		return record{dst: append(append(dst, prompt...), completion...), given: len(prompt)}, f.refuse("system", "history", "tools")
	case f["messages"] != nil || f["conversations"] != nil:
		none.turns, err = f.conversation()
		return none, err
	case isList(f["prompt"]) && isList(f["completion"]):
		none.turns, err = f.completed()
		return none, err
	case f["prompt"] != nil || hasCompletion:
		return none, errors.New(`"prompt" and "completion" are not both given as strings, nor both as lists of messages; hint: give both, or the whole document as {"text": ...}`)
	case f["instruction"] != nil:
		none.turns, err = f.instruction()
		return none, err
	default:
		return none, nil
	}
}

// verdict reads whether the answer of a document is a good one.
func (f fields) verdict() ([]int32, error) {
	const hint = `hint: write {"prompt": ..., "completion": ..., "label": true}, prompt and completion both as strings or both as lists of messages, or {"prompt": ..., "chosen": ..., "rejected": ...}`
	good := slices.Index([]string{"false", "true"}, string(f["label"]))
	switch {
	case !f.has("completion") || f["messages"] != nil || f["conversations"] != nil:
		return nil, errors.New("the row is no answer that could be good or bad; " + hint)
	case f["label"] == nil:
		return nil, errors.New(`"label" is missing, which says whether the answer is a good one; ` + hint)
	case good < 0:
		return nil, fmt.Errorf(`"label" is %.40s, neither true nor false; %s`, f["label"], hint)
	}
	return []int32{int32(good)}, nil
}

// given reports whether a key has a value that is not empty.
func (f fields) given(key string) bool {
	return !slices.Contains([]string{"", "null", `""`, "[]", "{}"}, string(f[key]))
}

// refuse returns an error if one of the keys has a value.
func (f fields) refuse(keys ...string) error {
	for _, key := range keys {
		if f.given(key) {
			return fmt.Errorf("%q beside it is %w; hint: write all turns as {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}", key, ErrNotSupported)
		}
	}
	return nil
}

func isList(value []byte) bool { return len(value) > 0 && value[0] == '[' }

// conversation reads OpenAI's "messages" or ShareGPT's "conversations".
func (f fields) conversation() (*chat.Conversation, error) {
	key := "messages"
	if f[key] == nil {
		key = "conversations"
	}
	return f.decode(key, f[key])
}

// decode reads a list of messages, which the value of a key contains, behind the system prompt beside it.
func (f fields) decode(key string, list []byte) (*chat.Conversation, error) {
	if err := f.refuse("history"); err != nil {
		return nil, err
	}
	system, _, err := f.text("system")
	if err != nil {
		return nil, err
	}
	if len(system) > 0 && isList(list) {
		list = join(fmt.Appendf(nil, `[{"role": "system", "content": %s}]`, f["system"]), list)
	} else if len(system) == 0 {
		if err := f.refuse("system"); err != nil {
			return nil, err
		}
	}
	c, err := chat.Decode(list, f["tools"])
	if err == nil && len(system) > 0 && slices.Contains(c.Roles()[1:], "system") {
		err = errors.New(`there is a system prompt among the messages and another in "system"; hint: leave out one of them`)
	}
	if err == nil {
		err = c.SetNames(f["chat_template_kwargs"])
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", key, err)
	}
	return c, nil
}

// completed reads a "prompt" and a "completion" that are lists of messages, of which the latter are learnt.
func (f fields) completed() (*chat.Conversation, error) {
	c, err := f.decode("prompt and completion", join(bytes.TrimSpace(f["prompt"]), bytes.TrimSpace(f["completion"])))
	if err != nil {
		return nil, err
	}
	var answers []json.RawMessage
	if err := json.Unmarshal(f["completion"], &answers); err != nil {
		return nil, err
	}
	c.LearnFrom(c.Len() - len(answers))
	return c, nil
}

// instruction reads Alpaca's "instruction", "input" and "output", with the "system" prompt and the "history" of earlier
// questions and answers.
func (f fields) instruction() (*chat.Conversation, error) {
	ask, hasAsk, err := f.text("instruction")
	output, hasOutput, err2 := f.text("output")
	input, _, err3 := f.text("input")
	system, _, err4 := f.text("system")
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return nil, err
	}
	if !hasAsk || !hasOutput {
		return nil, errors.New(`"instruction" and "output" are not both given as strings; hint: give both, or {"messages": ...}`)
	}
	if len(system) == 0 {
		if err := f.refuse("system"); err != nil {
			return nil, err
		}
	}
	if len(input) == 0 && f.given("input") {
		return nil, errors.New(`"input" is not a string; hint: write it as a string, or the row as {"messages": ...}`)
	}
	var history [][]*string
	if f.has("history") && string(f["history"]) != `""` {
		if err := json.Unmarshal(f["history"], &history); err != nil {
			return nil, errors.New(`"history" is not a list of questions and answers; hint: write [["question", "answer"], ...]`)
		}
	}
	if len(input) > 0 {
		ask = slices.Concat(ask, []byte("\n\n"), input)
	}
	c := &chat.Conversation{}
	if len(system) > 0 {
		c.Say("system", string(system))
	}
	for _, turn := range history {
		if len(turn) != 2 || turn[0] == nil || turn[1] == nil {
			return nil, errors.New(`"history" has an entry that is not a question and an answer; hint: write [["question", "answer"], ...]`)
		}
		c.Say("user", *turn[0])
		c.Say("assistant", *turn[1])
	}
	c.Say("user", string(ask))
	c.Say("assistant", string(output))
	if err := c.SetTools(f["tools"]); err != nil {
		return nil, err
	}
	return c, c.SetNames(f["chat_template_kwargs"])
}
