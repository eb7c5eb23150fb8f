package schedule

import (
	"fmt"
	"math"
	"testing"
)

// form is what the papers say about a schedule, as functions of the request; nil means not stated.
type form struct {
	name     string
	v, k     int
	makespan func(p, m int) float64
	idle     func(p, m int) float64 // bubble time of the worst rank
	peak     func(p, m, r int) float64
	messages func(p, m int) int
	from     int // smallest p
	enough   func(p, m int) bool
}

// forms uses F=1, B=W=1 (full backward 2), W keeping half of the memory.
func forms() []form {
	flow := func(p, m int) float64 { return float64(3 * (m + p - 1)) }
	straight := func(p, m int) int { return 2 * m * (p - 1) }
	list := []form{
		{name: "gpipe", makespan: flow, peak: func(p, m, r int) float64 { return float64(m) }, messages: straight},
		{name: "1f1b", makespan: flow, peak: func(p, m, r int) float64 { return float64(min(p-r, m)) }, messages: straight},
		{name: "zb-h1", idle: func(p, m int) float64 { return float64(p - 1) },
			peak: func(p, m, r int) float64 { return float64(p-r) + float64(r)/2 }, messages: straight},
		{name: "zb-h2", idle: func(p, m int) float64 { return 0 }, messages: straight, enough: func(p, m int) bool { return m >= 2*p-1 },
			peak: func(p, m, r int) float64 { return float64(2*p-2*r-1) + float64(r) }},
		{name: "zb-v", idle: func(p, m int) float64 { return 0 }, enough: func(p, m int) bool { return m >= 2*p },
			peak: func(p, m, r int) float64 { return float64(2 * p) }, messages: func(p, m int) int { return 2 * m * (2*p - 2) }},
		{name: "chimera", messages: straight, enough: func(p, m int) bool { return m == p || p <= 8 && m < 4*p },
			makespan: func(p, m int) float64 { return float64(3*m + 2*(p-2)) }}, // idle share (p-2)/(1.5m+p-2)
		{name: "bitpipe", from: 4, makespan: func(p, m int) float64 { return float64(6*m + (p-2)*(m/p+1)) },
			messages: func(p, m int) int { return 2 * m * (2*p - 2) },
			peak: func(p, m, r int) float64 {
				if m > p {
					return math.NaN() // stated for one group only
				}
				return float64(min(3*p/2+min(r, p-1-r)+1, 2*p))
			}},
		{name: "dualpipe", from: 4, enough: func(p, m int) bool { return m >= 2*p }, messages: straight,
			makespan: func(p, m int) float64 { return float64(3*m + 2*(p/2-1)) }},
	}
	for _, v := range []int{2, 3, 4} {
		list = append(list,
			form{name: "interleaved", v: v, makespan: func(p, m int) float64 { return float64(3*m*v + 3*(p-1)) },
				peak:     func(p, m, r int) float64 { return float64(min((v-1)*p+2*(p-1-r)+1, m*v)) },
				messages: func(p, m int) int { return 2 * m * (v*p - 1) }},
			form{name: "breadth-first", v: v, makespan: func(p, m int) float64 { return float64(3 * ((v-1)*max(m, p) + m + p - 1)) },
				peak:     func(p, m, r int) float64 { return float64(m * v) },
				messages: func(p, m int) int { return 2 * m * (v*p - 1) }})
	}
	for _, k := range []int{2, 3, 4, 8} {
		list = append(list, form{name: "seq1f1b", k: k, makespan: func(p, m int) float64 { return float64(3 * (m*k + p - 1)) },
			peak:     func(p, m, r int) float64 { return float64(p-r-1+k) / float64(k) },
			messages: func(p, m int) int { return 2 * m * k * (p - 1) }})
	}
	return list
}

func TestClosedForms(t *testing.T) {
	for _, f := range forms() {
		for _, p := range []int{2, 4, 8, 16} {
			for _, m := range []int{p, 2 * p, 3 * p, 5 * p} {
				if p < f.from || f.enough != nil && !f.enough(p, m) {
					continue
				}
				t.Run(fmt.Sprintf("%s/p=%d,m=%d,v=%d,k=%d", f.name, p, m, f.v, f.k), func(t *testing.T) {
					checkForm(t, f, p, m)
				})
			}
		}
	}
}

func checkForm(t *testing.T, f form, p, m int) {
	_, tl := simulate(t, f.name, Request{Ranks: p, Micros: m, Chunks: f.v, Slices: f.k, Costs: DefaultCosts()})
	if f.makespan != nil && tl.Makespan != f.makespan(p, m) {
		t.Errorf("makespan %g, want %g", tl.Makespan, f.makespan(p, m))
	}
	if f.idle != nil && tl.Idle() != f.idle(p, m) {
		t.Errorf("idle %g, want %g", tl.Idle(), f.idle(p, m))
	}
	if f.messages != nil && tl.Messages != f.messages(p, m) {
		t.Errorf("%d messages, want %d", tl.Messages, f.messages(p, m))
	}
	for r, got := range tl.Peaks {
		if f.peak != nil {
			if want := f.peak(p, m, r); got != want && !math.IsNaN(want) {
				t.Errorf("rank %d: peak %g, want %g", r, got, want)
			}
		}
	}
}

// TestTightMemory: V schedules below the memory of 1F1B. A similar search over V-Half and V-Min patterns is known to reach
// these idle times (p=4, m=8: 5 and 11 of 48; p=8, m=16: 17 and 27 of 96).
func TestTightMemory(t *testing.T) {
	for _, x := range []struct {
		p, m int
		cap  float64
		idle float64
	}{{4, 8, 6, 5}, {4, 8, 4, 11}, {8, 16, 10, 21}, {8, 16, 8, 27}} {
		q := Request{Ranks: x.p, Micros: x.m, Cap: x.cap, Costs: DefaultCosts()}
		s, tl := simulate(t, "zb-v", q)
		if tl.Idle() > x.idle || s.CheckCap(q.Costs, x.cap) != nil {
			t.Errorf("p=%d m=%d cap %g: idle %g, want at most %g", x.p, x.m, x.cap, tl.Idle(), x.idle)
		}
	}
}
