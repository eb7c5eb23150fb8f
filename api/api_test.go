package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/generation"
	"github.com/athanor-llm/athanor/internal/samples"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client speaks to a server.
type client struct {
	t    *testing.T
	base string
	key  string
}

// started starts a server, which ends with the test, in good order.
func started(t *testing.T, sequences, waiting int, key string) *client {
	t.Helper()
	f, err := folder.Open(samples.ModelFolder(t))
	check(t, err)
	b, err := generation.Open(t.Context(), f, generation.Options{Context: 250, Sequences: sequences, Device: "cpu"})
	check(t, err)
	return serving(t, f, b, waiting, key)
}

// serving starts a server of a model that is open.
func serving(t *testing.T, f *folder.Folder, b *generation.Batch, waiting int, key string) *client {
	t.Helper()
	p, err := generation.NewPrompter(f)
	check(t, err)
	s := New(b, p, Options{Model: "tiny", Key: key, Waiting: waiting, Defaults: generation.Request{Tokens: 16, Sampling: generation.Sampling{Temperature: 1}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		check(t, errors.Join(<-ended, b.Close(), f.Close()))
	})
	return &client{t, "http://" + l.Addr().String(), key}
}

// TestMetrics: Prometheus' page counts what was asked and generated, and needs the key as everything does.
func TestMetrics(t *testing.T) {
	c := started(t, 2, 2, "")
	answer, err := c.post(t.Context(), "/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":5}`)
	check(t, err)
	var said struct {
		Usage struct {
			Completion int `json:"completion_tokens"`
		}
	}
	check(t, json.NewDecoder(answer.Body).Decode(&said))
	answer.Body.Close()
	get := func() string {
		t.Helper()
		r, err := http.Get(c.base + "/metrics")
		check(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		check(t, err)
		return string(text)
	}
	r, err := http.Get(c.base + "/v1/absent")
	check(t, err)
	r.Body.Close()
	text := get()
	for _, want := range []string{`athanor_api_requests_total{code="404"} 1`, `athanor_api_requests_total{code="200"} 1`,
		`athanor_api_texts_total{outcome="ended"} 1`, fmt.Sprintf("athanor_api_generated_tokens_total %d\n", said.Usage.Completion), "athanor_api_texts 0", "athanor_api_sequences 2", `athanor_api_memory_bytes{tier="device"} `} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
	locked := started(t, 1, 1, "k")
	if r, err = http.Get(locked.base + "/metrics"); err != nil || r.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the key: %v, %v", r.StatusCode, err)
	}
	r.Body.Close()
}

// post sends a request. The caller closes the body.
func (c *client) post(ctx context.Context, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", c.base+path, strings.NewReader(body))
	check(c.t, err)
	r.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	return http.DefaultClient.Do(r)
}

// said is an answer.
type said struct {
	Object  string
	Choices []struct {
		Text     string
		Index    int
		Message  struct{ Role, Content string }
		Delta    struct{ Role, Content string }
		Reason   string `json:"finish_reason"`
		Logprobs struct {
			Tokens  []string
			Chances []*float64           `json:"token_logprobs"`
			Top     []map[string]float64 `json:"top_logprobs"`
			Offset  []int                `json:"text_offset"`
			Content []struct {
				Token   string
				Logprob float64
				Top     []struct{ Logprob float64 } `json:"top_logprobs"`
			}
		}
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	Error struct{ Message, Type string }
}

// ask sends a request whose answer must have this code.
func (c *client) ask(path, body string, code int) (a said) {
	c.t.Helper()
	r, err := c.post(c.t.Context(), path, body)
	check(c.t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	check(c.t, err)
	if r.StatusCode != code {
		c.t.Fatalf("%.200s: code %d, want %d: %s", body, r.StatusCode, code, text)
	}
	check(c.t, json.Unmarshal(text, &a))
	return a
}

// streamed sends a request and returns the events of its answer.
func (c *client) streamed(path, body string) (list []said) {
	c.t.Helper()
	r, err := c.post(c.t.Context(), path, body)
	check(c.t, err)
	defer r.Body.Close()
	if kind := r.Header.Get("Content-Type"); r.StatusCode != http.StatusOK || kind != "text/event-stream" {
		c.t.Fatalf("code %d, %s", r.StatusCode, kind)
	}
	done := false
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		text, ok := strings.CutPrefix(s.Text(), "data: ")
		switch {
		case s.Text() == "":
		case text == "[DONE]":
			done = true
		case !ok || done:
			c.t.Fatalf("%q", s.Text())
		default:
			var a said
			check(c.t, json.Unmarshal([]byte(text), &a))
			list = append(list, a)
		}
	}
	if !done {
		c.t.Fatal("the stream does not end")
	}
	return list
}

// TestCompletions: texts, several at once, are what the seed says, streamed or not; with echo, the prompt is part of them.
func TestCompletions(t *testing.T) {
	c := started(t, 3, 20, "")
	const settings = `"model": "tiny", "max_tokens": 30, "seed": 5, "top_p": 0.9`
	whole := c.ask("/v1/completions", `{"prompt": ["gold", "the quick brown"], `+settings+`}`, 200)
	if len(whole.Choices) != 2 || whole.Object != "text_completion" || whole.Choices[1].Index != 1 || whole.Usage.Total != whole.Usage.Prompt+whole.Usage.Completion || whole.Usage.Completion != 60 {
		t.Fatalf("%+v", whole)
	}
	alone := c.ask("/v1/completions", `{"prompt": "the quick brown", "echo": true, `+settings+`}`, 200)
	if alone.Choices[0].Text != "the quick brown"+whole.Choices[1].Text || alone.Choices[0].Reason != "length" {
		t.Errorf("%+v, with another prompt beside it %+v", alone, whole)
	}
	var texts [2]string
	var last said
	for _, part := range c.streamed("/v1/completions", `{"stream": true, "stream_options": {"include_usage": true}, "prompt": ["gold", "the quick brown"], `+settings+`}`) {
		for _, choice := range part.Choices {
			texts[choice.Index] += choice.Text
		}
		last = part
	}
	if texts != [2]string{whole.Choices[0].Text, whole.Choices[1].Text} || len(last.Choices) != 0 || last.Usage != whole.Usage {
		t.Errorf("streamed %q, %+v, want %+v", texts, last, whole)
	}
	ids := c.ask("/v1/completions", `{"prompt": [[1, 2, 3], [4]], "model": "tiny", "max_tokens": 1, "user": "me", "n": 1, "logit_bias": null}`, 200)
	if len(ids.Choices) != 2 || ids.Usage.Prompt != 4 {
		t.Errorf("%+v", ids)
	}
}

// TestScores: with echo and logprobs, a text is scored: its tokens' log-probabilities are those with which they are generated. The sum
// over all next tokens of their probabilities is 1.
func TestScores(t *testing.T) {
	c := started(t, 4, 20, "")
	made := c.ask("/v1/completions", `{"model": "tiny", "prompt": "gold is", "max_tokens": 20, "temperature": 0, "logprobs": 2}`, 200).Choices[0]
	if len(made.Logprobs.Tokens) != 20 || len(made.Logprobs.Top[3]) == 0 {
		t.Fatalf("%+v", made)
	}
	r, err := json.Marshal(map[string]any{"model": "tiny", "prompt": "gold is", "max_tokens": 5, "echo": true, "logprobs": 1, "temperature": 0})
	check(t, err)
	scored := c.ask("/v1/completions", string(r), 200).Choices[0]
	n := len(scored.Logprobs.Tokens)
	if scored.Logprobs.Chances[0] != nil || scored.Logprobs.Offset[0] != 0 || n != len(scored.Logprobs.Chances) || n != len(scored.Logprobs.Top) || strings.Join(scored.Logprobs.Tokens[:n-5], "") != "gold is" {
		t.Fatalf("%+v", scored)
	}
	for i := range 5 {
		if got, want := *scored.Logprobs.Chances[n-5+i], *made.Logprobs.Chances[i]; got != want {
			t.Errorf("token %d: %v, want %v", i, got, want)
		}
	}
	answer := c.ask("/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "gold?"}], "max_tokens": 3, "temperature": 0, "logprobs": true, "top_logprobs": 20}`, 200)
	content := answer.Choices[0].Logprobs.Content
	if len(content) == 0 || len(content[0].Top) != 20 { // it may end early
		t.Fatalf("%+v", answer)
	}
	sum := 0.0
	for i, top := range content[0].Top {
		if sum += math.Exp(top.Logprob); i > 0 && top.Logprob > content[0].Top[i-1].Logprob {
			t.Error("the likeliest are not in order")
		}
	}
	if sum > 1+1e-9 {
		t.Errorf("20 tokens have a probability of %v", sum)
	}
}

// TestChat: answers are those of the model's template, streamed or not.
func TestChat(t *testing.T) {
	c := started(t, 2, 20, "")
	const body = `"model": "tiny", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "gold?"}], "max_completion_tokens": 40, "temperature": 0`
	whole := c.ask("/v1/chat/completions", `{`+body+`}`, 200)
	text := whole.Choices[0].Message.Content
	if whole.Object != "chat.completion" || whole.Choices[0].Message.Role != "assistant" || text == "" {
		t.Fatalf("%+v", whole)
	}
	same := c.ask("/v1/completions", `{"model": "tiny", "prompt": "<system>be brief<user>gold?<assistant>", "max_tokens": 40, "temperature": 0}`, 200)
	if same.Choices[0].Text != text {
		t.Errorf("%q, but %q for the template's text", text, same.Choices[0].Text)
	}
	streamed, list := "", c.streamed("/v1/chat/completions", `{"stream": true, `+body+`}`)
	for _, part := range list {
		streamed += part.Choices[0].Delta.Content
	}
	if end := list[len(list)-1].Choices[0]; streamed != text || list[0].Choices[0].Delta.Role != "assistant" || end.Reason != whole.Choices[0].Reason || len(list) < 5 || list[0].Object != "chat.completion.chunk" {
		t.Errorf("%q in %d parts, want %q", streamed, len(list), text)
	}
	unbounded := c.ask("/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "gold?"}], "temperature": 0}`, 200)
	if unbounded.Usage.Total < 200 && unbounded.Choices[0].Reason != "stop" {
		t.Errorf("%+v", unbounded.Usage)
	}
}

// TestRefused: what is malformed, too large, unknown or not built is refused with the code that OpenAI's API has for it, by
// name; and the server goes on.
func TestRefused(t *testing.T) {
	c := started(t, 1, 2, "")
	for _, r := range []struct {
		path, body, want string
		code             int
	}{
		{"/v1/completions", `{`, "JSON", 400},
		{"/v1/completions", `[]`, "JSON", 400},
		{"/v1/completions", `null`, "JSON", 400},
		{"/v1/completions", `{"model": "tiny"}`, "prompt", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": 3}`, "prompt", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": []}`, "0 prompts", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": [[]]}`, "no tokens", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": [300]}`, "vocabulary", 400},
		{"/v1/completions", `{"model": "huge", "prompt": "a"}`, `"tiny"`, 404},
		{"/v1/completions", `{"prompt": "a", "prompt": "b", "model": "tiny"}`, "twice", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "a", "n": 2}`, "n is 2", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "a", "suffix": "b"}`, "suffix", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "a", "colour": 1}`, `"colour"`, 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "a", "logprobs": 21}`, "logprobs", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "a", "max_tokens": -1}`, "max_tokens", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "a", "temperature": 1e9}`, "temperature", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "` + strings.Repeat("gold ", 900) + `"}`, "250", 400},
		{"/v1/completions", `{"model": "tiny", "prompt": "` + strings.Repeat("x", maxBody) + `"}`, "16 MiB", 413},
		{"/v1/completions", `{"model": "tiny", "prompt": ["a", "b", "c", "d"]}`, "at most 3", 400},
		{"/v1/chat/completions", `{"model": "tiny"}`, "messages", 400},
		{"/v1/chat/completions", `{"model": "tiny", "messages": []}`, "no messages", 400},
		{"/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user"}]}`, "content", 400},
		{"/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}}`, "response_format", 400},
		{"/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "top_logprobs": 3}`, "top_logprobs", 400},
		{"/v1/embeddings", `{}`, "/v1/embeddings is not built", 404},
	} {
		if a := c.ask(r.path, r.body, r.code); !strings.Contains(a.Error.Message, r.want) || a.Error.Type != "invalid_request_error" {
			t.Errorf("%.100s: %+v, want %q", r.body, a.Error, r.want)
		}
	}
	r, err := http.Post(c.base+"/v1/completions", "text/plain", strings.NewReader("{}"))
	check(t, err)
	if r.Body.Close(); r.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("code %d for text/plain", r.StatusCode)
	}
	c.ask("/v1/completions", `{"model": "tiny", "prompt": "a", "max_tokens": 2}`, 200)
}

// TestKey: with a key, only those who send it are served; whether the server is well, everybody may ask.
func TestKey(t *testing.T) {
	c := started(t, 1, 1, "secret")
	get := func(path, key string, code int) []byte {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", c.base+path, nil)
		check(t, err)
		r.Header.Set("Authorization", key)
		a, err := http.DefaultClient.Do(r)
		check(t, err)
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if check(t, err); a.StatusCode != code {
			t.Errorf("%s with %q: code %d, want %d", path, key, a.StatusCode, code)
		}
		return text
	}
	get("/health", "", 200)
	for _, key := range []string{"", "Bearer", "Bearer other", "Bearer secret2", "Basic secret"} {
		get("/v1/models", key, 401)
	}
	if list := get("/v1/models", "Bearer secret", 200); !bytes.Contains(list, []byte(`"id":"tiny"`)) {
		t.Errorf("%s", list)
	}
	get("/v1/models/tiny", "Bearer secret", 200)
	get("/v1/models/other", "Bearer secret", 404)
	c.ask("/v1/completions", `{"model": "tiny", "prompt": "a", "max_tokens": 2}`, 200)
	c.key = "wrong"
	c.ask("/v1/completions", `{"model": "tiny", "prompt": "a", "max_tokens": 2}`, 401)
}

// TestBounded: more texts than there is room for are refused with 429, and as soon as clients leave there is room again.
func TestBounded(t *testing.T) {
	c := started(t, 1, 1, "")
	ctx, leave := context.WithCancel(t.Context())
	const long = `{"model": "tiny", "prompt": "gold", "max_tokens": 240, "stream": true, "temperature": 0}`
	var bodies []io.Closer
	for range 2 { // one has the slot, one waits; that the first has begun, its stream says
		r, err := c.post(ctx, "/v1/completions", strings.Replace(long, "gold", strings.Repeat("gold ", 2), 1))
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, r.Body)
		if len(bodies) == 1 {
			bufio.NewReader(r.Body).ReadString('\n')
			go func() { // the second is answered only when the first has ended
				r, err := c.post(ctx, "/v1/completions", long)
				if err == nil {
					r.Body.Close()
				}
			}()
			break
		}
	}
	refused := false
	for deadline := time.Now().Add(20 * time.Second); !refused && time.Now().Before(deadline); {
		r, err := c.post(t.Context(), "/v1/completions", `{"model": "tiny", "prompt": ["a", "b"], "max_tokens": 1}`)
		check(t, err)
		refused = r.StatusCode == http.StatusTooManyRequests && r.Header.Get("Retry-After") != ""
		r.Body.Close()
	}
	if !refused {
		t.Error("nothing was refused")
	}
	leave()
	for _, b := range bodies {
		b.Close()
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		r, err := c.post(t.Context(), "/v1/completions", `{"model": "tiny", "prompt": ["a", "b"], "max_tokens": 1}`)
		check(t, err)
		r.Body.Close()
		if r.StatusCode == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the room of those who left stays taken")
		}
	}
}

// TestLargerThanDevice: a model whose weights do not fit the device answers as one that fits, a single client too.
func TestLargerThanDevice(t *testing.T) {
	all := started(t, 4, 8, "")
	f, err := folder.Open(samples.ModelFolder(t))
	check(t, err)
	b, err := generation.OpenServed(t.Context(), f, generation.Options{Context: 250, Sequences: 4, Device: "cpu", Limit: 150_000}, func(string) {})
	check(t, err)
	if m := b.Footprint(); m.Streamed == 0 || m.Device > 150_000 {
		t.Errorf("%+v", m)
	}
	c := serving(t, f, b, 8, "")
	body := func(i int) string {
		return fmt.Sprintf(`{"model": "tiny", "prompt": "gold %d", "max_tokens": %d, "seed": %d}`, i, 5+3*i, i)
	}
	want := all.ask("/v1/completions", body(0), 200).Choices[0].Text
	if got := c.ask("/v1/completions", body(0), 200).Choices[0].Text; got != want {
		t.Errorf("alone %q, want %q", got, want)
	}
	var clients sync.WaitGroup
	for i := range 6 {
		want := all.ask("/v1/completions", body(i), 200).Choices[0].Text
		clients.Go(func() {
			if got := c.ask("/v1/completions", body(i), 200).Choices[0].Text; got != want {
				t.Errorf("request %d: %q, want %q", i, got, want)
			}
		})
	}
	clients.Wait()
}

// TestCrowd: many clients at once, some of whom leave or send nonsense, all get what they would get alone, or the refusal that is
// meant.
func TestCrowd(t *testing.T) {
	c := started(t, 5, 40, "")
	body := func(i int) string {
		return fmt.Sprintf(`{"model": "tiny", "prompt": "gold %d", "max_tokens": %d, "seed": %d}`, i, 1+7*i%40, i)
	}
	var want [12]string
	for i := range want {
		want[i] = c.ask("/v1/completions", body(i), 200).Choices[0].Text
	}
	var all sync.WaitGroup
	for client := range 24 {
		all.Go(func() {
			for n := range 6 {
				i := (client + 5*n) % len(want)
				switch (client + n) % 6 {
				case 0:
					c.ask("/v1/completions", `{"nonsense": `, 400)
				case 1:
					ctx, leave := context.WithTimeout(t.Context(), time.Duration(n)*time.Millisecond)
					if r, err := c.post(ctx, "/v1/completions", body(i)); err == nil {
						r.Body.Close()
					}
					leave()
				default:
					if got := c.ask("/v1/completions", body(i), 200).Choices[0].Text; got != want[i] {
						t.Errorf("request %d: %q, alone %q", i, got, want[i])
					}
				}
			}
		})
	}
	all.Wait()
	r, err := http.Get(c.base + "/metrics")
	check(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	check(t, err)
	if !strings.Contains(string(text), `code="200"`) || strings.Contains(string(text), `code="5`) {
		t.Errorf("clients that leave are no errors of the server: %s", text)
	}
}
