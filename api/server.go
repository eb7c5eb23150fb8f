package api

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/generation"
)

// Options say what a server accepts.
type Options struct {
	Model    string // its name in requests and answers
	Key      string // clients must send it as a bearer token; "": none is needed
	Waiting  int    // texts that may wait while all slots are taken
	Defaults generation.Request
}

// Bounds of what one request, and a connection, may take.
const (
	maxBody    = 16 << 20 // bytes
	largeBody  = 256 << 10
	maxLarge   = 4 // bodies longer than largeBody, or of unknown length, are read and understood so many at a time
	maxPrompts = 128
	maxTop     = 20 // likeliest tokens for each token

	headerTime = 10 * time.Second // to send headers, also between requests
	bodyTime   = time.Minute      // to send a body
	writeTime  = time.Minute      // to read what was written
	graceTime  = 10 * time.Second // to end requests when the server is told to stop
)

// Server answers requests.
type Server struct {
	Options
	batch    *generation.Batch
	prompter *generation.Prompter
	began    int64
	queue    queue
	large    chan struct{} // holds an element for each large body that is being read
	counts   counts
	mux      *http.ServeMux
}

// New returns a server for a model that is open.
func New(b *generation.Batch, p *generation.Prompter, o Options) *Server {
	s := &Server{Options: o, batch: b, prompter: p, began: time.Now().Unix(), large: make(chan struct{}, maxLarge), mux: http.NewServeMux()}
	s.queue.begin(b.Sequences() + o.Waiting)
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	s.mux.HandleFunc("GET /v1/models", s.guarded(s.models))
	s.mux.HandleFunc("GET /v1/models/{name...}", s.guarded(s.oneModel))
	s.mux.HandleFunc("GET /metrics", s.guarded(s.metrics))
	s.mux.HandleFunc("POST /v1/completions", s.guarded(s.answering(s.completions)))
	s.mux.HandleFunc("POST /v1/chat/completions", s.guarded(s.answering(s.chat)))
	s.mux.HandleFunc("/", s.guarded(func(_ http.ResponseWriter, r *http.Request) error {
		return &fault{http.StatusNotFound, fmt.Sprintf("%s %s is not built; hint: use /v1/completions, /v1/chat/completions, /v1/models, /metrics or /health", r.Method, r.URL.Path)}
	}))
	return s
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Serve serves until the context ends, then lets requests that are under way end for a short time. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{Handler: s, ReadHeaderTimeout: headerTime, ReadTimeout: bodyTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	ended := make(chan error, 2)
	go func() { ended <- s.batch.Run(running, s.queue.requests) }()
	go func() { ended <- server.Serve(l) }()
	var err error
	left := 2
	select {
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(running, graceTime)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	case err = <-ended:
		left--
		server.Close()
	}
	stop()
	for range left {
		err = errors.Join(err, <-ended)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, http.ErrServerClosed) {
		return only(err)
	}
	return err
}

// only returns an error without those parts of it that say that the server was stopped.
func only(err error) error {
	parts, ok := err.(interface{ Unwrap() []error })
	if !ok {
		if errors.Is(err, context.Canceled) || errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	}
	var rest []error
	for _, e := range parts.Unwrap() {
		rest = append(rest, only(e))
	}
	return errors.Join(rest...)
}

// fault is an error that a client is told.
type fault struct {
	code int
	text string
}

func (f *fault) Error() string { return f.text }

// bad is what is wrong with a request.
func bad(format string, args ...any) error {
	return &fault{http.StatusBadRequest, fmt.Errorf(format, args...).Error()}
}

// guarded is a handler for those who have the key. Its error is the answer, unless an answer has begun.
func (s *Server) guarded(do func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if s.Key != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.Key)) != 1 {
			s.counts.answered(fail(w, &fault{http.StatusUnauthorized, "the key is missing or wrong; hint: send the header Authorization: Bearer KEY"}))
			return
		}
		switch err := do(w, r); {
		case err == nil:
			s.counts.answered(http.StatusOK)
		case r.Context().Err() != nil: // nobody reads the answer
			s.counts.answered(clientLeft)
		default:
			s.counts.answered(fail(w, err))
		}
	}
}

// clientLeft is what is counted where a client left before the answer, as nginx numbers it.
const clientLeft = 499

// fail answers with an error, as OpenAI's API does, and returns the status.
func fail(w http.ResponseWriter, err error) int {
	code := http.StatusInternalServerError
	var f *fault
	switch {
	case errors.As(err, &f):
		code = f.code
	case errors.Is(err, context.Canceled): // the server is told to stop
		code = http.StatusServiceUnavailable
	}
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	reply(w, code, failure(err, code))
	return code
}

// failure is the JSON of an error.
func failure(err error, code int) any {
	kind := "invalid_request_error"
	switch {
	case code == http.StatusUnauthorized:
		kind = "authentication_error"
	case code == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case code >= http.StatusInternalServerError:
		kind = "server_error"
	}
	return map[string]any{"error": map[string]any{"message": err.Error(), "type": kind, "param": nil, "code": nil}}
}

// reply answers with JSON.
func reply(w http.ResponseWriter, code int, v any) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v)
}

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Owner   string `json:"owned_by"`
	Context int    `json:"max_model_len"` // tokens, as vLLM names it
}

func (s *Server) model() modelObject {
	return modelObject{s.Model, "model", s.began, "athanor", s.batch.Context()}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": []modelObject{s.model()}})
	return nil
}

func (s *Server) oneModel(w http.ResponseWriter, r *http.Request) error {
	if err := s.named(r.PathValue("name")); err != nil {
		return err
	}
	reply(w, http.StatusOK, s.model())
	return nil
}

// named returns an error unless this is the model's name.
func (s *Server) named(name string) error {
	if name != s.Model {
		return &fault{http.StatusNotFound, fmt.Sprintf("the model %.100q is not here; hint: this server has %q", name, s.Model)}
	}
	return nil
}
