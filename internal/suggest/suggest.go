// Package suggest finds the likely intended word for a misspelled one.
package suggest

import (
	"fmt"
	"strings"
)

// Nearest returns the word of the list with the smallest edit distance (insertions,
// deletions and replacements), or "" if it exceeds a third of the letters plus one.
func Nearest(word string, list []string) string {
	best, at := "", len(word)/3+1
	for _, w := range list {
		if d := distance(strings.ToLower(word), strings.ToLower(w)); d <= at && (d < at || best == "") {
			best, at = w, d
		}
	}
	return best
}

// Hint returns "; hint: did you mean x?" for the nearest word x, or "".
func Hint(word string, list []string) string {
	if w := Nearest(word, list); w != "" {
		return "; hint: did you mean " + w + "?"
	}
	return ""
}

// Add appends a hint to err, unless err is nil or has one.
func Add(err error, hint string) error {
	if err == nil || strings.Contains(err.Error(), "hint:") {
		return err
	}
	return fmt.Errorf("%w; hint: %s", err, hint)
}

// distance returns the Levenshtein distance, computed row by row.
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
