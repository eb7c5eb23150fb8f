package program

import (
	"fmt"
	"maps"
	"slices"
)

// content is what stands for a name at the end of a step.
type content struct {
	rank, buf int
	v         Value
}

// keeper collects contents by name, over all ranks.
type keeper struct {
	*executions
	now map[string]content
}

func (k *keeper) buffer(c content) string {
	name := k.ps[c.rank].Buffers[c.buf].Name
	if len(k.ps) > 1 {
		name = fmt.Sprintf("%s of rank %d", name, c.rank)
	}
	return name
}

// checkKept checks what the next step takes for granted: persistent buffers
// are defined, inputs untouched, equal names stand for equal content again, a
// bf16 copy is the cast of its master, and the run finds all that it fills and
// reads; all this over all ranks.
func (xs *executions) checkKept() error {
	k := &keeper{xs, map[string]content{}}
	for r, p := range xs.ps {
		if err := p.checkNames(); err != nil {
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
		master, known := k.now[full]
		if half := k.now[name]; ok && known && castValue(xs.ps[half.rank].Buffers[half.buf].DType, master.v) != half.v {
			return fmt.Errorf("buffer %s ends with a %q that is not the cast of %q in buffer %s; hint: a copy is missing or too early",
				k.buffer(half), name, full, k.buffer(master))
		}
	}
	return xs.checkHomes()
}

// check looks at one persistent buffer and notes what it holds.
func (k *keeper) check(rank, buf int) (err error) {
	x, b := k.on[rank], &k.ps[rank].Buffers[buf]
	if b.Persistent && len(b.Init) == 0 {
		x.undefined = -1
		if x.digest(x.bufferSpan(buf)); x.undefined >= 0 {
			return k.of(rank, fmt.Errorf("persistent buffer %s is not all written by the end; hint: name its content, or write it", b.Name))
		}
	}
	x.eachInit(buf, func(atom int32, name string, at within) {
		here := content{rank, buf, x.atoms[atom]}
		key := name
		if b.RowUnit > 0 {
			key = fmt.Sprintf("%s[%d,%d]", name, at.row, at.col)
		}
		first, known := k.now[key]
		switch {
		case err != nil:
		case here.v == Value{}:
			err = k.of(rank, fmt.Errorf("persistent buffer %s ends without its content %q; hint: something undefined was copied there", b.Name, name))
		case b.Class == ClassInputs && here.v != initValue(name, b.DType, at):
			err = k.of(rank, fmt.Errorf("buffer %s holds the input %q, but the step changes it; hint: inputs are read only", b.Name, name))
		case known && first.v != here.v:
			err = fmt.Errorf("buffers %s and %s both hold %q, but end with different content; hint: a copy is missing or too early",
				k.buffer(first), k.buffer(here), name)
		case !known:
			k.now[key] = here
		}
	})
	return err
}

// checkHomes checks that homes and names of content are two ways to say the same:
// the run puts a parameter's state where its homes are, and programs are proven
// from names on. So homes of the same elements, of all ranks, hold what has one
// name, and so the same; a replica has elements that some rank has a home of; and
// no state is used that nobody fills.
func (xs *executions) checkHomes() error {
	content, elements := map[string]string{}, map[string]string{} // one by the other
	primary := map[string]bool{}
	for r := range xs.on {
		err := xs.eachPart(r, func(h *Home, key, name string) error {
			if was, ok := content[key]; ok && was != name || name == "" {
				return fmt.Errorf("the %s is %q here and %q elsewhere; hint: homes of the same elements hold the same", key, name, was)
			}
			if was, ok := elements[name]; ok && was != key {
				return fmt.Errorf("%q is the %s and the %s; hint: name what each home holds", name, was, key)
			}
			content[key], elements[name] = name, key
			primary[key] = primary[key] || !h.Replica
			return nil
		})
		if err == nil {
			err = xs.on[r].checkFilled()
		}
		if err != nil {
			return xs.of(r, err)
		}
	}
	for r := range xs.on {
		if err := xs.eachPart(r, func(_ *Home, key, _ string) error {
			if !primary[key] {
				return fmt.Errorf("there is a replica of the %s, but nothing that it could be one of; hint: cut homes at the same places", key)
			}
			return nil
		}); err != nil {
			return xs.of(r, err)
		}
	}
	return nil
}

// eachPart lists the parts of a rank's homes, until there is an error. A bf16 copy
// counts as what it is a copy of.
func (xs *executions) eachPart(rank int, f func(h *Home, key, name string) error) (err error) {
	x := xs.on[rank]
	for i := range x.p.Homes {
		h := &x.p.Homes[i]
		kind := h.Kind
		if kind+":" == halfName {
			kind = "p"
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

// checkFilled checks that all state which the program uses is in its homes, from
// where the run fills it before the first step.
func (x *execution) checkFilled() error {
	filled := make([]bool, len(x.atoms))
	for i := range x.p.Homes {
		x.parts(i, func(_ string, atom int32, _ string) { filled[atom] = true })
	}
	for i := range x.p.Instrs {
		for j, s := range x.ly.operands(i) {
			if s.blocks == 0 || !x.p.Buffers[x.p.Instrs[i].Args[j].Buf].state() {
				continue
			}
			buf := x.p.Instrs[i].Args[j].Buf
			for k := range s.bands {
				atom := s.at(0, k)
				if name := x.p.Buffers[buf].initName(int(atom - x.ly.base[buf])); name != "" && !filled[atom] {
					return x.p.operandFault(i, j, "give it a home", "holds %q, which is in no home, so nothing fills it before the first step", name)
				}
			}
		}
	}
	return nil
}

// state reports whether a buffer keeps parameters or what belongs to them.
func (b *Buffer) state() bool {
	return b.Persistent && (b.Class == ClassWeights || b.Class == ClassFrozen || b.Class == ClassState)
}

// checkNames checks that the run, which fills and reads buffers by name between
// steps, finds them: what is kept has a name of its own, and inputs are called like
// their content.
func (p *Program) checkNames() error {
	kept := map[string]bool{}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		switch {
		case !b.Persistent:
			continue
		case kept[b.Name]:
			return fmt.Errorf("two persistent buffers are called %s; hint: the run finds them by name", b.Name)
		case b.Class == ClassInputs && (len(b.Init) != 1 || b.Init[0] != b.Name):
			return fmt.Errorf("buffer %s holds the inputs %q; hint: call it like them, the run writes inputs by name", b.Name, b.Init)
		}
		kept[b.Name] = true
	}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; !b.Persistent && kept[b.Name] {
			return fmt.Errorf("a persistent buffer and one that is not are called %s; hint: the run finds them by name", b.Name)
		}
	}
	return nil
}
