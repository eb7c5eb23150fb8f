package program

import "github.com/athanor-llm/athanor/device"

// Call returns instruction i in the form that devices execute and cost models price.
func (p *Program) Call(i int) device.Call {
	return p.CallIn(make([]device.Operand, 0, len(p.Instrs[i].Args)), i)
}

// CallIn is Call with the operands appended to args, so that loops over many
// instructions need not allocate.
func (p *Program) CallIn(args []device.Operand, i int) device.Call {
	in := &p.Instrs[i]
	for _, r := range in.Args {
		args = append(args, p.Operand(r))
	}
	return device.Call{Op: in.Op, Attr: in.Attr, Stream: in.Stream, Peers: in.Peers, Tag: in.Tag, Args: args, Rank: p.Rank}
}

// Calls lists all instructions as calls, in program order.
func (p *Program) Calls() []device.Call {
	calls := make([]device.Call, len(p.Instrs))
	for i := range calls {
		calls[i] = p.Call(i)
	}
	return calls
}
