//go:build unix

package train

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	athanor "github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
)

// TestHostLost: a host that is killed at a random step, or stops answering, ends the run, which names
// the rank there; with another host in its place the run continues and, though its leading process is
// killed again and again, ends with the losses of an undisturbed run.
func TestHostLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	t.Setenv(machine.KeyVariable, "a secret of tests")
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 8))
	dir := t.TempDir()
	file := runConfig(t, dir)
	began := time.Now()
	check(t, trainFile(t.Context(), file, []string{"ranks=2", "plan.pipeline=1", "out=" + dir + "/whole"}))
	whole := time.Since(began)
	same := []string{"ranks=2", "plan=" + dir + "/whole/plan.json"}

	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		cmd, addr := serve(t)
		tr, _ := openRun(t, file, append(same, "hosts="+addr)...)
		when := tr.Step + 1 + r.IntN(10)
		err := tr.Train(t.Context(), onStep(func(step int) {
			if step == when {
				check(t, cmd.Process.Signal(how))
			}
		}))
		var lost *athanor.PeerLostError
		if !errors.As(err, &lost) || lost.Rank != 1 {
			t.Errorf("%v for the host of rank 1 after step %d: %v", how, when, err)
		}
		tr.Close() // whatever it says of a host that is gone
		cmd.Process.Kill()
		cmd.Wait()
	}

	_, addr := serve(t)
	killAgain(t, r, dir, file, whole, 3, []string{strings.Join(append(same, "hosts="+addr), " ")})
	got, want := losses(t, dir+"/run/metrics.jsonl"), losses(t, dir+"/whole/metrics.jsonl")
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("losses\n%v\nwant\n%v", got, want)
	}
}
