package config

import (
	"cmp"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device/link"
)

// HostPort is the port of hosts that are named without one.
const HostPort = "7077"

// Address returns the address, with a port, at which a host waits.
func Address(host string) (string, error) {
	addr := host
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(strings.Trim(host, "[]"), HostPort)
	}
	name, port, err := net.SplitHostPort(addr)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || name == "" || strings.ContainsAny(name, " /,") {
		return "", fmt.Errorf("%q is not an address; hint: use one such as 10.0.0.2:%s, on which `athanor serve` waits", host, HostPort)
	}
	return addr, nil
}

// checkHosts completes the addresses of other hosts, and checks that each can have a rank.
func (c *Config) checkHosts(d *decoder) {
	seen := map[string]bool{}
	for i, h := range c.Hosts {
		addr, err := Address(h)
		if err != nil {
			d.fail("hosts", err.Error())
			continue
		}
		if seen[addr] {
			d.fail("hosts", fmt.Sprintf("%s is named twice; hint: name each host once, and set `ranks` to the number of ranks on all hosts together", addr))
		}
		seen[addr], c.Hosts[i] = true, addr
	}
	if n := len(c.Hosts) + 1; n > 1 && d.given("ranks") && c.Ranks != AutoRanks && c.Ranks < n {
		d.fail("ranks", fmt.Sprintf("%d are too few for %d hosts, this one included; hint: use at least %d, or leave ranks out for one on each host", c.Ranks, n, n))
	}
}

// Launched says with whom a launcher has started this process, or which processes were started for Hosts. No key says it: it is
// so for this process only.
type Launched struct {
	Others   []string  // addresses of the run's other processes
	Named    bool      // they are those of Hosts; else each has as many ranks as this one
	Key      []byte    // that they prove to each other that they know; nil: the environment's
	Over     string    // what carries bytes between them
	Links    link.Open // over which their ranks exchange bytes; nil: over connections
	Together int       // processes of the run on this host, which share its memory and disk; at most 1: this one
}

// Launch makes a configuration that of the first of several processes, if there are others.
func (c *Config) Launch(l Launched) error {
	n := len(l.Others) + 1
	switch {
	case n == 1:
		return nil
	case l.Named: // checked when they were read
	case len(c.Hosts) > 0:
		return c.Fault("hosts", fmt.Sprintf("a launcher has started %d processes, which are the run's hosts; hint: leave hosts out", n))
	case c.Hardware.Name != "":
		return c.Fault("hardware.name", "a run of several processes cannot be on a described machine; hint: leave hardware.name out")
	case c.Ranks != AutoRanks && c.Given("ranks") && c.Ranks%n != 0:
		return c.Fault("ranks", fmt.Sprintf("%d cannot be divided among %d processes; hint: use a multiple of %d, or leave ranks out for one in each", c.Ranks, n, n))
	case !c.Given("ranks"):
		c.Ranks = n
	}
	c.Launched = l
	return nil
}

// Spill returns the folder of the disk tier: limits.disk_path, or one inside Out. The default
// is not stored in the configuration, which may be reused with another `out`.
func (c *Config) Spill() string {
	return cmp.Or(c.Limits.DiskPath, filepath.Join(c.Out, "spill"))
}

// checkNetwork checks what is said of hosts that are described.
func (c *Config) checkNetwork(d *decoder) {
	hosts := c.Hardware.Hosts
	if hosts < 0 || hosts > 1024 {
		d.fail("hardware.hosts", fmt.Sprintf("%d is out of range; hint: from 1 to 1024, or leave it out for as few as hold the ranks", hosts))
		return
	}
	for key, said := range map[string]bool{"hardware.hosts": hosts > 0, "hardware.per_host": len(c.Hardware.PerHost) > 0, "hardware.network": c.Hardware.Network > 0} {
		if said && c.Hardware.Name == "" {
			d.fail(key, "describes a machine that is not here, and hardware.name doesn't say which; hint: name its card in hardware.name, or the hosts to train on in hosts")
		}
	}
	if len(c.Hardware.PerHost) > 0 {
		c.countRanks(d)
	} else if hosts > 1 && c.Ranks != AutoRanks && c.Ranks%hosts != 0 {
		d.fail("ranks", fmt.Sprintf("%d cannot be divided among the %d hosts of hardware.hosts; hint: with eight on each, ranks: %d", c.Ranks, hosts, 8*hosts))
	}
}

// countRanks derives the number of hosts and that of ranks from how many each host has.
func (c *Config) countRanks(d *decoder) {
	const key = "hardware.per_host"
	list, hosts, all := c.Hardware.PerHost, c.Hardware.Hosts, 0
	for _, n := range list {
		if n < 1 || n > 1024 {
			d.fail(key, fmt.Sprintf("%d ranks are out of range; hint: from 1 to 1024 on each host", n))
			return
		}
		all += n
	}
	if len(list) == 1 {
		if hosts == 0 && d.given("ranks") {
			hosts = c.Ranks / list[0]
		}
		hosts = max(hosts, 1)
		all *= hosts
	}
	switch {
	case len(list) != 1 && hosts != 0 && hosts != len(list):
		d.fail(key, fmt.Sprintf("it says how many ranks %d hosts have, but hardware.hosts is %d; hint: leave hardware.hosts out", len(list), hosts))
	case d.given("ranks") && c.Ranks != AutoRanks && c.Ranks != all:
		d.fail("ranks", fmt.Sprintf("%d, but the hosts of hardware.per_host have %d; hint: leave ranks out", c.Ranks, all))
	default:
		c.Ranks, c.Hardware.Hosts = all, max(hosts, len(list))
	}
}
