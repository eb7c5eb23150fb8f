package search

// recorder tells what a search does, and counts what it has done and how much more it may do. It decides no plan:
// only when a search stops looking.
type recorder struct {
	progress  func(string) // for the user; may be nil
	sketch    bool
	evaluated int // candidates lowered
	lowered   int // instructions of plans without pipelines
	began     int // lowered before the present stage
	allowed   int // bound on lowered in the present stage
	pipelined int // instructions of pipelines
}

// enough is some seconds' work, in instructions lowered. Once there is a plan, the enumeration may take half of that,
// and each stage that improves what it found a quarter. What a stage leaves is not given to others: gains come early
// in each.
const enough = 3_000_000

// say tells the user what is being done.
func (r *recorder) say(text string) {
	if r.progress != nil {
		r.progress(text)
	}
}

// begin allows that many more instructions to be lowered, whatever earlier stages have left; in a sketch, a part of them.
func (r *recorder) begin(instructions int) {
	const sketched = 3
	if r.sketch {
		instructions /= sketched
	}
	r.began, r.allowed = r.lowered, r.lowered+instructions
}

// overdue reports whether so many times as much has been lowered.
func (r *recorder) overdue(times int) bool { return r.lowered > r.began+times*(r.allowed-r.began) }

// exhausted reports whether as much has been lowered as the present stage may lower.
func (r *recorder) exhausted() bool { return r.lowered > r.allowed }
