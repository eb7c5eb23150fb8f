// Package suggest finds what somebody may have meant.
package suggest

import (
	"fmt"
	"strings"
)

// Nearest returns the word of the list that takes the fewest insertions,
// deletions and replacements to reach, or "" if none is close (more than a
// third of the letters differ).
func Nearest(word string, list []string) string {
	best, at := "", len(word)/3+1
	for _, w := range list {
		if d := distance(strings.ToLower(word), strings.ToLower(w)); d <= at && (d < at || best == "") {
			best, at = w, d
		}
	}
	return best
}

// Hint is `; did you mean "x"?`, or nothing.
func Hint(word string, list []string) string {
	if w := Nearest(word, list); w != "" {
		return "; hint: did you mean " + w + "?"
	}
	return ""
}

// Add gives an error a hint, unless it has one.
func Add(err error, hint string) error {
	if err == nil || strings.Contains(err.Error(), "hint:") {
		return err
	}
	return fmt.Errorf("%w; hint: %s", err, hint)
}

// distance is Levenshtein's, one row at a time.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
