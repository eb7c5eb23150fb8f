package verify

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
)

// EquivalentDeferred is Equivalent for programs that defer updates. Their step begins with the updates left by the
// previous one: it computes what a step of the reference computes from the parameters after these updates. So both
// sides are completed by the updates, at opposite ends:
//
//	programs, then updates   =   updates, then reference
//
// Both sides begin with the same parameters, gradients and clip factor, whatever they are.
func EquivalentDeferred(ps, updates, reference []*program.Program) (Equality, error) {
	var rs [3]*ranks
	for i, list := range [][]*program.Program{ps, updates, reference} {
		var err error
		if rs[i], err = newRanks(list); err != nil {
			return Different, err
		}
		if list[0].RowUnit != ps[0].RowUnit {
			return Different, fmt.Errorf("row units %d and %d cannot be compared; hint: lower both with the same row unit", list[0].RowUnit, ps[0].RowUnit)
		}
	}
	steps, settle, want := rs[0], rs[1], rs[2]
	var h, w summary
	for _, eq := range [...]Equality{Exact, Reordered} {
		step, left, err := steps.from(nil, eq == Reordered)
		if err != nil {
			return Different, err
		}
		if h, _, err = settle.from(left, eq == Reordered); err != nil {
			return Different, fmt.Errorf("deferred updates: %w", err)
		}
		for key, v := range step {
			if !strings.HasPrefix(key, homePrefix) {
				h[key] = v
			}
		}
		_, left, err = settle.from(nil, eq == Reordered)
		if err == nil {
			w, _, err = want.from(left, eq == Reordered)
		}
		if err != nil {
			return Different, fmt.Errorf("reference: %w", err)
		}
		for key := range h {
			if strings.HasPrefix(key, homeKey(optimizer.Gradient, "")) {
				delete(h, key)
			}
		}
		if _, differ := firstDifference(h, w); !differ {
			return eq, nil
		}
	}
	key, _ := firstDifference(h, w)
	return Different, fmt.Errorf("%s differs from the program that defers no updates; hint: look for an instruction that is missing or writes to the wrong place", key)
}

// contents holds what programs leave in persistent buffers, by name and position.
type contents map[named]Value

type named struct {
	name string
	at   within
}

// from is meaning for programs that begin with what other programs left; nil: with the content that names denote. It
// also returns what they leave themselves.
func (rs *ranks) from(left contents, unordered bool) (summary, contents, error) {
	xs := rs.executions(unordered)
	for _, x := range xs.on {
		for i := range x.p.Buffers {
			x.eachInit(i, func(atom int32, name string, at within) {
				if left != nil {
					x.atoms[atom] = x.kept.named(name, at, func(full string, of within) Value { return left.of(full, x.p.Buffers[i].DType, of) })
				}
			})
		}
	}
	if err := xs.run(); err != nil {
		return nil, nil, err
	}
	after := contents{}
	for _, x := range xs.on {
		for i := range x.p.Buffers {
			x.eachInit(i, func(atom int32, name string, at within) {
				full, of, _ := wholeName(name, at)
				after[named{full, of}] = x.kept.wholeOf(x.atoms[atom])
			})
		}
	}
	for n, v := range after {
		if n.name == program.StepScalars { // this step's scalars are now those of the previous step
			after[named{program.PendingScalars, n.at}] = v
		}
	}
	sum, err := xs.summary()
	return sum, after, err
}

// of returns what was left under a name. bf16 copies and lower halves may follow from the weights that were left, and
// weights from lower halves.
func (left contents) of(name string, t graph.DType, at within) Value {
	if v, ok := left[named{name, at}]; ok {
		return v
	}
	if full, ok := castOf(name); ok && t != graph.F32 {
		return castValue(t, left.of(full, graph.F32, at))
	}
	if full, ok := restOf(name); ok {
		return left.of(full, graph.F32, at).lowerHalves()
	}
	if rest, ok := left[named{restName + strings.TrimPrefix(name, fullName), at}]; ok && strings.HasPrefix(name, fullName) {
		return rest.lowerHalves()
	}
	return initValue(name, t, at)
}
