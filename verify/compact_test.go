package verify

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// compactPrograms lowers a plan that stores no zeros and the plain one.
func compactPrograms(t *testing.T) (p, plain *program.Program) {
	t.Helper()
	m := *samples.TinyModels["llama"]
	m.Masked, m.Kept = true, map[string]int64{}
	for _, q := range m.Params() {
		if q.Masked {
			m.Kept[q.Name] = q.Elems() / 3
		}
	}
	g, err := graph.Build(&m, 4, graph.F32)
	if err != nil {
		t.Fatal(err)
	}
	pl := plan.Plain(g, 1)
	for i := range pl.Chunks {
		c := &pl.Chunks[i]
		c.Weights, c.Grads, c.State, c.Compact = device.HostTier, device.HostTier, device.HostTier, c.Sparse(g)
	}
	pl.Cache = pl.CacheNeeded(g)
	return mustLower(t, g, pl), mustLower(t, g, plan.Plain(g, 1))
}

// TestCompactDefects: a program that stores only what masks keep computes what the plain one does, bit for bit; with another mask, what
// was not expanded or compressed, weights that need not stay 0, or a mask that changes, it is rejected.
func TestCompactDefects(t *testing.T) {
	p, plain := compactPrograms(t)
	if err := check(p, plain); err != nil {
		t.Fatal(err)
	}
	mask := func(in *program.Instr) *program.Region { return &in.Args[graph.ExpandMask] }
	other := func(op graph.Op) func(p *program.Program) { // the mask of another matrix of equal size
		return func(p *program.Program) {
			for k := 1; ; k++ {
				a, b := &p.Instrs[find(p, op, 0)], &p.Instrs[find(p, op, k)]
				if x, y := mask(a), mask(b); a.Args[0].Cols == b.Args[0].Cols && a.Args[1].Cols == b.Args[1].Cols && x.Buf == y.Buf && x.Off != y.Off {
					*x = *y
					return
				}
			}
		}
	}
	for name, spoil := range map[string]func(p *program.Program){
		"expanded by another mask":   other(graph.Expand),
		"compressed by another mask": other(graph.Compress),
		"zeros may change": func(p *program.Program) {
			for i := range p.Instrs {
				p.Instrs[i].Attr.Masked = false
			}
		},
		"a gradient is expanded": func(p *program.Program) {
			c := p.Instrs[find(p, graph.Compress, 0)]
			e := program.Instr{Op: graph.Expand, Stream: c.Stream, Key: c.Key, Args: []program.Region{c.Args[1], c.Args[0], c.Args[2]}, Waits: c.Waits}
			again := c
			m := &mutator{Program: p}
			m.Instrs = append(m.Instrs, e, again)
			order := m.order()
			at, n := find(p, graph.Compress, 0), len(order)
			order = append(append(append([]int{}, order[:at+1]...), n-2, n-1), order[at+1:n-2]...)
			m.reorder(order)
		},
		"nothing is compressed": func(p *program.Program) { drop(0, graph.Compress, 0)([]*program.Program{p}) },
		"nothing is expanded":   func(p *program.Program) { drop(0, graph.Expand, 0)([]*program.Program{p}) },
		"the mask is written": func(p *program.Program) {
			for i := range p.Instrs {
				if in := &p.Instrs[i]; in.Op == graph.Copy && in.Stream == device.HostToDev && strings.HasPrefix(p.Buffers[in.Args[1].Buf].Name, "mask") {
					in.Stream, in.Args[0], in.Args[1] = device.DevToHost, in.Args[1], in.Args[0]
					return
				}
			}
		},
	} {
		q := copyOf(p)
		spoil(q)
		eq, err := Equivalent([]*program.Program{q}, []*program.Program{plain}) // waits do not matter
		if err == nil && eq == Exact {
			err = Verify(q)
		}
		if err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(err.Error(), "that the reference never computes") && !strings.Contains(err.Error(), "before it is written") && !strings.Contains(err.Error(), "the step changes it") {
			t.Errorf("%s is rejected for another reason: %v", name, err)
		}
	}
}
