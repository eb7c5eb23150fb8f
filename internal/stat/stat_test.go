package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestMedian: as many values are below it as above, it does not depend on the order,
// and the list is not modified.
func TestMedian(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for n := 1; n < 30; n++ {
		list := make([]float64, n)
		for i := range list {
			list[i] = r.NormFloat64()
		}
		before := slices.Clone(list)
		m := Median(list)
		if !slices.Equal(list, before) {
			t.Errorf("%v became %v", before, list)
		}
		less, more := 0, 0
		for _, v := range list {
			if v < m {
				less++
			}
			if v > m {
				more++
			}
		}
		r.Shuffle(n, func(i, k int) { list[i], list[k] = list[k], list[i] })
		if less != n/2 || more != n/2 || Median(list) != m {
			t.Errorf("%v: %v has %d below and %d above, in another order %v", before, m, less, more, Median(list))
		}
	}
	if Median([]float64{4, 1}) != 2.5 || Median([]float64{7}) != 7 {
		t.Error("of 1 and 4 it is 2.5, of 7 it is 7")
	}
}

// TestMean: the mean lies between the least value and the limit. With a limit that
// no value reaches it is the ordinary mean, and one absurd value does not move it
// further than the limit allows.
func TestMean(t *testing.T) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	for n := 3; n < 30; n++ {
		list := make([]float64, n)
		var sum float64
		for i := range list {
			list[i] = 1 + r.Float64() // so that none exceeds two medians
			sum += list[i]
		}
		if m := Mean(list, 2); m < sum/float64(n)*(1-1e-12) || m > sum/float64(n)*(1+1e-12) {
			t.Errorf("%v: mean %v, the sum is %v", list, m, sum)
		}
		before := Mean(list, 2)
		list[r.IntN(n)] = 1e9
		if m := Mean(list, 2); m < before || m > before+2*Median(list)/float64(n) {
			t.Errorf("%v: mean %v, before the last came %v", list, m, before)
		}
	}
}

// TestSeconds: three digits, never an exponent, in the largest unit in which the time is at least 1.
func TestSeconds(t *testing.T) {
	for s, want := range map[float64]string{
		1.234e-6: "1.23 us", 0.0009994: "999 us", 0.0009999: "1 ms", 0.1064: "106 ms", 0.9994: "999 ms", 0.9996: "1 s", 2.34: "2.34 s", 999.6: "1000 s", 12345: "12345 s",
	} {
		if got := Seconds(s); got != want {
			t.Errorf("%v: %s, want %s", s, got, want)
		}
	}
	for s := 1e-6; s < 1e5; s *= 1.01 {
		if got := Seconds(s); strings.Contains(got, "e") {
			t.Errorf("%v: %s", s, got)
		}
	}
}

// TestNumber: the text of a perplexity is short, whatever the loss.
func TestNumber(t *testing.T) {
	for loss, want := range map[float64]string{0: "1.0", 4.0271: "56.1", math.Log(999999): "999999.0", math.Log(1.234e6): "1.23e+06", 573: "7.09e+248", 1e4: "+Inf", math.NaN(): "NaN"} {
		if got := Number(math.Exp(loss), 1); got != want {
			t.Errorf("%v: %s, want %s", loss, got, want)
		}
	}
}
