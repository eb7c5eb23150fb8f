package device

import (
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/graph"
)

// Calls between ranks: what every backend must reject, what calls that meet must agree
// on, and how many bytes they move.
//
// A collective meets the collectives of its group (Call.Peers): the k-th of a group on
// one rank meets the k-th on all others. A message meets the one call at its other end
// with its tag. No member begins before all have arrived, and none leaves before all
// have what they need.

// PeerError says that a call could not complete because another rank was lost. That
// rank reports its own error; here it is only text, so that nobody mistakes it for an
// error of this rank.
type PeerError struct {
	Rank int      // the lost rank
	Call int      // call at which it failed, as its device counts; -1: none
	Op   graph.Op // of that call
	Why  string
}

func (e *PeerError) Error() string {
	if e.Call < 0 {
		return fmt.Sprintf("peer lost: rank %d: %s", e.Rank, e.Why)
	}
	return fmt.Sprintf("peer lost: rank %d at its call %d (%s): %s", e.Rank, e.Call, e.Op, e.Why)
}

// streamOf is the stream of each operator between ranks: one per kind, so that calls of
// a kind are ordered.
var streamOf = map[graph.Op]Stream{
	graph.AllGather: Collective, graph.ReduceScatter: Collective, graph.AllReduce: Collective, graph.AllToAll: Collective,
	graph.Send: Send, graph.Recv: Recv,
}

// CheckBetween is the part of Check for calls between ranks that does not depend on the
// rank.
func CheckBetween(c *Call) error {
	if want := streamOf[c.Op]; c.Stream != want {
		return fmt.Errorf("the call is on stream %s, but must be on %s", c.Stream, want)
	}
	message := IsMessage(c.Op)
	for i, o := range c.Args {
		name := c.Op.Info().Args[i].Name
		switch {
		case o.Absent():
		case o.Tier != DeviceTier:
			return fmt.Errorf("operand %s is on the %s tier; hint: use the device tier for what ranks exchange", name, o.Tier)
		case c.Op == graph.AllReduce && !o.Contiguous():
			return fmt.Errorf("operand %s has gaps between its %d rows; hint: give sums over ranks operands without gaps", name, o.Rows)
		case !message && c.Op != graph.AllReduce && c.Op != graph.AllToAll && o.Rows != 1:
			return fmt.Errorf("operand %s has %d rows; hint: give collectives operands of one row", name, o.Rows)
		case (c.Op == graph.ReduceScatter || c.Op == graph.AllReduce) && o.DType != graph.F32 && o.DType != graph.F64 && (c.Op != graph.AllReduce || o.DType != graph.BF16):
			return fmt.Errorf("operand %s is %s; hint: compute sums over ranks in f32 or f64, all_reduce also in bf16", name, o.DType)
		case o.DType != c.dtype():
			return fmt.Errorf("operand %s is %s, not %s; hint: cast it first", name, o.DType, c.dtype())
		}
	}
	for i, p := range c.Peers {
		if p < 0 || i > 0 && c.Peers[i-1] >= p {
			return fmt.Errorf("peers %v are not ranks in ascending order", c.Peers)
		}
	}
	if len(c.Peers) == 0 || message && len(c.Peers) != 1 {
		return fmt.Errorf("the call has %d peers; hint: give a message one peer, and a collective at least its own rank", len(c.Peers))
	}
	if c.Op == graph.AllToAll {
		return checkCrossing(c)
	}
	return nil
}

// CheckRank validates the peers of a call of one of several ranks. The call must have
// passed Check.
func CheckRank(c *Call, rank, ranks int) error {
	last := c.Peers[len(c.Peers)-1]
	switch own := slices.Contains(c.Peers, rank); {
	case last >= ranks:
		return fmt.Errorf("peer %d does not exist among %d ranks", last, ranks)
	case IsMessage(c.Op) && own:
		return fmt.Errorf("rank %d is its own peer", rank)
	case !IsMessage(c.Op) && !own:
		return fmt.Errorf("rank %d is not among its peers %v", rank, c.Peers)
	}
	return nil
}

// IsMessage reports whether op is a message, not a collective.
func IsMessage(op graph.Op) bool { return op == graph.Send || op == graph.Recv }

// Agree returns an error if calls that meet do not match. Calls of a collective are in
// the order of its peers; of a message, the sender's comes first. All must have passed
// Check.
func Agree(calls []*Call) error {
	first := calls[0]
	if first.Op == graph.Send && len(calls) == 2 && calls[1].Op == graph.Recv {
		s, r := first.Args[graph.SendSrc], calls[1].Args[graph.RecvDst]
		if s.Rows != r.Rows || s.Cols != r.Cols || s.DType != r.DType {
			return fmt.Errorf("%d x %d %s are sent to rank %d, which receives %d x %d %s",
				s.Rows, s.Cols, s.DType, first.Peers[0], r.Rows, r.Cols, r.DType)
		}
		return nil
	}
	var total int // of the parts
	for i, c := range calls {
		if c.Op != first.Op {
			return fmt.Errorf("rank %d is at %s and rank %d at %s", first.Peers[0], first.Op, c.Peers[i], c.Op)
		}
		if c.dtype() != first.dtype() {
			return fmt.Errorf("rank %d has %s and rank %d has %s", first.Peers[0], first.dtype(), c.Peers[i], c.dtype())
		}
		if err := c.inPlace(total); err != nil {
			return fmt.Errorf("rank %d: %w", c.Peers[i], err)
		}
		total += c.part()
	}
	if first.Op == graph.AllToAll {
		return agreeCrossing(calls)
	}
	for i, c := range calls {
		switch n := c.groupElements(); {
		case c.Op == graph.AllReduce && n != first.groupElements():
			return fmt.Errorf("rank %d sums %d elements, but rank %d sums %d", first.Peers[0], first.groupElements(), c.Peers[i], n)
		case c.Op != graph.AllReduce && (n != total || n != first.groupElements()):
			return fmt.Errorf("the parts of all ranks are %d elements, rank %d has %d and rank %d %d as the whole",
				total, first.Peers[0], first.groupElements(), c.Peers[i], n)
		}
	}
	return nil
}

// groupElements returns the element count of a collective's operand that spans the group, part
// that of the operand with this rank's part.
func (c *Call) groupElements() int {
	switch c.Op {
	case graph.AllGather:
		return c.arg(graph.AllGatherDst).Cols
	case graph.ReduceScatter:
		return c.arg(graph.ReduceScatterSrc).Cols
	}
	x := c.arg(graph.AllReduceX) // or what an all_to_all makes
	return x.Rows * x.Cols
}

func (c *Call) part() int {
	switch c.Op {
	case graph.AllGather:
		return c.arg(graph.AllGatherSrc).Cols
	case graph.ReduceScatter:
		return c.arg(graph.ReduceScatterDst).Cols
	}
	return 0
}

// arg returns operand i, zero if it is absent.
func (c *Call) arg(i int) Operand {
	if i >= len(c.Args) || c.Args[i].Absent() {
		return Operand{}
	}
	return c.Args[i]
}

func (c *Call) dtype() graph.DType {
	if c.Op == graph.ReduceScatter { // dst may be absent
		return c.Args[graph.ReduceScatterSrc].DType
	}
	return c.Args[0].DType
}

// inPlace: a part that lies inside the whole must be in its own place, starting at
// element at, and must not accumulate.
func (c *Call) inPlace(at int) error {
	whole, part := c.arg(graph.AllGatherDst), c.arg(graph.AllGatherSrc)
	if c.Op == graph.ReduceScatter {
		whole, part = c.arg(graph.ReduceScatterSrc), c.arg(graph.ReduceScatterDst)
	}
	if part.Absent() || part.Addr >= whole.End() || whole.Addr >= part.End() {
		return nil
	}
	if part.DType != whole.DType || part.Addr != whole.Addr+int64(at)*whole.DType.Size() || c.Op == graph.ReduceScatter && c.Attr.Acc {
		return fmt.Errorf("its part of %s, bytes %d to %d, overlaps the whole, bytes %d to %d; hint: put the part outside the whole or, if it is not accumulated, at its own place there, %d",
			c.Op, part.Addr, part.End(), whole.Addr, whole.End(), whole.Addr+int64(at)*whole.DType.Size())
	}
	return nil
}

// Part returns the range of n elements that the i-th of ranks sums in an all-reduce.
func Part(n, i, ranks int) (lo, hi int) { return n * i / ranks, n * (i + 1) / ranks }

// Received returns the bytes that a call receives from other ranks: for all_gather the
// others' sources, for reduce_scatter the others' contributions to this rank's part,
// for all_reduce those and then the others' parts of the sum, for all_to_all all but its own, for recv the message.
// Over all ranks this equals the total of ring algorithms.
func Received(c *Call, rank int) int64 {
	n := int64(len(c.Peers))
	switch c.Op {
	case graph.AllGather:
		return c.arg(graph.AllGatherDst).Bytes() - c.arg(graph.AllGatherSrc).Bytes()
	case graph.ReduceScatter:
		return (n - 1) * c.arg(graph.ReduceScatterDst).Bytes()
	case graph.AllReduce:
		lo, hi := Part(c.groupElements(), slices.Index(c.Peers, rank), len(c.Peers))
		return c.arg(graph.AllReduceX).Bytes() + (n-2)*int64(hi-lo)*c.dtype().Size()
	case graph.AllToAll:
		return c.arg(graph.AllToAllDst).Bytes() / n * (n - 1)
	case graph.Recv:
		return c.arg(graph.RecvDst).Bytes()
	}
	return 0
}

// Ring returns the bytes per direction that a call moves over a link between ring
// neighbours, and the number of sequential messages. Gathers, scatters and all_to_all move (n-1)/n
// of the whole in n-1 messages; all_reduce is one of each (Patarasuk, Yuan, J. Parallel
// Distrib. Comput. 69(2), 2009).
func Ring(c *Call) (bytes float64, messages int) {
	if IsMessage(c.Op) {
		return float64(c.arg(0).Bytes()), 1
	}
	n := len(c.Peers)
	bytes = float64(n-1) / float64(n) * float64(int64(c.groupElements())*c.dtype().Size())
	if c.Op == graph.AllReduce {
		return 2 * bytes, 2 * (n - 1)
	}
	return bytes, n - 1
}

// Members returns the ranks that meet in a rank's call; for a message, the sender
// first.
func Members(c *Call, rank int) []int {
	switch c.Op {
	case graph.Send:
		return []int{rank, c.Peers[0]}
	case graph.Recv:
		return []int{c.Peers[0], rank}
	}
	return slices.Clone(c.Peers)
}

// Lost returns the error for the peers of a rank whose round ended with err. If that was
// because another rank was lost, it is that one.
func Lost(rank int, err error) *PeerError {
	var other *PeerError
	if errors.As(err, &other) {
		return other
	}
	lost := &PeerError{Rank: rank, Call: -1, Why: err.Error()}
	var c *CallError
	if errors.As(err, &c) {
		lost.Call, lost.Op, lost.Why = c.Call, c.Op, c.Err.Error()
	}
	return lost
}
