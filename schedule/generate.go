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
	Costs      Costs   // for schedules that depend on times (chimera, zb-auto, zb-v)
	Cap        float64 // activations allowed per rank, in chunks of one micro-batch, for zb-auto and zb-v; 0: the schedule's own limit
}

// maxSlots bounds stages x micro-batches x slices, so that absurd requests are refused at
// once.
const maxSlots = 1 << 21

// A Generator is a named schedule: its requirements and how to generate it.
type Generator struct {
	Name     string
	Chunks   [2]int                      // least and most chunks per rank
	usual    int                         // default number of chunks, if not the least
	Slices   [2]int                      // least and most slices
	Mirror   bool                        // two directions, so the ranks and micro-batches must be even in number
	needs    func(q Request) *UsageError // further requirements; nil: none
	generate func(q Request) (*Schedule, error)
	Summary  string
}

// Many is an upper bound of Chunks and Slices that leaves the choice to the request.
const Many = 1 << 20

// Catalogue returns all named schedules in the order in which they are shown.
func Catalogue() []Generator {
	one := [2]int{1, 1}
	return []Generator{
		{Name: "gpipe", Chunks: one, Slices: one, generate: gpipe, Summary: "all forwards, then all backwards"},
		{Name: "1f1b", Chunks: one, Slices: one, generate: oneForwardOneBackward, Summary: "a backward as soon as there is one"},
		{Name: "interleaved", Chunks: [2]int{1, Many}, usual: 2, Slices: one, needs: wholeRounds, generate: interleaved,
			Summary: "1f1b over several chunks per rank"},
		{Name: "breadth-first", Chunks: [2]int{1, Many}, usual: 2, Slices: [2]int{1, Many}, needs: wholeGroups, generate: breadthFirst,
			Summary: "layered gradient accumulation on a modular placement"},
		{Name: "seq1f1b", Chunks: [2]int{1, Many}, Slices: [2]int{1, Many}, needs: wholeRounds, generate: seqOneForwardOneBackward,
			Summary: "1f1b over slices of the sequence"},
		{Name: "chimera", Chunks: one, Slices: one, Mirror: true, generate: chimera, Summary: "two 1f1b pipelines in opposite directions"},
		{Name: "bitpipe", Chunks: [2]int{2, 2}, Slices: one, Mirror: true, needs: bitpipeRounds, generate: bitpipe,
			Summary: "two V-shaped pipelines in opposite directions"},
		{Name: "zb-h1", Chunks: one, Slices: one, generate: zeroBubbleH1, Summary: "1f1b with weight gradients in the gaps, same memory"},
		{Name: "zb-h2", Chunks: one, Slices: one, generate: zeroBubbleH2, Summary: "no bubble for twice the memory"},
		{Name: "zb-auto", Chunks: one, Slices: one, generate: zeroBubbleAuto, Summary: "zero-bubble heuristic for given times and memory"},
		{Name: "zb-v", Chunks: [2]int{2, 2}, Slices: one, generate: zeroBubbleV, Summary: "no bubble at the memory of 1f1b, V placement"},
		{Name: "dualpipe", Chunks: one, Slices: one, Mirror: true, needs: twoPerRank, generate: dualpipe,
			Summary: "forward of one direction overlapped with backward of the other"},
		{Name: "dualpipev", Chunks: [2]int{2, 2}, Slices: one, needs: twoPerRank, generate: dualpipeV,
			Summary: "dualpipe folded to a V: one copy of the weights"},
	}
}

// Names returns the names that Generate accepts.
func Names() []string {
	var names []string
	for _, g := range Catalogue() {
		names = append(names, g.Name)
	}
	return names
}

// Generate returns the named schedule for q. It returns a *UsageError if there is no such
// name, or if the schedule cannot meet the request.
func Generate(name string, q Request) (*Schedule, error) {
	for _, g := range Catalogue() {
		if g.Name == name {
			return g.Make(q)
		}
	}
	return nil, &UsageError{fmt.Sprintf("schedule %q", name), "no such schedule", hint(name, Names())}
}

// Make completes and checks the request and generates the schedule.
func (g *Generator) Make(q Request) (*Schedule, error) {
	q, err := g.Complete(q)
	if err != nil {
		return nil, err
	}
	s, err := g.generate(q)
	if err != nil {
		return nil, err
	}
	s.Name = g.Name
	return s, nil
}

// Complete replaces zeros by the schedule's defaults and refuses requests that the
// schedule cannot meet.
func (g *Generator) Complete(q Request) (Request, error) {
	if q.Chunks == 0 {
		q.Chunks = max(g.Chunks[0], g.usual)
	}
	if q.Slices == 0 {
		q.Slices = 1
		if g.Name == "seq1f1b" {
			q.Slices = 2
		}
	}
	if q.DepthFirst == 0 {
		q.DepthFirst = 1
	}
	if err := q.Check(); err != nil {
		return q, err
	}
	asked := fmt.Sprintf("%s with %s", g.Name, q.Shape())
	refuse := func(why, hint string) (Request, error) { return q, &UsageError{asked, why, hint} }
	switch {
	case q.Chunks < g.Chunks[0] || q.Chunks > g.Chunks[1]:
		return refuse(fmt.Sprintf("%s has %s per rank", g.Name, plural(g.Chunks[0], "chunk")),
			"leave --chunks out, or take interleaved or breadth-first")
	case q.Slices > g.Slices[1]:
		return refuse(g.Name+" does not split sequences", "leave --splits out, or take seq1f1b or breadth-first")
	case q.DepthFirst != 1 && g.Name != "breadth-first":
		return refuse(g.Name+" has no depth-first factor", "leave it out, or take breadth-first")
	case g.Mirror && q.Ranks%2 != 0:
		return refuse("two directions need an even number of ranks", fmt.Sprintf("take %d ranks", q.Ranks+1))
	case g.Mirror && q.Micros%2 != 0:
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

// Check refuses numbers that no schedule can have. Defaults must be filled in.
func (q Request) Check() error {
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
			return &UsageError{q.Shape(), fmt.Sprintf("there would be more than %d passes of a stage (ranks x micro-batches x chunks x splits)", maxSlots), "take fewer micro-batches or splits"}
		}
		slots *= n
	}
	if !(q.Cap >= 0) {
		return &UsageError{fmt.Sprintf("memory cap %g", q.Cap), "a cap is a positive number of chunk activations", "leave it out or give a number > 0"}
	}
	return nil
}

// Shape returns the numbers asked for in words.
func (q Request) Shape() string {
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
