package stat

import "testing"

// TestFLOPs: rates have three digits and no exponent, whatever their size.
func TestFLOPs(t *testing.T) {
	for rate, want := range map[float64]string{556e9: "556 GFLOP/s", 5.4e9: "5.4 GFLOP/s", 165.2e12: "165 TFLOP/s", 1.2345e12: "1.23 TFLOP/s", 2496e12: "2500 TFLOP/s", 19.5e12: "19.5 TFLOP/s"} {
		if got := FLOPs(rate); got != want {
			t.Errorf("%v is %q, want %q", rate, got, want)
		}
	}
}
