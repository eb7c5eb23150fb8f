package api

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/athanor-llm/athanor/generation"
	"github.com/athanor-llm/athanor/internal/prometheus"
)

// counts are what a server has done since it began.
type counts struct {
	mutex     sync.Mutex
	answers   map[int]int // by status
	ended     atomic.Int64
	failed    atomic.Int64
	generated atomic.Int64 // tokens
}

// answered counts an answer.
func (c *counts) answered(code int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.answers == nil {
		c.answers = map[int]int{}
	}
	c.answers[code]++
}

// done counts a text.
func (c *counts) done(result *generation.Result, err error) {
	if err != nil {
		c.failed.Add(1)
		return
	}
	c.ended.Add(1)
	c.generated.Add(int64(result.Added))
}

// What Prometheus gets: base units, few labels.
var (
	requestsTotal = prometheus.Metric{Name: "athanor_api_requests_total", Kind: prometheus.Counter, Help: "Requests by the status of their answers."}
	textsTotal    = prometheus.Metric{Name: "athanor_api_texts_total", Kind: prometheus.Counter, Help: "Texts that are done, by outcome."}
	tokensTotal   = prometheus.Metric{Name: "athanor_api_generated_tokens_total", Kind: prometheus.Counter, Help: "Tokens that were generated."}
	textsNow      = prometheus.Metric{Name: "athanor_api_texts", Kind: prometheus.Gauge, Help: "Texts under way or waiting."}
	slots         = prometheus.Metric{Name: "athanor_api_sequences", Kind: prometheus.Gauge, Help: "Texts that can be under way at once."}
	memory        = prometheus.Metric{Name: "athanor_api_memory_bytes", Kind: prometheus.Gauge, Help: "Memory of weights, keys and values, by tier."}
)

// metrics answers with the server's numbers.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) error {
	label := func(name, value string) prometheus.Label { return prometheus.Label{Name: name, Value: value} }
	var p prometheus.Page
	s.counts.mutex.Lock()
	for _, code := range slices.Sorted(maps.Keys(s.counts.answers)) {
		p.Add(requestsTotal, float64(s.counts.answers[code]), label("code", strconv.Itoa(code)))
	}
	s.counts.mutex.Unlock()
	p.Add(textsTotal, float64(s.counts.ended.Load()), label("outcome", "ended"))
	p.Add(textsTotal, float64(s.counts.failed.Load()), label("outcome", "failed"))
	p.Add(tokensTotal, float64(s.counts.generated.Load()))
	p.Add(textsNow, float64(s.queue.taken()))
	p.Add(slots, float64(s.batch.Sequences()))
	m := s.batch.Footprint()
	p.Add(memory, float64(m.Device), label("tier", "device"))
	p.Add(memory, float64(m.Host), label("tier", "host"))
	var text bytes.Buffer
	if _, err := p.WriteTo(&text); err != nil {
		return err
	}
	w.Header().Set("Content-Type", prometheus.ContentType)
	_, _ = w.Write(text.Bytes()) // what goes wrong is that nobody reads it
	return nil
}
