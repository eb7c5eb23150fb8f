package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestFound: what real launchers put into the environment of a process, alone and started by each other, says which
// process it is. tools/launchers.sh has written the files; a batch script, which no launcher has started, is none.
func TestFound(t *testing.T) {
	for name, want := range map[string]string{
		"torchrun":         "torchrun: process 1 of 2, 1 of 2 on this host at localhost:46414",
		"torchrun-two":     "torchrun: process 0 of 2, 0 of 1 on this host at 127.0.0.1:29513",
		"torchrun-in-srun": "torchrun: process 1 of 2, 1 of 2 on this host at localhost:33832",
		"ompi":             "Open MPI: process 1 of 2, 1 of 2 on this host at :0",
		"ompi-in-sbatch":   "Open MPI: process 1 of 2, 1 of 2 on this host at :0",
		"mpich":            "MPICH: process 1 of 2, 1 of 2 on this host at :0",
		"mpich-in-sbatch":  "MPICH: process 1 of 2, 1 of 2 on this host at :0",
		"srun":             "Slurm: process 3 of 4, 3 of 4 on this host at vm:20006",
		"srun-pmi2":        "MPICH: process 1 of 2, 1 of 2 on this host at vm:20005",
		"sbatch":           "nothing",
	} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".env"))
		if err != nil {
			t.Fatal(err)
		}
		if got := found(strings.Split(strings.TrimSpace(string(text)), "\n")); got != want {
			t.Errorf("%s\n got %s\nwant %s", name, got, want)
		}
	}
}

// found describes what is found in an environment.
func found(environment []string) string {
	l, err := Find(environment)
	switch {
	case err != nil:
		return err.Error()
	case l == nil:
		return "nothing"
	}
	return fmt.Sprintf("%v at %s:%d", l, l.Leader, l.Port)
}

// TestSaid: Kubernetes and people say it in few variables, launchers inside others count, and what cannot be is said to
// be wrong, with the variable.
func TestSaid(t *testing.T) {
	for environment, want := range map[string]string{
		"": "nothing",
		"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=7": "RANK and WORLD_SIZE: process 1 of 2 at a:7",
		"RANK=1":                 "nothing", // somebody's own
		"JOB_COMPLETION_INDEX=3": "nothing", // a job of pods that do not work together
		"JOB_COMPLETION_INDEX=3 WORLD_SIZE=4 MASTER_ADDR=a-0.a MASTER_PORT=7":                                                         "Kubernetes: process 3 of 4 at a-0.a:7",
		"PET_NODE_RANK=0 PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=j-node-0-0.j PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=0": "Kubeflow: process 0 of 2 at j-node-0-0.j:29400",
		"RANK=0 WORLD_SIZE=1": "nothing", // alone
		"PMI_RANK=2 PMI_SIZE=4 RANK=2 WORLD_SIZE=4 MASTER_ADDR=b MASTER_PORT=9": "MPICH: process 2 of 4 at b:9",
		"RANK=0 WORLD_SIZE=2 MASTER_PORT=70000":                                 "RANK and WORLD_SIZE: process 0 of 2 at :0",
		"PMI_RANK=2 PMI_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4":   "Open MPI says that this is process 1 of 4, and MPICH that it is process 2 of 4; hint: unset the variables of the one that has not started it (OMPI_COMM_WORLD_RANK or PMI_RANK)",
		"RANK=5 WORLD_SIZE=4": "the environment of RANK and WORLD_SIZE: there is no process 5 of 4; hint: ranks count from 0",
		"RANK=0 WORLD_SIZE=0": "the environment of RANK and WORLD_SIZE: there is no process 0 of 0; hint: ranks count from 0",
		"RANK=0 WORLD_SIZE=2 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2": "the environment of RANK and WORLD_SIZE: there is no process 3 of the 2 on this host; hint: local ranks count from 0",
		"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3": "the environment of RANK and WORLD_SIZE: 3 of 2 processes are said to be on this host",
		"PMI_RANK=1":                             `the environment of MPICH: PMI_SIZE is "", not a number from 0 to 65536; hint: set it, or unset what else names a rank`,
		"PET_NODE_RANK=0 PET_NNODES=2:4":         `the environment of Kubeflow: PET_NNODES is "2:4", not a number from 0 to 65536; hint: set it, or unset what else names a rank`,
		"RANK=-1 WORLD_SIZE=2":                   `the environment of RANK and WORLD_SIZE: RANK is "-1", not a number from 0 to 65536; hint: set it, or unset what else names a rank`,
		"RANK=0 WORLD_SIZE=99999999999999999999": `the environment of RANK and WORLD_SIZE: WORLD_SIZE is "99999999999999999999", not a number from 0 to 65536; hint: set it, or unset what else names a rank`,
		"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=a[1": `the environment of Slurm: SLURM_STEP_NODELIST is "a[1": a bracket is not closed`,
	} {
		if got := found(strings.Fields(environment)); got != want {
			t.Errorf("%s\n got %s\nwant %s", environment, got, want)
		}
	}
}

// TestNodes: the first name of lists of nodes, and the processes of each, as `scontrol show hostnames` has them.
func TestNodes(t *testing.T) {
	for list, want := range map[string]string{
		"vm": "vm", "a,b": "a", "gpu[03-07,11],login": "gpu03", "gpu[5,7]": "gpu5", "login,gpu[1-2]": "login",
		"r[1-2]n[3-4]": "r1n3", "r[1,2]n[03,04].x,b": "r1n03.x", "n[1-2].lan": "n1.lan",
	} {
		if got, err := firstNode(list); got != want || err != nil {
			t.Errorf("%s: %q, %v, not %q", list, got, err, want)
		}
	}
	for node, want := range []int{4, 4, 3, 1, 1} {
		if got, err := tasksOn("4(x2),3,1(x2)", node); got != want || err != nil {
			t.Errorf("node %d: %d, %v, not %d", node, got, err, want)
		}
	}
	for _, list := range []string{"4(x2),3", "", "x", "4(x", "4(x99999999999)"} {
		if n, err := tasksOn(list, 3); err == nil {
			t.Errorf("%q gives node 3 %d processes", list, n)
		}
	}
}

// TestAnything: no environment crashes Find, and whatever it finds is possible.
func TestAnything(t *testing.T) {
	r := testkit.Rand(t)
	var names []string
	for _, w := range launchers {
		names = append(names, w.mark, w.rank, w.size, w.localRank, w.localSize)
	}
	names = append(names, "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_JOB_ID", "MASTER_PORT", "PET_MASTER_PORT")
	values := []string{"", "0", "1", "2", "3", "a[1-2]", "a[", "]", "2(x2)", "2(x", "-1", "65535", "65536", "a[1-2]b[", "[", "a[]", "a[][]"}
	for range 20000 {
		var environment []string
		for _, name := range names {
			if r.IntN(2) == 0 {
				environment = append(environment, name+"="+values[r.IntN(len(values))])
			}
		}
		if l, err := Find(environment); err == nil && l != nil && (l.Size < 2 || l.Rank < 0 || l.Rank >= l.Size || l.LocalSize > l.Size || l.Port > 65535) {
			t.Fatalf("%v: %+v", environment, l)
		}
	}
}
