package api

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/athanor-llm/athanor/generation"
	"github.com/athanor-llm/athanor/internal/jsonkeys"
)

// neutral are keys for what is not built, with the values that ask for nothing; nil: all do. null always does.
var neutral = map[string][]string{
	"n": {"1"}, "best_of": {"1"}, "suffix": {`""`}, "logit_bias": {"{}"}, "response_format": {`{"type":"text"}`},
	"tool_choice": {`"auto"`, `"none"`}, "parallel_tool_calls": nil, "user": nil, "metadata": nil, "store": {"false"}, "service_tier": nil,
}

// asked has what both kinds of requests ask for.
type asked struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions *struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	generation.Settings
}

// completionRequest is the body of a request for completions.
type completionRequest struct {
	asked
	Prompt   json.RawMessage `json:"prompt"`
	Echo     bool            `json:"echo"`
	Logprobs *int            `json:"logprobs"`
}

// chatRequest is the body of a request for an answer.
type chatRequest struct {
	asked
	Messages  json.RawMessage `json:"messages"`
	Tools     json.RawMessage `json:"tools"`
	Names     json.RawMessage `json:"chat_template_kwargs"`
	Tokens    *int            `json:"max_completion_tokens"`
	Logprobs  bool            `json:"logprobs"`
	Likeliest int             `json:"top_logprobs"`
}

// decode reads a body.
func decode(w http.ResponseWriter, r *http.Request, to any) error {
	if kind := r.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return &fault{http.StatusUnsupportedMediaType, fmt.Sprintf("the body is %.60q; hint: send JSON, with the header Content-Type: application/json", kind)}
		}
	}
	long := &fault{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d MiB; hint: send less at once", maxBody>>20)}
	if r.ContentLength > maxBody {
		_, _ = io.CopyN(io.Discard, r.Body, 4*maxBody) // most clients look for an answer only when all is sent
		return long
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return long
	case err != nil:
		return bad("reading the body: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return bad("the body is not a JSON object: %w", err)
	}
	if fields == nil {
		return bad("the body is null; hint: send a JSON object")
	}
	if err := jsonkeys.Unique(text); err != nil {
		return bad("%w", err)
	}
	for name, values := range neutral {
		raw, ok := fields[name]
		if !ok {
			continue
		}
		var plain bytes.Buffer
		if err := json.Compact(&plain, raw); err != nil {
			return bad("%s: %w", name, err)
		}
		if s := plain.String(); values != nil && s != "null" && !slices.Contains(values, s) {
			return bad("%s is %.60s, but this is not built; hint: leave it out", name, s)
		}
		delete(fields, name)
	}
	rest, err := json.Marshal(fields)
	if err == nil {
		err = generation.DecodeStrictly(rest, to)
	}
	if err != nil {
		return bad("%w", err)
	}
	return nil
}

// begin returns a request without a prompt.
func (s *Server) begin(a *asked) (*generation.Request, error) {
	if err := s.named(a.Model); err != nil {
		return nil, err
	}
	r, err := a.Request(&s.Defaults)
	if err != nil {
		return nil, bad("%w", err)
	}
	if a.Seed == nil {
		r.Sampling.Seed = mathrand.Uint64()
	}
	r.Logprobs = -1
	return r, nil
}

// completions reads a request to continue texts.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) (*answer, []*generation.Request, error) {
	var body completionRequest
	if err := decode(w, r, &body); err != nil {
		return nil, nil, err
	}
	first, err := s.begin(&body.asked)
	if err != nil {
		return nil, nil, err
	}
	if n := body.Logprobs; n != nil {
		if *n < 0 || *n > maxTop {
			return nil, nil, bad("logprobs is %d; hint: use 0 to %d", *n, maxTop)
		}
		first.Logprobs = *n
	}
	first.Echo = body.Echo
	list, texts, err := s.prompts(first, body.Prompt)
	if err != nil {
		return nil, nil, err
	}
	return s.answer("cmpl-", &body.asked, &completionForm{echo: body.Echo, prompts: texts}), list, nil
}

// prompts returns a request for each prompt: a text, a list of texts, a list of tokens, or a list of lists of tokens. texts are the
// prompts as text.
func (s *Server) prompts(first *generation.Request, raw json.RawMessage) (list []*generation.Request, texts []string, err error) {
	many, ok := decoded[generation.Texts](raw)
	var lists [][]int32
	if !ok {
		var ids []int32
		if ids, ok = decoded[[]int32](raw); ok {
			lists = [][]int32{ids}
		} else {
			lists, ok = decoded[[][]int32](raw)
		}
	}
	if !ok {
		return nil, nil, bad("prompt is missing, or is neither a text nor a list of texts, of tokens or of lists of tokens")
	}
	if n := len(many) + len(lists); n == 0 || n > maxPrompts {
		return nil, nil, bad("there are %d prompts; hint: send 1 to %d", n, maxPrompts)
	}
	for _, text := range many {
		r := *first
		if err := s.prompter.Text(&r, text); err != nil {
			return nil, nil, bad("%w", err)
		}
		list, texts = append(list, &r), append(texts, text)
	}
	for _, ids := range lists {
		r := *first
		r.Prompt = ids
		var text []byte
		for _, id := range ids {
			text = append(text, s.prompter.Tokenizer.Token(id)...)
		}
		list, texts = append(list, &r), append(texts, string(text))
	}
	return list, texts, nil
}

// decoded returns the list that a text of JSON is, if it is one of this type.
func decoded[L ~[]E, E any](raw []byte) (L, bool) {
	var list L
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, false
	}
	return list, true
}

// chat reads a request to answer a conversation.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) (*answer, []*generation.Request, error) {
	var body chatRequest
	if err := decode(w, r, &body); err != nil {
		return nil, nil, err
	}
	if body.MaxTokens == nil {
		body.MaxTokens = body.Tokens
	}
	unbounded := body.MaxTokens == nil
	first, err := s.begin(&body.asked)
	switch {
	case err != nil:
		return nil, nil, err
	case body.Messages == nil:
		return nil, nil, bad(`messages are missing; hint: send [{"role": "user", "content": "..."}]`)
	case body.Likeliest < 0 || body.Likeliest > maxTop || body.Likeliest > 0 && !body.Logprobs:
		return nil, nil, bad("top_logprobs is %d; hint: use 0 to %d, with logprobs: true", body.Likeliest, maxTop)
	case body.Logprobs:
		first.Logprobs = body.Likeliest
	}
	if err := s.prompter.Chat(first, body.Messages, body.Tools, body.Names); err != nil {
		return nil, nil, bad("%w", err)
	}
	if unbounded {
		first.Tokens = max(1, s.batch.Context()-len(first.Prompt))
	}
	return s.answer("chatcmpl-", &body.asked, chatForm{}), []*generation.Request{first}, nil
}

// newID returns the name of an answer.
func newID(prefix string) string {
	var b [12]byte
	rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// usage counts tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func (u *usage) add(j *job) {
	u.Prompt += len(j.request.Prompt)
	u.Completion += j.result.Added
	u.Total = u.Prompt + u.Completion
}

// likeliestByText returns a list of tokens as older clients expect it: by their text.
func likeliestByText(list []generation.Ranked, text func(int32) string) map[string]float64 {
	byText := map[string]float64{}
	for _, t := range list {
		if s := text(t.ID); byText[s] == 0 { // of tokens with one text, the likeliest
			byText[s] = bounded(t.Logprob)
		}
	}
	return byText
}

// bounded returns a number that JSON has: -Inf becomes the least that clients expect.
func bounded(logprob float64) float64 { return math.Max(logprob, -9999) }

// printable returns a token's text; if it is not whole characters, its bytes as OpenAI writes them.
func printable(token []byte) string {
	if utf8.Valid(token) {
		return string(token)
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, c := range token {
		fmt.Fprintf(&b, `\x%02x`, c)
	}
	return b.String()
}

// now is the time that answers bear.
func now() int64 { return time.Now().Unix() }
