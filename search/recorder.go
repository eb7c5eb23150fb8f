package search

// recorder tells what a search does, and counts what it has done and how much more it may do. It decides no plan:
// only when a search stops looking.
type recorder struct {
	progress  func(string) // for the user; may be nil
	evaluated int          // candidates lowered
	lowered   int          // instructions of plans without pipelines
	allowed   int          // bound on lowered in the present stage
	pipelined int          // instructions of pipelines
}

// enough is about half a minute's work, in instructions lowered. Once there is a plan, the enumeration may take
// half of that, and each stage that improves what it found a quarter, plus what earlier stages have left.
const enough = 6_000_000

// say tells the user what is being done.
func (r *recorder) say(text string) {
	if r.progress != nil {
		r.progress(text)
	}
}

// begin allows that many more instructions to be lowered, whatever earlier stages have left.
func (r *recorder) begin(instructions int) { r.allowed = r.lowered + instructions }

// allow allows that many more instructions to be lowered than earlier stages have left.
func (r *recorder) allow(instructions int) { r.allowed = max(r.allowed, r.lowered) + instructions }

// exhausted reports whether as much has been lowered as the present stage may lower.
func (r *recorder) exhausted() bool { return r.lowered > r.allowed }
