package lower

import (
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

// operand is an argument of an operator that is a value of the graph.
type operand struct {
	unit, k int // it is argument k of an operator of this unit
	op      *op
}

func (a operand) ref() ref { return a.op.refs[a.k] }

// resolve replaces the value by a region.
func (a operand) resolve(r program.Region) { a.op.in.Args[a.k] = r }

// operands are those of all units, by the kind of their values, in the order of the program. Each kind is the business of
// one pass, and there are thousands of operands.
type operands [graph.NumValueKinds][]operand

// indexOperands lists the operands of all units.
func indexOperands(b *builder, units []unit) *operands {
	list := &b.scratch.operands
	for kind := range list {
		list[kind] = list[kind][:0]
	}
	for i := range units {
		for _, o := range units[i].work {
			for k := range o.refs {
				if v := o.refs[k].value; v >= 0 {
					kind := b.st.g.Values[v].Kind
					list[kind] = append(list[kind], operand{i, k, o})
				}
			}
		}
	}
	return list
}

// written returns how many operands of a kind are written: at least as many as there are instances of such values.
func (args *operands) written(kind graph.ValueKind) (n int) {
	for _, a := range args[kind] {
		if a.op.in.Op.Info().Args[a.k].Access != graph.Read {
			n++
		}
	}
	return n
}

// resolve replaces operands by regions.
func resolve(list []operand, region func(r ref) program.Region) {
	for _, a := range list {
		a.resolve(region(a.ref()))
	}
}

// byUnit divides operands among n units.
func byUnit(list []operand, n int) [][]operand {
	divided := make([][]operand, n)
	for i := range divided {
		end := 0
		for end < len(list) && list[end].unit == i {
			end++
		}
		divided[i], list = list[:end], list[end:]
	}
	return divided
}
