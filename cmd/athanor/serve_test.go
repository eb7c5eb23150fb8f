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
		"--max-ranks 0: no run could have":                       {key, []string{"--listen", "127.0.0.1:0", "--max-ranks", "0"}, 2},
		"--memory: \"much\" is not an amount of memory":          {key, []string{"--listen", "127.0.0.1:0", "--memory", "much"}, 2},
		"--disk-space: \"-1\" is not an amount of memory":        {key, []string{"--listen", "127.0.0.1:0", "--disk-space=-1"}, 2},
		"check whether another athanor serve is running":         {key, []string{"--listen", l.Addr().String()}, 1},
	} {
		t.Setenv(machine.KeyVariable, c.key)
		if text := call(append([]string{"serve"}, c.args...)...).must(t, c.code).stderr; !strings.Contains(text, want) {
			t.Errorf("serve %v says %q, want %q", c.args, text, want)
		}
	}
}

// TestWhere: who listens on all interfaces is told so.
func TestWhere(t *testing.T) {
	for text, all := range map[string]bool{"[::]:0": true, "0.0.0.0:0": true, "127.0.0.1:0": false, "[::1]:0": false} {
		a, err := net.ResolveTCPAddr("tcp", text)
		check(t, err)
		if got := where(a); strings.Contains(got, "all interfaces") != all {
			t.Errorf("%s is %q", text, got)
		}
	}
}
