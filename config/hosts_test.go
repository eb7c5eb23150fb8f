package config

import (
	"fmt"
	"net"
	"testing"
)

// TestHosts: hosts have a port, and there is a rank on each unless ranks says otherwise.
func TestHosts(t *testing.T) {
	for text, want := range map[string]string{
		"hosts: a\n": "[a:7077] 2",
		"hosts: [10.0.0.2, \"b:1\", \"fe80::1\", \"[::1]:5\"]\n": "[10.0.0.2:7077 b:1 [fe80::1]:7077 [::1]:5] 5",
		"hosts: [a, b]\nranks: auto\n":                           fmt.Sprint("[a:7077 b:7077] ", AutoRanks),
		"hosts: [a, b]\nranks: 6\n":                              "[a:7077 b:7077] 6",
		"ranks: 2\n":                                             "[] 2",
	} {
		c, err := Parse("a.yaml", []byte(good+text), nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := fmt.Sprint(c.Hosts, c.Ranks); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// FuzzAddress: what is taken for an address is one with a port, and stays as it is.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"a", "10.0.0.2:80", "::1", "[::1]:9", ":1", "a:b:c", "a b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		addr, err := Address(s)
		if err != nil {
			return
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			t.Errorf("%q became %q: %v", s, addr, err)
		}
		if again, err := Address(addr); err != nil || again != addr {
			t.Errorf("%q became %q and then %q, %v", s, addr, again, err)
		}
	})
}
