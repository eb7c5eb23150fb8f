package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// line is a line of metrics.jsonl, and some text that is none.
func line(step int) string { return fmt.Sprintf(`{"step":%d,"loss":3.5}`, step) }

// TestHistory: damage to metrics.jsonl costs the damaged lines and nothing else, and what is missing is named.
func TestHistory(t *testing.T) {
	lines := func(list ...string) string { return strings.Join(list, "\n") + "\n" }
	whole := lines(line(1), line(2), line(3), line(4))
	for _, c := range []struct {
		name, text, kept, damaged string
		step                      int
		notes                     []string
	}{
		{"whole", whole, whole, "", 4, nil},
		{"later steps are repeated", whole, lines(line(1), line(2)), "", 2, nil},
		{"torn at the end", whole + `{"step":5`, whole, "", 4, nil},
		{"one bit", lines(line(1), `{"stdp":2}`, line(3), line(4)), lines(line(1), line(3), line(4)), lines(`{"stdp":2}`), 4, []string{"1 damaged", "lacks steps 2;"}},
		{"a step's number", lines(line(1), line(2), line(7), line(4)), lines(line(1), line(2), line(4)), "", 4, []string{"lacks steps 3;"}},
		{"a smaller number", lines(line(1), line(2), line(1), line(4)), lines(line(1), line(2), line(4)), lines(line(1)), 4, []string{"1 damaged", "lacks steps 3;"}},
		{"no numbers", lines("\x00\x00\x00", line(4)), lines(line(4)), lines("\x00\x00\x00"), 4, []string{"1 damaged"}},
		{"the tail is lost", lines(line(1)), lines(line(1)), "", 9, []string{"lacks steps 2 to 9;"}},
		{"everything is lost", "", "", "", 3, []string{"lacks steps 1 to 3;"}},
		{"begun elsewhere", lines(line(11), line(12)), lines(line(11), line(12)), "", 12, nil},
		{"many holes", lines(line(1), line(3), line(5), line(7), line(9), line(11), line(13)), lines(line(1), line(3), line(5), line(7), line(9), line(11), line(13)), "", 13,
			[]string{"lacks steps 2, 4, 6, 8, 10 and 1 other ranges;"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, metricsFile)
			check(t, os.WriteFile(path, []byte(c.text), 0o644))
			log, notes, err := openMetrics(dir, c.step)
			check(t, err)
			check(t, log.add(Metrics{Step: c.step + 1}))
			check(t, log.close())
			got, err := os.ReadFile(path)
			check(t, err)
			if kept, _, _ := strings.Cut(string(got), fmt.Sprintf(`{"step":%d,"tokens"`, c.step+1)); kept != c.kept {
				t.Errorf("kept %q, want %q", kept, c.kept)
			}
			if damaged, _ := os.ReadFile(filepath.Join(dir, damagedFile)); string(damaged) != c.damaged {
				t.Errorf("damaged: %q, want %q", damaged, c.damaged)
			}
			if len(notes) != len(c.notes) {
				t.Errorf("notes %q, want %q", notes, c.notes)
			}
			for i := range min(len(notes), len(c.notes)) {
				if !strings.Contains(notes[i], c.notes[i]) {
					t.Errorf("note %q, want %q", notes[i], c.notes[i])
				}
			}
		})
	}
}

// TestFlippedHistory: one flipped bit anywhere in metrics.jsonl changes no step that is kept, and what is lost is named.
func TestFlippedHistory(t *testing.T) {
	var text []byte
	want := map[int]string{}
	loss := testkit.Rand(t)
	for step := 1; step <= 3; step++ {
		line, err := json.Marshal(Metrics{Step: step, Tokens: 512, Loss: loss.Float64(), GradNorm: 1e-3, ValLoss: 2.25})
		check(t, err)
		want[step] = string(line)
		text = append(append(text, sealed(bytes.Clone(line))...), '\n')
	}
	for bit := range 8 * len(text) {
		flipped := bytes.Clone(text)
		flipped[bit/8] ^= 1 << (bit % 8)
		h, kept := readHistory(flipped, 3), 0
		for line := range bytes.Lines(h.good) {
			if !bytes.Contains(text, line) {
				t.Fatalf("bit %d of byte %d: %q is kept", bit%8, bit/8, line)
			}
			var m Metrics
			check(t, json.Unmarshal(line, &m))
			got, err := json.Marshal(m)
			check(t, err)
			if kept++; string(got) != want[m.Step] {
				t.Fatalf("bit %d of byte %d: step %d is %s, was %s", bit%8, bit/8, m.Step, got, want[m.Step])
			}
		}
		if kept < 3 && len(h.missing)+h.lines == 0 {
			t.Fatalf("bit %d of byte %d: a step is lost silently: %q", bit%8, bit/8, flipped)
		}
	}
}

// TestRemovedHistory: a run that goes on says that what it recorded is gone; one that begins at a checkpoint of another
// folder has lost nothing.
func TestRemovedHistory(t *testing.T) {
	for own, want := range map[string]int{"checkpoint-3": 1, "other": 0} {
		dir := t.TempDir()
		check(t, os.Mkdir(filepath.Join(dir, own), 0o755))
		log, notes, err := openMetrics(dir, 3)
		check(t, err)
		check(t, log.close())
		if len(notes) != want || want > 0 && !strings.Contains(notes[0], "lacks steps 1 to 3;") {
			t.Errorf("beside %s: %q", own, notes)
		}
	}
}

// TestAscending: what is marked ascends, and no list of members that ascends is longer.
func TestAscending(t *testing.T) {
	r := testkit.Rand(t)
	for range 300 {
		list := make([]int, r.IntN(12))
		for i := range list {
			list[i] = r.IntN(8)
		}
		var got []int
		for i, member := range ascending(list) {
			if member {
				got = append(got, list[i])
			}
		}
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) || slices.Contains(got, 0) || len(got) != longestAscending(list) {
			t.Errorf("of %v: %v", list, got)
		}
	}
}

// longestAscending tries all subsets.
func longestAscending(list []int) (best int) {
	for set := range uint(1) << len(list) {
		last, n := 0, 0
		for i, x := range list {
			if set>>i&1 == 0 {
				continue
			}
			if x <= last {
				n = -1
				break
			}
			last, n = x, n+1
		}
		best = max(best, n)
	}
	return best
}
