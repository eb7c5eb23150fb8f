package memo

import (
	"fmt"
	"math"
)

// The fastest policy.
//
// Approach: for a number of slots, the step is a longest path whose lengths are linear in the decisions, so the shortest
// step is a linear program (newStep has the equations). Which class kept and swapped bytes belong to matters neither for
// time nor for memory, so per layer only their sums are variables, and they are dealt out afterwards, swapped ones to
// input and attention first. The bound that comes with it is the dual solution's.
//
// The space: 1 to 4 slots; rows of every class of every layer kept, swapped or made again in any shares, but no input made
// again. The last layers stay in their slots.
//
// Example: 7B at 1M tokens. The host holds half of what there is; keeping the last 28 GiB that the device has left, and
// making norms and activation functions again, leaves few products: all that is made again is 0.1 % of the step.
//
// Known weakness: rows are real numbers, and dense programs limit this to about a hundred layers.

const mostSlots = 4

// Best finds it, with the bound that proves it. The error is a *MisfitError if nothing fits.
func Best(m Machine, c Costs) (Policy, error) {
	var best Policy
	least, bound := math.Inf(1), math.Inf(1)
	ideal := float64(c.Layers)*(c.Forward+c.Backward) + c.Turn + c.After
	for slots := 1; slots <= min(mostSlots, c.Layers) && least > ideal*(1+1e-9); slots++ {
		s := newStep(m, c, slots)
		x, multipliers, ok := s.solve()
		if !ok {
			continue
		}
		bound = min(bound, s.seconds(s.bound(multipliers)))
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

// MisfitError says that no policy fits, and what would.
type MisfitError struct {
	Device, Host float64 // bytes that there are
	NeedDevice   float64 // with this host
	NeedHost     float64 // with this device; +Inf: none suffices
}

// misfit finds the least that a step needs. In one slot each layer is made again from its input, so the device holds a
// layer and the inputs of those before, as far as the host does not.
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
	hint := fmt.Sprintf("%.2f GiB on the device would do", e.NeedDevice/gib)
	if !math.IsInf(e.NeedHost, 1) {
		hint += fmt.Sprintf(", or %.2f GiB on the host", e.NeedHost/gib)
	}
	return fmt.Sprintf("the activations do not fit: %.2f GiB on the device, %.2f GiB on the host\nhint: %s", e.Device/gib, e.Host/gib, hint)
}

// step is the linear program of a step with its variables. Times are in forwards of a layer, sizes in layers' skeletal
// activations.
type step struct {
	program
	c             Costs
	slots         int
	pieces        []piece // of what can be made again in a layer
	share         [Classes]float64
	size, forward float64 // the units

	keep, swap []int   // variables by layer
	again      [][]int // by layer and piece
}

// piece is a part of a class that is made again at one price. Attention has several: see redo.
type piece struct {
	class Class
	most  float64
	price float64 // forwards per layer's bytes
}

// seconds of an end of the last backward.
func (s *step) seconds(end float64) float64 { return end*s.forward + s.c.After }

// newStep writes the program down. With K slots, n layers of which the last K stay, F, O, B, I the ends of forward, copy
// out, backward and copy in, and per layer k kept, w swapped and r made again:
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

// bytes adds a variable of at most one layer; of equal times, the policy with the fewest bytes moved is wanted.
func (s *step) bytes(tie float64) int { return s.variable(0, tie, 1) }

// memory adds the decisions and what they need.
func (s *step) memory(m Machine) {
	n, copies := s.c.Layers, s.c.Layers-s.slots
	slot := s.bytes(1e-9)
	device, host := []term{{slot, -float64(s.slots)}}, []term(nil)
	for i := range n {
		k := s.bytes(1e-9)
		s.keep = append(s.keep, k)
		s.add(1, term{slot, 1}, term{k, 1})
		device = append(device, term{k, -1})
		if i >= copies {
			continue
		}
		w := s.bytes(1e-7)
		s.swap = append(s.swap, w)
		host = append(host, term{w, -1})
		rows, again := []term{{k, 1}, {w, 1}}, make([]int, len(s.pieces))
		for j, piece := range s.pieces {
			again[j] = s.bytes(1e-9)
			s.add(-piece.most, term{again[j], -1})
			rows = append(rows, term{again[j], 1})
		}
		s.again = append(s.again, again)
		s.add(1, rows...)
	}
	s.add(-(m.Memory-s.c.Base)/s.size, device...)
	s.add(-m.Host/s.size, host...)
}

// times adds the ends of passes and copies.
func (s *step) times(swap float64) {
	n, copies := s.c.Layers, s.c.Layers-s.slots
	latest := float64(n)*(1+2*swap) + (s.c.Turn+float64(n)*s.c.Backward)/s.forward // all in turn, all made again
	for _, redo := range s.c.Redo {
		latest += float64(n) * redo / s.forward
	}
	ends := func(count int) []int {
		list := make([]int, count)
		for i := range list {
			list[i] = s.variable(0, 1e-11, latest)
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
		move := []term{{s.swap[i], swap}}
		s.after(0, move, out[i], forward, i)
		s.after(0, move, out[i], out, i-1)
		s.after(0, move, in[i], back, i+s.slots)
		s.after(0, move, in[i], in, i+1)
	}
	for i := n - 1; i >= 0; i-- {
		length := s.c.Backward / s.forward
		var redo []term
		if i < copies {
			for j, piece := range s.pieces {
				redo = append(redo, term{s.again[i][j], piece.price})
			}
			s.after(length, redo, back[i], in, i)
		}
		if i == n-1 {
			s.after(length+s.c.Turn/s.forward, redo, back[i], forward, i)
		} else {
			s.after(length, redo, back[i], back, i+1)
		}
	}
	s.cost[back[0]] += 1
}

// after adds: an end is at least length + terms after another one, which is 0 if there is none.
func (s *step) after(length float64, terms []term, end int, others []int, other int) {
	row := []term{{end, 1}}
	for _, t := range terms {
		row = append(row, term{t.variable, -t.factor})
	}
	if other >= 0 && other < len(others) {
		row = append(row, term{others[other], -1})
	}
	s.add(length, row...)
}

// policy reads the decisions off a solution: what is swapped goes to input and attention first.
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

// staying is a layer that stays in its slot, with some of it beside the slot.
func (s *step) staying(kept float64) Split {
	split := Split{Stay: true}
	for class := range Classes {
		split.Keep[class] = min(kept, 1)
	}
	return split
}
