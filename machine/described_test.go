package machine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
)

// described returns the machine of a request for ranks on the hardware.
func described(ranks int, h config.Hardware) (*Machine, error) {
	return Describe(&Request{Ranks: ranks, Hardware: h, Limits: config.Default().Limits}, func(string) {})
}

// TestDescribedHosts: ranks of a known card are on as few hosts as hold equally many each, or on as many as the request
// says; a host's memory is shared by the ranks that are on it; the network has the rate that the request says.
func TestDescribedHosts(t *testing.T) {
	for _, c := range []struct{ ranks, asked, hosts int }{{8, 0, 1}, {16, 0, 2}, {9, 0, 3}, {11, 0, 11}, {4, 2, 2}, {4, 4, 4}, {16, 1, 1}} {
		m, err := described(c.ranks, config.Hardware{Name: "a100-80", Hosts: c.asked})
		if err != nil {
			t.Fatal(err)
		}
		n := m.Hardware.Network
		if c.hosts == 1 != (n == nil) || n != nil && (n.Hosts != c.hosts || n.PerHost*n.Hosts != c.ranks) {
			t.Errorf("%+v: %+v", c, n)
		}
		one, err := hardware.KnownRank("a100-80", c.ranks/c.hosts)
		if err != nil || m.Hardware.Memory != one.Memory {
			t.Errorf("%+v: memory %+v, of one host %+v, %v", c, m.Hardware.Memory, one.Memory, err)
		}
		for r := range c.ranks {
			if m.Host(r) != r%c.hosts {
				t.Errorf("%+v: rank %d is on host %d", c, r, m.Host(r))
			}
		}
	}
	uneven, err := described(6, config.Hardware{Name: "a100-80", PerHost: config.Counts{4, 2}})
	if err != nil || !slices.Equal(uneven.Hardware.Network.Counts, []int{4, 2}) || uneven.Host(5) != 0 || uneven.Host(3) != 1 {
		t.Errorf("hosts of four and two: %+v, %v", uneven, err)
	}
	m, err := described(16, config.Hardware{Name: "a100-80", Network: 3e9})
	if err != nil || m.Hardware.Network.Link.Bandwidth != 3e9 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := described(8, config.Hardware{Name: "a100-80", Network: 3e9}); err == nil || !strings.Contains(err.Error(), "hardware.network: there is none") {
		t.Errorf("the network of one host: %v", err)
	}
}

// TestHostsInFile: a file describes one host, of which there may be several, or all hosts of a run.
func TestHostsInFile(t *testing.T) {
	h, err := hardware.KnownRank("h100", 1)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "h.json")
	write := func() {
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Print(f); err != nil || f.Close() != nil {
			t.Fatal(err)
		}
	}
	write()
	m, err := described(6, config.Hardware{Name: file, Hosts: 2})
	if err != nil || m.Hardware.Network.PerHost != 3 || m.Hardware.Memory.Host != h.Memory.Host/3 {
		t.Errorf("two hosts like that of the file: %+v, %v", m, err)
	}
	h.Join(2, 2)
	write()
	m, err = described(6, config.Hardware{Name: file})
	if err != nil || m.Hardware.Network.PerHost != 3 || m.Hardware.Memory.Host != h.Memory.Host/6 || m.Hardware.Link(device.DiskTier, device.HostTier) == nil {
		t.Errorf("two hosts together: %+v, %v", m, err)
	}
	for _, c := range []struct{ ranks, hosts int }{{6, 3}, {5, 0}} {
		if _, err := described(c.ranks, config.Hardware{Name: file, Hosts: c.hosts}); err == nil || !strings.Contains(err.Error(), "describes 2 hosts together") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
