package memo

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/internal/simplex"
)

// The fastest policy.
//
// Approach: for a fixed number of slots, the step time is a longest path whose edges are linear in the decisions, so
// minimising it is a linear program (newStep has the equations). The class of kept and swapped bytes affects neither
// time nor memory, so only their sums per layer are variables. They are assigned to classes afterwards, swapped ones
// to input and attention first. The dual solution gives the bound.
//
// Search space: 1 to 4 slots; per layer and class, any fractions of rows kept, swapped or recomputed, but inputs are
// never recomputed. The last layers stay in their slots.
//
// Example: 7B at 1M tokens. The host holds half of the activations. The device keeps 28 GiB, and norms and activation
// functions are recomputed, which leaves few products: recomputation is 0.1 % of the step.
//
// Known weakness: rows are real numbers, and dense programs limit this to about a hundred layers.

const mostSlots = 4

// Best returns the fastest policy and a bound that proves it. The error is a *MisfitError if no policy fits.
func Best(m Machine, c Costs) (Policy, error) {
	var best Policy
	least, bound := math.Inf(1), math.Inf(1)
	ideal := float64(c.Layers)*(c.Forward+c.Backward) + c.Turn + c.After
	for slots := 1; slots <= min(mostSlots, c.Layers) && least > ideal*(1+1e-9); slots++ {
		s := newStep(m, c, slots)
		x, multipliers, ok := s.Solve()
		if !ok {
			continue
		}
		bound = min(bound, s.seconds(s.Bound(multipliers)))
		p := s.policy(x)
		if r := p.Evaluate(m, c); r.Misfit == "" && r.Time < least {
			best, least = p, r.Time
		}
	}
	if math.IsInf(least, 1) {
		return Policy{}, misfit(m, c)
	}
	best.Bound = max(bound, ideal)
	return best, nil
}

// MisfitError reports that no policy fits, and how much memory would suffice.
type MisfitError struct {
	Device, Host float64 // available bytes
	NeedDevice   float64 // with this host
	NeedHost     float64 // with this device; +Inf: none suffices
}

// misfit computes the least memory for a step. With one slot, each layer is recomputed from its input, so the device
// holds one layer and those inputs of earlier layers that the host does not hold.
func misfit(m Machine, c Costs) *MisfitError {
	inputs := float64(c.Layers-1) * c.Bytes[Input]
	least := c.Base + c.Skeletal()
	e := &MisfitError{Device: m.Memory, Host: m.Host, NeedDevice: least + max(0, inputs-m.Host), NeedHost: math.Inf(1)}
	if m.Memory >= least {
		e.NeedHost = max(0, inputs-(m.Memory-least))
	}
	return e
}

func (e *MisfitError) Error() string {
	hint := fmt.Sprintf("%.2f GiB on the device would suffice", e.NeedDevice/gib)
	if !math.IsInf(e.NeedHost, 1) {
		hint += fmt.Sprintf(", or %.2f GiB on the host", e.NeedHost/gib)
	}
	return fmt.Sprintf("the activations do not fit into %.2f GiB on the device and %.2f GiB on the host\nhint: %s", e.Device/gib, e.Host/gib, hint)
}

// step is the linear program of a step with its variables. The unit of time is a layer's forward pass, that of size a
// layer's skeletal activations.
type step struct {
	simplex.Program
	c             Costs
	slots         int
	pieces        []piece // recomputable parts of a layer
	share         [Classes]float64
	size, forward float64 // units of size and time

	keep, swap []int   // variables by layer
	again      [][]int // by layer and piece
}

// piece is a part of a class that is recomputed at one price. Attention has several: see redo.
type piece struct {
	class Class
	most  float64
	price float64 // forward passes per layer's bytes
}

// seconds converts the end of the last backward pass to the step time in seconds.
func (s *step) seconds(end float64) float64 { return end*s.forward + s.c.After }

// newStep builds the program. With K slots and n layers, of which the last K stay; F, O, B and I the ends of forward,
// copy out, backward and copy in; and k kept, w swapped and r recomputed per layer:
//
//	F_i >= F_(i-1) + 1, O_(i-K) + 1                O_i >= F_i + swap*w_i, O_(i-1) + swap*w_i
//	B_i >= B_(i+1) + b + redo.r_i, I_i + b + redo.r_i    I_i >= B_(i+K) + swap*w_i, I_(i+1) + swap*w_i
//	k_i + w_i + r_i >= 1,  Z + k_i >= 1,  base + K Z + sum k <= device,  sum w <= host;   minimise B_0
func newStep(m Machine, c Costs, slots int) *step {
	s := &step{c: c, slots: slots, size: c.Skeletal(), forward: c.Forward}
	for class := range Classes {
		s.share[class] = c.Bytes[class] / s.size
		if class == Input || s.share[class] == 0 {
			continue
		}
		ranges := 1
		if class == Attention {
			ranges = attentionRanges
		}
		for i := range ranges {
			low, high := float64(i)/float64(ranges), float64(i+1)/float64(ranges)
			most := s.share[class] / float64(ranges)
			s.pieces = append(s.pieces, piece{class, most, (c.redo(class, high) - c.redo(class, low)) / c.Forward / most})
		}
	}
	s.memory(m)
	s.times(s.size / m.Link / c.Forward)
	return s
}

// bytes adds a variable of at most one layer. Its tie prefers, among equally fast policies, the one that moves the
// fewest bytes.
func (s *step) bytes(tie float64) int { return s.Variable(0, tie, 1) }

// memory adds the variables of the decisions and their memory constraints.
func (s *step) memory(m Machine) {
	n, copies := s.c.Layers, s.c.Layers-s.slots
	slot := s.bytes(1e-9)
	device, host := []simplex.Term{{Variable: slot, Factor: -float64(s.slots)}}, []simplex.Term(nil)
	for i := range n {
		k := s.bytes(1e-9)
		s.keep = append(s.keep, k)
		s.Add(1, simplex.Term{Variable: slot, Factor: 1}, simplex.Term{Variable: k, Factor: 1})
		device = append(device, simplex.Term{Variable: k, Factor: -1})
		if i >= copies {
			continue
		}
		w := s.bytes(1e-7)
		s.swap = append(s.swap, w)
		host = append(host, simplex.Term{Variable: w, Factor: -1})
		rows, again := []simplex.Term{{Variable: k, Factor: 1}, {Variable: w, Factor: 1}}, make([]int, len(s.pieces))
		for j, piece := range s.pieces {
			again[j] = s.bytes(1e-9)
			s.Add(-piece.most, simplex.Term{Variable: again[j], Factor: -1})
			rows = append(rows, simplex.Term{Variable: again[j], Factor: 1})
		}
		s.again = append(s.again, again)
		s.Add(1, rows...)
	}
	s.Add(-(m.Memory-s.c.Base)/s.size, device...)
	s.Add(-m.Host/s.size, host...)
}

// times adds the ends of passes and copies, and the constraints between them.
func (s *step) times(swap float64) {
	n, copies := s.c.Layers, s.c.Layers-s.slots
	latest := float64(n)*(1+2*swap) + (s.c.Turn+float64(n)*s.c.Backward)/s.forward // everything in sequence, everything recomputed
	for _, redo := range s.c.Redo {
		latest += float64(n) * redo / s.forward
	}
	ends := func(count int) []int {
		list := make([]int, count)
		for i := range list {
			list[i] = s.Variable(0, 1e-11, latest)
		}
		return list
	}
	forward, out, back, in := ends(n), ends(copies), ends(n), ends(copies)
	for i := range n {
		s.after(1, nil, forward[i], forward, i-1)
		if i >= s.slots {
			s.after(1, nil, forward[i], out, i-s.slots)
		}
		if i >= copies {
			continue
		}
		move := []simplex.Term{{Variable: s.swap[i], Factor: swap}}
		s.after(0, move, out[i], forward, i)
		s.after(0, move, out[i], out, i-1)
		s.after(0, move, in[i], back, i+s.slots)
		s.after(0, move, in[i], in, i+1)
	}
	for i := n - 1; i >= 0; i-- {
		length := s.c.Backward / s.forward
		var redo []simplex.Term
		if i < copies {
			for j, piece := range s.pieces {
				redo = append(redo, simplex.Term{Variable: s.again[i][j], Factor: piece.price})
			}
			s.after(length, redo, back[i], in, i)
		}
		if i == n-1 {
			s.after(length+s.c.Turn/s.forward, redo, back[i], forward, i)
		} else {
			s.after(length, redo, back[i], back, i+1)
		}
	}
	s.Cost[back[0]] += 1
}

// after adds the row end >= other + length + terms, with other = 0 if it is out of range.
func (s *step) after(length float64, terms []simplex.Term, end int, others []int, other int) {
	row := []simplex.Term{{Variable: end, Factor: 1}}
	for _, t := range terms {
		row = append(row, simplex.Term{Variable: t.Variable, Factor: -t.Factor})
	}
	if other >= 0 && other < len(others) {
		row = append(row, simplex.Term{Variable: others[other], Factor: -1})
	}
	s.Add(length, row...)
}

// policy converts a solution to decisions. Swapped bytes are assigned to input and attention first.
func (s *step) policy(x []float64) Policy {
	p := Policy{Slots: s.slots}
	for i := range s.c.Layers {
		if i >= len(s.swap) {
			p.Layers = append(p.Layers, s.staying(x[s.keep[i]]))
			continue
		}
		var split Split
		present := s.share
		for j, piece := range s.pieces {
			present[piece.class] -= x[s.again[i][j]]
		}
		left := x[s.swap[i]]
		for class, share := range s.share {
			if share > 0 {
				here := max(0, present[class])
				moved := min(left, here)
				left -= moved
				split.Swap[class], split.Keep[class] = moved/share, (here-moved)/share
			}
		}
		p.Layers = append(p.Layers, split)
	}
	return p
}

// staying returns the decision for a layer that stays in its slot, with a part kept outside the slot.
func (s *step) staying(kept float64) Split {
	split := Split{Stay: true}
	for class := range Classes {
		split.Keep[class] = min(kept, 1)
	}
	return split
}
