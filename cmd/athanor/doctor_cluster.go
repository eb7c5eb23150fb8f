package main

import (
	"fmt"
	"os"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/device/mpi"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
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
	where, err := l.Meeting()
	if where != "" {
		where = "; " + where
	}
	if err != nil {
		return finding{"launcher", slow, l.String() + where, err.Error()}
	}
	return finding{"launcher", good, l.String() + where, ""}
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

// findNCCL reports the library over which GPUs of different processes would exchange bytes.
func findNCCL(*doctorCmd) finding {
	if !cuda.Installed() {
		return finding{"NCCL", good, "not used: there is no GPU", ""}
	}
	switch lib, err := cuda.FindNCCL(); {
	case err != nil:
		return finding{"NCCL", good, "none: bytes between GPUs of different hosts go through the hosts' memory", err.Error()}
	case lib == nil:
		return finding{"NCCL", good, "not used: " + cuda.NCCLVariable + " is none", ""}
	default:
		return finding{"NCCL", good, lib.Version() + ", " + lib.Lib.Path(), ""}
	}
}

// findHost reports whether a run could have ranks on another host, and what sums with it take.
func findHost(named string) finding {
	name := "host " + named
	addr, err := config.Address(named)
	if err != nil {
		return finding{name, broken, "no address", err.Error()}
	}
	key, err := machine.Key()
	if err != nil {
		return finding{name, broken, "not tried", err.Error()}
	}
	team, err := cluster.Summon([]string{addr}, key)
	if err != nil {
		return finding{name, broken, "not reached", err.Error()}
	}
	defer team.End(0)
	about, err := remote.Describe(team.Others[0], key, remote.Place{Device: "cpu"})
	if err != nil {
		return finding{name, broken, "its process is not reached", err.Error()}
	}
	f := finding{name, good, fmt.Sprintf("%s, %d cores, %s of memory for %d ranks", about.Processor, about.Cores, size.Format(about.Host), about.Ranks), ""}
	var took machine.Exchange
	if err := took.Time(team.Others, 1, key, nil); err != nil {
		f.State, f.Advice = slow, err.Error()
		return f
	}
	f.Found += fmt.Sprintf("; %s with it take %v, %.2g Gbit/s each way", machine.Exchanged(), took, took.Rate()*8/1e9)
	return f
}
