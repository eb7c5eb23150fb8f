package watch

import (
	"encoding/json"
	"maps"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// oracle returns what numbers gives, by encoding/json.
func oracle(prefix string, v any, into map[string]float64) {
	switch v := v.(type) {
	case float64:
		into[prefix] = v
	case bool:
		if into[prefix] = 0; v {
			into[prefix] = 1
		}
	case nil:
		into[prefix] = math.Inf(1)
	case map[string]any:
		for k, e := range v {
			if prefix != "" {
				k = prefix + "." + k
			}
			oracle(k, e, into)
		}
	}
}

// FuzzNumbers: what encoding/json reads as an object gives the same numbers, and whatever it is, nothing panics. Texts
// with escapes in keys, with keys given twice and with numbers beyond float64 are left out: the one keeps escapes, the
// others keep one of two, or refuse.
func FuzzNumbers(f *testing.F) {
	for _, line := range []string{
		`{"step":1,"tokens":1024,"loss":7.625,"learning_rate":2e-4,"skipped":true,"val_rewards":{"margin":-0.5},"crc":"00ff00ff"}`,
		`{"step":2,"loss":null,"list":[1,[2,"]"],{"a":3}],"text":"a\"}b"}`, `{}`, ` { "a" : 1 , "b" : -2.5E+3 } `,
		`{"a":1`, `{"a":}`, `{"a":01x}`, `{"a":Inf}`, `{"a":nan}`, `[1]`, `{"a":1}}`, `{"a":1,}`, strings.Repeat(`{"a":`, 50), `{"a":"`, `{"a":"\`, `{"a" 1}`,
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got := map[string]float64{}
		err := numbers([]byte(line), func(key []byte, x float64) { got[string(key)] = x })
		var v map[string]any
		if json.Unmarshal([]byte(line), &v) != nil || !utf8.ValidString(line) || strings.ContainsAny(line, "\\\r\n.") || strings.Count(line, "{")+strings.Count(line, "[") > deepest {
			return
		}
		want := map[string]float64{}
		oracle("", v, want)
		if strings.Count(line, ":") > len(want) { // twice, in strings or in lists
			return
		}
		if v != nil && (err != nil || !maps.Equal(got, want)) {
			t.Errorf("%q: %v (%v), encoding/json reads %v", line, got, err, want)
		}
	})
}

// TestNumbers: a line as trainers write it, and lines that are none.
func TestNumbers(t *testing.T) {
	got := map[string]float64{}
	err := numbers([]byte(`{"step":7,"loss":null,"skipped":true,"val_rewards":{"margin":-0.5},"list":[1,{"a":2}],"crc":"0a\"}"}`+"\n"), func(key []byte, x float64) { got[string(key)] = x })
	want := map[string]float64{"step": 7, "loss": math.Inf(1), "skipped": 1, "val_rewards.margin": -0.5}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, line := range []string{"", "{", `{"a":1`, `{"a":}`, `{"a":1}}`, `{"a":1,}`, `{"a":Inf}`, `[1]`, `{"a":tru}`, `{"a":0x10`, `{"a":"x`, strings.Repeat(`{"a":`, 1000) + "1" + strings.Repeat("}", 1000)} {
		if numbers([]byte(line), func([]byte, float64) {}) == nil {
			t.Errorf("%.40q is taken for a line of metrics", line)
		}
	}
}
