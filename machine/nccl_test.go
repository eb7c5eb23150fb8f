package machine

import (
	"testing"

	"github.com/athanor-llm/athanor/device/remote"
)

// TestCommonNCCL: GPUs are reached over NCCL if all hosts have one version of it, and every rank a GPU of its own.
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
	}{
		{[]string{"a 0"}, v, []remote.Description{at(v, "b 0")}, v},
		{[]string{"a 0", "a 1"}, v, []remote.Description{at(v, "b 0", "b 1"), at(v, "a 2")}, v},
		{[]string{"a 0"}, v, []remote.Description{at(v, "a 0")}, ""},
		{[]string{"a 0"}, v, []remote.Description{at(v, "b 0"), at("NCCL 2.28.3", "c 0")}, ""},
		{[]string{"a 0"}, v, []remote.Description{at("", "b 0")}, ""},
		{[]string{"a 0"}, "", []remote.Description{at("", "b 0")}, ""},
		{nil, "", []remote.Description{at("")}, ""},
	} {
		if got := commonNCCL(c.own, c.nccl, c.others); got != c.want {
			t.Errorf("case %d: %q, want %q", i, got, c.want)
		}
	}
}
