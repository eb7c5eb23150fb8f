package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/machine"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gathered returns a team of n processes, which all are goroutines of this one, and what becomes of the followers.
func gathered(t *testing.T, n int, folder string, ctx ...context.Context) (*Team, []chan error) {
	t.Helper()
	t.Setenv("GOMAXPROCS", "2") // the cores are shared with other tests
	results := make([]chan error, n)
	for r := 1; r < n; r++ {
		results[r] = make(chan error, 1)
		own := t.Context()
		if len(ctx) > 0 {
			own = ctx[0]
		}
		go func() {
			results[r] <- Follow(own, &Launch{Rank: r, Size: n, LocalRank: r, LocalSize: n}, folder, folder+"/spill")
		}()
	}
	team, err := Lead(t.Context(), &Launch{Size: n, LocalSize: n}, folder, func(text string) { t.Log(text) })
	check(t, err)
	return team, results
}

// TestTeam: all processes find each other by the folder alone, each serves devices to whoever has the key, and the
// leader's exit code is that of all. The file with the key is gone as soon as all have come.
func TestTeam(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, code := range []int{0, 75} {
		folder := t.TempDir() + "/run"
		team, results := gathered(t, 4, folder)
		if len(team.Others) != 3 || team.Together != 4 || team.Hosts() != 1 {
			t.Errorf("others %v, %d together on %d hosts", team.Others, team.Together, team.Hosts())
		}
		if list, err := filepath.Glob(folder + "/" + noticeFile + "*"); err != nil || len(list) > 0 {
			t.Errorf("the folder still has %v, %v", list, err)
		}
		for _, addr := range team.Others {
			if about, err := remote.Describe(addr, team.Key, remote.Place{Device: "cpu"}); err != nil || about.Ranks < 1 {
				t.Errorf("%s: %+v, %v", addr, about, err)
			}
			if _, err := remote.Describe(addr, []byte("another key of tests"), remote.Place{Device: "cpu"}); err == nil {
				t.Errorf("%s serves anybody", addr)
			}
		}
		team.End(code)
		for r := 1; r < 4; r++ {
			err := <-results[r]
			var ended *Ended
			if errors.As(err, &ended) != (code != 0) || ended != nil && ended.Code != code {
				t.Errorf("process %d after code %d: %v", r, code, err)
			}
		}
	}
	testkit.GoroutinesEnd(t, before)
}

// TestAsked: a follower that is to stop asks the leader, and goes on until that says how the run has ended.
func TestAsked(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	team, results := gathered(t, 2, t.TempDir(), ctx)
	stop()
	<-team.Asked
	team.End(75)
	if err := <-results[1]; err == nil || err.Error() != (&Ended{75}).Error() {
		t.Errorf("it ends with %v", err)
	}
}

// TestLost: a line that breaks is the loss of the process at its other end, on both sides.
func TestLost(t *testing.T) {
	team, results := gathered(t, 3, t.TempDir())
	team.members[2].conn.Close()
	var lost *LostError
	if err := <-team.Lost; !errors.As(err, &lost) || lost.Rank != 2 {
		t.Errorf("the leader hears %v", err)
	}
	if err := <-results[2]; !errors.As(err, &lost) || lost.Rank != 0 {
		t.Errorf("the follower hears %v", err)
	}
	team.End(4)
	<-results[1]
}

// TestStrangers: a process of another run, a second one of the same number, one with another key and one that says
// nothing of sense are refused, with a reason, and the run begins all the same.
func TestStrangers(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	t.Setenv(machine.KeyVariable, "the key of these tests")
	folder := t.TempDir()
	led := make(chan error, 1)
	var team *Team
	go func() {
		var err error
		team, err = Lead(t.Context(), &Launch{Size: 3, LocalSize: 3}, folder, func(string) {})
		led <- err
	}()
	var n *notice
	for n == nil {
		n, _ = look(folder)
	}
	if n.Key != "" {
		t.Error("the environment's key is in the file")
	}
	key, addr := []byte(os.Getenv(machine.KeyVariable)), n.Addresses[0]
	if _, err := remote.Join(addr, []byte("another key of tests"), remote.Member{Rank: 1, Size: 3}); err == nil {
		t.Error("another key is accepted")
	}
	c, err := net.Dial("tcp", addr)
	check(t, err)
	_, err = c.Write([]byte("GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 200)))
	check(t, err)
	join := func(rank, size int) *line {
		t.Helper()
		c, err := remote.Join(addr, key, remote.Member{Rank: rank, Size: size, Host: "tests"})
		check(t, err)
		return newLine(c)
	}
	first := join(1, 3)
	for _, m := range [][2]int{{1, 3}, {0, 3}, {3, 3}, {2, 4}, {-1, 3}} {
		l := join(m[0], m[1])
		if w, err := l.hear(); err != nil || !strings.Contains(w.Refused, "hint:") {
			t.Errorf("%v: %+v, %v", m, w, err)
		}
		l.close(nil)
	}
	if _, err := remote.Open(addr, key, remote.Place{Device: "cpu"}, time.Now()); err == nil {
		t.Error("the leader opens devices")
	}
	second := join(2, 3)
	check(t, <-led)
	first.close(nil)
	second.close(nil)
	c.Close()
	team.End(0)
}

// TestNotice: a file that others may have written or read, or that is no notice, is not taken for one.
func TestNotice(t *testing.T) {
	folder := t.TempDir()
	want := notice{[]string{"127.0.0.1:1"}, "key"}
	check(t, want.post(folder))
	got, err := look(folder)
	if err != nil || fmt.Sprint(*got) != fmt.Sprint(want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "{", "[]", strings.Repeat(" ", mostNotice+1)} {
		check(t, os.WriteFile(folder+"/"+noticeFile, []byte(text), 0o600))
		if _, err := look(folder); err == nil {
			t.Errorf("%.10q is a notice", text)
		}
	}
	check(t, want.post(folder))
	check(t, os.Chmod(folder+"/"+noticeFile, 0o644))
	if runtime.GOOS == "windows" { // there the folder's rights decide
		return
	}
	if _, err := look(folder); err == nil || !strings.Contains(err.Error(), "other users") {
		t.Errorf("one that all can read: %v", err)
	}
}
