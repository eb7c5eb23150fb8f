package schedule

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/internal/suggest"
)

// Request describes the schedule wanted.
type Request struct {
	Ranks      int
	Micros     int     // micro-batches of the step, over all directions
	Chunks     int     // stages per rank and direction; 0: the schedule's own number
	Slices     int     // slices per sequence; 0: the schedule's own number
	DepthFirst int     // breadth-first only: groups of micro-batches that run one after the other; 0: 1
	Costs      Costs   // for schedules that depend on times (chimera, zb-auto, zb-v, Search)
	Cap        float64 // activations allowed per rank, in chunks of one micro-batch, for zb-auto, zb-v and Search; 0: the schedule's own limit
}

// maxSlots bounds stages x micro-batches x slices, so that absurd requests are refused at
// once.
const maxSlots = 1 << 21

// generator is a named schedule: its requirements and the function that generates it.
type generator struct {
	name     string
	chunks   [2]int                      // least and most chunks per rank
	usual    int                         // default number of chunks, if not the least
	slices   [2]int                      // least and most slices
	mirror   bool                        // two directions, so the ranks and micro-batches must be even in number
	needs    func(q Request) *UsageError // further requirements; nil: none
	generate func(q Request) (*Schedule, error)
	summary  string
}

const many = 1 << 20

// catalogue returns all named schedules in the order in which they are shown.
func catalogue() []generator {
	one := [2]int{1, 1}
	return []generator{
		{name: "gpipe", chunks: one, slices: one, generate: gpipe, summary: "all forwards, then all backwards"},
		{name: "1f1b", chunks: one, slices: one, generate: oneForwardOneBackward, summary: "a backward as soon as there is one"},
		{name: "interleaved", chunks: [2]int{1, many}, usual: 2, slices: one, needs: wholeRounds, generate: interleaved,
			summary: "1f1b over several chunks per rank"},
		{name: "breadth-first", chunks: [2]int{1, many}, usual: 2, slices: [2]int{1, many}, needs: wholeGroups, generate: breadthFirst,
			summary: "layered gradient accumulation on a modular placement"},
		{name: "seq1f1b", chunks: [2]int{1, many}, slices: [2]int{1, many}, needs: wholeRounds, generate: seqOneForwardOneBackward,
			summary: "1f1b over slices of the sequence"},
		{name: "chimera", chunks: one, slices: one, mirror: true, generate: chimera, summary: "two 1f1b pipelines in opposite directions"},
		{name: "bitpipe", chunks: [2]int{2, 2}, slices: one, mirror: true, needs: bitpipeRounds, generate: bitpipe,
			summary: "two V-shaped pipelines in opposite directions"},
		{name: "zb-h1", chunks: one, slices: one, generate: zeroBubbleH1, summary: "1f1b with weight gradients in the gaps, same memory"},
		{name: "zb-h2", chunks: one, slices: one, generate: zeroBubbleH2, summary: "no bubble for twice the memory"},
		{name: "zb-auto", chunks: one, slices: one, generate: zeroBubbleAuto, summary: "zero-bubble heuristic for given times and memory"},
		{name: "zb-v", chunks: [2]int{2, 2}, slices: one, generate: zeroBubbleV, summary: "no bubble at the memory of 1f1b, V placement"},
		{name: "dualpipe", chunks: one, slices: one, mirror: true, needs: twoPerRank, generate: dualpipe,
			summary: "forward of one direction overlapped with backward of the other"},
		{name: "dualpipev", chunks: [2]int{2, 2}, slices: one, needs: twoPerRank, generate: dualpipeV,
			summary: "dualpipe folded to a V: one copy of the weights"},
	}
}

// Names returns the names that Generate accepts.
func Names() []string {
	var names []string
	for _, g := range catalogue() {
		names = append(names, g.name)
	}
	return names
}

// Generate returns the named schedule for q. It returns a *UsageError if there is no such
// name, or if the schedule cannot meet the request.
func Generate(name string, q Request) (*Schedule, error) {
	for _, g := range catalogue() {
		if g.name == name {
			return g.make(q)
		}
	}
	return nil, &UsageError{fmt.Sprintf("schedule %q", name), "no such schedule", hint(name, Names())}
}

// make completes and checks the request and generates the schedule.
func (g *generator) make(q Request) (*Schedule, error) {
	q, err := g.complete(q)
	if err != nil {
		return nil, err
	}
	s, err := g.generate(q)
	if err != nil {
		return nil, err
	}
	s.Name = g.name
	return s, nil
}

// complete replaces zeros by the schedule's defaults and refuses requests that the
// schedule cannot meet.
func (g *generator) complete(q Request) (Request, error) {
	if q.Chunks == 0 {
		q.Chunks = max(g.chunks[0], g.usual)
	}
	if q.Slices == 0 {
		q.Slices = 1
		if g.name == "seq1f1b" {
			q.Slices = 2
		}
	}
	if q.DepthFirst == 0 {
		q.DepthFirst = 1
	}
	if err := checkShape(q); err != nil {
		return q, err
	}
	asked := fmt.Sprintf("%s with %s", g.name, describe(q))
	refuse := func(why, hint string) (Request, error) { return q, &UsageError{asked, why, hint} }
	switch {
	case q.Chunks < g.chunks[0] || q.Chunks > g.chunks[1]:
		return refuse(fmt.Sprintf("%s has %s per rank", g.name, plural(g.chunks[0], "chunk")),
			"leave --chunks out, or take interleaved or breadth-first")
	case q.Slices > g.slices[1]:
		return refuse(g.name+" does not split sequences", "leave --splits out, or take seq1f1b or breadth-first")
	case q.DepthFirst != 1 && g.name != "breadth-first":
		return refuse(g.name+" has no depth-first factor", "leave it out, or take breadth-first")
	case g.mirror && q.Ranks%2 != 0:
		return refuse("two directions need an even number of ranks", fmt.Sprintf("take %d ranks", q.Ranks+1))
	case g.mirror && q.Micros%2 != 0:
		return refuse("each direction runs half of the micro-batches, so their number must be even", fmt.Sprintf("take %d micro-batches", q.Micros+1))
	}
	if g.needs != nil {
		if e := g.needs(q); e != nil {
			e.What = asked
			return q, e
		}
	}
	return q, nil
}

// checkShape refuses numbers that no schedule can have. Defaults must be filled in.
func checkShape(q Request) error {
	for _, n := range []struct {
		name  string
		value int
	}{
		{"ranks", q.Ranks}, {"micro-batches", q.Micros}, {"chunks", q.Chunks}, {"splits", q.Slices}, {"depth-first factor", q.DepthFirst},
	} {
		if n.value < 1 {
			return &UsageError{fmt.Sprintf("%d %s", n.value, n.name), "a pipeline needs at least one", "give a number >= 1"}
		}
		if n.value > maxSlots {
			return &UsageError{fmt.Sprintf("%d %s", n.value, n.name), fmt.Sprintf("at most %d are supported", maxSlots), "give a smaller number"}
		}
	}
	slots := 1
	for _, n := range []int{q.Ranks, q.Micros, q.Chunks, q.Slices} {
		if slots > maxSlots/n {
			return &UsageError{describe(q), fmt.Sprintf("there would be more than %d passes of a stage (ranks x micro-batches x chunks x splits)", maxSlots), "take fewer micro-batches or splits"}
		}
		slots *= n
	}
	if !(q.Cap >= 0) {
		return &UsageError{fmt.Sprintf("memory cap %g", q.Cap), "a cap is a positive number of chunk activations", "leave it out or give a number > 0"}
	}
	return nil
}

func describe(q Request) string {
	text := plural(q.Ranks, "rank") + ", " + plural(q.Micros, "micro-batch")
	if q.Chunks > 1 {
		text += ", " + plural(q.Chunks, "chunk")
	}
	if q.Slices > 1 {
		text += ", " + plural(q.Slices, "split")
	}
	return text
}

func plural(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "ch"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// hint suggests the entry of names closest to a misspelt name, or all of them.
func hint(name string, names []string) string {
	if near := suggest.Nearest(name, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "take one of " + strings.Join(names, ", ")
}
