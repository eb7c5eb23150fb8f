package bpe

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// What the lists of drawn files are made of: usual and unusual strings and numbers, separators, and what is no JSON.
var (
	drawnWords = []string{`"a"`, `"\u0120the"`, `"Ġthe"`, `"a b"`, `"\"b c\\"`, `"\ud83d\ude00 x"`, `"\ud83d"`, `""`, `"日本 語"`, `"\\\" \\"`, "\"\xff x\"", `3`, `null`, `["a"]`}
	drawnIDs   = []string{"0", "7", " 12 ", "2147483647", "2147483648", "-1", "1.5", "1e2", "07", `"7"`, "null", "", "\t3\n"}
	drawnPairs = []string{`["a","b"]`, `[ "a" , "\u0120" ]`, `["a"]`, `["a","b","c"]`, `[]`, `["a",3]`, `["a b","c"]`}
)

// TestLists: the lists of a tokenizer.json are what encoding/json reads, and what it refuses is refused.
func TestLists(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	usually := func(list []string, n int) string { // mostly one of the first n
		if r.IntN(12) > 0 {
			list = list[:n]
		}
		return list[r.IntN(len(list))]
	}
	read := 0
	for range testkit.Count(2000, 10000, 200000) {
		ids, pairs := "{", "["
		for i := range r.IntN(5) {
			if i > 0 || r.IntN(50) == 0 {
				ids, pairs = ids+usually([]string{",", ", ", ",\n", ""}, 3), pairs+usually([]string{",", " , ", ""}, 2)
			}
			ids += usually(drawnWords, 9) + usually([]string{":", " : ", ""}, 2) + usually(drawnIDs, 4)
			if r.IntN(2) == 0 {
				pairs += usually(drawnWords, 4)
			} else {
				pairs += usually(drawnPairs, 2)
			}
		}
		ids, pairs = ids+usually([]string{"}", " }", ""}, 2), pairs+usually([]string{"]", "\n]", ""}, 2)
		var v vocab
		var plain map[string]int32
		failed, want := json.Unmarshal([]byte(ids), &v), json.Unmarshal([]byte(ids), &plain)
		if fmt.Sprint(failed) != fmt.Sprint(want) || want == nil && !maps.Equal(v.ids, plain) {
			t.Fatalf("%s: %v (%v), encoding/json reads %v (%v)", ids, v.ids, failed, plain, want)
		}
		var m merges
		var each []mergePair
		failed, want = json.Unmarshal([]byte(pairs), &m), json.Unmarshal([]byte(pairs), &each)
		if fmt.Sprint(failed) != fmt.Sprint(want) || want == nil && !slices.Equal(m, each) {
			t.Fatalf("%s: %q (%v), encoding/json reads %q (%v)", pairs, m, failed, each, want)
		}
		if _, ok := readIDs([]byte(ids)); ok && len(plain) > 0 {
			read++
		}
	}
	if read == 0 {
		t.Error("no vocabulary was read in one pass")
	}
}
