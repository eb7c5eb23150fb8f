package alert

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/internal/stat"
)

// rule is a name and a function of the latest steps, the newest last, which returns why it fires; "": it does not.
type rule struct {
	name  string
	judge func(last []Point) string
}

// builtin are the rules that every run has. What each allows was chosen so that TestFalseAlarms holds.
var builtin = [...]rule{
	{"above_plan", abovePlan},
	{"headroom", headroom},
	{"unused", unused},
	{"slow", slow},
	{"stall", stalled},
	{silentRule, ended},
	{"leak", leak},
	{"not_finite", notFinite},
	{"outlier", outlier},
}

// abovePlan: a step took more memory than planned, by whatever number of bytes: a bug.
func abovePlan(last []Point) string {
	for _, t := range last[len(last)-1].Memory {
		if t.Reached > t.Planned {
			return fmt.Sprintf("rank %d reached %d bytes of the %s tier, and %d were planned: this is a bug, please report it", t.Rank, t.Reached, t.Name, t.Planned)
		}
	}
	return ""
}

// Shares of a tier.
const (
	leastRoom  = 0.05 // left, or whatever else needs some may fail
	mostUnused = 0.2  // left, or it could be used
)

// headroom: a tier is nearly full.
func headroom(last []Point) string {
	for _, t := range last[len(last)-1].Memory {
		if left := t.Capacity - t.Planned; t.Capacity > 0 && float64(left) < leastRoom*float64(t.Capacity) && t.Name != "device" {
			return fmt.Sprintf("the plan leaves %d of %d bytes of the %s tier to everything else; hint: a lower limit on it leaves more", left, t.Capacity, t.Name)
		}
	}
	return ""
}

// Unused reports whether much of a device is not used while computing waits for so great a share of a step.
func Unused(planned, capacity int64, waits float64) bool {
	return float64(capacity-planned) > mostUnused*float64(capacity) && waits > mostStall
}

// unused: much of a device that computing waits for is not used, unless planning again has found nothing that could use it.
func unused(last []Point) string {
	p := last[len(last)-1]
	hint := "hint: athanor plan --explain says what other settings would bring"
	if p.Again != nil {
		if p.Again.Brings == "" {
			return ""
		}
		hint = p.Again.Brings
	}
	waits := 0.0
	for _, s := range p.Stalls {
		waits += s.Measured
	}
	for _, t := range p.Memory {
		if t.Name == "device" && Unused(t.Planned, t.Capacity, waits) {
			return fmt.Sprintf("%d of %d bytes of rank %d's device are not used, while computing waits for %.0f %% of a step; %s", t.Capacity-t.Planned, t.Capacity, t.Rank, 100*waits, hint)
		}
	}
	return ""
}

// A run is slow if so many steps in turn are below this part of the median.
const (
	slowSteps = 20
	slowPart  = 0.85
)

// slow: computing has slowed down.
func slow(last []Point) string {
	if len(last) < 2*slowSteps {
		return ""
	}
	list, greatest := make([]float64, len(last)), 0.0
	for i, p := range last {
		list[i] = p.MFU
		greatest = max(greatest, p.MFU)
	}
	fastest := slices.Max(list[len(list)-slowSteps:])
	if fastest >= slowPart*greatest { // whatever the median
		return ""
	}
	median := stat.Median(list[:len(list)-slowSteps])
	if fastest >= slowPart*median {
		return ""
	}
	return fmt.Sprintf("for %d steps the MFU has been below %.3g %%, %.0f %% of its median before; hint: something else is running, or the processor is throttled", slowSteps, 100*slowPart*median, 100*slowPart)
}

// mostStall is the greatest share of a step that computing may wait for one stream.
const mostStall = 0.1

// muchSlower is how many times as long as predicted a stream is busy that is named as slow.
const muchSlower = 1.3

// stalled: computing waits for a link, or for the host's cores. The cause may be another one, which that one waited for before.
func stalled(last []Point) string {
	list := last[len(last)-1].Stalls
	if len(list) == 0 {
		return ""
	}
	s := slices.MaxFunc(list, func(a, b Stall) int { return cmp.Compare(a.Measured, b.Measured) })
	if s.Measured <= mostStall {
		return ""
	}
	text := fmt.Sprintf("computing waits for %s during %.0f %% of a step, and %.0f %% were predicted", s.On, 100*s.Measured, 100*s.Predicted)
	if slow := slices.MaxFunc(list, func(a, b Stall) int { return cmp.Compare(a.Slower, b.Slower) }); slow.Slower >= muchSlower {
		text += fmt.Sprintf("; %s takes %.1f times as long as predicted", slow.On, slow.Slower)
	}
	return text
}

// silentRule is the one that Silent fires, while no step ends.
const silentRule = "no_step"

// ended: a step that has ended is the end of silence.
func ended([]Point) string { return "" }

// leakSteps is the number of differences that tell a leak.
const leakSteps = 2

// leak: what the process holds grows by the same number of bytes with each step. It names the first step that will not
// find the bytes it needs.
func leak(last []Point) string {
	n := len(last)
	if n <= leakSteps {
		return ""
	}
	p := last[n-1]
	growth := p.Held - last[n-2].Held
	for i := n - leakSteps; i < n; i++ {
		if growth <= 0 || last[i-1].Held == 0 || last[i].Held-last[i-1].Held != growth {
			return ""
		}
	}
	text := fmt.Sprintf("what the process holds grows by %d bytes with each step", growth)
	if p.Room > 0 {
		text += fmt.Sprintf("; memory ends at step %d", p.Step+int(p.Room/growth)+1)
	}
	return text
}

// notFinite: the loss or the norm is no number.
func notFinite(last []Point) string {
	p := last[len(last)-1]
	switch {
	case !stat.Finite(p.Loss):
		return fmt.Sprintf("the loss of step %d is %v", p.Step, p.Loss)
	case !stat.Finite(p.GradNorm):
		return fmt.Sprintf("the gradient norm of step %d is %v", p.Step, p.GradNorm)
	case p.ValBroken:
		return fmt.Sprintf("the validation loss at step %d is not finite", p.Step)
	}
	return ""
}

// A loss is an outlier if it is so many median deviations above what so many steps before let expect.
const (
	outlierSteps      = 128
	outlierDeviations = 6.5
)

// outlier: a loss far above the line through the medians of the two halves of the steps before, which follows a loss that
// falls.
func outlier(last []Point) string {
	n := len(last) - 1
	if n < outlierSteps || !stat.Finite(last[n].Loss) {
		return ""
	}
	const half = outlierSteps / 2
	list := make([]float64, 0, outlierSteps)
	for _, q := range last[n-outlierSteps : n] {
		if !stat.Finite(q.Loss) {
			return "" // which another rule says
		}
		list = append(list, q.Loss)
	}
	early, late := stat.Median(list[:half]), stat.Median(list[half:])
	line := func(i int) float64 { return early + (late-early)*(float64(i)-half/2+0.5)/half }
	rise := last[n].Loss - line(outlierSteps)
	above := 0 // most losses are decided by counting, without another median
	for i, x := range list {
		if list[i] = math.Abs(x - line(i)); list[i]*outlierDeviations >= rise {
			above++
		}
	}
	if 2*above > len(list) {
		return ""
	}
	if deviation := stat.Median(list); rise > outlierDeviations*deviation {
		return fmt.Sprintf("the loss of step %d is %.4g, and about %.4g was to be expected of the %d steps before (median deviation %.3g)", last[n].Step, last[n].Loss, line(outlierSteps), outlierSteps, deviation)
	}
	return ""
}
