package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

func TestScheduleVerb(t *testing.T) {
	for _, x := range []struct {
		args string
		want string // part of the output
	}{
		{"1f1b", "r0: F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7\n"},
		{"1f1b --format grid", "r3: ...0aa1bb2cc3dd4ee5ff6gg7hh......\n"},
		{"1f1b", "makespan 33, ideal 24, bubble 37.5 %"},
		{"interleaved --chunks 4", "messages"},
		{"seq1f1b --splits 4 --tf .25 --tb .25 --tw .25", "makespan 26.25"},
		{"dualpipe --ranks 8 --microbatches 20", "makespan 66"},
		{"search --ranks 2 --microbatches 3", "optimal"},
		{"breadth-first --buffers 1", "gathers 3 3 3 3, reduces 2 2 2 2"},
		{"seq1f1b --splits 4 --model gpt2 --tokens 1024", "splits of"},
		{"1f1b --ranks 2 --microbatches 2 --tf 1,2 --tb 1,2 --tw 1,2", "makespan 15,"},
		{"search --ranks 3 --microbatches 6 --tf 1,1,2", "optimal"},
		{"all --ranks 2 --microbatches 4", "zb-v"},
	} {
		code, out, errs := call(t, append([]string{"schedule"}, strings.Fields(x.args)...)...)
		if code != 0 || !strings.Contains(out, x.want) || errs != "" {
			t.Errorf("schedule %s: exit %d\n%s%s", x.args, code, out, errs)
		}
	}
}

// TestScheduleFields: the JSON that scripts rely on.
func TestScheduleFields(t *testing.T) {
	code, out, errs := call(t, "schedule", "zb-h1", "--json")
	var r map[string]any
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	for field, want := range map[string]string{"name": `"zb-h1"`, "ranks": "4", "microbatches": "8", "makespan": "27", "ideal": "24", "bubble": "0.125",
		"spans": "[27,26,25,24]", "peaks": "[4,3.5,3,2.5]", "weight_copies": "1", "messages": "48"} {
		got, _ := json.Marshal(r[field])
		if string(got) != want {
			t.Errorf("%s: %s, want %s", field, got, want)
		}
	}
	if orders, _ := r["orders"].([]any); len(orders) != 4 || !strings.HasPrefix(orders[3].(string), "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4") {
		t.Errorf("orders %v", r["orders"])
	}
	_, svg, _ := call(t, "schedule", "bitpipe", "--format", "svg")
	if err := xml.Unmarshal([]byte(svg), new(struct{})); err != nil {
		t.Error(err)
	}
}

// TestScheduleRefuses: exit codes, one hint, nothing on standard output.
func TestScheduleRefuses(t *testing.T) {
	for args, want := range map[string]int{
		"1f1b --ranks 0": 2, "1f1b --microbatches -1": 2, "1f1bb": 2, "serch": 2, "interleaved --microbatches 6": 2, "dualpipe --microbatches 4": 2,
		"seq1f1b --splits 9 --tokens 8": 2, "1f1b --tf nan": 2, "1f1b --tf -1": 2, "1f1b --format pdf": 2, "all --format svg": 2, "all --ranks 0": 2,
		"search --cap 0.5": 2, "1f1b --cap 2": 3, "seq1f1b --model nope --tokens 8": 2, "dualpipe --buffers 1": 2,
		"1f1b --tf 1,2": 2, "1f1b --tf 1,1,1,1 --tb 1,1": 2, "search --tf 1,1": 2, "zb-auto --tf 1,2,3": 2, "all --tf 1,1,1,1": 2,
	} {
		code, out, errs := call(t, append([]string{"schedule"}, strings.Fields(args)...)...)
		if code != want || out != "" || strings.Count(errs, "hint:") != 1 {
			t.Errorf("schedule %s: exit %d, want %d\n%s%s", args, code, want, out, errs)
		}
	}
}

// TestScheduleOrders: what the verb prints it reads back, as text and as JSON; a broken order is refused by rank and unit.
func TestScheduleOrders(t *testing.T) {
	for _, format := range []string{"order", "json"} {
		_, text, _ := call(t, "schedule", "zb-v", "--format", format)
		file := filepath.Join(t.TempDir(), "orders")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, again, errs := call(t, "schedule", "zb-v", "--format", format, "--orders", file); code != 0 || again != text {
			t.Errorf("%s: exit %d\n%s%s", format, code, again, errs)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(text, "F0 F1 F2", "F1 F0 F1", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, errs := call(t, "schedule", "zb-v", "--orders", file)
		if code != 1 || out != "" || !strings.Contains(errs, "rank 0, position 2: F1: duplicated") {
			t.Errorf("broken order: exit %d\n%s%s", code, out, errs)
		}
	}
}

func TestScaleVerb(t *testing.T) {
	for _, x := range []struct {
		args, want string
		code       int
	}{
		{"", "improved 6.751: 1.95x", 0},
		{"table --network 6.25", "0.730       8.24", 0},
		{"curve", "X_320       40.3T", 0},
		{"cluster --x 64 --gpus 512", "what limits", 0},
		{"laws --flops 1e20", "645M", 0},
		{"memo", "memo-paper: alpha         0.3905  0.6952  1.0000  1.0000  1.0000  1.0000  0.8324  0.6698  0.5537  0.4667", 0},
		{"memo --sequence 2048 --model llama-3-8b --exchange 200", "17 units", 0},
		{"memo --sequence 16777216", "", 3},
		{"memo --compiled --sequence 1001", "", 2},
		{"memo --compiled --exchange 200", "", 2},
		{"memo --compiled --format svg", "", 2},
		{"memo --efficiency 1.5", "", 2},
		{"memo --host-link nan", "", 2},
		{"memo --host-memory much", "", 2},
		{"memo --sequence -1", "", 2},
		{"memo --model nobody", "", 2},
		{"cluster --gpus 64", "", 3},
		{"cluster --gpus 0", "", 2},
		{"laws", "", 2},
		{"--x 0", "", 2},
		{"--memory much", "", 2},
		{"table --format svg", "", 2},
		{"--tokens nan", "", 2},
	} {
		code, out, errs := call(t, append([]string{"scale"}, strings.Fields(x.args)...)...)
		if code != x.code || !strings.Contains(out, x.want) || code != 0 && (out != "" || strings.Count(errs, "hint:") != 1) {
			t.Errorf("scale %s: exit %d\n%s%s", x.args, code, out, errs)
		}
	}
	for _, what := range testkit.Sample([]string{"curve", "memo"}, 1, 2) {
		_, svg, _ := call(t, "scale", what, "--format", "svg")
		if err := xml.Unmarshal([]byte(svg), new(struct{})); err != nil {
			t.Error(err)
		}
	}
	for _, what := range []string{"table", "curve", "traffic", "laws --flops 1e20", "cluster --x 32", "memo --sequence 65536"} {
		_, out, errs := call(t, append([]string{"scale", "--json"}, strings.Fields(what)...)...)
		if !json.Valid([]byte(out)) {
			t.Errorf("scale %s --json: %s%s", what, out, errs)
		}
	}
}

// TestCompiledMemo: what the compiler finds stands beside the analysis, as a table and as JSON; what does not fit has its exit code.
func TestCompiledMemo(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const args = "scale memo --compiled --sequence 16384 --model llama-3.2-1b"
	if code, out, errs := call(t, strings.Fields(args+" --host-memory 64GiB")...); code != 0 || !strings.Contains(out, "as analysed") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if code, out, errs := call(t, strings.Fields(args+" --json")...); code != 0 || !json.Valid([]byte(out)) {
		t.Errorf("as JSON: exit %d\n%s%s", code, out, errs)
	}
	if code, out, errs := call(t, strings.Fields(args+" --host-memory 1KiB")...); code != 3 || out != "" || strings.Count(errs, "hint:") != 1 {
		t.Errorf("without memory: exit %d\n%s%s", code, out, errs)
	}
}
