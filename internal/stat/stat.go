// Package stat holds what is said of measurements.
package stat

import "slices"

// Median of a list that is not empty, which stays as it is: of an even number of
// values the mean of the middle two.
func Median(list []float64) float64 {
	s := slices.Sorted(slices.Values(list))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}
