package machinetest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/machine"
)

func TestMain(m *testing.M) {
	code, err := Run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// TestKnown: the machine of tests is not probed, for any number of ranks up to mostRanks.
func TestKnown(t *testing.T) {
	for ranks := 1; ranks <= mostRanks; ranks++ {
		r := &machine.Request{Device: "cpu", Ranks: ranks, Limits: config.Default().Limits, Spill: t.TempDir()}
		m, err := machine.Find(r, func(text string) { t.Errorf("%d ranks: %s", ranks, text) })
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(m.Hardware.Name, "two cores") {
			t.Errorf("%d ranks: %s", ranks, m.Hardware.Name)
		}
	}
}
