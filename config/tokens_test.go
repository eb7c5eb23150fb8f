package config

import (
	"fmt"
	"testing"
)

// TestLengthInThousands: a length may be written as 4k; what is no such number stays an error.
func TestLengthInThousands(t *testing.T) {
	read := func(value string) (int, error) {
		c, err := parse(ToPlan, "a.yaml", nil, []string{"model=gpt2", "global_batch=1", "sequence_length=" + value})
		if err != nil {
			return 0, err
		}
		return c.SequenceLength, nil
	}
	for value, want := range map[string]int{"4k": 4096, "128K": 1 << 17, "4096": 4096, "1.0e3": 1000} {
		if got, err := read(value); err != nil || got != want {
			t.Errorf("%s is %d tokens, %v", value, got, err)
		}
	}
	for _, value := range []string{"k", "4kk", "-4k", "4.5k", fmt.Sprint(1<<20, "k")} {
		if got, err := read(value); err == nil {
			t.Errorf("%s is %d tokens", value, got)
		}
	}
}
