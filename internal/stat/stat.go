// Package stat summarises measurements.
package stat

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Seconds formats a time with three digits, in the largest unit in which it is at least 1.
func Seconds(s float64) string {
	switch {
	case s >= 999.5: // %.3g would need an exponent
		return fmt.Sprintf("%.0f s", s)
	case s >= 0.9995: // anything less rounds to less than 1000 ms
		return fmt.Sprintf("%.3g s", s)
	case s >= 0.9995e-3:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g us", s*1e6)
}

// FLOPs formats a rate of arithmetic with three digits, in GFLOP/s or, from a thousand on, in TFLOP/s.
func FLOPs(perSecond float64) string {
	if perSecond >= 999.5e9 {
		return strconv.FormatFloat(round3(perSecond/1e12), 'f', -1, 64) + " TFLOP/s" // a cluster's are thousands
	}
	return fmt.Sprintf("%.3g GFLOP/s", perSecond/1e9)
}

// round3 rounds a positive number to three digits.
func round3(x float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(x))-2)
	if unit >= 1 {
		return math.Round(x/unit) * unit
	}
	return math.Round(x/unit) / math.Round(1/unit)
}

// Median returns the median of a nonempty list, which it does not modify. For an even
// number of values it is the mean of the middle two.
func Median(list []float64) float64 {
	s := slices.Sorted(slices.Values(list))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

// Mean returns the mean of positive values, each capped at most times the median. It
// predicts the sum of many such values without rare outliers.
func Mean(list []float64, most float64) float64 {
	limit := most * Median(list)
	var sum float64
	for _, v := range list {
		sum += min(v, limit)
	}
	return sum / float64(len(list))
}

// Finite reports whether a number is neither NaN nor infinite.
func Finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// BitsPerByte returns the bits per byte of text on which a model loses so many nats: unlike a loss per token, it does not
// depend on the tokenizer. 0: there are no bytes.
func BitsPerByte(nats float64, bytes int64) float64 {
	if bytes == 0 {
		return 0
	}
	return nats / math.Ln2 / float64(bytes)
}

// Number formats a loss or a perplexity with the given number of decimals or, from a million on, where decimals
// say nothing, as a power of ten.
func Number(x float64, decimals int) string {
	if x >= 1e6 {
		return fmt.Sprintf("%.3g", x)
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}
