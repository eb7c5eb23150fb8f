// Package stat summarises measurements.
package stat

import "slices"

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
