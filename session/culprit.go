package session

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// Culprit says where the numbers of a step first were not finite.
type Culprit struct {
	Rank  int            // -1: there is only one
	Instr *program.Instr // that produced the number, or read one that was bad before; nil: none read it, it is state
	// Operand names the value or parameter that holds the number: "h3.qkv", "d.h3.qkv" for a
	// gradient, or a weight's name.
	Operand string
	Value   float64
	// Before says that the operand, a weight or a moment, held the number before the step.
	Before  bool
	Segment string // of the graph: embed, h3 for layer 3, head; "" after the backward pass
	Inputs  []Input
	// The number comes from sequences [First, Last) of the global batch and, if that is a single
	// one, from its token Token. Last is 0 and Token -1 where they are not known.
	First, Last, Token int
}

// Input is an operand that an instruction read, with the largest absolute value in it.
type Input struct {
	Name    string
	Largest float64
}

// Forward reports whether the forward pass produced the number.
func (c *Culprit) Forward() bool {
	return c.Instr != nil && (c.Instr.Key.Dir == program.Forward || c.Instr.Key.Dir == program.Recompute)
}

// String describes the culprit in a sentence without the full stop.
func (c *Culprit) String() string {
	if c.Before {
		return fmt.Sprintf("%s has a %v before the step", c.Operand, c.Value)
	}
	where := "after the backward pass"
	switch n, layer := strings.CutPrefix(c.Segment, "h"); {
	case c.Segment == "":
	case c.Segment == "embed":
		where = "in the embedding"
	case c.Segment == "head":
		where = "in the head"
	case layer:
		where = "in layer " + n
	}
	if c.Segment != "" {
		pass := map[program.Direction]string{program.Forward: "forward", program.Backward: "backward", program.Recompute: "recomputed"}[c.Instr.Key.Dir]
		where += fmt.Sprintf(", %s, micro-batch %d", pass, c.Instr.Key.Micro)
	}
	if c.Rank >= 0 {
		where += fmt.Sprintf(" of rank %d", c.Rank)
	}
	var from []string
	for _, in := range c.Inputs {
		from = append(from, fmt.Sprintf("%s (up to %.3g)", in.Name, in.Largest))
	}
	return fmt.Sprintf("the first %v is made %s, by %v in %s, from %s", c.Value, where, c.Instr.Op, c.Operand, strings.Join(from, ", "))
}

// Diagnose finds what made the latest step 0 end with numbers that are not finite, if its update was
// skipped (Outcome.Skipped): it checks weights and moments, then executes the same step once more and checks
// what every instruction writes. The arguments are those of the step. A nil Culprit means that
// everything is finite this time. Afterwards the arenas hold part of a step.
func (s *Session) Diagnose(b Batch, sc Scalars) (*Culprit, error) {
	if c, err := s.badState(); c != nil || err != nil {
		return c, err
	}
	if err := s.feed(0, b, sc); err != nil {
		return nil, err
	}
	var ps []*program.Program
	for r := range s.ranks {
		ps = append(ps, s.ranks[r].progs[0])
	}
	turns, err := verify.Turns(ps)
	if err != nil {
		return nil, err
	}
	var found *Culprit
	err = s.groups[0].Replay(turns, func(at verify.At) (bool, error) {
		found, err = s.examine(at)
		return found == nil && err == nil, err
	})
	return found, err
}

// badState looks for weights and moments that are not finite.
func (s *Session) badState() (*Culprit, error) {
	var room []float32 // reused
	kinds := append([]optimizer.Kind{optimizer.Weights}, s.moments()...)
	for i, p := range s.Graph.Params {
		room = slices.Grow(room[:0], int(p.Elems()))
		buf := room[:p.Elems()]
		for _, kind := range kinds {
			if p.Frozen && kind != optimizer.Weights {
				continue
			}
			if err := s.Read(i, kind, buf); err != nil {
				return nil, err
			}
			for _, x := range buf {
				if v := float64(x); math.IsNaN(v) || math.IsInf(v, 0) {
					name := kind.Words() + " of " + p.Name
					if kind == optimizer.Weights {
						name = "weight " + p.Name
					}
					return &Culprit{Operand: name, Value: v, Before: true, Token: -1}, nil
				}
			}
		}
	}
	return nil, nil
}

// examine checks what an instruction wrote. Instructions that only move bytes are exempt: the bytes may be
// meaningless, such as padding, and if they are not, the instruction that reads them is found.
func (s *Session) examine(at verify.At) (*Culprit, error) {
	e := s.ranks[at.Rank].engines[0]
	in := &s.ranks[at.Rank].progs[0].Instrs[at.Instr]
	switch in.Op {
	case graph.Copy, graph.AllGather, graph.Send, graph.Recv:
		return nil, nil
	}
	specs := in.Op.Info().Args
	for k, r := range in.Args {
		if specs[k].Access == graph.Read || r.Absent() {
			continue
		}
		x, err := e.Extent(at.Instr, k)
		if err != nil {
			return nil, err
		}
		if x.Bad >= 0 {
			return s.blame(at, in, k, x.Bad/r.Cols, x.Value)
		}
	}
	return nil, nil
}

// blame describes the instruction that wrote a number that is not finite to a row of operand k.
func (s *Session) blame(at verify.At, in *program.Instr, k, row int, value float64) (*Culprit, error) {
	p := s.ranks[at.Rank].progs[0]
	n := s.node(p, in)
	c := &Culprit{Instr: in, Operand: s.operand(p, in, n, k), Value: value, Token: -1}
	if c.Rank = at.Rank; len(s.ranks) == 1 {
		c.Rank = -1
	}
	if in.Key.Segment >= 0 {
		c.Segment = s.Graph.Segments[in.Key.Segment].Name
	}
	for j := range in.Args {
		if in.Args[j].Absent() || in.Op.Info().Args[j].Access != graph.Read {
			continue
		}
		x, err := s.ranks[at.Rank].engines[0].Extent(at.Instr, j)
		if err != nil {
			return nil, err
		}
		if x.Bad >= 0 { // no instruction wrote it, or it would have been found before
			c.Operand, c.Value, c.Before = s.operand(p, in, n, j), x.Value, true
		}
		c.read(s.operand(p, in, n, j), x.Largest)
	}
	s.locate(c, p, in, n, k, row)
	return c, nil
}

// read records an operand; the parts of a value that are several operands count as one.
func (c *Culprit) read(name string, largest float64) {
	k := slices.IndexFunc(c.Inputs, func(in Input) bool { return in.Name == name })
	switch {
	case k >= 0:
		c.Inputs[k].Largest = max(c.Inputs[k].Largest, largest)
	case largest > 0:
		c.Inputs = append(c.Inputs, Input{name, largest})
	}
}

// node returns the graph node that an instruction comes from: the one in its segment whose per-token
// operands have the names of the instruction's buffers. nil: there is none, it belongs to the optimizer.
func (s *Session) node(p *program.Program, in *program.Instr) *graph.Node {
	if in.Key.Segment < 0 {
		return nil
	}
	seg := &s.Graph.Segments[in.Key.Segment]
	for _, list := range [][]graph.Node{seg.Forward, seg.Backward} {
		for i := range list {
			if s.comesFrom(p, in, &list[i]) {
				return &list[i]
			}
		}
	}
	return nil
}

func (s *Session) comesFrom(p *program.Program, in *program.Instr, n *graph.Node) bool {
	if n.Op != in.Op || len(n.Args) != len(in.Args) {
		return false
	}
	for k, use := range n.Args {
		if use.Value < 0 {
			continue
		}
		v, r := &s.Graph.Values[use.Value], in.Args[k]
		if !v.PerToken {
			continue
		}
		instance, ok := strings.CutPrefix(p.Buffers[r.Buf].Name, v.Name+".") // its number follows
		if !ok || instance[0] < '0' || instance[0] > '9' || r.Off%r.Stride != use.Lo || r.Cols != use.Hi-use.Lo {
			return false
		}
	}
	return true
}

// operand names an operand of an instruction: its value in the graph, else its buffer.
func (s *Session) operand(p *program.Program, in *program.Instr, n *graph.Node, k int) string {
	if n != nil && n.Args[k].Value >= 0 {
		return s.Graph.Values[n.Args[k].Value].Name
	}
	return p.Buffers[in.Args[k].Buf].Name
}

// locate finds the sequences that a number in a row of operand k comes from. A buffer of a per-token value
// has the rows of its micro-batch, unless it belongs to the row chunks of the head; all per-token operands of
// an instruction concern the same tokens.
func (s *Session) locate(c *Culprit, p *program.Program, in *program.Instr, n *graph.Node, k, row int) {
	if n == nil {
		return
	}
	specs := in.Op.Info().Args
	for j, use := range n.Args {
		if use.Value < 0 || !specs[j].Token || specs[j].Past {
			continue
		}
		v, r := &s.Graph.Values[use.Value], in.Args[j]
		if !v.PerToken || v.Chunked {
			continue
		}
		own, seq := in.Key.Micro*p.Buffers[r.Buf].Rows+r.Off/r.Stride, s.Graph.Sequence()
		first, last := p.GlobalRow(own), p.GlobalRow(own+r.Rows-1)+1
		if specs[k].Token && !specs[k].Past {
			first = p.GlobalRow(own + row)
			last, c.Token = first+1, first%seq
		}
		c.First, c.Last = first/seq, (last-1)/seq+1
		return
	}
}
