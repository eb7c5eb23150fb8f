package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
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

// checkHosts completes the addresses of other hosts, and checks that each can have as many ranks as this one.
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
	if n := len(c.Hosts) + 1; n > 1 && d.given("ranks") && c.Ranks != AutoRanks && c.Ranks%n != 0 {
		d.fail("ranks", fmt.Sprintf("%d cannot be divided among %d hosts, this one included; hint: use a multiple of %d, or leave ranks out for one on each host", c.Ranks, n, n))
	}
}
