package machine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/session"
)

// Ways in which two processes can exchange bytes are compared by what sums over a rank in each take: of few bytes, which
// is mostly waiting, and of many, which is mostly moving. They are the sums of a step, by the same code.
const fewBytes, manyBytes = 64 << 10, 2 << 20

// Exchange is what these sums take, in seconds.
type Exchange struct{ Few, Many float64 }

// String gives both times.
func (e Exchange) String() string { return fmt.Sprintf("%.2f ms and %.2f ms", 1e3*e.Few, 1e3*e.Many) }

// Rate returns the bytes per second that the sum of many moves each way: two ranks exchange halves, then sums of halves.
func (e Exchange) Rate() float64 { return manyBytes / e.Many }

// Exchanged says what the times of an Exchange are those of.
func Exchanged() string {
	return fmt.Sprintf("sums of %d KiB and %d MiB", fewBytes>>10, manyBytes>>20)
}

// clearly is how much less time connections must take to be preferred to MPI: whoever started the processes by MPI has
// chosen it, and measurements of a moment differ by less.
const clearly = 0.9

// Beats reports whether connections, whose times these are, are clearly faster than MPI.
func (e Exchange) Beats(mpi Exchange) bool {
	return e.Few+e.Many < clearly*(mpi.Few+mpi.Many)
}

// exchangeLimit is how long the sums may take that are compared: libraries that have chosen a network which leads nowhere
// wait for ever.
const exchangeLimit = 20 * time.Second

// Time measures what this process and one of others, all of which serve a run that this one leads, take over links, or over
// connections where links is nil. addresses are those of the others, which count from 1; which says the one. If e has been
// measured before, the shorter times hold.
func (e *Exchange) Time(addresses []string, which int, key []byte, links link.Open) error {
	return e.time(addresses, which, key, links, exchangeLimit)
}

func (e *Exchange) time(addresses []string, which int, key []byte, links link.Open, within time.Duration) (err error) {
	p := remote.Place{
		Device: "cpu", MPI: links != nil, Share: 1,
		Fabric: rand.Text(), Ranks: 2, Hosts: append([]string{""}, addresses...), HostOf: []int{0, which},
	}
	open, origin := newCPU(&Request{Ranks: 1}).openShared(p.Ranks, newHub(p, 0, links, func(addr string, h remote.Hello) (*sealed.Conn, error) {
		return remote.Link(addr, key, h)
	}), false)
	var both []device.Device
	defer func() { err = errors.Join(err, session.CloseAll(both)) }()
	own, err := open(0, 0, "")
	if err != nil {
		return err
	}
	both = append(both, own)
	p.Rank = 1
	other, err := remote.Open(addresses[which-1], key, p, origin)
	if err != nil {
		return err
	}
	both = append(both, other)
	limit := time.AfterFunc(within, func() {
		for _, d := range both {
			if a, ok := d.(device.Aborter); ok {
				a.Abort(fmt.Errorf("nothing came of it within %v", within))
			}
		}
	})
	defer limit.Stop()
	seconds, err := hardware.TimeSums(both, fewBytes, manyBytes)
	if err != nil {
		return err
	}
	if *e != (Exchange{}) {
		seconds[0], seconds[1] = min(seconds[0], e.Few), min(seconds[1], e.Many)
	}
	e.Few, e.Many = seconds[0], seconds[1]
	return nil
}
