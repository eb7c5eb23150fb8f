package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// content is the value of a name at the end of a step.
type content struct {
	rank, buf int
	v         Value
}

// keeper collects contents by name, over all ranks.
type keeper struct {
	*executions
	now   map[string]content
	homed [][]bool // by rank: atoms in homes
}

func (k *keeper) buffer(c content) string {
	name := k.ps[c.rank].Buffers[c.buf].Name
	if len(k.ps) > 1 {
		name = fmt.Sprintf("%s of rank %d", name, c.rank)
	}
	return name
}

// checkKept checks, over all ranks, what the next step relies on: persistent buffers
// are defined; what is neither state nor result is unchanged; equal names again hold
// equal content; a bf16 copy is the cast of its master; upper and lower halves are those
// of the same numbers; and the run finds everything that it fills and reads.
func (xs *executions) checkKept() error {
	k := &keeper{executions: xs, now: map[string]content{}}
	for r, p := range xs.ps {
		k.homed = append(k.homed, xs.on[r].homed())
		err := checkNames(p)
		if err == nil {
			err = xs.on[r].checkFilled(k.homed[r])
		}
		if err != nil {
			return xs.of(r, err)
		}
		for i := range p.Buffers {
			if err := k.check(r, i); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.now)) {
		full, ok := castOf(name)
		half := k.now[name]
		if master, known := k.now[full]; ok && known && castValue(xs.ps[half.rank].Buffers[half.buf].DType, master.v) != half.v {
			return fmt.Errorf("buffer %s ends with a %q that is not the cast of %q in buffer %s; hint: look for a copy that is missing or too early",
				k.buffer(half), name, full, k.buffer(master))
		}
		if rest, known := k.now[restName+strings.TrimPrefix(full, fullName)]; ok && known && castValue(graph.BF16, rest.v.lowerHalves()) != half.v {
			return fmt.Errorf("buffer %s ends with a %q whose lower halves are not those in buffer %s; hint: look for a copy that is missing or too early",
				k.buffer(half), name, k.buffer(rest))
		}
	}
	return xs.checkHomes()
}

// check examines one persistent buffer and records what it holds.
func (k *keeper) check(rank, buf int) (err error) {
	x, b := k.on[rank], &k.ps[rank].Buffers[buf]
	if b.Persistent && len(b.Init) == 0 {
		x.undefined = -1
		if x.digest(x.bufferSpan(buf)); x.undefined >= 0 {
			return k.of(rank, fmt.Errorf("persistent buffer %s is not completely written by the end; hint: name its content, or write all of it", b.Name))
		}
	}
	x.eachInit(buf, func(atom int32, name string, at within) {
		here := content{rank, buf, x.kept.wholeOf(x.atoms[atom])}
		key, _, _ := wholeName(name, at)
		if b.RowUnit > 0 {
			key = fmt.Sprintf("%s[%d,%d]", name, at.row, at.col)
		}
		input := !k.homed[rank][atom] && !isResult(b) || strings.HasPrefix(name, maskName)
		first, known := k.now[key]
		switch {
		case err != nil:
		case here.v == Value{}:
			err = k.of(rank, fmt.Errorf("persistent buffer %s ends without its content %q; hint: look for an undefined value that was copied there", b.Name, name))
		case input && x.atoms[atom] != x.kept.initial(name, b.DType, at):
			err = k.of(rank, fmt.Errorf("buffer %s holds the input %q, but the step changes it; hint: do not write to inputs", b.Name, name))
		case known && first.v != here.v:
			err = fmt.Errorf("buffers %s and %s both hold %q, but end with different content; hint: look for a copy that is missing or too early",
				k.buffer(first), k.buffer(here), name)
		case !known:
			k.now[key] = here
		}
	})
	return err
}

// checkHomes checks that homes and content names agree: the run places state by homes,
// while proofs start from names. So homes of the same elements hold content of the same
// name on all ranks, and a replica's elements have a primary home on some rank.
func (xs *executions) checkHomes() error {
	content, elements := map[string]string{}, map[string]string{} // each by the other
	primary := map[string]bool{}
	for r := range xs.on {
		err := xs.eachPart(r, func(h *program.Home, key, name string) error {
			if was, ok := content[key]; ok && was != name || name == "" {
				return fmt.Errorf("the %s is called %q here and %q elsewhere; hint: give the content of the same elements one name", key, name, was)
			}
			if was, ok := elements[name]; ok && was != key {
				return fmt.Errorf("%q is both the %s and the %s; hint: name the content of each home", name, was, key)
			}
			content[key], elements[name] = name, key
			primary[key] = primary[key] || !h.Replica
			return nil
		})
		if err != nil {
			return xs.of(r, err)
		}
	}
	for r := range xs.on {
		if err := xs.eachPart(r, func(_ *program.Home, key, _ string) error {
			if !primary[key] {
				return fmt.Errorf("there is a replica of the %s, but no original; hint: cut homes at the same places", key)
			}
			return nil
		}); err != nil {
			return xs.of(r, err)
		}
	}
	return nil
}

// eachPart lists the parts of a rank's homes until an error. A bf16 copy counts as its
// original.
func (xs *executions) eachPart(rank int, f func(h *program.Home, key, name string) error) (err error) {
	x := xs.on[rank]
	for i := range x.p.Homes {
		h := &x.p.Homes[i]
		kind := h.Kind
		if kind == optimizer.HalfWeights {
			kind = optimizer.Weights
		}
		x.parts(i, func(elements string, _ int32, name string) {
			if full, ok := castOf(name); ok {
				name = full
			}
			if err == nil {
				err = f(h, homeKey(kind, elements), name)
			}
		})
	}
	return err
}

// homed marks the atoms that are in homes.
func (x *execution) homed() []bool {
	list := make([]bool, len(x.atoms))
	for _, s := range x.ly.homes {
		for k := range s.bands {
			list[s.at(0, k)] = true
		}
	}
	return list
}

// checkFilled checks that all content that the program uses exists when it begins: the
// run fills homes, and buffers named after their content.
func (x *execution) checkFilled(homed []bool) error {
	for i := range x.p.Instrs {
		for j, s := range x.ly.operands(i) {
			buf := x.p.Instrs[i].Args[j].Buf
			b := &x.p.Buffers[buf]
			if s.blocks == 0 || len(b.Init) == 0 || ownName(b) {
				continue
			}
			for k := range s.bands {
				atom := s.at(0, k)
				if name := initName(b, int(atom-x.ly.base[buf])); name != "" && !homed[atom] {
					return operandFault(x.p, i, j, "give it a home, or name the buffer after its content", "holds %q, which nothing fills before the first step", name)
				}
			}
		}
	}
	return nil
}

// ownName reports whether a buffer is named like its content before or after the step.
func ownName(b *program.Buffer) bool {
	return len(b.Init) == 1 && strings.TrimSuffix(b.Init[0], ".before") == b.Name
}

// isResult reports whether a buffer is one of a step's results.
func isResult(b *program.Buffer) bool {
	return b.Persistent && (b.Class == program.ClassReductions || b.Class == program.ClassActivations || len(b.Init) == 0)
}

// checkNames checks that every kept buffer has a unique name: the run fills and reads
// buffers between steps by name.
func checkNames(p *program.Program) error {
	kept := map[string]bool{}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Persistent {
			if kept[b.Name] {
				return fmt.Errorf("two persistent buffers are called %s; hint: give each its own name, by which the run finds it", b.Name)
			}
			kept[b.Name] = true
		}
	}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; !b.Persistent && kept[b.Name] {
			return fmt.Errorf("a persistent buffer and a temporary one are both called %s; hint: give each its own name, by which the run finds it", b.Name)
		}
	}
	return nil
}
