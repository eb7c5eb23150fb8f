// Package machinetest gives tests a machine whose speed is known. To probe this one takes seconds of all cores for
// each number of ranks, in each process, and the plans that follow from it differ from run to run.
package machinetest

import (
	"bytes"
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/bounded"
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
	cache, err := machine.CacheDir()
	if err != nil {
		return err
	}
	known, err := os.ReadDir(knownDir())
	if errors.Is(err, fs.ErrNotExist) { // a home that is new
		return errors.Join(keepCores(), copyFiles(knownDir(), cache))
	}
	for _, f := range known {
		err = errors.Join(err, copyChanged(filepath.Join(cache, f.Name()), filepath.Join(knownDir(), f.Name())))
	}
	return err
}

// knownDir is where this home keeps a copy of what is known at the start. To write it into the cache again for each
// number of ranks would wait for the disk sixteen times for each call of the program.
func knownDir() string { return filepath.Join(os.Getenv("HOME"), "known") }

// keepCores makes the machine known for each number of ranks.
func keepCores() error {
	h, err := Cores()
	for ranks := 1; err == nil && ranks <= mostRanks; ranks++ {
		err = machine.Keep(h, ranks, os.Getenv("HOME"))
	}
	return err
}

// copyFiles copies the descriptions in a folder into a new one.
func copyFiles(to, from string) error {
	files, err := filepath.Glob(filepath.Join(from, "hardware-*.json"))
	err = errors.Join(err, os.MkdirAll(to, 0o755))
	for _, f := range files {
		err = errors.Join(err, copyChanged(filepath.Join(to, filepath.Base(f)), f))
	}
	return err
}

// copyChanged copies a file over another that differs.
func copyChanged(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if old, err := bounded.ReadFile(to, int64(len(text))); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return os.WriteFile(to, text, 0o644)
}
