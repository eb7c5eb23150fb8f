package machine

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device/remote"
)

// TestCommonNCCL: GPUs are reached over NCCL if all hosts have one version of it, and every rank a GPU of its own; else it is said why not.
func TestCommonNCCL(t *testing.T) {
	const v = "NCCL 2.29.3"
	at := func(nccl string, boards ...string) remote.Description {
		return remote.Description{NCCL: nccl, Boards: boards}
	}
	for i, c := range []struct {
		own    []string
		nccl   string
		others []remote.Description
		want   string
		why    string
	}{
		{[]string{"a 0"}, v, []remote.Description{at(v, "b 0")}, v, ""},
		{[]string{"a 0", "a 1"}, v, []remote.Description{at(v, "b 0", "b 1"), at(v, "a 2")}, v, ""},
		{[]string{"a 0"}, v, []remote.Description{at(v, "a 0")}, "", "one GPU"},
		{[]string{"a 0"}, v, []remote.Description{at(v, "b 0"), at("NCCL 2.28.3", "c 0")}, "", "host2 has NCCL 2.28.3"},
		{[]string{"a 0"}, v, []remote.Description{at("", "b 0")}, "", "host1 has none"},
		{[]string{"a 0"}, "", []remote.Description{at("", "b 0")}, "", "this process has none"},
		{nil, "", []remote.Description{at("")}, "", "this process has none"},
	} {
		got, err := commonNCCL(c.own, c.nccl, []string{"host1", "host2"}, c.others)
		if got != c.want || (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("case %d: %q, %v, want %q, %q", i, got, err, c.want, c.why)
		}
	}
}
