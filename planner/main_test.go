package planner

import (
	"fmt"
	"os"
	"testing"

	"github.com/athanor-llm/athanor/machine/machinetest"
)

// TestMain gives tests a machine that is known.
func TestMain(m *testing.M) {
	code, err := machinetest.Run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
