// Package machinetest gives tests a machine whose speed is known. To probe this one takes seconds of all cores for
// each number of ranks, in each process, and the plans that follow from it differ from run to run.
package machinetest

import (
	_ "embed"
	"errors"
	"os"

	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
)

// cores describes two cores and the link between ranks on them. What is updated on the host is updated slowly: where
// there is device memory for everything, that is soon known to be the fastest plan.
//
//go:embed cores.json
var cores []byte

// mostRanks is the number of ranks up to which the machine is known.
const mostRanks = 8

// Cores returns the description of the machine that tests have.
func Cores() (*hardware.Hardware, error) { return hardware.Parse(cores) }

// Run runs the tests of a process in a home of their own and returns the exit code. There, this machine's cores
// are said to be Cores; only throttled links and more ranks are probed. GPUs are hidden. Garbage is collected as
// seldom as in the program.
func Run(tests interface{ Run() int }) (code int, err error) {
	testkit.CollectSeldom()
	home, err := os.MkdirTemp("", "athanor-home-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	for key, value := range map[string]string{"HOME": home, "XDG_CACHE_HOME": "", "CUDA_VISIBLE_DEVICES": ""} {
		err = errors.Join(err, os.Setenv(key, value))
	}
	if err = errors.Join(err, Restore()); err != nil {
		return 1, err
	}
	return tests.Run(), nil
}

// Restore makes the machine known as it was at the start of Run: what runs have measured since is forgotten. Timings
// of calls as short as those of tests' models are noise, in which a search goes astray for seconds.
func Restore() error {
	h, err := Cores()
	for ranks := 1; err == nil && ranks <= mostRanks; ranks++ {
		err = machine.Keep(h, ranks, os.Getenv("HOME"))
	}
	return err
}
