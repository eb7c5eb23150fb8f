package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/internal/build"
)

// startLimit is how long a host may take to start a process.
const startLimit = time.Minute

// Summon starts a process on each host at whose address an agent with this key waits, and leads the run that they and
// this process are.
func Summon(addresses []string, key []byte) (*Team, error) {
	t := newTeam(&Launch{Source: byAgents, Size: len(addresses) + 1})
	t.Key = key
	for i, addr := range addresses {
		if err := t.summon(i+1, addr); err != nil {
			t.End(1)
			return nil, err
		}
	}
	if err := t.welcome(); err != nil {
		t.End(1)
		return nil, err
	}
	return t, nil
}

// summon starts one process.
func (t *Team) summon(rank int, addr string) error {
	c, err := remote.Start(addr, t.Key, remote.Process{Rank: rank, Size: t.launch.Size, Build: build.Text()})
	if err != nil {
		return err
	}
	to := newLine(c)
	err = c.SetReadDeadline(time.Now().Add(startLimit))
	var w word
	if err == nil {
		w, err = to.hear()
	}
	switch {
	case err != nil:
		err = fmt.Errorf("no process was started: %w; hint: see what athanor serve has printed on that host", err)
	case w.Refused != "" || w.Member == nil:
		err = errors.New(cmp.Or(w.Refused, "it says something else than which process it has started"))
	default:
		err = c.SetReadDeadline(time.Time{})
	}
	if err == nil {
		e := newMember(to, *w.Member, c)
		if e.named, _, err = net.SplitHostPort(addr); err == nil {
			if err = t.admit(e); err == nil {
				t.keep(e)
				return nil
			}
		}
	}
	to.close(err)
	return fmt.Errorf("host %s: %w", addr, err)
}
