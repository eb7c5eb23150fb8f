package verify

import "github.com/athanor-llm/athanor/program"

// At is an instruction of one of several ranks' programs.
type At struct{ Rank, Instr int }

// Turns lists the instructions of all ranks in an order in which they can run one at a
// time. A turn is one instruction, or all that meet in one operation between ranks.
func Turns(ps []*program.Program) ([][]At, error) {
	rs, err := newRanks(ps)
	if err != nil {
		return nil, err
	}
	list := make([][]At, 0, len(rs.events))
	for _, e := range rs.events {
		members := []place{e.place}
		if e.meeting >= 0 {
			members = rs.meetings[e.meeting].members
		}
		turn := make([]At, len(members))
		for k, m := range members {
			turn[k] = At{int(m.rank), int(m.instr)}
		}
		list = append(list, turn)
	}
	return list, nil
}
