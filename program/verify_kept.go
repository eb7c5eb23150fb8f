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
// bf16 copy is the cast of its master, and replicas are like their primaries;
// all this over all ranks.
func (xs *executions) checkKept() error {
	k := &keeper{xs, map[string]content{}}
	for r, p := range xs.ps {
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
	return xs.checkReplicas()
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

// checkReplicas: a replica has elements that some rank has a home of, and if
// that is of the same kind, the same content.
func (xs *executions) checkReplicas() error {
	primary := map[string]Value{}
	for _, x := range xs.on {
		for i := range x.p.Homes {
			if h := &x.p.Homes[i]; !h.Replica {
				x.parts(i, func(elements string, v Value) { primary[homeKey(h.Kind, elements)], primary[elements] = v, v })
			}
		}
	}
	for r, x := range xs.on {
		for i := range x.p.Homes {
			h := &x.p.Homes[i]
			if !h.Replica {
				continue
			}
			var why error
			x.parts(i, func(elements string, v Value) {
				key := homeKey(h.Kind, elements)
				if _, ok := primary[elements]; !ok {
					why = fmt.Errorf("there is a replica of the %s, but nothing that it could be one of; hint: cut homes at the same places", key)
				}
				if w, ok := primary[key]; ok && v != w {
					why = fmt.Errorf("the replica of the %s ends with other content than the primary; hint: refresh it after the update", key)
				}
			})
			if why != nil {
				return xs.of(r, why)
			}
		}
	}
	return nil
}
