package sim

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/athanor-llm/athanor/device"
)

// Matching between ranks: the k-th collective of a group on one rank meets the k-th on
// the others; a message meets the call of its tag at its other end.

// place is an instruction of a rank.
type place struct{ rank, instr int }

// meeting is one collective, or one message.
type meeting struct {
	members []place // members by position in the group; a message's sender first
	here    int
}

// matcher pairs the instructions of different ranks.
type matcher struct {
	*machine
	groups map[string]*group
	boxes  map[[3]int]int // messages by sender, receiver and tag: index in meetings
}

// group counts the collectives of its members.
type group struct {
	meetings []int // index in machine.meetings of the k-th
	came     []int // collectives matched so far, per member
}

// match assigns each instruction between ranks its meeting.
func (m *machine) match() error {
	ma := &matcher{machine: m, groups: map[string]*group{}, boxes: map[[3]int]int{}}
	for at := range m.ranks {
		for i := range m.ranks[at].program.Instrs {
			in := &m.ranks[at].program.Instrs[i]
			if !in.Op.Info().Between {
				continue
			}
			c := m.ranks[at].program.Call(i)
			k, member, err := ma.find(&c, at)
			if err != nil {
				return fmt.Errorf("rank %d: instruction i%d (%s): %w", at, i, in.Op, err)
			}
			m.ranks[at].meeting[i] = int32(k + 1)
			m.meetings[k].members[member] = place{at, i}
		}
	}
	for i := range m.meetings {
		if err := m.fits(&m.meetings[i]); err != nil {
			return err
		}
	}
	return nil
}

// nobody marks the position of a member not yet found.
var nobody = place{-1, -1}

func (m *machine) newMeeting(n int) int {
	members := make([]place, n)
	for i := range members {
		members[i] = nobody
	}
	m.meetings = append(m.meetings, meeting{members: members})
	return len(m.meetings) - 1
}

// find returns a call's meeting and its position there.
func (ma *matcher) find(c *device.Call, rank int) (k, member int, err error) {
	if err := device.CheckBetween(c); err != nil {
		return 0, 0, err
	}
	if err := device.CheckRank(c, rank, ma.total); err != nil {
		return 0, 0, err
	}
	if device.IsMessage(c.Op) {
		ends := [3]int{rank, c.Peers[0], c.Tag}
		if c.Stream == device.Recv {
			ends[0], ends[1], member = ends[1], ends[0], 1
		}
		k, ok := ma.boxes[ends]
		if !ok {
			k = ma.newMeeting(2)
			ma.boxes[ends] = k
		}
		if ma.meetings[k].members[member] != nobody {
			return 0, 0, fmt.Errorf("tag %d is already used with rank %d", c.Tag, c.Peers[0])
		}
		return k, member, nil
	}
	var key []byte
	for i, r := range c.Peers {
		key = append(strconv.AppendInt(key, int64(r), 10), ',')
		if r == rank {
			member = i
		}
	}
	g := ma.groups[string(key)]
	if g == nil {
		g = &group{came: make([]int, len(c.Peers))}
		ma.groups[string(key)] = g
	}
	if g.came[member] == len(g.meetings) {
		g.meetings = append(g.meetings, ma.newMeeting(len(c.Peers)))
	}
	g.came[member]++
	return g.meetings[g.came[member]-1], member, nil
}

// fits checks that all simulated members of a meeting are present and, if no member is
// left out, that they agree. It drops members that are not simulated.
func (m *machine) fits(o *meeting) error {
	calls := make([]*device.Call, len(o.members))
	at := nobody
	for k, p := range o.members {
		if p != nobody {
			c := m.ranks[p.rank].program.Call(p.instr)
			calls[k], at = &c, p
		}
	}
	in := &m.ranks[at.rank].program.Instrs[at.instr]
	name := fmt.Sprintf("rank %d: instruction i%d (%s)", at.rank, at.instr, in.Op)
	for k, c := range calls {
		if c != nil {
			continue
		}
		peer := in.Peers[min(k, len(in.Peers)-1)]
		if device.IsMessage(in.Op) || peer < len(m.ranks) {
			return fmt.Errorf("%s has no counterpart on rank %d", name, peer)
		}
	}
	if here := slices.DeleteFunc(o.members, func(p place) bool { return p == nobody }); len(here) < len(calls) {
		o.members = here
		return nil
	}
	if err := device.Agree(calls); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// arrive records a member's arrival at its meeting. The last arrival starts the
// meeting.
func (m *machine) arrive(o *meeting, now float64) {
	if o.here++; o.here < len(o.members) {
		return
	}
	var seconds float64
	for _, p := range o.members {
		seconds = max(seconds, m.ranks[p.rank].seconds[p.instr])
	}
	for _, p := range o.members {
		id := m.ranks[p.rank].program.Instrs[p.instr].Stream
		m.ranks[p.rank].streams[id].shared = false
		m.begin(p.rank, id, seconds, now)
	}
}

// absent lists the members that have not arrived at their meeting.
func (m *machine) absent(o *meeting) (list []string) {
	for _, p := range o.members {
		r := &m.ranks[p.rank]
		s := &r.streams[r.program.Instrs[p.instr].Stream]
		if !s.busy || s.queue[0] != p.instr {
			list = append(list, fmt.Sprintf("i%d of rank %d", p.instr, p.rank))
		}
	}
	return list
}
