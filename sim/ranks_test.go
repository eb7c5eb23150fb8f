package sim

import (
	"math"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

const cols = 1024 // of a buffer, a second of work by bySize

// ranksOf makes programs on two buffers of the device tier, x and y.
func ranksOf(lists ...[]program.Instr) (programs []*program.Program) {
	for r, list := range lists {
		p := &program.Program{Rank: r, Instrs: list}
		for range 2 {
			p.Buffers = append(p.Buffers, program.Buffer{Rows: 1, Cols: cols, Size: 4 * cols, Addr: p.Height[0]})
			p.Height[0] += 4 * cols
		}
		programs = append(programs, p)
	}
	return programs
}

// runAll simulates all ranks.
func runAll(programs []*program.Program, cost Coster) ([]*Timeline, error) {
	spans, err := SpansFirst(programs, len(programs), cost)
	if err != nil {
		return nil, err
	}
	return NewAll(programs, spans)
}

func region(buf, off, n int) program.Region {
	return program.Region{Buf: buf, Off: off, Rows: 1, Cols: n, Stride: n}
}

// work takes n/cols seconds on a stream.
func work(s device.Stream, n int, waits ...int) program.Instr {
	return program.Instr{Op: graph.Add, Stream: s, Args: []program.Region{region(0, 0, n), region(0, 0, n)}, Waits: waits}
}

func message(op graph.Op, peer, tag, n int, waits ...int) program.Instr {
	s := device.Send
	if op == graph.Recv {
		s = device.Recv
	}
	return program.Instr{Op: op, Stream: s, Peers: []int{peer}, Tag: tag, Args: []program.Region{region(1, 0, n)}, Waits: waits}
}

func sum(n int, peers []int, waits ...int) program.Instr {
	return program.Instr{Op: graph.AllReduce, Stream: device.Collective, Peers: peers, Args: []program.Region{region(0, 0, n)}, Waits: waits}
}

// TestMeeting: a collective starts with its last member and takes as long as its
// slowest, a chain of messages is a pipeline, and all spans are on one clock.
func TestMeeting(t *testing.T) {
	all := []int{0, 1, 2}
	list, err := runAll(ranksOf(
		[]program.Instr{work(device.Compute, cols/4), sum(cols/2, all, 0), work(device.Compute, cols/4, 1)},
		[]program.Instr{work(device.Compute, cols), sum(cols/2, all, 0)},
		[]program.Instr{sum(cols/2, all)},
	), bySize)
	if err != nil {
		t.Fatal(err)
	}
	for r, want := range []float64{1.75, 1.5, 1.5} {
		k := min(1, len(list[r].Spans)-1)
		if list[r].Makespan != want || list[r].Spans[k] != (device.Span{Start: 1, End: 1.5}) {
			t.Errorf("rank %d: makespan %v, spans %v", r, list[r].Makespan, list[r].Spans)
		}
		if got := list[r].Network; got != int64(4*(cols/2+(cols/2*(r+1)/3-cols/2*r/3))) {
			t.Errorf("rank %d receives %d bytes", r, got)
		}
	}

	// A pipeline of s stages and m micro-batches of one second each, whose
	// messages take a quarter: s + m - 1 seconds plus s-1 messages.
	const stages, micro = 5, 7
	lists := make([][]program.Instr, stages)
	for s := range lists {
		for m := range micro {
			var waits []int
			if s > 0 {
				lists[s] = append(lists[s], message(graph.Recv, s-1, m, cols/4))
				waits = []int{len(lists[s]) - 1}
			}
			lists[s] = append(lists[s], work(device.Compute, cols, waits...))
			if s < stages-1 {
				lists[s] = append(lists[s], message(graph.Send, s+1, m, cols/4, len(lists[s])-1))
			}
		}
	}
	if list, err = runAll(ranksOf(lists...), bySize); err != nil {
		t.Fatal(err)
	}
	for s := range list {
		if want := float64(s+micro) + 0.25*float64(s); s == stages-1 && list[s].Makespan != want {
			t.Errorf("the pipeline takes %v s, want %v", list[s].Makespan, want)
		}
		if first := firstStart(list[s]); s > 0 && first != float64(s)+0.25*float64(s-1) {
			t.Errorf("stage %d begins to receive at %v", s, first)
		}
	}
}

func firstStart(t *Timeline) float64 {
	first := math.Inf(1)
	for _, s := range t.Spans {
		first = min(first, s.Start)
	}
	return first
}

// TestAlone: one rank by itself takes the sum of its costs; so do equal ranks together.
func TestAlone(t *testing.T) {
	both := []int{0, 1}
	list := []program.Instr{work(device.Compute, cols), sum(cols/2, both, 0), message(graph.Send, 1, 1, cols/4, 1)}
	p := ranksOf(list)[0]
	if got := mustRun(t, p, bySize); got.Makespan != 1.75 {
		t.Errorf("makespan %v", got.Makespan)
	}
	equal := []program.Instr{work(device.Compute, cols), sum(cols/2, both, 0)}
	together, err := runAll(ranksOf(equal, equal), bySize)
	if err != nil {
		t.Fatal(err)
	}
	alone := mustRun(t, ranksOf(equal)[0], bySize)
	if together[0].Makespan != alone.Makespan || together[1].Makespan != alone.Makespan {
		t.Errorf("together %v and %v, alone %v", together[0].Makespan, together[1].Makespan, alone.Makespan)
	}
}

// TestNeverMeet: errors name what would hang or go wrong between ranks.
func TestNeverMeet(t *testing.T) {
	both := []int{0, 1}
	type lists = [][]program.Instr
	wrongStream := sum(8, both)
	wrongStream.Stream = device.Compute
	for want, l := range map[string]lists{
		"rank 0: instruction i1 (all_reduce) has no counterpart on rank 1":     {{sum(8, both), sum(8, both)}, {sum(8, both)}},
		"rank 1: instruction i0 (recv) has no counterpart on rank 0":           {{}, {message(graph.Recv, 0, 3, 8)}},
		"rank 0: instruction i0 (send) has no counterpart on rank 1":           {{message(graph.Send, 1, 3, 8)}, {message(graph.Recv, 0, 4, 8)}},
		"rank 0: instruction i1 (send): tag 3 is already used with rank 1":     {{message(graph.Send, 1, 3, 8), message(graph.Send, 1, 3, 8)}, {message(graph.Recv, 0, 3, 8)}},
		"(recv): 1 x 8 f32 are sent to rank 1, which receives 1 x 9 f32":       {{message(graph.Send, 1, 3, 8)}, {message(graph.Recv, 0, 3, 9)}},
		"(all_reduce): rank 0 sums 8 elements, but rank 1 sums 9":              {{sum(8, both)}, {sum(9, both)}},
		"rank 0: instruction i0 (all_reduce): peer 1 does not exist":           {{sum(8, both)}},
		"rank 0: instruction i0 (all_reduce): the call is on stream compute":   {{wrongStream}, {sum(8, both)}},
		"rank 0, send: i1 (send) waits for i0; rank 0, recv: i0 (recv) waits ": {{message(graph.Recv, 1, 1, 8), message(graph.Send, 1, 2, 8, 0)}, {message(graph.Recv, 0, 2, 8), message(graph.Send, 0, 1, 8, 0)}},
		"collective: i0 (all_reduce) waits for i1 of rank 1": {{sum(8, both), sum(8, []int{0, 1, 2})},
			{sum(8, []int{0, 1, 2}), sum(8, both)}, {sum(8, []int{0, 1, 2})}},
	} {
		if _, err := runAll(ranksOf(l...), bySize); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	if _, err := runAll([]*program.Program{{Rank: 1}}, bySize); err == nil {
		t.Error("programs out of order are accepted")
	}
}

// BenchmarkRanks: 64 ranks of 20,000 instructions, every fourth of which is
// between ranks.
func BenchmarkRanks(b *testing.B) {
	const ranks, length = 64, 20_000
	lists := make([][]program.Instr, ranks)
	everybody := make([]int, ranks)
	for r := range lists {
		everybody[r] = r
	}
	for i := range length {
		for r := range lists {
			in := work(device.Stream(i%3), cols/8)
			switch {
			case i%8 == 3:
				in = sum(cols/8, everybody, i-1)
			case i%8 == 7 && r%2 == 0:
				in = message(graph.Send, r+1, i, cols/8, i-1)
			case i%8 == 7:
				in = message(graph.Recv, r-1, i, cols/8, i-1)
			}
			lists[r] = append(lists[r], in)
		}
	}
	programs := ranksOf(lists...)
	for b.Loop() {
		if _, err := runAll(programs, bySize); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCrowdedMeeting: a call between ranks was timed with all its members running. If
// the two cores run nothing else, it takes as long as it was timed, 4 s, which would be
// 2 s on cores of its own. Next to kernels of 1 s it takes longer: while these run, for
// 4 s, each call has 2/8 of a core, so the meeting does 1 of its 2 s of work.
func TestCrowdedMeeting(t *testing.T) {
	all := []int{0, 1, 2, 3}
	for _, c := range []struct {
		beside bool
		want   float64
	}{{false, 4}, {true, 6}} {
		var lists [][]program.Instr
		for range all {
			list := []program.Instr{sum(4*cols, all)}
			if c.beside {
				list = append(list, work(device.Compute, cols))
			}
			lists = append(lists, list)
		}
		programs := ranksOf(lists...)
		for _, p := range programs {
			for b := range p.Buffers {
				p.Buffers[b] = program.Buffer{Rows: 1, Cols: 4 * cols, Size: 16 * cols, Addr: int64(b) * 16 * cols}
			}
			p.Height[0] = 32 * cols
		}
		tls, err := runAll(programs, crowded{bySize, 2})
		if err != nil {
			t.Fatal(err)
		}
		for r, tl := range tls {
			if math.Abs(tl.Spans[0].End-c.want) > 1e-12 {
				t.Errorf("beside kernels %v: rank %d has it at %v, want %v", c.beside, r, tl.Spans[0].End, c.want)
			}
		}
	}
}
