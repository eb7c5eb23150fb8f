package main

import (
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/hardware"
)

// TestStartText: the commands that a plan for several hosts names are those of the guide, with one process to a host of GPUs and
// one to a rank of the CPU; a plan for one host names none.
func TestStartText(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide.md")
	check(t, err)
	for _, line := range strings.Split(startText(&hardware.Network{Hosts: 4, PerHost: 2}, 8, true), "\n")[1:4] {
		command, _, _ := strings.Cut(strings.TrimSpace(line), "   (")
		if said := strings.NewReplacer("CONFIG", "run.yaml", "HOST:", "host1:").Replace(command); !strings.Contains(string(guide), said) {
			t.Errorf("the guide does not start a run by %s", said)
		}
	}
	cpu := startText(&hardware.Network{Hosts: 4, PerHost: 2}, 8, false)
	for _, want := range []string{"srun --nodes=4 --ntasks-per-node=2 ", "mpirun -n 8 ", "--nnodes 4 --nproc-per-node 2 "} {
		if !strings.Contains(cpu, want) {
			t.Errorf("no %q in %s", want, cpu)
		}
	}
	if strings.Contains(cpu, "gpus-per-node") {
		t.Errorf("asks for GPUs: %s", cpu)
	}
	_, file := tiny(t)
	for hosts, says := range map[string]bool{"hardware.hosts=2": true, "hardware.hosts=1": false} {
		out := call("plan", file, "hardware.name=a100-80", "ranks=2", hosts, "plan.pipeline=1").must(t, 0).stdout
		if strings.Contains(out, "srun ") != says {
			t.Errorf("%s: %s", hosts, out)
		}
		for what, is := range map[string]bool{"between ranks 235": true, "between hosts": says, "device memory ": true, "host to device 25,": true} {
			if strings.Contains(out, what) != is {
				t.Errorf("%s: %q: %v, in %s", hosts, what, !is, out)
			}
		}
		if !strings.Contains(out, "limits are those of one rank") {
			t.Errorf("%s: whose limits are they? %s", hosts, out)
		}
	}
}
