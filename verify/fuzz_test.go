package verify

import (
	"testing"

	"github.com/athanor-llm/athanor/program"
)

// FuzzVerify: whatever program is written by hand, Verify and the comparison of meanings do not panic.
func FuzzVerify(f *testing.F) {
	f.Add(tinyText)
	f.Add(meaningText)
	for _, p := range smallPrograms() {
		f.Add(p.String())
	}
	f.Fuzz(func(_ *testing.T, s string) {
		p, err := program.Parse(s)
		if err != nil {
			return
		}
		_ = Verify(p)
		_, _ = meaning(p)
	})
}
