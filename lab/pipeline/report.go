package pipeline

import "github.com/athanor-llm/athanor/schedule"

// Report is the JSON output of the command line about one schedule. Times have the unit of
// the costs; lists have one entry per rank, except Cuts.
type Report struct {
	Name         string    `json:"name"`
	Ranks        int       `json:"ranks"`
	Microbatches int       `json:"microbatches"`
	Chunks       int       `json:"chunks"`
	Splits       int       `json:"splits"`
	Makespan     float64   `json:"makespan"`
	Ideal        float64   `json:"ideal"`        // busy time of the busiest rank
	Bubble       float64   `json:"bubble"`       // idle time of the worst rank over ideal
	BubbleTime   float64   `json:"bubble_time"`  // idle time of the worst rank
	BubbleRate   float64   `json:"bubble_rate"`  // 1 - ideal/span
	Alone        float64   `json:"bubble_alone"` // makespan/ideal - 1: of a step by itself, its start and end included
	Spans        []float64 `json:"spans"`
	Peaks        []float64 `json:"peaks"`       // activations, in chunks of one whole micro-batch
	PeakStages   []float64 `json:"peak_stages"` // the same in stages of 1/ranks of the model
	WeightCopies int       `json:"weight_copies"`
	Messages     int       `json:"messages"`
	Gathers      []int     `json:"gathers,omitempty"`
	Reduces      []int     `json:"reduces,omitempty"`
	LowerBound   float64   `json:"lower_bound,omitempty"` // of searched schedules: Found.LowerBound
	Optimal      *bool     `json:"optimal,omitempty"`     // of searched schedules: Found.Optimal
	Cuts         []int     `json:"cuts,omitempty"`        // tokens of each slice, if the model is known
	Orders       []string  `json:"orders,omitempty"`      // in the schedule's notation
}

// NewReport reports on a schedule and its timeline under costs c. orders says whether to
// include the orders.
func NewReport(s *schedule.Schedule, t *schedule.Timeline, c schedule.Costs, orders bool) Report {
	r := Report{
		Name: s.Name, Ranks: s.Ranks, Microbatches: s.Micros, Chunks: s.Chunks, Splits: s.Slices,
		Makespan: t.Makespan, Ideal: t.Ideal, Bubble: t.Bubble(), BubbleTime: t.Idle(), BubbleRate: t.Rate(), Alone: t.Makespan/t.Ideal - 1,
		Spans: t.Spans, Peaks: t.Peaks, PeakStages: make([]float64, s.Ranks),
		WeightCopies: s.WeightCopies(), Messages: t.Messages,
	}
	for i, peak := range t.Peaks {
		r.PeakStages[i] = peak / float64(s.Chunks)
	}
	if c.Buffers > 0 {
		r.Gathers, r.Reduces = t.Gathers, t.Reduces
	}
	if orders {
		r.Orders = s.Text()
	}
	return r
}
