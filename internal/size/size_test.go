package size

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/athanor-llm/athanor/internal/testkit"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "64MiB": 64 << 20, "1.5 GiB": 3 << 29, "2GB": 2e9, "1k": 1024, " 7 ": 7, "12 b": 12, "1_000": 1000,
	} {
		if got, err := Parse(in); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "MiB", "-1", "1e30GiB", "NaN", "12 parsecs", "1..2K", "Inf"} {
		if got, err := Parse(in); err == nil {
			t.Errorf("Parse(%q) = %d, want an error", in, got)
		}
	}
}

func TestExact(t *testing.T) {
	for n, want := range map[int64]string{7: "7 bytes", 826184: "826184 bytes (807 KiB)"} {
		if got := Exact(n); got != want {
			t.Errorf("Exact(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestFormatParses(t *testing.T) {
	testkit.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<59).Draw(t, "n")
		back, err := Parse(Format(n))
		if err != nil {
			t.Fatal(err)
		}
		if d := float64(back - n); d > 0.06*float64(n)+1 || -d > 0.06*float64(n)+1 {
			t.Fatalf("%d prints as %s, which is %d", n, Format(n), back)
		}
	})
}
