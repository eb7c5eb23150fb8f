package cpu

import (
	"errors"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/clock"
)

// Calls between ranks of which some are in other processes.
//
// Each rank sends every far member what that member would read from its arena, and receives likewise.
// Members in its own process are read as before. A header goes ahead, so a call begins when all have
// arrived and both ends have checked that they mean the same call.
//
//	rank 0 (here)    header > | its summands of part 2 > | sum of part 0        | sum >   | ..
//	rank 1 (here)    header > | its summands of part 2 > | sum of part 1        | sum >   | ..
//	rank 2 (there)   header > | parts 0 and 1 >          | sum of part 2        | sum >   | ..
//	                          all agree                    blocks from the pipes  all_reduce's second half
//
// Sums are added in the group's order: a block of each member in turn, from an arena or a pipe. So the
// bits are the same as among ranks of one process.
//
// A stream goes on sending while it receives, so neither side waits for the other to read first. An
// arena's bytes do not change before they are sent: a sum in place touches only the rank's own part,
// which no other rank sums; the second half of all_reduce begins when all of the first has been sent.
//
// Known weakness: members of one process receive the same bytes separately.

// farBlock is how many bytes of each member are summed at a time, and have to be received for that.
const farBlock = 1 << 20

// far is the part of an exchange with members of other processes.
type far struct {
	header []byte
	pipes  []*link.Pipe  // by member; nil: in this process
	calls  []device.Call // of the members, as their headers say
	agree  []*device.Call
	heard  []byte // a header
}

// reach prepares an exchange with members of other processes.
func (d *Device) reach(e *exchange) (*far, error) {
	f, ranks := d.options.Fabric, e.meeting.ranks
	a := &far{
		header: link.Header(&e.call, ranks), heard: make([]byte, link.HeaderLen),
		pipes: make([]*link.Pipe, len(ranks)), calls: make([]device.Call, len(ranks)), agree: make([]*device.Call, len(ranks)),
	}
	for i, r := range ranks {
		if f.isLocal(r) {
			continue
		}
		kind := link.Gather
		a.calls[i] = device.Call{Args: make([]device.Operand, 2), Peers: e.call.Peers}
		if device.IsMessage(e.call.Op) {
			kind = link.Message(ranks[0], ranks[1])
			a.calls[i].Peers = []int{d.options.Rank}
		}
		var err error
		if a.pipes[i], err = f.hub.Pipe(d.options.Rank, r, kind); err != nil {
			return nil, err
		}
	}
	s := d.streams[device.Collective]
	for len(s.heard) < len(ranks) {
		s.heard = append(s.heard, nil)
	}
	if e.call.Op == graph.ReduceScatter || e.call.Op == graph.AllReduce {
		for i, p := range a.pipes {
			if p != nil && s.heard[i] == nil {
				s.heard[i] = alignedBytes(farBlock)
			}
		}
	}
	return a, nil
}

// exchangeFar is exchange for groups that are in several processes.
func (s *stream) exchangeFar(e *exchange) (start time.Time, err error) {
	if err = s.arrive(e); err != nil {
		return clock.Now(), err
	}
	start, s.idle = clock.Now(), 0
	switch e.call.Op {
	case graph.AllGather:
		err = s.gatherFar(e)
	case graph.ReduceScatter:
		err = s.scatterFar(e)
	case graph.AllReduce:
		err = s.reduceFar(e)
	case graph.AllToAll:
		err = s.crossFar(e)
	case graph.Send:
		s.sendFar(e)
	case graph.Recv:
		err = s.receiveFar(e)
	}
	if err == nil {
		err = s.flush(e)
	}
	s.stats.Worked[s.id] += (clock.Since(start) - s.idle).Seconds()
	if err != nil {
		return start, err
	}
	s.stats.Network[e.call.Op] += e.received
	s.throttle(start, e.ring)
	return start, e.meeting.meet(s, e)
}

// arrive returns when all members have arrived, here and elsewhere. If their calls do not
// match, the others still get this one's header, to see that for themselves.
func (s *stream) arrive(e *exchange) error {
	a := e.far
	for i, p := range a.pipes {
		if p != nil {
			p.Send(a.header)
			if _, _, err := p.Pump(); err != nil {
				return s.gone(e, i, err)
			}
		}
	}
	if err := e.meeting.meet(s, e); err != nil {
		return err
	}
	for i, p := range a.pipes {
		if p == nil {
			a.agree[i] = e.meeting.calls[i]
			continue
		}
		a.agree[i] = &a.calls[i]
		if err := s.hear(e, i, a.heard); err != nil {
			return err
		}
		if err := link.Meet(&a.calls[i], a.header, a.heard); err != nil {
			return errors.Join(err, s.flush(e))
		}
	}
	if err := device.Agree(a.agree); err != nil {
		return errors.Join(err, s.flush(e))
	}
	return nil
}

// hear receives from member i. A pipe that fails means that its rank is lost.
func (s *stream) hear(e *exchange, i int, b []byte) error {
	for began := clock.Now(); len(b) > 0; {
		n, err := e.far.pipes[i].Receive(b[:min(len(b), copyPiece)])
		if err != nil {
			return s.gone(e, i, err)
		}
		b = b[n:]
		sent, _, err := s.pump(e)
		if err != nil {
			return err
		}
		if n+sent == 0 {
			s.linger(began)
		} else {
			s.device.meter.piece()
			began = clock.Now()
		}
	}
	return nil
}

// flush waits until everything sent has left the arena.
func (s *stream) flush(e *exchange) error {
	for began := clock.Now(); ; {
		n, left, err := s.pump(e)
		switch {
		case err != nil || !left:
			return err
		case n == 0:
			s.linger(began)
		default:
			s.device.meter.piece()
			began = clock.Now()
		}
	}
}

// pump sends what the network accepts.
func (s *stream) pump(e *exchange) (n int, left bool, err error) {
	for i, p := range e.far.pipes {
		if p != nil {
			k, more, err := p.Pump()
			if err != nil {
				return n, true, s.gone(e, i, err)
			}
			n, left = n+k, left || more
		}
	}
	return n, left, nil
}

// lingerLooks is how long a stream looks at the network without a pause; then, if no kernels run, it
// sleeps between looks.
const lingerLooks = 20 * time.Millisecond

// linger yields the core until the next look at the network; nothing has happened since began.
func (s *stream) linger(began time.Time) {
	now := clock.Now()
	s.follows = false
	s.want(s.device.opened)
	if s.device.working.Load() == 0 && now.Sub(began) > lingerLooks {
		time.Sleep(sleepUnit)
	} else {
		s.stepAside()
	}
	s.got()
	s.idle += clock.Since(now)
}

// gone returns the error of a pipe to member i, which is lost if there is an error.
func (s *stream) gone(e *exchange, i int, err error) error {
	if err == nil {
		return nil
	}
	f := s.device.options.Fabric
	f.loseRank(nil, link.Lost(s.device.options.Rank, e.meeting.ranks[i], e.call.Op, err))
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost // perhaps of another rank, because of which the pipes were closed
}

// bytesOf returns the length of operand k of a call, which may be absent.
func bytesOf(c *device.Call, k int) int {
	if k >= len(c.Args) {
		return 0
	}
	return int(c.Args[k].Bytes())
}

func (s *stream) gatherFar(e *exchange) error {
	a := e.far
	for _, p := range a.pipes {
		if p != nil {
			p.Send(e.src)
		}
	}
	at := 0
	for i, c := range a.agree {
		n := bytesOf(c, 1)
		to := e.dst[at : at+n]
		if at += n; n == 0 {
			continue
		}
		if a.pipes[i] != nil {
			if err := s.hear(e, i, to); err != nil {
				return err
			}
		} else if src := e.meeting.parts[i].src; &to[0] != &src[0] {
			copyBytes(to, src)
		}
	}
	return nil
}

func (s *stream) scatterFar(e *exchange) error {
	at, own := 0, 0
	for i, c := range e.far.agree {
		n := bytesOf(c, 0)
		if p := e.far.pipes[i]; p != nil {
			p.Send(e.src[at : at+n])
		}
		if i == e.member {
			own = at
		}
		at += n
	}
	return s.sumFar(e, e.dst, own)
}

func (s *stream) reduceFar(e *exchange) error {
	a, n := e.far, len(e.far.pipes)
	size := int(e.call.Args[graph.AllReduceX].DType.Size())
	part := func(i int) []byte {
		lo, hi := device.Part(len(e.dst)/size, i, n)
		return e.dst[lo*size : hi*size]
	}
	for i, p := range a.pipes {
		if p != nil {
			p.Send(part(i))
		}
	}
	own := part(e.member)
	lo, _ := device.Part(len(e.dst)/size, e.member, n)
	if err := s.sumFar(e, own, lo*size); err != nil {
		return err
	}
	if err := s.flush(e); err != nil {
		return err
	}
	if err := e.meeting.meet(s, e); err != nil {
		return err
	}
	for _, p := range a.pipes {
		if p != nil {
			p.Send(own)
		}
	}
	for i, p := range a.pipes {
		switch to := part(i); {
		case i == e.member:
		case p != nil:
			if err := s.hear(e, i, to); err != nil {
				return err
			}
		default:
			lo, _ := device.Part(len(e.dst)/size, i, n)
			copyBytes(to, e.meeting.parts[i].dst[lo*size:])
		}
	}
	return nil
}

// sumFar sets dst to the sum of all members' sources. Those of members in this process begin at byte
// at; the others' come from their pipes.
func (s *stream) sumFar(e *exchange, dst []byte, at int) error {
	a := &s.adder
	last := len(e.call.Args) - 1
	a.acc, a.of = e.call.Attr.Acc, e.call.Args[last].DType
	for lo := 0; lo < len(dst); lo += farBlock {
		hi := min(lo+farBlock, len(dst))
		a.dst, a.sources = dst[lo:hi], a.sources[:0]
		for i, p := range e.far.pipes {
			if p == nil {
				a.sources = append(a.sources, e.meeting.parts[i].src[at+lo:at+hi])
				continue
			}
			if err := s.hear(e, i, s.heard[i][:hi-lo]); err != nil {
				return err
			}
			a.sources = append(a.sources, s.heard[i][:hi-lo])
		}
		s.device.working.Add(1)
		s.device.meter.Begin()
		s.device.pool.Run((hi-lo+sumTask-1)/sumTask, a)
		s.device.meter.End()
		s.device.working.Add(-1)
	}
	return nil
}

func (s *stream) crossFar(e *exchange) error {
	a := e.far
	for i, p := range a.pipes {
		if p != nil {
			src, _ := device.Crossings(&e.call, e.member, i)
			for _, b := range src {
				for row := range e.call.Args[graph.AllToAllSrc].Part(e.src, b) {
					p.Send(row)
				}
			}
		}
	}
	for i := range a.pipes {
		if a.pipes[i] == nil {
			e.takeFrom(e.meeting.parts[i])
			continue
		}
		_, dst := device.Crossings(&e.call, i, e.member)
		for _, b := range dst {
			for row := range e.call.Args[graph.AllToAllDst].Part(e.dst, b) {
				if err := s.hear(e, i, row); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *stream) sendFar(e *exchange) {
	p := e.far.pipes[1-e.member]
	for _, row := range rows(e.call.Args[graph.SendSrc], e.src) {
		p.Send(row)
	}
}

func (s *stream) receiveFar(e *exchange) error {
	for _, row := range rows(e.call.Args[graph.RecvDst], e.dst) {
		if err := s.hear(e, 0, row); err != nil {
			return err
		}
	}
	return nil
}

// rows yields an operand's memory without the gaps between its rows.
func rows(o device.Operand, memory []byte) func(yield func(int, []byte) bool) {
	return func(yield func(int, []byte) bool) {
		if o.Contiguous() {
			yield(0, memory)
			return
		}
		n, step := o.Cols*int(o.DType.Size()), o.Stride*int(o.DType.Size())
		for r := range o.Rows {
			if !yield(r, memory[r*step:][:n]) {
				return
			}
		}
	}
}
