package main

import (
	"fmt"

	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/machine"
)

// sayStart says how the run that is planned starts on the hosts that are described, see docs/guide.md.
func (p *planned) sayStart(c *cli.Context) {
	spec := p.spec()
	if n := p.machine.Hardware.Network; spec.Hardware.Name != "" && n != nil && n.Hosts > 1 {
		c.Text(startText(n, spec.Ranks, machine.OnGPU(spec.Machine())))
	}
}

// startText says how a run starts on several hosts: with a process for each, which has all of its GPUs, or for each rank of
// the CPU.
func startText(n *hardware.Network, ranks int, gpus bool) string {
	const what = "athanor train CONFIG"
	cards := fmt.Sprintf(" --gpus-per-node=%d", n.PerHost)
	each, processes, of, spread := 1, n.Hosts, "device: cuda and ranks: auto, and without hardware", "   (one process to a host: --map-by ppr:1:node of Open MPI, -ppn 1 of MPICH)"
	if !gpus {
		each, processes, of, spread, cards = n.PerHost, ranks, "device: cpu, and without ranks and hardware", "", ""
	}
	return fmt.Sprintf(`start it on these hosts (with %s) by one of:
  srun --nodes=%d --ntasks-per-node=%d%[7]s %[4]s
  mpirun -n %[5]d %[4]s%[6]s
  torchrun --no-python --nnodes %[2]d --nproc-per-node %[3]d --rdzv-backend c10d --rdzv-endpoint HOST:29500 %[4]s
  athanor serve on all hosts but one, and there %[4]s, which names the others under hosts
`, of, n.Hosts, each, what, processes, spread, cards)
}
