package main

import (
	stdctx "context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/device/mpi"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/paths"
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
	return findProcess(name, team, 1)
}

// mostAhead is by how much clocks may differ without misleading anybody who compares dates of files and lines of logs.
const mostAhead = time.Second

// findProcess reports what another process of a run has, what its clock says, and what sums with it take.
func findProcess(name string, team *cluster.Team, rank int) finding {
	addr := team.Others[rank-1]
	about, err := remote.Describe(addr, team.Key, remote.Place{Device: "cpu"})
	if err != nil {
		return finding{name, broken, "its process is not reached", err.Error()}
	}
	f := finding{name, good, fmt.Sprintf("%s, %d cores, %s of memory for %d ranks", about.Processor, about.Cores, size.Format(about.Host), about.Ranks), ""}
	if about.Ahead.Abs() > mostAhead {
		f.State, f.Advice = slow, fmt.Sprintf("its clock is %v ahead of this one's: dates of files and logs mislead; let both be set by NTP", about.Ahead.Round(time.Millisecond))
	}
	var took machine.Exchange
	if err := took.Time(team.Others, rank, team.Key, team.Over.Links); err != nil {
		f.State, f.Advice = broken, err.Error()
		return f
	}
	f.Found += fmt.Sprintf("; %s with it take %v, %.2g Gbit/s each way", machine.Exchanged(), took, took.Rate()*8/1e9)
	return f
}

// meet lets the processes that a launcher has started meet, and returns what the first of them finds. In the others it is done
// when that is.
func (v *doctorCmd) meet(c *cli.Context) (list []finding, done bool, err error) {
	if !v.Meet {
		return nil, false, nil
	}
	launch, err := cluster.Find(os.Environ())
	if err != nil || launch == nil {
		return nil, true, cli.Misuse(errors.Join(errors.New("doctor --meet: no launcher has started several processes; hint: start it like a run, such as with srun, or leave --meet out"), err))
	}
	c.Exit = launch.Exit
	ctx, stop := signal.NotifyContext(stdctx.Background(), stopping()...)
	defer stop()
	if launch.Rank > 0 {
		return nil, true, cluster.Follow(ctx, launch, v.Path, v.Path)
	}
	team, err := cluster.Lead(ctx, launch, v.Path, c.Note)
	if err != nil {
		return nil, true, err
	}
	defer team.End(0)
	list = []finding{{"processes", good, fmt.Sprintf("all %d are there, on %d hosts; bytes go over %s", launch.Size, team.Hosts(), team.Over), ""}}
	for r := 1; r < launch.Size; r++ {
		list = append(list, findProcess(fmt.Sprint("process ", r), team, r))
	}
	return append(list, findShared(team, v.Path)), false, nil
}

// findShared reports whether all processes see a folder, so that each can write its part of checkpoints there.
func findShared(team *cluster.Team, folder string) finding {
	blind, err := firstBlind(team, folder)
	switch {
	case err != nil:
		return finding{"shared", broken, "the folder cannot be tried", err.Error()}
	case blind > 0:
		return finding{"shared", slow, fmt.Sprintf("process %d does not see %s", blind, folder),
			"set out to a folder that all hosts share, by the same path; else process 0 gathers checkpoints and writes them alone"}
	}
	return finding{"shared", good, "all processes see " + folder, ""}
}

// firstBlind returns the first process that does not see a folder; 0: all do.
func firstBlind(team *cluster.Team, folder string) (rank int, err error) {
	const file = ".athanor-shared"
	path := filepath.Join(folder, file)
	if err := os.WriteFile(path, []byte(rand.Text()), 0o600); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	mark, err := paths.Mark(path)
	if err != nil {
		return 0, err
	}
	for i, addr := range team.Others {
		d, err := remote.Open(addr, team.Key, remote.Place{Device: "cpu"}, time.Now())
		if err != nil {
			return 0, err
		}
		sees, err := d.Shares(file, mark)
		if err = errors.Join(err, d.Close()); err != nil || !sees {
			return i + 1, err
		}
	}
	return 0, nil
}
