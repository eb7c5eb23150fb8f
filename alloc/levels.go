package alloc

import (
	"cmp"
	"slices"
)

// Level is a number of bytes that applies from a time on.
type Level struct {
	Time  float64
	Bytes int64
}

// Levels returns the running sums of changes, each of which adds Bytes at Time; it sorts
// changes in place. There is one level for each time, so what ends at a moment has ended
// when something else begins.
func Levels(changes []Level) (levels []Level) {
	slices.SortFunc(changes, func(a, b Level) int { return cmp.Compare(a.Time, b.Time) })
	var sum int64
	for _, c := range changes {
		sum += c.Bytes
		if n := len(levels); n > 0 && levels[n-1].Time == c.Time {
			levels[n-1].Bytes = sum
		} else {
			levels = append(levels, Level{c.Time, sum})
		}
	}
	return levels
}

// Most returns the highest level, or 0 if there is none.
func Most(levels []Level) (most int64) {
	for _, l := range levels {
		most = max(most, l.Bytes)
	}
	return most
}
