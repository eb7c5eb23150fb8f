package verify

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// Programs of several ranks, checked together. Instructions between ranks meet: the
// k-th collective of a group on one rank with the k-th on every other member, a send
// with the receive of its tag. Which ones meet does not depend on timing, so a single
// dry run shows whether all programs complete. An instruction runs when its stream and
// its waits allow it; one that meets others runs when all of them have arrived. If
// nothing can run any more, it is a deadlock under any timing. Programs are launched in
// program order, limited by the capacity of the stream queues.
//
//	rank 0  i3 send     tag=1 peers=1     i4 recv tag=2 peers=1
//	rank 1  i3 recv     tag=1 peers=0     i4 send tag=2 peers=0 wait=i3
//
// completes. If rank 0's i3 waited for rank 0's i4, rank 1's i4 would wait for rank 1's
// i3, that for rank 0's i3, and that for rank 0's i4, which meets rank 1's i4: a cycle,
// which is reported.
//
// The dry run finds one valid order. Each program is ordered by itself (a meeting
// counts as an access to its operands on each rank for its whole duration), so every
// other order has the same results.
//
// Known weakness: the dry run models streams and waits only. A device that cannot run a
// collective and a message concurrently needs more ordering.

// place is an instruction of one of several programs.
type place struct{ rank, instr int32 }

// meeting is an operation between ranks: the instructions of a group's members in group
// order, or a send and its receive.
type meeting struct{ members []place }

// event is an instruction that runs, or the meeting that it belongs to.
type event struct {
	place
	meeting int32 // -1: none
}

// ranks are programs that run together.
type ranks struct {
	ps       []*program.Program
	layouts  []*layout
	meetings []meeting
	meets    [][]int32 // per rank and instruction its meeting, or -1
	events   []event   // all that runs, in an order in which it can
}

// SamePlan checks that the hashes of all ranks' plans, in rank order, are equal. The error
// names a rank that differs.
func SamePlan(hashes []string) error {
	for r, h := range hashes {
		if h != hashes[0] {
			return fmt.Errorf("rank %d has plan hash %q, rank 0 has %q; hint: give all ranks the same plan.json, model, data and seed", r, h, hashes[0])
		}
	}
	return nil
}

// newRanks checks each program's structure and that the programs agree.
func newRanks(ps []*program.Program) (*ranks, error) {
	rs := &ranks{ps: ps}
	if len(ps) == 0 {
		return nil, errors.New("no program is given; hint: give one for each rank")
	}
	var hashes []string
	for _, p := range ps {
		hashes = append(hashes, p.PlanHash)
	}
	if err := SamePlan(hashes); err != nil {
		return nil, err
	}
	for r, p := range ps {
		if len(ps) > 1 && p.Rank != r {
			return nil, fmt.Errorf("program %d of %d is that of rank %d; hint: give the programs of all ranks, in order", r, len(ps), p.Rank)
		}
		if p.RowUnit != ps[0].RowUnit {
			return nil, fmt.Errorf("rank %d has row unit %d, rank 0 has %d; hint: lower all ranks with the same row unit", r, p.RowUnit, ps[0].RowUnit)
		}
		ly, err := checkStructure(p)
		if err != nil {
			return nil, rs.of(r, err)
		}
		rs.layouts = append(rs.layouts, ly)
	}
	if err := rs.meet(); err != nil {
		return nil, err
	}
	if err := rs.checkMeetings(); err != nil {
		return nil, err
	}
	return rs, rs.dryRun()
}

// of prefixes an error with its rank if there are several.
func (rs *ranks) of(rank int, err error) error {
	if err == nil || len(rs.ps) == 1 {
		return err
	}
	return fmt.Errorf("rank %d: %w", rank, err)
}

// fault returns an error about a member of a meeting.
func (rs *ranks) fault(at place, hint, format string, args ...any) error {
	return rs.of(int(at.rank), fault(rs.ps[at.rank], int(at.instr), hint, format, args...))
}

func (rs *ranks) instr(at place) *program.Instr { return &rs.ps[at.rank].Instrs[at.instr] }

// name returns how errors refer to an instruction.
func (rs *ranks) name(at place) string {
	in := rs.instr(at)
	return fmt.Sprintf("i%d (%s on %s) of rank %d", at.instr, in.Op, in.Stream, at.rank)
}

// ---- matching

// group is a set of ranks with its collectives on each of them, in order.
type group struct {
	peers  []int
	rounds [][]place // by member
}

// message identifies a message by its ends and its tag.
type message struct{ from, to, tag int }

// matcher collects the instructions that meet others.
type matcher struct {
	*ranks
	groups       []*group
	byPeers      map[string]*group
	sends, recvs map[message]place
	sent         []message // in order of appearance, independent of map order
}

// meet finds all meetings.
func (rs *ranks) meet() error {
	ma := &matcher{ranks: rs, byPeers: map[string]*group{}, sends: map[message]place{}, recvs: map[message]place{}}
	for r, p := range rs.ps {
		meets := make([]int32, len(p.Instrs))
		for i := range p.Instrs {
			meets[i] = -1
			if !p.Instrs[i].Op.Info().Between {
				continue
			}
			if err := ma.collect(place{int32(r), int32(i)}); err != nil {
				return err
			}
		}
		rs.meets = append(rs.meets, meets)
	}
	if err := ma.messages(); err != nil {
		return err
	}
	for _, g := range ma.groups {
		if err := rs.addRounds(g); err != nil {
			return err
		}
	}
	return nil
}

// collect records an instruction among those that it may meet.
func (ma *matcher) collect(at place) error {
	in, self := ma.instr(at), ma.ps[at.rank].Rank
	for _, peer := range in.Peers {
		if peer != self && (peer >= len(ma.ps) || len(ma.ps) == 1) {
			return ma.fault(at, "give the programs of all ranks together", "it meets rank %d, whose program is not given", peer)
		}
	}
	hint := "a tag is used once between two ranks"
	switch in.Op {
	case graph.Send:
		m := message{self, in.Peers[0], in.Tag}
		if first, twice := ma.sends[m]; twice {
			return ma.fault(at, hint, "i%d sends tag %d to rank %d already", first.instr, m.tag, m.to)
		}
		ma.sends[m], ma.sent = at, append(ma.sent, m)
	case graph.Recv:
		m := message{in.Peers[0], self, in.Tag}
		if first, twice := ma.recvs[m]; twice {
			return ma.fault(at, hint, "i%d receives tag %d from rank %d already", first.instr, m.tag, m.from)
		}
		ma.recvs[m] = at
	default:
		g := ma.group(in.Peers)
		k := slices.Index(in.Peers, self)
		g.rounds[k] = append(g.rounds[k], at)
	}
	return nil
}

func (ma *matcher) group(peers []int) *group {
	var key []byte
	for _, r := range peers {
		key = append(strconv.AppendInt(key, int64(r), 10), ',')
	}
	g := ma.byPeers[string(key)]
	if g == nil {
		g = &group{peers, make([][]place, len(peers))}
		ma.byPeers[string(key)] = g
		ma.groups = append(ma.groups, g)
	}
	return g
}

// messages pairs sends with receives.
func (ma *matcher) messages() error {
	hint := "every message is sent once and received once"
	for _, m := range ma.sent {
		to, ok := ma.recvs[m]
		if !ok {
			return ma.fault(ma.sends[m], hint, "rank %d never receives tag %d from rank %d", m.to, m.tag, m.from)
		}
		delete(ma.recvs, m)
		ma.add([]place{ma.sends[m], to})
	}
	left, missed := place{rank: math.MaxInt32}, message{}
	for m, at := range ma.recvs {
		if at.rank < left.rank || at.rank == left.rank && at.instr < left.instr {
			left, missed = at, m
		}
	}
	if len(ma.recvs) > 0 {
		return ma.fault(left, hint, "rank %d never sends tag %d to rank %d", missed.from, missed.tag, missed.to)
	}
	return nil
}

func (rs *ranks) add(members []place) {
	for _, at := range members {
		rs.meets[at.rank][at.instr] = int32(len(rs.meetings))
	}
	rs.meetings = append(rs.meetings, meeting{members})
}

// addRounds matches the k-th collectives of a group.
func (rs *ranks) addRounds(g *group) error {
	most := 0
	for k := range g.rounds {
		if len(g.rounds[k]) > len(g.rounds[most]) {
			most = k
		}
	}
	for k := range g.rounds {
		if n := len(g.rounds[k]); n < len(g.rounds[most]) {
			return rs.fault(g.rounds[most][n], "all members take part in all collectives of a group",
				"it is collective %d of ranks %v, but rank %d has only %d", n, g.peers, g.peers[k], n)
		}
	}
	for n := range g.rounds[most] {
		members := make([]place, len(g.peers))
		for k := range members {
			members[k] = g.rounds[k][n]
		}
		rs.add(members)
	}
	return nil
}

// ---- operands of meetings

func (rs *ranks) checkMeetings() error {
	for m := range rs.meetings {
		if err := rs.checkMeeting(rs.meetings[m].members); err != nil {
			return err
		}
	}
	return nil
}

func (rs *ranks) checkMeeting(list []place) error {
	op := rs.instr(list[0]).Op
	for _, at := range list[1:] {
		if other := rs.instr(at).Op; other != op && op != graph.Send {
			return rs.fault(at, "members run the collectives of a group in the same order", "it meets %s", rs.name(list[0]))
		}
	}
	switch op {
	case graph.AllGather:
		return rs.checkParts(list, 0, 1)
	case graph.ReduceScatter:
		return rs.checkParts(list, 1, 0)
	case graph.AllToAll:
		return rs.checkCrossing(list)
	}
	for _, at := range list {
		if r := rs.region(at, 0); op == graph.AllReduce && r.Rows > 1 && r.Stride != r.Cols {
			return rs.of(int(at.rank), operandFault(rs.ps[at.rank], int(at.instr), 0, "sum whole rows of a buffer", "has gaps between its rows"))
		}
	}
	for _, at := range list[1:] { // the same everywhere
		if err := rs.checkAlike(at, 0, rs.region(at, 0), list[0], 0, rs.region(list[0], 0)); err != nil {
			return err
		}
	}
	return nil
}

func (rs *ranks) region(at place, j int) program.Region { return rs.instr(at).Arg(j) }

// checkParts checks that the operands part of all members, concatenated, match each
// member's operand all. A part inside its own rank's whole must be at its own place there.
func (rs *ranks) checkParts(list []place, all, part int) error {
	for _, at := range list {
		r, off := rs.region(at, all), 0
		for _, from := range list {
			s := rs.region(from, part)
			if s.Absent() {
				continue
			}
			piece := program.Region{Buf: r.Buf, Off: r.Off + off, Rows: 1, Cols: s.Cols, Stride: s.Cols}
			if off += s.Cols; off > r.Cols {
				break
			}
			if _, why := rs.layouts[at.rank].resolve(rs.ps[at.rank], piece); why != "" {
				return rs.of(int(at.rank), operandFault(rs.ps[at.rank], int(at.instr), all, "cut it where the parts end", "has a part of rank %d that %s", from.rank, why))
			}
			if err := rs.checkAlike(at, all, piece, from, part, s); err != nil {
				return err
			}
			if in := rs.instr(at); from == at && s.Buf == r.Buf && s.Off != piece.Off && s.Off < r.Off+r.Cols && r.Off < s.Off+s.Cols {
				return rs.fault(at, "only a rank's own place in the whole may be its part", "operand %s is at element %d of operand %s, its place is %d",
					in.Op.Info().Args[part].Name, s.Off-r.Off, in.Op.Info().Args[all].Name, piece.Off-r.Off)
			}
		}
		if off != r.Cols {
			return rs.fault(at, "the parts of all members make up the whole", "operand %s has %d elements, the parts of ranks %v have %d in all",
				rs.instr(at).Op.Info().Args[all].Name, r.Cols, rs.instr(at).Peers, rs.sum(list, part))
		}
	}
	return nil
}

func (rs *ranks) sum(list []place, j int) (n int) {
	for _, at := range list {
		n += rs.region(at, j).Cols
	}
	return n
}

// checkAlike checks that region r, in operand j of one instruction, has the same type,
// extents and atoms as region s, in operand k of another.
func (rs *ranks) checkAlike(at place, j int, r program.Region, from place, k int, s program.Region) error {
	p, q := rs.ps[at.rank], rs.ps[from.rank]
	hint, why := "both ends must agree", ""
	switch {
	case r.Rows != s.Rows || r.Cols != s.Cols:
		why = fmt.Sprintf("is %dx%d there and %dx%d here", s.Rows, s.Cols, r.Rows, r.Cols)
	case p.Buffers[r.Buf].DType != q.Buffers[s.Buf].DType:
		why = fmt.Sprintf("is %v there and %v here", q.Buffers[s.Buf].DType, p.Buffers[r.Buf].DType)
	case !cutAlike(p, r, q, s):
		hint, why = "cut the buffers of all ranks at the same places", "is cut at other places"
	default:
		return nil
	}
	return rs.of(int(at.rank), operandFault(p, int(at.instr), j, hint, "meets operand %s of %s, which %s",
		rs.instr(from).Op.Info().Args[k].Name, rs.name(from), why))
}

// ---- the dry run

// rehearsal is the state of the dry run.
type rehearsal struct {
	*ranks
	queue   [][device.NumStreams][]int32 // per rank and stream: what has not run
	held    [][device.NumStreams]int     // commands launched and not complete
	next    []int32                      // per rank: what is launched next
	done    [][]bool
	arrived []int32 // per meeting: how many members are there
	there   [][]bool
	ready   []int // ranks that may be able to proceed
	total   int
}

// dryRun finds an order in which every instruction can run.
func (rs *ranks) dryRun() error {
	n := len(rs.ps)
	re := &rehearsal{ranks: rs, arrived: make([]int32, len(rs.meetings)), queue: make([][device.NumStreams][]int32, n),
		held: make([][device.NumStreams]int, n), next: make([]int32, n)}
	for r, p := range rs.ps {
		re.done, re.there = append(re.done, make([]bool, len(p.Instrs))), append(re.there, make([]bool, len(p.Instrs)))
		for i := range p.Instrs {
			s := p.Instrs[i].Stream
			re.queue[r][s] = append(re.queue[r][s], int32(i))
		}
		re.ready = append(re.ready, r)
		re.total += len(p.Instrs)
	}
	slices.Reverse(re.ready)
	rs.events = make([]event, 0, re.total)
	if len(rs.ps) == 1 { // program order is such an order
		for i := range rs.ps[0].Instrs {
			rs.events = append(rs.events, event{place{0, int32(i)}, rs.meets[0][i]})
		}
		return nil
	}
	for len(re.ready) > 0 {
		r := re.ready[len(re.ready)-1]
		re.ready = re.ready[:len(re.ready)-1]
		for more := true; more; {
			more = false
			re.launch(r)
			for s := range re.queue[r] {
				for re.proceed(r, s) {
					more = true
				}
			}
		}
	}
	for r := range re.queue {
		for s := range re.queue[r] {
			if len(re.queue[r][s]) > 0 {
				return re.deadlock(place{int32(r), re.queue[r][s][0]})
			}
		}
	}
	return nil
}

// commands returns the number of entries that an instruction occupies in its stream's queue.
func commands(in *program.Instr) int { return len(in.Waits) + 1 }

// launch launches a rank's next instructions while there is room in the queues.
func (re *rehearsal) launch(r int) {
	for p := re.ps[r]; int(re.next[r]) < len(p.Instrs); re.next[r]++ {
		in := &p.Instrs[re.next[r]]
		held := &re.held[r][in.Stream]
		if *held > 0 && *held+commands(in) > device.QueueLen {
			return
		}
		*held += commands(in)
	}
}

// proceed runs the next instruction on a stream, if it can.
func (re *rehearsal) proceed(r, s int) bool {
	if len(re.queue[r][s]) == 0 {
		return false
	}
	at := place{int32(r), re.queue[r][s][0]}
	if at.instr >= re.next[r] || re.there[r][at.instr] || re.waiting(at) >= 0 {
		return false
	}
	m := re.meets[r][at.instr]
	if m < 0 {
		re.complete(at)
		re.events = append(re.events, event{at, -1})
		return true
	}
	re.there[r][at.instr] = true
	if re.arrived[m]++; int(re.arrived[m]) < len(re.meetings[m].members) {
		return false
	}
	re.events = append(re.events, event{at, m})
	for _, member := range re.meetings[m].members {
		re.complete(member)
		if int(member.rank) != r {
			re.ready = append(re.ready, int(member.rank))
		}
	}
	return true
}

func (re *rehearsal) complete(at place) {
	s := re.instr(at).Stream
	re.done[at.rank][at.instr] = true
	re.held[at.rank][s] -= commands(re.instr(at))
	re.queue[at.rank][s] = re.queue[at.rank][s][1:]
}

// waiting returns an instruction of the same rank that must run first, or -1.
func (re *rehearsal) waiting(at place) int {
	for _, w := range re.instr(at).Waits {
		if !re.done[at.rank][w] {
			return w
		}
	}
	return -1
}

// deadlock follows the wait-for chain from an instruction that cannot run until it
// reaches an instruction twice.
func (re *rehearsal) deadlock(at place) error {
	seen := map[place]int{}
	var lines []string
	for {
		if first, again := seen[at]; again {
			return fmt.Errorf("the ranks wait for each other for ever:\n  %s\nhint: let all ranks run the exchanges that they share in the same order", strings.Join(lines[first:], "\n  "))
		}
		seen[at] = len(lines)
		want, why := re.missing(at)
		head := place{want.rank, re.queue[want.rank][re.instr(want).Stream][0]}
		line := re.name(at) + why + re.name(want)
		if head != want {
			line += ", which comes after " + re.name(head)
		}
		lines = append(lines, line)
		at = head
	}
}

// missing returns what the next instruction on a stream waits for, and how.
func (re *rehearsal) missing(at place) (want place, why string) {
	if next := re.next[at.rank]; at.instr >= next {
		full := re.ps[at.rank].Instrs[next].Stream
		return place{at.rank, re.queue[at.rank][full][0]}, fmt.Sprintf(" is not launched, as the queue of %s is full behind ", full)
	}
	if w := re.waiting(at); w >= 0 {
		return place{at.rank, int32(w)}, " waits for "
	}
	for _, member := range re.meetings[re.meets[at.rank][at.instr]].members {
		if !re.there[member.rank][member.instr] {
			return member, " waits for "
		}
	}
	return at, " waits for "
}
