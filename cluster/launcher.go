package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device/mpi"
)

// Launch says which process of a run this one is, by the words of its launcher.
type Launch struct {
	Source    string // the launcher
	Rank      int
	Size      int    // processes; at least 2
	LocalRank int    // among those on this host
	LocalSize int    // 0: not said
	Leader    string // host name or address of rank 0; "": not said
	Port      int    // that rank 0 may listen on; 0: not said

	left *mpi.World // which this process was in; nil: none, or it is still there
}

// String describes a launch in a line.
func (l *Launch) String() string {
	text := fmt.Sprintf("%s: process %d of %d", l.Source, l.Rank, l.Size)
	if l.LocalSize > 0 {
		text += fmt.Sprintf(", %d of %d on this host", l.LocalRank, l.LocalSize)
	}
	return text
}

// alone reports whether all processes are known to be on this host.
func (l *Launch) alone() bool { return l.LocalSize == l.Size }

// launcher is what one launcher says. Of the variables named, rank and size must be there.
type launcher struct {
	name string
	// nested orders launchers that start each other: Slurm starts mpirun, and both start torchrun. The environment has the
	// words of all of them, and those of the innermost, with the highest number, count.
	nested    int
	mark      string // the variable that only this launcher sets
	rank      string
	size      string
	localRank string
	localSize string
	address   func(variables) (leader string, port int)
	more      func(variables, *Launch) error // what is not a number in a variable of its own
}

// launchers are those that Find knows. Variables are as their documentation has them and as they were found
// (testdata).
var launchers = []launcher{
	{name: "torchrun", nested: 2, mark: "TORCHELASTIC_RUN_ID", rank: "RANK", size: "WORLD_SIZE", localRank: "LOCAL_RANK", localSize: "LOCAL_WORLD_SIZE",
		address: func(v variables) (string, int) { return v.master("MASTER_ADDR", "MASTER_PORT", 1) }}, // torchrun itself listens on the port
	{name: "Open MPI", nested: 1, mark: "OMPI_COMM_WORLD_RANK", rank: "OMPI_COMM_WORLD_RANK", size: "OMPI_COMM_WORLD_SIZE",
		localRank: "OMPI_COMM_WORLD_LOCAL_RANK", localSize: "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{name: "MPICH", nested: 1, mark: "PMI_RANK", rank: "PMI_RANK", size: "PMI_SIZE", localRank: "MPI_LOCALRANKID", localSize: "MPI_LOCALNRANKS"}, // Intel MPI, MVAPICH and Cray too
	{name: "Kubernetes", mark: "JOB_COMPLETION_INDEX", rank: "JOB_COMPLETION_INDEX", size: "WORLD_SIZE",
		address: func(v variables) (string, int) { return v.master("MASTER_ADDR", "MASTER_PORT", 0) }},
	{name: "Kubeflow", mark: "PET_NODE_RANK", rank: "PET_NODE_RANK", size: "PET_NNODES",
		address: func(v variables) (string, int) { return v.master("PET_MASTER_ADDR", "PET_MASTER_PORT", 0) }},
	{name: "Slurm", mark: "SLURM_STEP_ID", rank: "SLURM_PROCID", size: "SLURM_STEP_NUM_TASKS", localRank: "SLURM_LOCALID", more: slurm},
	{name: "RANK and WORLD_SIZE", mark: "RANK", rank: "RANK", size: "WORLD_SIZE", localRank: "LOCAL_RANK", localSize: "LOCAL_WORLD_SIZE",
		address: func(v variables) (string, int) { return v.master("MASTER_ADDR", "MASTER_PORT", 0) }},
}

// Find returns which process of a run this one is, by its environment, of "NAME=value"; nil if no launcher has started
// it, or has started nothing else. Launchers that contradict themselves or each other are an error.
func Find(environment []string) (*Launch, error) {
	v := variables{}
	for _, e := range environment {
		name, value, _ := strings.Cut(e, "=")
		v[name] = value
	}
	var best *Launch
	nested := -1
	for i := range launchers {
		w := &launchers[i]
		l, err := w.read(v)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the environment of %s: %w", w.name, err)
		case l == nil:
		case best == nil:
			best, nested = l, w.nested
		case l.Rank == best.Rank && l.Size == best.Size:
			best.complete(l)
		case w.nested == nested:
			return nil, fmt.Errorf("%s says that this is process %d of %d, and %s that it is process %d of %d; hint: unset the variables of the one that has not started it (%s or %s)",
				best.Source, best.Rank, best.Size, l.Source, l.Rank, l.Size, markOf(best.Source), w.mark)
		}
	}
	if best != nil && best.Size == 1 {
		return nil, nil
	}
	return best, nil
}

func markOf(name string) string {
	for _, w := range launchers {
		if w.name == name {
			return w.mark
		}
	}
	return name
}

// complete adds what only another launcher says of the same processes.
func (l *Launch) complete(other *Launch) {
	if l.LocalSize == 0 {
		l.LocalRank, l.LocalSize = other.LocalRank, other.LocalSize
	}
	if l.Leader == "" {
		l.Leader, l.Port = other.Leader, other.Port
	}
}

// read returns what a launcher says; nil if it says nothing.
func (w *launcher) read(v variables) (*Launch, error) {
	if v[w.mark] == "" {
		return nil, nil
	}
	if w.size == "WORLD_SIZE" && w.rank == w.mark && v[w.size] == "" { // a variable RANK, or a job of independent pods
		return nil, nil
	}
	l := &Launch{Source: w.name}
	for _, f := range []struct {
		name string
		to   *int
		must bool
		most int
	}{{w.rank, &l.Rank, true, maxProcesses}, {w.size, &l.Size, true, maxProcesses}, {w.localRank, &l.LocalRank, false, maxProcesses}, {w.localSize, &l.LocalSize, false, maxProcesses}} {
		if f.name == "" || v[f.name] == "" && !f.must {
			continue
		}
		n, err := v.number(f.name, f.most)
		if err != nil {
			return nil, err
		}
		*f.to = n
	}
	if w.address != nil {
		l.Leader, l.Port = w.address(v)
	}
	if w.more != nil {
		if err := w.more(v, l); err != nil {
			return nil, err
		}
	}
	return l, l.check()
}

// maxProcesses bounds what an environment may claim.
const maxProcesses = 1 << 16

// check rejects numbers that no launcher can mean.
func (l *Launch) check() error {
	switch {
	case l.Size < 1 || l.Rank >= l.Size:
		return fmt.Errorf("there is no process %d of %d; hint: ranks count from 0", l.Rank, l.Size)
	case l.LocalSize > l.Size:
		return fmt.Errorf("%d of %d processes are said to be on this host", l.LocalSize, l.Size)
	case l.LocalSize > 0 && l.LocalRank >= l.LocalSize:
		return fmt.Errorf("there is no process %d of the %d on this host; hint: local ranks count from 0", l.LocalRank, l.LocalSize)
	}
	return nil
}

// variables are those of an environment.
type variables map[string]string

// number returns a variable that is a number from 0 to most.
func (v variables) number(name string, most int) (int, error) {
	n, err := strconv.ParseUint(v[name], 10, 32)
	if err != nil || n > uint64(most) {
		return 0, fmt.Errorf("%s is %q, not a number from 0 to %d; hint: set it, or unset what else names a rank", name, v[name], most)
	}
	return int(n), nil
}

// master returns where rank 0 is, by the variables that PyTorch uses, and a port that lies above the one named by so
// many.
func (v variables) master(address, port string, above int) (string, int) {
	n, err := strconv.ParseUint(v[port], 10, 16)
	if err != nil || n == 0 || int(n)+above > 1<<16-1 {
		return v[address], 0
	}
	return v[address], int(n) + above
}

// firstSlurmPort is the first of the ports that jobs listen on, if they cannot say which. Two jobs have the same only if
// their numbers are the same modulo slurmPorts.
const firstSlurmPort, slurmPorts = 20000, 10000

// slurm reads what srun says in lists: how many processes are on this node, and which node is the first.
func slurm(v variables, l *Launch) error {
	first, err := firstNode(v["SLURM_STEP_NODELIST"])
	if err != nil {
		return fmt.Errorf("SLURM_STEP_NODELIST is %q: %w", v["SLURM_STEP_NODELIST"], err)
	}
	l.Leader = first
	if job, err := v.number("SLURM_JOB_ID", 1<<31-1); err == nil {
		l.Port = firstSlurmPort + job%slurmPorts
	}
	if v["SLURM_STEP_TASKS_PER_NODE"] == "" || v["SLURM_NODEID"] == "" {
		return nil
	}
	node, err := v.number("SLURM_NODEID", maxProcesses)
	if err == nil {
		l.LocalSize, err = tasksOn(v["SLURM_STEP_TASKS_PER_NODE"], node)
	}
	return err
}

// tasksOn returns the processes on a node, of a list such as "4(x2),3": four on each of two nodes, three on the next.
func tasksOn(list string, node int) (int, error) {
	for _, part := range strings.Split(list, ",") {
		tasks, times, repeated := strings.Cut(part, "(x")
		n, err := strconv.ParseUint(tasks, 10, 16)
		nodes := uint64(1)
		if err == nil && repeated {
			nodes, err = strconv.ParseUint(strings.TrimSuffix(times, ")"), 10, 16)
		}
		if err != nil {
			break
		}
		if node < int(nodes) {
			return int(n), nil
		}
		node -= int(nodes)
	}
	return 0, fmt.Errorf("SLURM_STEP_TASKS_PER_NODE is %q, which does not say how many processes node %d has", list, node)
}

// firstNode returns the first name of a list of nodes as Slurm writes it, such as "gpu[03-07,11],login": gpu03.
func firstNode(list string) (string, error) {
	prefix, rest, ranged := strings.Cut(list, "[")
	if comma := strings.IndexByte(prefix, ','); comma >= 0 {
		return prefix[:comma], nil
	}
	if !ranged {
		return prefix, nil
	}
	inside, after, closed := strings.Cut(rest, "]")
	if !closed {
		return "", errors.New("a bracket is not closed")
	}
	first, end := inside[:firstOf(inside, ",-")], firstOf(after, ",[")
	if end < len(after) && after[end] == '[' { // another range in the same name
		return firstNode(prefix + first + after)
	}
	return prefix + first + after[:end], nil
}

// firstOf returns the index of the first of some characters, or the length.
func firstOf(s, chars string) int {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return i
	}
	return len(s)
}
