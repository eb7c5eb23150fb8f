package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/schedule"
)

// Which ranks hold what. A step runs replicas of one pipeline, which differ only in
// their sequences. The ranks of a pipeline hold stages, which are runs of segments.
// Without a pipeline every rank is a replica by itself and holds all segments.
//
//	rank       0  1  2  3     Ranks 4, pipeline of 2: replicas {0,1} and {2,3}
//	stages     a  b  a  b     ranks 0 and 2 are the group of a's chunks
//
// Ranks that share matrices (Plan.Tensor) are adjacent. Each has other slabs of them, so it is a replica of the ranks with the same
// slabs only, but for parameters of whose gradients neighbours have terms (graph.Terms):
//
//	rank       0  1  2  3     Ranks 4, Tensor 2
//	slabs      0  1  0  1     ranks 0 and 2 are a group
//
// In a pipeline the ranks with the same slabs hold its stages, one behind the other:
//
//	rank       0  1  2  3     Ranks 4, Tensor 2, pipeline of 2: ranks 0 and 2 are one, 1 and 3 the other
//	stages     a  a  b  b
//
// Ranks that share sequences (Plan.Sequence) are replicas, too. In a pipeline those with the same part of sequences hold its stages: all ranks
// that compute with a sequence are adjacent at each of its positions.
//
// A chunk's group is all ranks that compute with it: the replicas, both directions of a
// bidirectional schedule, and both ends of a tied embedding. Gradients are reduced over
// the group.

type Topology struct {
	Ranks, Depth int                // of the step, of one pipeline with the same slabs
	Slabs        int                // ranks that share each matrix
	Width        int                // ranks that compute with each sequence at each position of a pipeline
	Schedule     *schedule.Schedule // nil: every rank holds all segments
	Clock        *schedule.Timeline // of the schedule, in units of one pass
	First        []int              // per stage its first segment, and the end
	Groups       [][]int            // per chunk, ascending, of the rank's slabs
	// ordered groups run their work in the same order on all ranks, so they may reduce
	// and gather in mid-step.
	Ordered []bool
}

// NewTopology returns the topology as a rank sees it.
func NewTopology(g *graph.Graph, pl *Plan, rank int) (*Topology, error) {
	t := &Topology{Ranks: pl.Ranks, Depth: 1, Slabs: pl.Sharers(), Width: pl.PerSequence(), First: []int{0, len(g.Segments)}}
	if p := pl.Pipeline; p != nil {
		s, err := p.generate(pl.MicroBatches)
		if err != nil {
			return nil, err
		}
		t.Schedule, t.Depth, t.First = s, p.Ranks, append(slices.Clone(p.Stages), len(g.Segments))
		if t.Clock, err = splitOverlapped(s).Simulate(schedule.DefaultCosts()); err != nil {
			return nil, err
		}
	}
	users := segmentsOf(g)
	for _, c := range pl.Chunks {
		slabs := g.Terms(c.First)
		group, ordered := t.group(users[c.First], rank%t.Slabs/slabs*slabs, slabs)
		t.Groups, t.Ordered = append(t.Groups, group), append(t.Ordered, ordered)
	}
	return t, nil
}

// generate builds the schedule for the given number of micro-batches.
func (p *Pipeline) generate(micros int) (*schedule.Schedule, error) {
	if p.Ranks < 1 || len(p.Stages)%p.Ranks != 0 {
		return nil, fmt.Errorf("a pipeline of %d stages cannot be divided evenly among %d ranks; hint: give each rank the same number of stages", len(p.Stages), p.Ranks)
	}
	s, err := schedule.Generate(p.Schedule, schedule.Request{Ranks: p.Ranks, Micros: micros, Chunks: len(p.Stages) / p.Ranks, Slices: p.Slices, Costs: schedule.DefaultCosts()})
	if err == nil && p.Order != nil {
		s, err = s.Parse(p.Order)
	}
	if err == nil {
		err = s.Check()
	}
	return s, err
}

// splitOverlapped splits the overlapped pairs of a schedule: a rank runs the two one after the
// other.
func splitOverlapped(s *schedule.Schedule) *schedule.Schedule {
	copied := *s
	copied.Orders = make([][]schedule.Unit, len(s.Orders))
	for r, order := range s.Orders {
		copied.Orders[r] = slices.Clone(order)
		for i := range order {
			copied.Orders[r][i].Joined = false
		}
	}
	return &copied
}

// ends returns when the forward or backward of a unit's micro-batch on another stage
// ends.
func (t *Topology) Ends(w schedule.Unit, stage int, back bool) float64 {
	place := t.Schedule.Home[w.Dir][stage]
	i := slices.IndexFunc(t.Schedule.Orders[place], func(u schedule.Unit) bool {
		return u.Dir == w.Dir && u.Stage == stage && u.Micro == w.Micro && u.Slice == w.Slice &&
			(!back && u.Pass == schedule.F || back && (u.Pass == schedule.B || u.Pass == schedule.Bx))
	})
	return t.Clock.End[place][i]
}

// Place returns a rank's position in its pipeline.
func (t *Topology) Place(rank int) int { return rank / t.Width % t.Depth }

// At returns the rank at another position of a rank's pipeline.
func (t *Topology) At(place, rank int) int { return rank + (place-t.Place(rank))*t.Width }

// Pipeline numbers the pipeline of a rank; those with other slabs or parts of the same sequences have the same number.
func (t *Topology) Pipeline(rank int) int { return rank / t.Width / t.Depth }

// group lists the ranks that hold any of the segments, with a given slab or several from it on.
func (t *Topology) group(segments []int, slab, slabs int) (ranks []int, ordered bool) {
	var places []int // in a pipeline
	for _, s := range segments {
		for _, p := range t.Places(s) {
			if !slices.Contains(places, p) {
				places = append(places, p)
			}
		}
	}
	for first := 0; first < t.Ranks/t.Width; first += t.Depth {
		for _, p := range places {
			for at := (first + p) * t.Width; at < (first+p+1)*t.Width; at += t.Slabs { // a part of the sequences
				for k := range slabs {
					ranks = append(ranks, at+slab+k)
				}
			}
		}
	}
	slices.Sort(ranks)
	return ranks, len(places) == 1
}

// places returns the positions in a pipeline that hold a segment: one, or one per
// direction.
func (t *Topology) Places(segment int) []int {
	if t.Schedule == nil {
		return []int{0}
	}
	var list []int
	for _, home := range t.Schedule.Home {
		list = append(list, home[t.Stage(segment)])
	}
	return list
}

// stage returns the stage that a segment belongs to.
func (t *Topology) Stage(segment int) int {
	k, found := slices.BinarySearch(t.First, segment)
	if !found {
		k--
	}
	return k
}

// sliceRows returns the tokens of each slice of a sequence.
func (p *Pipeline) RowsPerSlice(seq int) []int {
	switch {
	case len(p.SliceRows) > 0:
		return p.SliceRows
	case p.Slices == 1:
		return []int{seq}
	}
	unit := graph.SliceUnit(seq)
	var list []int
	for q, at := 0, 0; q < p.Slices; q++ {
		end := seq * (q + 1) / p.Slices / unit * unit
		if q == p.Slices-1 {
			end = seq
		}
		list = append(list, end-at)
		at = end
	}
	return list
}

// validateSlices checks how sequences are cut.
func (pl *Plan) validateSlices(g *graph.Graph) error {
	p, unit, at := pl.Pipeline, graph.SliceUnit(g.Seq), 0
	if p.Slices == 1 && p.SliceRows == nil {
		return nil
	}
	list := p.RowsPerSlice(g.Seq)
	for q, n := range list {
		if at += n; n < 1 || q < len(list)-1 && at%unit != 0 {
			return fmt.Errorf("plan: a sequence cannot be cut into slices of %v tokens; hint: give each slice at least one token, and cut only at multiples of %d", list, unit)
		}
	}
	switch {
	case at != g.Seq || len(list) != p.Slices:
		return fmt.Errorf("plan: slice_rows has %d slices of %d tokens in all; hint: give %d slices of %d tokens in all", len(list), at, p.Slices, g.Seq)
	case g.DType != graph.F32:
		return fmt.Errorf("plan: slices of sequences in %v: gradients of keys would be rounded after every slice; hint: use precision fp32, or a schedule without slices", g.DType)
	case model.Remembers(g.Model):
		return fmt.Errorf("plan: sequences of %s cannot be cut into slices, since states of its layers go from token to token; hint: use a schedule without slices", g.Model.Family)
	case g.Preference() > 0:
		return errors.New("plan: sequences cannot be cut into slices with preference, whose loss is computed over whole sequences; hint: use a schedule without slices")
	case g.Model.Balance > 0:
		return fmt.Errorf("plan: sequences cannot be cut into slices with expert_balance %v, which is computed over whole sequences; hint: use a schedule without slices, or expert_balance 0", g.Model.Balance)
	case pl.MicroBatch != 1:
		return fmt.Errorf("plan: slices need micro-batches of one sequence, but micro_batch is %d; hint: set micro_batch to 1", pl.MicroBatch)
	}
	take := SlicesTake(g)
	for l, keep := range pl.Activations {
		if !slices.Contains(take, keep.String()) {
			return fmt.Errorf("plan: layer %d has activations %q, but slices read the keys and values of earlier slices; hint: use %s", l, keep, strings.Join(take, " or "))
		}
	}
	return nil
}

// Replicas returns the number of pipelines, each with all parameters or slabs of them. They share the global batch of MicroBatch *
// MicroBatches * Replicas sequences or parts of sequences, or as many times that as there are ranks with other slabs.
func (pl *Plan) Replicas() int {
	return max(pl.Ranks/pl.Depth(), 1)
}

// Depth returns the number of ranks of a pipeline with the same slabs; 1: there is none.
func (pl *Plan) Depth() int {
	if pl.Pipeline == nil {
		return 1
	}
	return max(pl.Pipeline.Ranks, 1)
}

// Parts returns the number of ranks that share each sequence.
func (pl *Plan) Parts() int { return max(pl.Sequence, 1) }

// Sharers returns the number of ranks that share each matrix.
func (pl *Plan) Sharers() int { return max(pl.Tensor, 1) }

// PerSequence returns the number of ranks that compute with each sequence, because they share it or the matrices.
func (pl *Plan) PerSequence() int { return pl.Parts() * pl.Sharers() }

// Sequences returns the number of sequences of a step, on all ranks.
func (pl *Plan) Sequences() int {
	return pl.MicroBatch * pl.MicroBatches * pl.Replicas() / pl.PerSequence()
}

// Partners returns the number of ranks that send each other messages: ranks 0 to Partners()-1, and so on. Others do the
// same with other sequences and shards.
func (pl *Plan) Partners() int {
	return pl.Depth() * pl.PerSequence()
}

// Ordered reports for each chunk whether its ranks run their work in the same order, so
// that its gradients or weights can be sharded. They do not under a bidirectional
// schedule, nor for an embedding tied across stages.
func (pl *Plan) Ordered(g *graph.Graph) ([]bool, error) {
	t, err := NewTopology(g, pl, 0)
	if err != nil {
		return nil, err
	}
	return t.Ordered, nil
}

// validateRanks checks how the work is divided over ranks.
func (pl *Plan) validateRanks(g *graph.Graph) error {
	const most = 1 << 12
	if pl.Ranks < 1 || pl.Ranks > most {
		return fmt.Errorf("plan: ranks is %d; hint: use a number from 1 to %d", pl.Ranks, most)
	}
	for i, c := range pl.Chunks {
		if !slices.Contains(Shardings(), c.Shard) {
			return fmt.Errorf("plan: chunk %d: unknown shard %q; hint: use one of %s, or leave it out", i, c.Shard, strings.Join(Shardings()[1:], ", "))
		}
	}
	p := pl.Pipeline
	switch n := pl.Parts(); {
	case pl.Sequence < 0 || pl.Ranks%n != 0:
		return fmt.Errorf("plan: %d ranks cannot be divided into groups of %d that share a sequence; hint: set sequence to a divisor of ranks", pl.Ranks, pl.Sequence)
	case n > 1 && p != nil && p.Slices != 1:
		return errors.New("plan: ranks cannot share sequences that are cut into slices; hint: use a schedule without slices, or leave out sequence")
	}
	switch n := pl.Sharers(); {
	case pl.Tensor < 0 || pl.Ranks%n != 0:
		return fmt.Errorf("plan: %d ranks cannot be divided into groups of %d that share matrices; hint: set tensor to a divisor of ranks", pl.Ranks, pl.Tensor)
	case pl.Ranks%pl.PerSequence() != 0:
		return fmt.Errorf("plan: %d ranks cannot be divided into groups of %d times %d that share sequences and matrices; hint: use a sequence and a tensor whose product divides ranks", pl.Ranks, pl.Parts(), n)
	}
	if p == nil {
		return nil
	}
	switch {
	case model.Crosses(g.Model):
		return fmt.Errorf("plan: layers of %s read more of those below than what the ranks of a pipeline send; hint: leave out pipeline", g.Model.Family)
	case p.Ranks < 1 || pl.Ranks%(p.Ranks*pl.PerSequence()) != 0:
		return fmt.Errorf("plan: pipelines of %d positions, each with %d ranks to a sequence or matrix, cannot be formed from %d ranks; hint: set ranks to a multiple of pipeline.ranks times sequence times tensor", p.Ranks, pl.PerSequence(), pl.Ranks)
	case pl.Group != 1:
		return fmt.Errorf("plan: group is %d, but in a pipeline the schedule gives the order of work; hint: set group to 1", pl.Group)
	case p.Slices < 1 || p.Slices > g.Seq:
		return fmt.Errorf("plan: a sequence of %[2]d tokens cannot be cut into %[1]d slices; hint: use at least 1 slice, and at most one per token", p.Slices, g.Seq)
	case len(p.Stages) == 0 || p.Stages[0] != 0 || len(p.Stages) > len(g.Segments):
		return fmt.Errorf("plan: pipeline stages %v are not possible; hint: begin the first with segment 0, and give no more stages than the model's %d segments", p.Stages, len(g.Segments))
	}
	for i := 1; i < len(p.Stages); i++ {
		if p.Stages[i] <= p.Stages[i-1] || p.Stages[i] >= len(g.Segments) {
			return fmt.Errorf("plan: pipeline stages %v are not possible; hint: give the first segment of each stage, in ascending order and below %d", p.Stages, len(g.Segments))
		}
	}
	if err := pl.validateSlices(g); err != nil {
		return err
	}
	t, err := NewTopology(g, pl, 0)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	for i, c := range pl.Chunks {
		if !t.Ordered[i] && (c.Shard == "grads" || c.Shard == "weights" || c.Grads != device.DeviceTier) {
			return fmt.Errorf("plan: chunk %d is used by ranks %v in different orders; hint: keep its gradients on the device, with shard %q or %q", i, t.Groups[i], "", "state")
		}
	}
	return nil
}
