// Package verify proves programs: that they are safe (Verify), that they compute what another does (Equivalent), and that
// they may run beside another (VerifyBeside). It reads programs as devices would and shares no code with what makes them.
package verify

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// Verify proves programs before they run: one rank's, or those of ranks 0, 1, ... that
// run together. It shares no code with the lowering passes. It reads the lists of
// instructions as devices would, and shows that every order of execution that streams,
// waits and meetings of ranks allow gives the same result, inside the arenas.
//
//	structure  operands have the types and extents that the operator expects,
//	           inside their buffers; buffers are inside the arenas
//	order      any two accesses to the same bytes, one of them a write, are
//	           ordered by streams and waits; a buffer takes over its bytes only
//	           after the last use of what was there before, and for good
//	ranks      every send has its receive; members of a group run the same
//	           collectives in the same order, on operands that agree; the
//	           ranks cannot deadlock
//	content    nothing is read before it is written; persistent content
//	           matches its name again after the step, on all ranks, and before
//	           the first step the run fills it with what the name says
//
// What a program computes is a separate question, see Equivalent; so is whether it may
// run between the steps of another, see VerifyBeside.
//
// Example: i0 copies a weight to the device on stream h2d, i1 multiplies with it on
// stream compute. Without i1's wait for i0, Verify reports that i1 reads what i0 may
// still be writing.
//
// Known weakness: the unit of the proof is the atom, a block of rows by a band of
// columns, so two instructions that write different halves of one atom count as a
// conflict.
func Verify(ps ...*program.Program) error {
	rs, err := newRanks(ps)
	if err != nil {
		return err
	}
	for r, p := range ps {
		if err := checkPlaces(p); err != nil {
			return rs.of(r, err)
		}
		if err := checkOrder(p, rs.layouts[r]); err != nil {
			return rs.of(r, err)
		}
	}
	xs := rs.executions(false)
	if err := xs.run(); err != nil {
		return err
	}
	return xs.checkKept()
}

// VerifyAlone proves what can be said of a rank's program without those of the others: structure, places, and order within
// the rank. It is for a process that runs one of several programs, which were proved together elsewhere.
func VerifyAlone(p *program.Program) error {
	ly, err := checkStructure(p)
	if err == nil {
		err = checkPlaces(p)
	}
	if err == nil {
		err = checkOrder(p, ly)
	}
	return err
}

// layout numbers all atoms of a program and resolves operands to them.
type layout struct {
	base  []int32 // per buffer its first atom; one more at the end
	first []int32 // per instruction its first operand in args; one more at the end
	args  []box
	homes []box
	dims  []graph.Dim // of the instruction that is checked
}

func (ly *layout) operands(i int) []box { return ly.args[ly.first[i]:ly.first[i+1]] }

// box is a region in atoms: blocks of rows times bands of columns; block b, band k is
// atom + b*step + k. Absent operands have no blocks.
type box struct{ atom, step, blocks, bands int32 }

func (s box) at(block, band int32) int32 { return s.atom + block*s.step + band }

// overlaps reports whether two boxes of one buffer, relative to its first atom,
// intersect.
func (s box) overlaps(t box) bool {
	if s.blocks == 0 || t.blocks == 0 {
		return false
	}
	srow, scol, trow, tcol := s.atom/s.step, s.atom%s.step, t.atom/t.step, t.atom%t.step
	return srow < trow+t.blocks && trow < srow+s.blocks && scol < tcol+t.bands && tcol < scol+s.bands
}

// holds reports whether s contains all atoms of t, in the same flat buffer.
func (s box) holds(t box) bool {
	return s.blocks == 1 && t.blocks == 1 && s.atom <= t.atom && t.atom+t.bands <= s.atom+s.bands
}

// accessOf reports whether operand j of an instruction is read and written.
func accessOf(in *program.Instr, j int) (reads, writes bool) {
	switch in.Op.Info().Args[j].Access {
	case graph.Read:
		return true, false
	case graph.Write:
		return false, true
	case graph.Sum:
		return in.Attr.Acc, true
	}
	if in.Op == graph.AttentionAt { // queries alone add nothing to the cache
		return true, in.Args[graph.AttentionAtQKV].Cols > in.Attr.Heads*in.Attr.HeadDim
	}
	// The loss overwrites logits with their gradient only if told to.
	return true, in.Op != graph.CrossEntropy && in.Op != graph.Distil || in.Attr.Grad
}

// fault returns an error about an instruction.
func fault(p *program.Program, i int, hint, format string, args ...any) error {
	in := &p.Instrs[i]
	return fmt.Errorf("instruction i%d (%s on %s): %s; hint: %s", i, in.Op, in.Stream, fmt.Sprintf(format, args...), hint)
}

// operandFault returns an error about operand j of instruction i.
func operandFault(p *program.Program, i, j int, hint, format string, args ...any) error {
	in := &p.Instrs[i]
	name := fmt.Sprintf("operand %d", j)
	if in.Op < graph.NumOps && j < len(in.Op.Info().Args) {
		name = "operand " + in.Op.Info().Args[j].Name
	}
	if b := in.Args[j].Buf; b >= 0 && b < len(p.Buffers) && !in.Args[j].Absent() {
		name += fmt.Sprintf(" (buffer %s)", p.Buffers[b].Name)
	}
	return fault(p, i, hint, "%s %s", name, fmt.Sprintf(format, args...))
}

// checkPlaces checks that every buffer is aligned and inside its arena, and that the
// arenas fit. checkOrder decides whether buffers may share bytes.
func checkPlaces(p *program.Program) error {
	var top [device.NumTiers]int64
	for i := range p.Buffers {
		b := &p.Buffers[i]
		fail := func(format string, args ...any) error {
			return fmt.Errorf("buffer %s (%d bytes on %s): %s; hint: place the program again", b.Name, b.Size, b.Tier, fmt.Sprintf(format, args...))
		}
		switch {
		case b.Align < 1 || b.Align%b.DType.Size() != 0:
			return fail("alignment %d is not a multiple of the element size %d", b.Align, b.DType.Size())
		case b.Addr == -1 && !b.Persistent:
			continue // fine as long as nothing uses it, see orderCheck.buffer
		case b.Addr < 0:
			return fail("it has no address")
		case b.Addr%b.Align != 0:
			return fail("address %d is not aligned to %d", b.Addr, b.Align)
		case b.Addr > p.Height[b.Tier]-b.Size:
			return fail("address %d is past the end of the arena of %d bytes", b.Addr, p.Height[b.Tier])
		}
		top[b.Tier] = max(top[b.Tier], b.Addr+b.Size)
	}
	for t := range top {
		tier, h := device.Tier(t), p.Height[t]
		switch {
		case h != top[t]:
			return fmt.Errorf("tier %s: height is %d bytes, but buffers end at %d; hint: place the program again", tier, h, top[t])
		case p.ExceedsCapacity(tier):
			return fmt.Errorf("tier %s: the program needs %d bytes, but the capacity is %d; hint: raise the limit or choose another plan", tier, h, p.Capacity[t])
		case p.Bound[t] < 0 || p.Bound[t] > h:
			return fmt.Errorf("tier %s: lower bound %d is not between 0 and the height %d; hint: place the program again", tier, p.Bound[t], h)
		}
	}
	return nil
}

// initName returns the name of an atom's initial content in a persistent buffer; "" if
// undefined.
func initName(b *program.Buffer, band int) string {
	switch {
	case len(b.Init) == 0:
		return ""
	case b.RowUnit > 0:
		return b.Init[0]
	}
	return b.Init[band]
}

// halfName is the prefix of names of bf16 copies: "p16:x" is the cast of "p:x".
var halfName, fullName = optimizer.HalfWeights.String() + ":", optimizer.Weights.String() + ":"

// restName is the prefix of names of lower halves: "rest:x" names those of "p:x".
var restName = optimizer.LowerHalves.String() + ":"

// maskName is the prefix of names of masks: "mask:x" is that of the parameter x.
var maskName = optimizer.Mask.String() + ":"

// restOf returns the name of the content whose lower halves have the given name.
func restOf(name string) (string, bool) {
	full, ok := strings.CutPrefix(name, restName)
	return fullName + full, ok
}

// castOf returns the name of the content whose bf16 copy has the given name.
func castOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, halfName)
	return fullName + rest, ok
}
