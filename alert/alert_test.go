package alert

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// quiet returns step i of a run in which nothing happens.
func quiet(r *rand.Rand, i int) Point {
	seconds := 0.1 * math.Exp(0.05*r.NormFloat64())
	return Point{Step: i, Loss: 2 + 5*math.Pow(float64(i+50), -0.3) + 0.05*r.NormFloat64(), ValLoss: math.NaN(), GradNorm: math.Exp(0.3 * r.NormFloat64()),
		Seconds: seconds, MFU: 0.04 / seconds, Rate: 1024 / seconds, Held: 1 << 30, Room: 1 << 32,
		Memory: []Tier{{Name: "device", Planned: 900, Reached: 900, Capacity: 1000}, {Name: "host", Planned: 500, Reached: 500, Capacity: 1000}},
		Stalls: []Stall{{"h2d", 0.03, 0.02, 1.5}}}
}

func watcher(t *testing.T, o Options) *Watcher {
	t.Helper()
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestFalseAlarms: of 200 runs of 1000 steps in which nothing happens, 5 +- 3 % see an alert.
func TestFalseAlarms(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	r := testkit.Rand(t)
	const trials = 200
	alarmed, by := 0, map[string]int{}
	for range trials {
		w, any := watcher(t, Options{}), false
		for i := 1; i <= 1000; i++ {
			for _, e := range w.Add(quiet(r, i)) {
				any = true
				by[e.Rule]++
			}
		}
		if any {
			alarmed++
		}
	}
	share := float64(alarmed) / trials
	t.Logf("%.1f %% of %d runs: %v", 100*share, trials, by)
	if share < 0.02 || share > 0.08 {
		t.Errorf("%.1f %% of runs in which nothing happens see an alert: %v", 100*share, by)
	}
}

// TestLeak: a leak of 4 KiB with each step is seen within 2 steps, and the step that is named is the first that does not
// find the bytes it needs. Growth that differs from step to step, or stops, is no leak.
func TestLeak(t *testing.T) {
	const leaked, begin = 4096, 100
	for _, room := range []int64{1, 4095, 4096, 4097, 10 * leaked, 1e9 + 7} {
		r, w := testkit.Rand(t), watcher(t, Options{})
		held, left := int64(1<<30), room+10*leaked
		for i := 1; ; i++ {
			p := quiet(r, i)
			if i > begin {
				held, left = held+leaked, left-leaked
			}
			p.Held, p.Room = held, left
			events := w.Add(p)
			if i <= begin {
				continue
			}
			if i > begin+2 {
				t.Fatalf("nothing is seen in step %d", i)
			}
			if len(events) == 0 {
				continue
			}
			ends, free := i, left
			for ; free >= 0; free -= leaked {
				ends++
			}
			// After step i, free bytes are left; the first step after which fewer than none would be is the end.
			if want := "memory ends at step " + number(ends); events[0].Rule != "leak" || !strings.HasSuffix(events[0].Text, want) {
				t.Errorf("room %d, step %d: %s, expected %s", room, i, events[0].Text, want)
			}
			break
		}
	}
	w := watcher(t, Options{})
	held, events := int64(1000), []Event(nil)
	for i, growth := range []int64{0, 8, 8, 8, 0, 8, 16, 8, 16, -5, 7} {
		held += growth
		events = append(events, w.Add(Point{Step: i, ValLoss: math.NaN(), Held: held})...)
	}
	if len(events) != 2 || events[0].Step != 2 || !events[0].Firing || events[1].Step != 4 || events[1].Firing {
		t.Errorf("growth that ends: %+v", events)
	}
}

func number(n int) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// TestRules: each rule fires for what it is there for, in that step, names it, and is resolved when it is over; none
// fires beside it.
func TestRules(t *testing.T) {
	const at = 300
	for name, c := range map[string]struct {
		change func(p *Point, i int) // steps from at on
		words  string
		within int
	}{
		"above_plan": {func(p *Point, _ int) { p.Memory = []Tier{{Rank: 3, Name: "host", Planned: 500, Reached: 501}} }, "rank 3 reached 501 bytes of the host tier, and 500", 1},
		"headroom":   {func(p *Point, _ int) { p.Memory = []Tier{{Name: "host", Planned: 951, Reached: 951, Capacity: 1000}} }, "leaves 49 of 1000 bytes", 1},
		"unused": {func(p *Point, _ int) {
			p.Memory = []Tier{{Name: "device", Planned: 700, Reached: 700, Capacity: 1000}}
			p.Stalls = []Stall{{"h2d", 0.06, 0, 0}, {"d2h", 0.06, 0, 0}}
		}, "300 of 1000 bytes", 1},
		"slow": {func(p *Point, _ int) { p.MFU *= 0.6 }, "20 steps", 20},
		"stall": {func(p *Point, _ int) {
			p.Stalls = []Stall{{"host", 0.11, 0, 1}, {"d2h", 0.02, 0.02, 2}, {"h2d", 0.25, 0.11, 1}}
		}, "waits for h2d during 25 % of a step, and 11 % were predicted; d2h takes 2.0 times", 1},
		"not_finite": {func(p *Point, _ int) { p.Loss = math.NaN() }, "the loss of step 300 is NaN", 1},
		"outlier": {func(p *Point, i int) {
			if i == at {
				p.Loss += 3
			}
		}, "the loss of step 300", 1},
	} {
		r, w := rand.New(rand.NewPCG(1, 2)), watcher(t, Options{})
		var events []Event
		for i := 1; i < at+150; i++ {
			p := quiet(r, i)
			if i >= at && i < at+60 {
				c.change(&p, i)
			}
			events = append(events, w.Add(p)...)
		}
		if len(events) < 2 || events[0].Rule != name || events[0].Step < at || events[0].Step >= at+c.within+5 || !strings.Contains(events[0].Text, c.words) ||
			events[1].Rule != name || events[1].Firing || len(events) > 2 {
			t.Errorf("%s: %+v", name, events)
		}
	}
}

// TestSilent: a step that does not end fires once, and the end of it resolves the alert; whoever has it off hears nothing.
func TestSilent(t *testing.T) {
	r, w := rand.New(rand.NewPCG(1, 2)), watcher(t, Options{})
	w.Add(quiet(r, 1))
	if e := w.Silent(2, 90*time.Second); len(e) != 1 || !e[0].Firing || e[0].Step != 2 || !strings.Contains(e[0].Text, "step 2 has not ended after 1m30s") {
		t.Errorf("%+v", e)
	}
	if e := w.Silent(2, 180*time.Second); e != nil {
		t.Errorf("again: %+v", e)
	}
	if e := w.Add(quiet(r, 2)); len(e) != 1 || e[0].Firing || e[0].Rule != silentRule {
		t.Errorf("ended: %+v", e)
	}
	if e := watcher(t, Options{Off: []string{silentRule}}).Silent(2, time.Hour); e != nil {
		t.Errorf("off: %+v", e)
	}
}

// TestComparisons: a user's rule fires once it has held for so many steps in turn, and steps without a value do not
// count. What is no rule is named with what one looks like.
func TestComparisons(t *testing.T) {
	w := watcher(t, Options{Rules: []string{"val_loss > 2 for 2"}, Off: Names()})
	var events []Event
	for i, v := range []float64{3, math.NaN(), 1, math.NaN(), 3, math.NaN(), 4, math.NaN(), 2} {
		events = append(events, w.Add(Point{Step: i, ValLoss: v})...)
	}
	if len(events) != 2 || events[0].Step != 6 || events[0].Text != "val_loss > 2 for 2: val_loss is 4" || events[1].Step != 8 || events[1].Firing {
		t.Errorf("%+v", events)
	}
	for _, text := range []string{"", "loss", "loss > x", "loss > NaN", "loss = 3", "losss > 3", "loss > 3 for", "loss > 3 for 0", "loss > 3 for 1e3", "loss > 3 for 257", "loss > 3 at 5", "loss > 3 for 5 steps"} {
		if _, err := New(Options{Rules: []string{text}}); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := New(Options{Off: []string{"slowly"}}); err == nil || !strings.Contains(err.Error(), "stall") {
		t.Errorf("an unknown rule: %v", err)
	}
}

// TestSend: events reach a webhook and a command in order, what fails is said, and Close waits for what is under way.
func TestSend(t *testing.T) {
	var got [][]byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got = append(got, text)
		if len(got) == 2 {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer server.Close()
	out := filepath.Join(t.TempDir(), "out")
	var command []string
	if runtime.GOOS != "windows" {
		command = []string{"sh", "-c", "cat >> " + out + "; echo >> " + out}
	}
	var notes []string
	s := NewSender(server.URL, command, func(text string) { notes = append(notes, text) })
	a, b := Event{"leak", 7, true, "leak: it grows"}, Event{"leak", 9, false, "leak: is over"}
	s.Send(a)
	s.Send(b)
	s.Close()
	want := `{"rule":"leak","step":7,"firing":true,"text":"leak: it grows"}`
	if len(got) != 2 || string(got[0]) != want || len(notes) != 1 || !strings.Contains(notes[0], "418") {
		t.Errorf("the webhook got %s; notes %q", got, notes)
	}
	if text, err := os.ReadFile(out); command != nil && (err != nil || !bytes.HasPrefix(text, []byte(want+"\n")) || bytes.Count(text, []byte("\n")) != 2) {
		t.Errorf("the command got %s, %v", text, err)
	}
	notes = nil
	s = NewSender("", []string{"/no/such/program"}, func(text string) { notes = append(notes, text) })
	s.Send(a)
	s.Close()
	if len(notes) != 1 || !strings.Contains(notes[0], "alerts.command") {
		t.Errorf("a command that is not there: %q", notes)
	}
	NewSender("", nil, nil).Send(a)
	NewSender("", nil, nil).Close()
}

// BenchmarkAdd is what the built-in rules take of a step.
func BenchmarkAdd(b *testing.B) {
	w, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; b.Loop(); i++ {
		w.Add(quiet(r, i))
	}
}

// TestUnusedAgain: an alert about memory that is not used says what planning again has found, and is not given if that is nothing.
func TestUnusedAgain(t *testing.T) {
	p := Point{Memory: []Tier{{Name: "device", Planned: 700, Reached: 700, Capacity: 1000}}, Stalls: []Stall{{"h2d", 0.12, 0, 0}}}
	for _, c := range []struct {
		again *Again
		words string
	}{{nil, "athanor plan --explain"}, {&Again{"with plan=auto it would be faster"}, "for 12 % of a step; with plan=auto it would be faster"}} {
		p.Again = c.again
		if text := unused([]Point{p}); !strings.HasPrefix(text, "300 of 1000 bytes") || !strings.Contains(text, c.words) {
			t.Errorf("%v: %q", c.again, text)
		}
	}
	if p.Again = (&Again{}); unused([]Point{p}) != "" {
		t.Errorf("nothing to gain, but %q", unused([]Point{p}))
	}
}
