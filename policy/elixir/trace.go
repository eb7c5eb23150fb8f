package elixir

import (
	"cmp"
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// Param is a trainable parameter.
type Param struct {
	Name  string
	Elems int64
	// Private parameters belong to two operators or more (a tied head). They are
	// chunks by themselves in blocks by themselves, and never give way.
	Private bool
}

// Trace is the order in which one training step uses its parameters. It is a
// list, not a set: every process packs the same chunks.
type Trace struct {
	Params []Param // in order of first use
	Steps  [][]int // per operator that takes parameters, forward or backward: which, ascending
	Spans  [][2]int
	// Spans are the checkpointed regions: first step, last step + 1.
}

// Record lists the steps of a graph, as a tracer of operator calls sees them:
// forward, then backward in reverse; a checkpointed layer, of which there are so
// many from the first, runs forward once more before its backward. GPT-2 with L
// layers, all of them checkpointed, has 6L+4 operators with parameters
// (of the layer: two norms, four products; two embeddings, the last norm and
// the head), which makes 18L+8 steps.
func Record(g *graph.Graph, checkpointed int) *Trace {
	r := recorder{g: g, index: map[int]int{}}
	list := make([][][]int, len(g.Segments))
	for s := range g.Segments {
		list[s] = r.operators(&g.Segments[s])
	}
	again := func(s int) bool { return s > 0 && s <= checkpointed }
	var backward [][]int
	for s := len(list) - 1; s >= 0; s-- {
		if again(s) {
			backward = append(backward, list[s]...)
		}
		for _, step := range slices.Backward(list[s]) {
			backward = append(backward, step)
		}
	}
	t := &r.trace
	for s := range list {
		if again(s) {
			t.Spans = append(t.Spans, [2]int{len(t.Steps), len(t.Steps) + len(list[s])})
		}
		t.Steps = append(t.Steps, list[s]...)
	}
	t.Steps = append(t.Steps, backward...)
	return t
}

// recorder numbers parameters by first use.
type recorder struct {
	g     *graph.Graph
	index map[int]int // parameter of the graph to parameter of the trace
	trace Trace
}

// operators are the parameters of each forward operator of a segment that has
// any. Inside an operator they are ordered by name: bias before weight. An
// embedding with positions is two look-ups.
func (r *recorder) operators(seg *graph.Segment) [][]int {
	var list [][]int
	for i := range seg.Forward {
		n := &seg.Forward[i]
		var params []int
		for _, u := range n.Args {
			if u.Value >= 0 && r.g.Values[u.Value].Kind == graph.ParamValue {
				params = append(params, r.g.ParamOf(u.Value))
			}
		}
		switch {
		case len(params) == 0:
		case n.Op == graph.Embed:
			for _, p := range params {
				list = append(list, r.number([]int{p}))
			}
		default:
			slices.SortFunc(params, func(a, b int) int { return cmp.Compare(r.g.Params[a].Name, r.g.Params[b].Name) })
			list = append(list, r.number(params))
		}
	}
	return list
}

// number maps the parameters of one operator to the trace's.
func (r *recorder) number(params []int) []int {
	var list []int
	for _, p := range params {
		k, seen := r.index[p]
		if seen {
			r.trace.Params[k].Private = true
		} else {
			k = len(r.trace.Params)
			r.index[p] = k
			r.trace.Params = append(r.trace.Params, Param{Name: r.g.Params[p].Name, Elems: r.g.Params[p].Elems()})
		}
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// Largest is the most elements that the operators of one checkpointed region
// take together.
func (t *Trace) Largest() (most int64) {
	for _, s := range t.Spans {
		var sum int64
		for _, step := range t.Steps[s[0]:s[1]] {
			sum += t.elems(step)
		}
		most = max(most, sum)
	}
	return most
}

// Hook is the most elements that one operator takes: the size of the area in
// which the original lays them out for it.
func (t *Trace) Hook() (most int64) {
	for _, step := range t.Steps {
		most = max(most, t.elems(step))
	}
	return most
}

func (t *Trace) elems(step []int) (sum int64) {
	for _, p := range step {
		sum += t.Params[p].Elems
	}
	return sum
}

// private is the size of the blocks that never give way.
func (t *Trace) private() (sum int64) {
	for _, p := range t.Params {
		if p.Private {
			sum += p.Elems
		}
	}
	return sum
}

// public: number, sum and largest of the parameters that share blocks.
func (t *Trace) public() (n int, sum, largest int64) {
	for _, p := range t.Params {
		if !p.Private {
			n, sum, largest = n+1, sum+p.Elems, max(largest, p.Elems)
		}
	}
	return n, sum, largest
}
