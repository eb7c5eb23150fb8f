package train

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
)

// serveHere is what serve starts, without a leader that has asked for it: it prints its address only.
func serveHere(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	key, err := machine.Key()
	if err != nil {
		return err
	}
	limits, err := machine.ServeLimits(os.TempDir())
	if err != nil {
		return err
	}
	part := machine.Part{Spill: os.TempDir(), Budget: remote.NewBudget(limits)}
	return part.Serve(context.Background(), l, key, func(string) {})
}

// loaded reads a configuration, whose hosts are processes that serve.
func loaded(file string, overrides []string) (*config.Config, error) {
	c, err := config.Load(file, overrides)
	if err == nil && len(c.Hosts) > 0 {
		err = c.Launch(config.Launched{Others: c.Hosts, Named: true, Key: []byte(os.Getenv(machine.KeyVariable)), Over: "TCP"})
	}
	return c, err
}

// freeAddress is where the hosts of all tests listen, one after the other, so that they are measured as one.
var freeAddress = sync.OnceValues(func() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
})

// serve starts a process that is another host, and returns its address. There is one at a time.
func serve(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	addr, err := freeAddress()
	check(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ATHANOR_TEST_SERVE="+addr, machine.KeyVariable+"=a secret of tests")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, _, err := bufio.NewReader(out).ReadLine()
	check(t, err)
	return cmd, string(line)
}

// TestHosts: ranks in another process, over TCP, give the same bits as ranks in this one,
// replicas as well as stages and parts of sequences, whether a rank has one part of the weights or all; and the
// folder that they leave is the same.
func TestHosts(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	t.Setenv(machine.KeyVariable, "a secret of tests")
	dir := t.TempDir()
	file := runConfig(t, dir)
	_, addr := serve(t)
	for _, c := range testkit.Sample([]struct {
		name string
		own  []string
	}{
		{"replicas", []string{"ranks=2", "plan.pipeline=1"}},
		{"parts", []string{"ranks=2", "plan.sequence=2"}},
		{"spilling", []string{"ranks=2", "plan.pipeline=1", "plan.state=disk", "plan.micro_batch=1", "plan.recompute=full"}},
		{"stages", []string{"ranks=2", "plan.pipeline=2"}},
		{"grid", []string{"ranks=4", "plan.pipeline=2"}},
		{"uneven", []string{"ranks=3", "plan.pipeline=3"}}, // two ranks here, one there
		{"rows", []string{"ranks=4", "plan.sequence=2"}},   // neighbours, which share a sequence, are on one host
		{"deep", []string{"ranks=4", "plan.pipeline=4"}},   // as are neighbours of a deep pipeline
		{"blocks", []string{"ranks=2", "plan.pipeline=1", "optimizer_state=8bit_moments"}},
	}, 1, 3) {
		t.Run(c.name, func(t *testing.T) {
			here, there := dir+"/"+c.name+"-here", dir+"/"+c.name+"-there"
			own := append(c.own, "max_steps=5", "save_every=5")
			check(t, trainFile(t.Context(), file, append(own, "out="+here)))
			check(t, trainFile(t.Context(), file, []string{own[0], "max_steps=5", "save_every=5", "hosts=" + addr, "plan=" + here + "/plan.json", "out=" + there}))
			if got, want := losses(t, there+"/metrics.jsonl"), losses(t, here+"/metrics.jsonl"); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("losses\n%v\nwant\n%v", got, want)
			}
			for _, name := range []string{"model.safetensors", "state/m.safetensors", "state/v.safetensors"} {
				a, err := os.ReadFile(here + "/checkpoint-5/" + name)
				b, bad := os.ReadFile(there + "/checkpoint-5/" + name)
				if check(t, errors.Join(err, bad)); !bytes.Equal(a, b) {
					t.Errorf("%s is another", name)
				}
			}
		})
	}
}
