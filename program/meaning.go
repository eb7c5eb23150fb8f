package program

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Summary is what a step leaves behind: the content of every parameter's
// homes, and of the buffers that hold its results (losses, norms, caches).
type Summary map[string]Value

// Meaning executes a program symbolically. It expects a program that Verify
// accepts, but addresses and waits do not enter into it.
func Meaning(p *Program) (Summary, error) {
	ly, err := checkStructure(p)
	if err != nil {
		return nil, err
	}
	x := newExecution(p, ly)
	if err := x.run(); err != nil {
		return nil, err
	}
	return x.summary(), nil
}

// Equivalent proves that a program leaves the same bits behind as a reference,
// for example the plain program of the same graph. Both must have the same
// row unit, and cut parameters at the same places. What the reference results
// in, the program must result in; it may have further results.
func Equivalent(p, reference *Program) error {
	if p.RowUnit != reference.RowUnit {
		return fmt.Errorf("row units %d and %d cannot be compared; hint: lower both with the same", p.RowUnit, reference.RowUnit)
	}
	have, err := Meaning(p)
	if err != nil {
		return err
	}
	want, err := Meaning(reference)
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if have[key] != want[key] {
			return difference(p, reference, key, have)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[key]; !ok && strings.HasPrefix(key, "home ") {
			return fmt.Errorf("program has %s, the reference has not; hint: compare programs of the same model", key)
		}
	}
	return nil
}

const homeKey, outputKey = "home of %s of parameter %d", "result %s"

// difference explains why a result differs: with the first instruction that
// makes something which the reference never makes.
func difference(p, reference *Program, key string, have Summary) error {
	if _, ok := have[key]; !ok {
		return fmt.Errorf("program has no %s, the reference has; hint: compare programs of the same model and mode", key)
	}
	made := map[Value]bool{}
	trace(reference, func(_, _ int, v Value) bool { made[v] = true; return true })
	instr, arg := -1, 0
	trace(p, func(i, j int, v Value) bool {
		if v != (Value{}) && !made[v] { // leftovers are no results
			instr, arg = i, j
		}
		return instr < 0
	})
	if instr < 0 {
		return fmt.Errorf("%s is not what it is in the reference, though each instruction's result also occurs there; hint: something is missing, or is put in the wrong place", key)
	}
	return p.operandFault(instr, arg, "this is the first such instruction; look at its operands and attributes",
		"becomes something that the reference never computes, and so %s differs", key)
}

// trace executes a program and reports each atom that each instruction writes,
// until seen returns false.
func trace(p *Program, seen func(instr, arg int, v Value) bool) {
	ly, err := checkStructure(p)
	if err != nil {
		return
	}
	x := newExecution(p, ly)
	for i := range p.Instrs {
		if x.instr(i) != nil {
			return
		}
		for j, s := range ly.operands(i) {
			if _, writes := accessOf(&p.Instrs[i], j); !writes {
				continue
			}
			for b := range s.blocks {
				for k := range s.bands {
					if !seen(i, j, x.atoms[s.at(b, k)]) {
						return
					}
				}
			}
		}
	}
}

// ---- after the step

// digest hashes all atoms of a box onto v.
func (x *execution) digest(v Value, s box) Value {
	return x.read(v, 0, s, 0, s.blocks)
}

func (x *execution) bufferSpan(b int) box {
	n := x.ly.base[b+1] - x.ly.base[b]
	return box{x.ly.base[b], n, 1, n}
}

func (x *execution) summary() Summary {
	sum := Summary{}
	for i, s := range x.ly.homes {
		if h := &x.p.Homes[i]; !h.Replica {
			key := fmt.Sprintf(homeKey, h.Kind, h.Param)
			sum[key] = x.digest(sum[key], s)
		}
	}
	for i := range x.p.Buffers {
		if b := &x.p.Buffers[i]; b.Persistent && (b.Class == ClassReductions || b.Class == ClassActivations || len(b.Init) == 0) {
			sum[fmt.Sprintf(outputKey, b.Name)] = x.digest(Value{}, x.bufferSpan(i))
		}
	}
	return sum
}

// checkKept checks what the next step takes for granted: persistent buffers
// are defined, inputs untouched, equal names stand for equal content again, a
// bf16 copy is the cast of its master, and replicas are like their primaries.
func (x *execution) checkKept() error {
	type content struct {
		buf int
		v   Value
	}
	now := map[string]content{}
	for i := range x.p.Buffers {
		b := &x.p.Buffers[i]
		if b.Persistent && len(b.Init) == 0 {
			x.undefined = -1
			if x.digest(Value{}, x.bufferSpan(i)); x.undefined >= 0 {
				return fmt.Errorf("persistent buffer %s is not all written by the end; hint: name its content, or write it", b.Name)
			}
		}
		var err error
		x.eachInit(i, func(atom int32, name string, block, band int) {
			v := x.atoms[atom]
			key := name
			if b.RowUnit > 0 {
				key = fmt.Sprintf("%s[%d,%d]", name, block, band)
			}
			first, known := now[key]
			switch {
			case err != nil:
			case v == Value{}:
				err = fmt.Errorf("persistent buffer %s ends without its content %q; hint: something undefined was copied there", b.Name, name)
			case b.Class == ClassInputs && v != initValue(name, b.DType, block, band):
				err = fmt.Errorf("buffer %s holds the input %q, but the step changes it; hint: inputs are read only", b.Name, name)
			case known && first.v != v:
				err = fmt.Errorf("buffers %s and %s both hold %q, but end with different content; hint: a copy is missing or too early",
					x.p.Buffers[first.buf].Name, b.Name, name)
			case !known:
				now[key] = content{i, v}
			}
		})
		if err != nil {
			return err
		}
	}
	for name, half := range now {
		if full, ok := castOf(name); ok {
			b := &x.p.Buffers[half.buf]
			if master, ok := now[full]; ok && castValue(b.DType, master.v) != half.v {
				return fmt.Errorf("buffer %s ends with a %q that is not the cast of %q in buffer %s; hint: a copy is missing or too early",
					b.Name, name, full, x.p.Buffers[master.buf].Name)
			}
		}
	}
	return x.checkReplicas()
}

func (x *execution) checkReplicas() error {
	primary := map[string]Value{}
	replica := map[string]Value{}
	for i, s := range x.ly.homes {
		h := &x.p.Homes[i]
		key := fmt.Sprintf(homeKey, h.Kind, h.Param)
		if h.Replica {
			replica[key] = x.digest(replica[key], s)
		} else {
			primary[key] = x.digest(primary[key], s)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(replica)) {
		if v, ok := primary[key]; ok && v != replica[key] {
			return fmt.Errorf("the replica of the %s ends with other content than the primary; hint: refresh it after the update", key)
		}
	}
	return nil
}
