package main

import (
	"net"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/machine"
)

// TestServeRefuses: a host that cannot serve says why before it waits.
func TestServeRefuses(t *testing.T) {
	const key = "sixteen characters"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	for want, c := range map[string]struct {
		key  string
		args []string
		code int
	}{
		"ATHANOR_KEY must hold a secret":                         {"", nil, 2},
		"of at least 16 characters, the same on all hosts; hint": {"too short", nil, 2},
		"--listen nowhere":                                       {key, []string{"--listen", "nowhere"}, 2},
		"--disk: ":                                               {key, []string{"--listen", "127.0.0.1:0", "--disk", t.TempDir() + "/none"}, 2},
		"check whether another athanor serve is running":         {key, []string{"--listen", l.Addr().String()}, 1},
	} {
		t.Setenv(machine.KeyVariable, c.key)
		if text := call(append([]string{"serve"}, c.args...)...).must(t, c.code).stderr; !strings.Contains(text, want) {
			t.Errorf("serve %v says %q, want %q", c.args, text, want)
		}
	}
}
