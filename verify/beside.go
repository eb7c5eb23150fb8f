package verify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/program"
)

// VerifyBeside proves that a program may run between the steps of another, on the same rank
// and in the same arenas, such as an evaluation between training steps. The program
// must declare what the base keeps at the base's addresses and under its names, and
// must leave parameters and their state unchanged. Verify then proves for both that
// nothing else is placed there. Data that the run writes or reads anew each step (rows
// of the batch, results) need not agree.
//
//	base  p.c0 device addr=0 persistent   m.c0 device addr=64 persistent
//	eval  p.c0 device addr=0 persistent   m.c0 device addr=64 persistent   x1 device addr=128
//
// If eval did not declare m.c0, x1 might overlap it, and Verify could not know.
func VerifyBeside(base, p *program.Program) error {
	if err := Shares(base, p); err != nil {
		return err
	}
	state := map[string]bool{} // names of buffers with homes
	for i := range base.Homes {
		state[base.Buffers[base.Homes[i].Region.Buf].Name] = true
	}
	for i := range p.Instrs {
		in := &p.Instrs[i]
		for j, r := range in.Args {
			if _, writes := accessOf(in, j); writes && !r.Absent() && state[p.Buffers[r.Buf].Name] {
				return operandFault(p, i, j, "only the base program may change its state", "is written")
			}
		}
	}
	return nil
}

// Shares proves the same as VerifyBeside, except that the program may change parameters and their state, as deferred
// updates do.
func Shares(base, p *program.Program) error {
	fail := func(b *program.Buffer, format string, args ...any) error {
		return fmt.Errorf("buffer %s of the base program %q: %s; hint: lower the program with Options.Base", b.Name, base.Name, fmt.Sprintf(format, args...))
	}
	if base.Rank != p.Rank {
		return fmt.Errorf("program %q is of rank %d, the base program of rank %d; hint: use programs of the same rank", p.Name, p.Rank, base.Rank)
	}
	mine := map[string]*program.Buffer{}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Persistent {
			mine[b.Name] = b
		}
	}
	for i := range base.Buffers {
		b := &base.Buffers[i]
		if !b.Persistent || strings.HasPrefix(b.Name, batchPrefix) || ownName(b) && b.Init[0] != b.Name || len(b.Init) == 0 {
			continue
		}
		m := mine[b.Name]
		switch {
		case m == nil:
			return fail(b, "is not kept by %q", p.Name)
		case m.Tier != b.Tier || m.Addr != b.Addr:
			return fail(b, "is at %d on %v, and at %d on %v in %q", b.Addr, b.Tier, m.Addr, m.Tier, p.Name)
		case m.DType != b.DType || m.Rows != b.Rows || m.Cols != b.Cols || m.Size != b.Size || !slices.Equal(m.Cuts, b.Cuts) || !slices.Equal(m.Init, b.Init):
			return fail(b, "has another type, shape, size or content in %q", p.Name)
		}
	}
	return nil
}
