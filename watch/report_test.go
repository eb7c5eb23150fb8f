package watch

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRows: what a run reached of its roof, in closed form, below the ridge and above it; what is not known is not made up; the
// highest comes first.
func TestRows(t *testing.T) {
	dir := t.TempDir()
	metrics := `{"step":1,"step_seconds":2,"loss":3}` + "\n" + `{"step":2,"step_seconds":4,"loss":2.5,"val_loss":2.7,"mfu":0.25,"tokens_per_second":100}` + "\n"
	roof := func(flops, bytes string) string {
		return `{"machine":"M","kinds":[{"stream":"compute","flops":` + flops + `,"bytes":` + bytes + `},{"stream":"h2d","flops":0,"bytes":1000000}],` +
			`"ridges":[{"stream":"compute","dtype":"bf16","peak":100,"bandwidth":10,"ridge":10},{"stream":"compute","dtype":"fp32","peak":1,"bandwidth":10,"ridge":0.1}]}`
	}
	for name, files := range map[string]map[string]string{
		"memory":     {"config.yaml": "precision: bf16\n", metricsFile: metrics, roofFile: roof("60", "30")},  // 2 FLOP/B: 20 FLOP/s; 60 in 3 s are all of it
		"arithmetic": {"config.yaml": "precision: bf16\n", metricsFile: metrics, roofFile: roof("150", "10")}, // 15 FLOP/B: 100 FLOP/s
		"int8":       {"config.yaml": "precision: int8\n", metricsFile: metrics, roofFile: roof("1", "1")},    // computed in fp32: 1 FLOP/s
		"older":      {"config.yaml": "precision: bf16\n", metricsFile: metrics},
		"damaged":    {"config.yaml": "precision: bf16\n", metricsFile: metrics, roofFile: `{"machine":`},
	} {
		for file, text := range files {
			path := filepath.Join(dir, name, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	set, err := Open([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"memory": 1, "arithmetic": 0.5, "int8": 1. / 3, "older": 0, "damaged": 0}
	rows := set.Rows()
	if len(rows) != len(want) || rows[0].Run != "memory" || rows[1].Run != "arithmetic" {
		t.Fatalf("%+v", rows)
	}
	for _, r := range rows {
		if math.Abs(r.Roof-want[r.Run]) > 1e-12 || r.Seconds != 3 || r.Loss != 2.5 || r.ValLoss != 2.7 || r.MFU != 0.25 {
			t.Errorf("%+v", r)
		}
		if len(r.Cells()) != len(Columns()) {
			t.Errorf("%d cells for %d columns", len(r.Cells()), len(Columns()))
		}
	}
}

// TestWritePage: names and settings are text wherever they are on the page, which refers to nothing outside it.
func TestWritePage(t *testing.T) {
	const bad = `<script src="http://elsewhere">`
	dir := t.TempDir()
	for i, name := range []string{"a&b", "plain"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{
			metricsFile: `{"step":1,"loss":3}` + "\n" + `{"step":2,"loss":null}` + "\n" + `{"step":3,"loss":2}` + "\n", configFile: "tokenizer: '" + bad + strings.Repeat("x", i) + "'\n",
			roofFile: `{"machine":"` + strings.ReplaceAll(bad, `"`, `\"`) + `","kinds":[{"name":"<b>","stream":"compute","intensity":5,"seconds":1,"flops":1000000,"share":0.5}],"ridges":[{"stream":"compute","dtype":"<i>","peak":1e12,"bandwidth":1e10,"ridge":100}]}`,
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(path, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	set, err := Open([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	if err := set.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	for _, part := range []string{"<script", "<b>", "<i>", "href="} {
		if strings.Contains(text, part) {
			t.Errorf("the page has %s", part)
		}
	}
	for _, part := range []string{"a&amp;b", "tokenizer", "Roofline of plain", "<svg"} {
		if !strings.Contains(text, part) {
			t.Errorf("the page has no %s", part)
		}
	}
}
