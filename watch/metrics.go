package watch

import (
	"bytes"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/internal/prometheus"
)

// exported are the columns that Prometheus gets, by the run's name as the label run: base units, few labels.
var exported = []struct {
	column string
	prometheus.Metric
}{
	{"step", prometheus.Metric{Name: "athanor_steps_total", Kind: prometheus.Counter, Help: "Optimizer steps done."}},
	{"tokens", prometheus.Metric{Name: "athanor_tokens_total", Kind: prometheus.Counter, Help: "Tokens trained on."}},
	{"loss", prometheus.Metric{Name: "athanor_loss", Kind: prometheus.Gauge, Help: "Loss of the latest step, in nats per token."}},
	{"val_loss", prometheus.Metric{Name: "athanor_validation_loss", Kind: prometheus.Gauge, Help: "Loss of the latest validation, in nats per token."}},
	{"learning_rate", prometheus.Metric{Name: "athanor_learning_rate", Kind: prometheus.Gauge, Help: "Learning rate of the latest step."}},
	{"grad_norm", prometheus.Metric{Name: "athanor_gradient_norm", Kind: prometheus.Gauge, Help: "Norm of the gradient before clipping."}},
	{"step_seconds", prometheus.Metric{Name: "athanor_step_seconds", Kind: prometheus.Gauge, Help: "Time of the latest step."}},
	{"predicted_step_seconds", prometheus.Metric{Name: "athanor_predicted_step_seconds", Kind: prometheus.Gauge, Help: "Time of a step by the plan."}},
	{"tokens_per_second", prometheus.Metric{Name: "athanor_tokens_per_second", Kind: prometheus.Gauge, Help: "Tokens per second of the latest step."}},
	{"mfu", prometheus.Metric{Name: "athanor_mfu_ratio", Kind: prometheus.Gauge, Help: "Model FLOPs per second over the measured peak."}},
	{"skipped_steps", prometheus.Metric{Name: "athanor_skipped_steps_total", Kind: prometheus.Counter, Help: "Steps that changed no weight."}},
}

// Metrics that are no column.
var (
	plannedBytes = prometheus.Metric{Name: "athanor_planned_bytes", Kind: prometheus.Gauge, Help: "Memory that the plan takes, by rank and tier."}
	reachedBytes = prometheus.Metric{Name: "athanor_reached_bytes", Kind: prometheus.Gauge, Help: "Memory that a measured step took, by rank and tier."}
	alertFiring  = prometheus.Metric{Name: "athanor_alert_firing", Kind: prometheus.Gauge, Help: "Whether an alert that has fired does so now, by rule."}
	updated      = prometheus.Metric{Name: "athanor_updated_timestamp_seconds", Kind: prometheus.Gauge, Help: "When metrics.jsonl was written, since 1970."}
)

// metrics answers with the latest numbers of all runs.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) error {
	var p prometheus.Page
	s.set.mutex.Lock()
	for _, r := range s.set.runs {
		latest, name := r.history.latest(), prometheus.Label{Name: "run", Value: r.name}
		for _, e := range exported {
			if x, ok := latest[e.column]; ok {
				if math.IsInf(x, 0) { // null in the file: not finite
					x = math.NaN()
				}
				p.Add(e.Metric, x, name)
			}
		}
		for _, b := range r.bytes {
			rank, tier := prometheus.Label{Name: "rank", Value: strconv.Itoa(b.rank)}, prometheus.Label{Name: "tier", Value: b.tier}
			p.Add(plannedBytes, float64(b.planned), name, rank, tier)
			if b.reached > 0 {
				p.Add(reachedBytes, float64(b.reached), name, rank, tier)
			}
		}
		firing := r.history.firing()
		for _, rule := range slices.Sorted(maps.Keys(firing)) {
			on := 0.0
			if firing[rule] {
				on = 1
			}
			p.Add(alertFiring, on, name, prometheus.Label{Name: "rule", Value: rule})
		}
		if r.history.file != nil {
			p.Add(updated, float64(r.history.file.ModTime().UnixMilli())/1e3, name)
		}
	}
	s.set.mutex.Unlock()
	var text bytes.Buffer
	if _, err := p.WriteTo(&text); err != nil {
		return err
	}
	return send(w, prometheus.ContentType, text.Bytes())
}
