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
	// Private parameters belong to several operators (a tied head). Each has its
	// own chunk in its own block, which is never evicted.
	Private bool
}

// Trace is the order in which one training step uses its parameters. Its order is
// fixed, so every process packs the same chunks.
type Trace struct {
	Params []Param // in order of first use
	Steps  [][]int // per forward or backward operator with parameters: their indices, ascending
	Spans  [][2]int
	// Spans are the checkpointed regions: first step, last step + 1.
}

// Record returns the trace of a graph, as a tracer of operator calls would see it:
// forward, then backward in reverse. The given number of first layers is checkpointed:
// they run forward again before their backward. GPT-2 with L layers has 6L+4 operators with
// parameters (per layer two norms and four products; two embeddings, the last norm and
// the head), hence 18L+8 steps if all are checkpointed.
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

// operators returns the parameters of each forward operator with parameters in a
// segment. Within an operator they are ordered by name: bias before weight. An embedding
// with positions counts as two look-ups, and products joined into one here as several.
func (r *recorder) operators(seg *graph.Segment) [][]int {
	var list [][]int
	for i := range seg.Forward {
		n := &seg.Forward[i]
		var parts [][]int
		for _, u := range n.Args {
			if u.Value < 0 || r.g.Values[u.Value].Kind != graph.ParamValue {
				continue
			}
			first := r.g.ParamOf(u.Value)
			for k := range r.g.Values[u.Value].Params {
				part := k
				if n.Op == graph.Embed {
					part = len(parts)
				}
				if part == len(parts) {
					parts = append(parts, nil)
				}
				parts[part] = append(parts[part], first+k)
			}
		}
		for _, params := range parts {
			slices.SortFunc(params, func(a, b int) int { return cmp.Compare(r.g.Params[a].Name, r.g.Params[b].Name) })
			list = append(list, r.number(params))
		}
	}
	return list
}

// number maps the parameters of one operator to the trace's indices, adding new
// ones.
func (r *recorder) number(params []int) []int {
	var list []int
	for _, p := range params {
		k, seen := r.index[p]
		if seen {
			r.trace.Params[k].Private = true
		} else {
			k = len(r.trace.Params)
			r.index[p] = k
			r.trace.Params = append(r.trace.Params, Param{Name: r.g.Params[p].Name, Elems: r.g.Stored(p).Elems()})
		}
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

// Largest returns the most elements that the operators of one checkpointed region
// use together.
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

// Hook returns the most elements that one operator uses: the size of the area in
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

// private returns the elements of the private parameters, whose blocks are never
// evicted.
func (t *Trace) private() (sum int64) {
	for _, p := range t.Params {
		if p.Private {
			sum += p.Elems
		}
	}
	return sum
}

// public returns the number, total and largest size of the parameters that share
// blocks.
func (t *Trace) public() (n int, sum, largest int64) {
	for _, p := range t.Params {
		if !p.Private {
			n, sum, largest = n+1, sum+p.Elems, max(largest, p.Elems)
		}
	}
	return n, sum, largest
}
