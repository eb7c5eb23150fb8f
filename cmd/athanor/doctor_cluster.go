package main

import (
	"os"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/device/mpi"
)

// findLauncher reports which launcher has started this process, as which of how many.
func findLauncher(*doctorCmd) finding {
	l, err := cluster.Find(os.Environ())
	switch {
	case err != nil:
		return finding{"launcher", broken, "its variables contradict each other", err.Error()}
	case l == nil:
		return finding{"launcher", good, "none: a run is this process, and the hosts that the configuration names", ""}
	}
	return finding{"launcher", good, l.String(), ""}
}

// findMPI reports the MPI library over which processes of a run would exchange bytes.
func findMPI(*doctorCmd) finding {
	l, err := cluster.Find(os.Environ())
	if err != nil || l == nil && os.Getenv(mpi.Variable) == "" {
		return finding{"MPI", good, "not used: no mpiexec has started this process", ""}
	}
	source := ""
	if l != nil {
		source = l.Source
	}
	switch lib, err := mpi.Find(source); {
	case err != nil:
		return finding{"MPI", slow, "no library can be used, so bytes go over TCP", err.Error() + "\nname the launcher's library in " + mpi.Variable + ", or set it to none"}
	case lib == nil:
		return finding{"MPI", good, "not used: bytes go over TCP", ""}
	default:
		return finding{"MPI", good, lib.Name() + ", " + lib.Path, ""}
	}
}
