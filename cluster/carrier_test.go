package cluster

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device/mpi"
	"github.com/athanor-llm/athanor/device/remote"
)

// TestCarrier: without an MPI library that all have, connections carry the bytes, and it is said what is lacking; what is
// measured is measured with a process on another host.
func TestCarrier(t *testing.T) {
	at := func(host, mpi string) *member { return &member{Member: remote.Member{Host: host, MPI: mpi}} }
	own := hostName()
	for i, c := range []struct {
		source, variable, want string
	}{
		{"torchrun", "", "torchrun brings no MPI library, and ATHANOR_MPI names none"},
		{"MPICH", "", "no MPI library can be used"},
		{"MPICH", "none", "ATHANOR_MPI is none"},
		{"Slurm", "none", "ATHANOR_MPI is none"},
	} {
		t.Setenv(mpi.Variable, c.variable)
		team := &Team{launch: &Launch{Source: c.source}, members: []*member{nil, at(own, "")}}
		if got := team.lacks(""); got != c.want {
			t.Errorf("case %d: %q, want %q", i, got, c.want)
		}
	}
	for far, hosts := range map[int][]string{1: {own, own, own}, 2: {own, "b", "b"}, 3: {own, own, "b"}} {
		team := &Team{members: []*member{nil}}
		for _, h := range hosts {
			team.members = append(team.members, at(h, ""))
		}
		if got := team.farthest(); got != far {
			t.Errorf("of %v, process %d is measured with, want %d", hosts, got, far)
		}
	}
}

// TestOtherLibrary: a process with another library, or none, is named, with both.
func TestOtherLibrary(t *testing.T) {
	const own = "MPICH 5.0.2 (the standard ABI)"
	for other, said := range map[string]string{"": "no MPI library", "MPICH 4.0.2 (the ABI of MPICH)": "MPICH 4.0.2", own: ""} {
		team := &Team{members: []*member{nil, {Member: remote.Member{MPI: own}}, {Member: remote.Member{Host: "b", MPI: other}}}}
		got := team.lacks(own)
		if other == own {
			if got != "" {
				t.Errorf("all have it, but %q", got)
			}
			continue
		}
		for _, part := range []string{"process 2, on b", own, said} {
			if !strings.Contains(got, part) {
				t.Errorf("%q does not say %q", got, part)
			}
		}
	}
}
