package golden_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/golden"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/program"
)

func text(t *testing.T, f *golden.Fingerprint) string {
	t.Helper()
	var b bytes.Buffer
	if n, err := f.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("%d bytes of %d, %v", n, b.Len(), err)
	}
	return b.String()
}

// drawn returns the programs of a plan of several ranks, drawn anew for each call.
func drawn(t *testing.T) []*program.Program {
	t.Helper()
	g, pl := samples.RandomRanks(t, testkit.Rand(t))
	var list []*program.Program
	for rank := range pl.Ranks {
		p, err := lower.Lower(t.Context(), g, pl, lower.Options{Rank: rank, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Capacity: program.NoLimits})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// liveAt returns the bytes that are live at an instruction: of the buffers that persist, or are used no later and no sooner.
func liveAt(p *program.Program, at int) (sum [device.NumTiers]int64) {
	uses := func(b int, list []program.Instr) bool {
		return slices.ContainsFunc(list, func(in program.Instr) bool {
			return slices.ContainsFunc(in.Args, func(r program.Region) bool { return !r.Absent() && r.Buf == b })
		})
	}
	for b := range p.Buffers {
		if p.Buffers[b].Persistent || uses(b, p.Instrs[:at+1]) && uses(b, p.Instrs[at:]) {
			sum[p.Buffers[b].Tier] += p.Buffers[b].Size
		}
	}
	return sum
}

// TestFingerprint: what is written reads back the same, its live bytes are those that a search through all uses finds, and
// truncated or other files are refused.
func TestFingerprint(t *testing.T) {
	programs := drawn(t)
	f := golden.New("a b.yaml", []string{`x="y"`, "z=1"}, programs)
	written := text(t, f)
	again, err := golden.Read(strings.NewReader(written))
	if err != nil || again.Config != f.Config || !slices.Equal(again.Overrides, f.Overrides) || text(t, again) != written || f.Difference(again) != "" {
		t.Fatalf("it reads back as %v, %v", again, err)
	}
	sparse := testkit.Count(199, 41, 1) // the search is slow: a few instructions of each rank
	rank, at := -1, 0
	for line := range strings.Lines(written) {
		if strings.HasPrefix(line, "rank ") {
			rank, at = rank+1, 0
		}
		if _, live, ok := strings.Cut(strings.TrimSpace(line), " live "); ok {
			if at%sparse == 0 {
				if want := fmt.Sprint(liveAt(programs[rank], at)); "["+live+"]" != want {
					t.Fatalf("rank %d, instruction %d: %s bytes are live, expected %s", rank, at, live, want)
				}
			}
			at++
		}
	}
	for _, cut := range []int{0, 1, len(written) / 2, len(written) - 1 - len("end\n")} {
		if _, err := golden.Read(strings.NewReader(written[:cut])); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%d bytes of it: %v", cut, err)
		}
	}
	for _, bad := range []string{"athanor-golden 2\n", written + "more\n", strings.Replace(written, `config "`, `config `, 1), "athanor-golden 1\n" + strings.Repeat("x", 2<<20)} {
		if _, err := golden.Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%.40q is read", bad)
		}
	}
}

// TestDifference: a change of one buffer's size, or of one instruction, is named, whichever it is.
func TestDifference(t *testing.T) {
	programs := drawn(t)
	was := golden.New("c", nil, programs)
	p := programs[len(programs)-1]
	rng := testkit.Rand(t)
	for range testkit.Count(5, 20, 200) {
		b := rng.IntN(len(p.Buffers))
		p.Buffers[b].Size += 64
		want := fmt.Sprintf("of rank %d:", p.Rank)
		if d := was.Difference(golden.New("c", nil, programs)); !strings.Contains(d, want) || !strings.Contains(d, "now: buffer "+p.Buffers[b].Name+" ") {
			t.Errorf("buffer %d, %s: %s", b, p.Buffers[b].Name, d)
		}
		p.Buffers[b].Size -= 64
	}
	i := rng.IntN(len(p.Instrs))
	p.Instrs[i].Stream = (p.Instrs[i].Stream + 1) % device.NumStreams
	if d := was.Difference(golden.New("c", nil, programs)); !strings.Contains(d, fmt.Sprintf("now: i%d ", i)) {
		t.Errorf("instruction %d: %s", i, d)
	}
	if d := was.Difference(golden.New("c", nil, programs[:len(programs)-1])); !strings.Contains(d, "now: nothing") && len(programs) > 1 {
		t.Errorf("a rank less: %s", d)
	}
}
