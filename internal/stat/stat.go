// Package stat holds what is said of measurements.
package stat

import "slices"

// Median of a list that is not empty, which stays as it is: of an even number of
// values the mean of the middle two.
func Median(list []float64) float64 {
	s := slices.Sorted(slices.Values(list))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

// Mean of positive values, of which none counts for more than so many medians: what a
// sum of many such values will be, without those that happen once in a long while.
func Mean(list []float64, most float64) float64 {
	limit := most * Median(list)
	var sum float64
	for _, v := range list {
		sum += min(v, limit)
	}
	return sum / float64(len(list))
}
