package cluster

import (
	"cmp"
	"fmt"
	"os"

	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/mpi"
	"github.com/athanor-llm/athanor/machine"
)

// What carries the bytes between the processes of a run.
//
// Where all have loaded the same MPI library, both ways are open, MPI and connections, and the leader measures both with
// a process on another host, if there is one. MPI is taken unless connections are clearly faster; whoever names a library
// insists on it. Why is said at the start of the run.

// Carrier carries bytes between processes.
type Carrier struct {
	Name  string
	Why   string    // this one
	Links link.Open // nil: connections
}

// connections are what there always is.
func connections(why string) Carrier { return Carrier{Name: "TCP", Why: why} }

// String says what carries the bytes, and why.
func (c Carrier) String() string { return c.Name + ": " + c.Why }

// lacks says why not all processes have the leader's MPI library, which is own; "": they have.
func (t *Team) lacks(own string) string {
	switch {
	case own != "":
	case t.launch.Source == byAgents:
		return byAgents + " starts processes without MPI"
	case os.Getenv(mpi.Variable) == "none":
		return mpi.Variable + " is none"
	case mpi.Starts(t.launch.Source):
		return "no MPI library can be used"
	default:
		return fmt.Sprintf("%s brings no MPI library, and %s names none", t.launch.Source, mpi.Variable)
	}
	for r, e := range t.members {
		if r > 0 && e.MPI != own {
			return fmt.Sprintf("process %d, on %s, has loaded %s, and process 0 %s", r, e.Host, cmp.Or(e.MPI, "no MPI library"), own)
		}
	}
	return ""
}

// rounds is how often both are measured, in turn, since other programs may disturb either.
const rounds = 3

// choose decides between MPI, whose world all have entered, and connections.
func (t *Team) choose() Carrier {
	over := Carrier{versionOf(t.lib), mpi.Variable + " names it", linksOver(t.world)}
	if os.Getenv(mpi.Variable) != "" {
		return over
	}
	r := t.farthest()
	who := fmt.Sprintf("process %d, on %s", r, t.members[r].Host)
	var byMPI, byTCP machine.Exchange
	for range rounds {
		if err := byMPI.Time(t.Others, r, t.Key, over.Links); err != nil {
			return connections(fmt.Sprintf("%s is not reached over %s: %v", who, over.Name, err))
		}
		if err := byTCP.Time(t.Others, r, t.Key, nil); err != nil {
			over.Why = fmt.Sprintf("%s is not reached over TCP: %v", who, err)
			return over
		}
	}
	over.Why = fmt.Sprintf("%s with %s, take %v, over TCP %v", machine.Exchanged(), who, byMPI, byTCP)
	if byTCP.Beats(byMPI) {
		return connections(fmt.Sprintf("%s with %s, take %v, over %s %v", machine.Exchanged(), who, byTCP, over.Name, byMPI))
	}
	return over
}

// farthest returns the first process on another host than this one, else the first of all.
func (t *Team) farthest() int {
	own := hostName()
	for r, e := range t.members {
		if r > 0 && e.Host != own {
			return r
		}
	}
	return 1
}
