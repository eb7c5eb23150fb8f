package schedule

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// golden reads blocks of a header "# name ranks microbatches [slices=k]" and one line per
// rank, by header.
func golden(t *testing.T, file string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	for block := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		blocks[strings.TrimPrefix(lines[0], "# ")] = lines[1:]
	}
	return blocks
}

// asked parses a header of golden.
func asked(t *testing.T, header string) (string, Request) {
	t.Helper()
	fields := strings.Fields(header)
	q := Request{Costs: DefaultCosts()}
	q.Ranks, _ = strconv.Atoi(fields[1])
	q.Micros, _ = strconv.Atoi(fields[2])
	for _, f := range fields[3:] {
		key, value, _ := strings.Cut(f, "=")
		n, _ := strconv.Atoi(value)
		if key == "slices" {
			q.Slices = n
		}
	}
	return fields[0], q
}

// TestOrders compares with worked orders of the papers or of their code.
func TestOrders(t *testing.T) {
	for header, want := range golden(t, "orders.txt") {
		name, q := asked(t, header)
		s, err := Generate(name, q)
		if err != nil {
			t.Errorf("%s: %v", header, err)
			continue
		}
		compareLines(t, header, s.Text(), want)
	}
}

func TestGrids(t *testing.T) {
	for header, want := range golden(t, "grids.txt") {
		name, q := asked(t, header)
		s, tl := simulate(t, name, q)
		compareLines(t, header, s.Grid(tl), want)
	}
}

func compareLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d lines, want %d", what, len(got), len(want))
		return
	}
	for r := range want {
		if got[r] != want[r] {
			t.Errorf("%s, rank %d:\n got %s\nwant %s", what, r, got[r], want[r])
		}
	}
}

// simulate generates and simulates a schedule.
func simulate(t *testing.T, name string, q Request) (*Schedule, *Timeline) {
	t.Helper()
	s, err := Generate(name, q)
	if err != nil {
		t.Fatalf("%s %+v: %v", name, q, err)
	}
	tl, err := s.Simulate(q.Costs)
	if err != nil {
		t.Fatalf("%s %+v: %v", name, q, err)
	}
	return s, tl
}
