package search

import (
	"fmt"
	"strings"
	"time"
)

// recorder tells what a search does, and counts what it has done and how much more it may do. It decides no plan:
// only when a search stops looking.
type recorder struct {
	progress  func(string) // for the user; may be nil
	sketch    bool
	enough    <-chan struct{}  // see Request.Enough
	early     func(*Candidate) // see Request.Early; nil: nobody asks, or it was told
	evaluated int              // candidates lowered
	lowered   int              // instructions of plans without pipelines
	began     int              // lowered before the present stage
	allowed   int              // bound on lowered in the present stage
	later     int              // what later stages may lower
	start     time.Time
	pipelined int // instructions of pipelines
}

// enough is some seconds' work, in instructions lowered. Once there is a plan, the enumeration may take half of that,
// and each stage that improves what it found a quarter; more where activations are refined after updates are deferred. What a
// stage leaves is not given to others: gains come early in each.
const enough = 3_000_000

// What stages may lower.
const (
	toEnumerate = enough / 2
	toImprove   = enough / 4
	toRefine    = 4 * toImprove
)

// planning is what the user is told while nothing else is done than looking for plans.
const planning = "planning"

// say tells the user what is being done and, beside words about planning, how good the best plan so far is.
func (r *recorder) say(text string, found shortlist) {
	best := found.fastest()
	if r.early != nil && best != nil && time.Since(r.start) > time.Second {
		r.early(best)
		r.early = nil
	}
	if r.progress == nil {
		return
	}
	if best != nil {
		if what, more := strings.CutPrefix(text, planning+": "); more {
			text = fmt.Sprintf("%s: %.4g s a step so far, %s%s", planning, best.Seconds(), r.left(time.Since(r.start)), what)
		}
	}
	r.progress(text)
}

// left says for how long the search goes on at most, from what it has done in some time; "" while that is too little to
// tell. Stages seldom use all that they may.
func (r *recorder) left(since time.Duration) string {
	const soonest = time.Second
	done := r.lowered + r.pipelined
	if since < soonest || done == 0 {
		return ""
	}
	more := since * time.Duration(max(r.allowed-r.lowered, 0)+r.later) / time.Duration(done)
	return fmt.Sprintf("at most %v more, ", max(more, soonest).Round(time.Second))
}

// begin allows that many more instructions to be lowered, whatever earlier stages have left, and later ones as many as that; in
// a sketch, a part of them.
func (r *recorder) begin(instructions, later int) {
	const sketched = 3
	if r.sketch {
		instructions /= sketched
		later /= sketched
	}
	r.began, r.allowed, r.later = r.lowered, r.lowered+instructions, later
}

// overdue reports whether so many times as much has been lowered.
func (r *recorder) overdue(times int) bool { return r.lowered > r.began+times*(r.allowed-r.began) }

// spent reports whether a part of what the present stage may lower has been, such as a third of it.
func (r *recorder) spent(part int) bool {
	return r.lowered > r.began+(r.allowed-r.began)/part || r.cut()
}

// exhausted reports whether as much has been lowered as the present stage may lower, or the user has had enough.
func (r *recorder) exhausted() bool { return r.lowered > r.allowed || r.cut() }

// cut reports whether the user has had enough.
func (r *recorder) cut() bool {
	select {
	case <-r.enough:
		return true
	default:
		return false
	}
}
