package program

import "github.com/athanor-llm/athanor/device"

// Call is instruction i as a device executes it and a cost model prices it.
func (p *Program) Call(i int) device.Call {
	in := &p.Instrs[i]
	c := device.Call{Op: in.Op, Attr: in.Attr, Stream: in.Stream, Peers: in.Peers, Tag: in.Tag, Args: make([]device.Operand, len(in.Args))}
	for k, r := range in.Args {
		c.Args[k] = p.Operand(r)
	}
	return c
}

// Calls lists all instructions as calls, in program order.
func (p *Program) Calls() []device.Call {
	calls := make([]device.Call, len(p.Instrs))
	for i := range calls {
		calls[i] = p.Call(i)
	}
	return calls
}
