package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/graph"
)

// Calls between GPUs of several hosts: how members know what they are, and what is carried for them.
//
// When a rank prepares calls, it sends their headers to the ranks elsewhere. So the operands of all
// members are known when the steps are built, on the first run, and both ends have checked that they
// mean the same call. When a call runs, its header is sent once more, to say that its rank has arrived,
// and then the bytes, cut into blocks that fit a slot of pinned memory. A goroutine, the ferry, carries
// them (ferry.go).
//
//	prepare    rank 0 --header--> rank 1, and vice versa
//	first run  both know both calls, and list the blocks, here of an all_gather of unequal parts:
//	           rank 0: out header 0.0 0.1    in header 1.0
//	           rank 1: in  header 0.0 0.1    out header 1.0
//	every run  the lists are carried
//
// Blocks have the same order on all ranks: first the headers, then round by round, where round i has
// the i-th block of every part, and within a round by member. Why none waits forever: let block
// (i, s, r) go from s to r in round i. Before it leaves, s sends its earlier ones: those of earlier rounds,
// and (i, s, r') with r' < r. Before it is received, r receives earlier ones: those of earlier rounds,
// and (i, s', r) with s' < s. A slot is free when the GPU has copied it, which waits for nobody. So
// whatever a block waits for has a smaller i, or the same i and a smaller s + r, and the least of all
// remaining blocks is on its way. This also keeps all ranks busy: at any time each sends to one other
// and receives from one.
//
// Sums are added in the group's order: pieces from members elsewhere arrive in staging memory and are
// added from there, like those of GPUs that cannot be accessed directly. So the bits are the same as
// among ranks in one process.
//
// Known weakness: two members here receive the same bytes separately. When a host is lost, others close
// their pipes as they notice, so with three hosts or more, the rank named as lost may be one that only
// noticed earlier.

// slotBytes is the maximum size of a block in bytes.
const slotBytes = 1 << 20

// post is where a rank here and one elsewhere exchange the headers of the calls between them, in the
// order of preparation. The fabric must be locked.
type post struct {
	pipe   *link.Pipe
	unsent [][]byte
	due    int // headers still to come: what is prepared here is prepared there too
	heard  map[link.Meeting][][]byte
	record []byte // the header that is arriving, and what comes with it
	got    int    // bytes of it so far
}

// tell sends the header of a prepared call to the members elsewhere. The fabric must be locked.
func (f *Fabric) tell(e *exchange) error {
	ranks := e.meeting.ranks
	if !slices.ContainsFunc(ranks, func(r int) bool { return !f.isLocal(r) }) {
		return nil
	}
	e.header = link.Header(&e.call, ranks)
	if f.nccl != nil {
		if err := f.wire(e); err != nil {
			return err
		}
	}
	record := f.record(e)
	for _, r := range ranks {
		if !f.isLocal(r) {
			p := f.posts[[2]int{ranks[e.member], r}]
			p.unsent, p.due = append(p.unsent, record), p.due+1
		}
	}
	return nil
}

// listen makes the post of two ranks if there is none, and starts the clerk with the first post.
func (f *Fabric) listen(own, other int) error {
	at := [2]int{own, other}
	f.mu.Lock()
	known := f.posts[at] != nil
	f.mu.Unlock()
	if known {
		return nil
	}
	pipe, err := f.hub.Pipe(own, other, link.Calls)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.posts) == 0 {
		f.rest.Add(1)
		go f.clerk()
	}
	f.posts[at] = &post{pipe: pipe, heard: map[link.Meeting][][]byte{}, record: make([]byte, f.recordLen())}
	return nil
}

// clerkRest is how long the clerk sleeps between looks.
const clerkRest = 200 * time.Microsecond

// clerk sends and receives headers while any are due, until all devices are closed. Over NCCL it also looks whether ranks
// elsewhere are still there, which nobody else does.
func (f *Fabric) clerk() {
	defer f.rest.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.open > 0 && f.lost == nil {
		busy := false
		for ends, p := range f.posts {
			more, err := f.look(p)
			if err != nil {
				f.mu.Unlock()
				f.loseRank(nil, link.Lost(ends[0], ends[1], graph.None, err))
				f.mu.Lock()
				return
			}
			busy = busy || more
		}
		rest := clerkRest
		switch {
		case busy:
		case f.nccl == nil:
			f.changed.Wait()
			continue
		default:
			rest = wireRest
			if lost := f.wrongWire(); lost != nil {
				f.mu.Unlock()
				f.loseRank(nil, lost)
				f.mu.Lock()
				return
			}
		}
		f.mu.Unlock()
		time.Sleep(rest)
		f.mu.Lock()
	}
}

// look sends and receives what it can now, and reports whether anything is due. The fabric is locked,
// which delays nobody: pipes never block.
func (f *Fabric) look(p *post) (busy bool, err error) {
	for _, h := range p.unsent {
		p.pipe.Send(h)
	}
	p.unsent = nil
	_, left, err := p.pipe.Pump()
	for err == nil && (p.due > 0 || f.nccl != nil) { // what comes early is less due later
		var n int
		if n, err = p.pipe.Receive(p.record[p.got:]); n == 0 {
			break
		}
		if p.got += n; p.got < len(p.record) {
			continue
		}
		header := slices.Clone(p.record[:link.HeaderLen])
		at := link.MeetingOf(header)
		p.heard[at] = append(p.heard[at], header)
		f.learn(p.record)
		p.got, p.due = 0, p.due-1
		f.changed.Broadcast()
	}
	return left || p.due > 0, err
}

// heard returns the call of member i, elsewhere, that meets e, or nil if its header has not come yet.
// The call has no addresses. The fabric must be locked.
func (f *Fabric) heard(e *exchange, i int) (*exchange, error) {
	ranks := e.meeting.ranks
	list := f.posts[[2]int{ranks[e.member], ranks[i]}].heard[link.MeetingOf(e.header)]
	if e.index >= len(list) {
		return nil, nil
	}
	p := &exchange{member: i, header: list[e.index], call: device.Call{Args: make([]device.Operand, 2), Stream: e.call.Stream, Peers: e.call.Peers}}
	switch e.call.Op {
	case graph.Send:
		p.call.Peers, p.call.Stream = ranks[:1], device.Recv
	case graph.Recv:
		p.call.Peers, p.call.Stream = ranks[1:], device.Send
	}
	err := link.Meet(&p.call, e.header, list[e.index])
	if err == nil {
		p.call.Args = p.call.Args[:len(p.call.Op.Info().Args)]
		err = device.CheckBetween(&p.call)
	}
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", ranks[i], err)
	}
	return p, nil
}

// cross prepares what a call with members elsewhere needs: pipes to them, and the ferry.
func (d *Device) cross(e *exchange) error {
	f, own := d.options.Fabric, d.options.Rank
	ranks := device.Members(&e.call, own)
	e.pipes = make([]*link.Pipe, len(ranks))
	for i, r := range ranks {
		if f.isLocal(r) {
			continue
		}
		if err := f.listen(own, r); err != nil {
			return err
		}
		if f.nccl != nil {
			continue
		}
		kind := link.Gather
		if device.IsMessage(e.call.Op) {
			kind = link.Message(ranks[0], ranks[1])
		}
		var err error
		if e.pipes[i], err = f.hub.Pipe(own, r, kind); err != nil {
			return err
		}
		if d.ferry == nil {
			if d.ferry, err = startFerry(d); err != nil {
				return err
			}
		}
		e.lane, e.stream = d.ferry.lanes[e.call.Stream], d.ferry.stream
	}
	return nil
}

// block is bytes sent to a member elsewhere or received from it: rows of the same length in this GPU's
// memory, of at most a slot together, or the header that a member's call begins with.
type block struct {
	header        []byte
	pipe          *link.Pipe
	member, round int
	at            uintptr
	bytes         int64
	rows          *nv.Copy2D // nil: without gaps
	width, pitch  int64
}

// blocks cuts rows into blocks to a member or from it.
func (e *exchange) blocks(member int, at uintptr, rows, width, pitch int64) (list []step) {
	if width == pitch {
		rows, width, pitch = 1, rows*width, rows*width
	}
	return e.rowBlocks(member, 0, at, rows, width, pitch)
}

// rowBlocks cuts rows into blocks from a round on, between rows where these are shorter than a block.
func (e *exchange) rowBlocks(member, round int, at uintptr, rows, width, pitch int64) (list []step) {
	most := e.device.options.Fabric.slot
	high := max(1, most/max(width, 1))
	for r := int64(0); r < rows; r += high {
		n := min(high, rows-r)
		for c := int64(0); c < width; c += most { // in pieces, if not even one row fits
			b := &block{
				pipe: e.pipes[member], member: member, round: round + len(list),
				at: at + uintptr(r*pitch+c), width: min(most, width-c), pitch: pitch,
			}
			if b.bytes = n * b.width; n > 1 {
				b.rows = nv.NewCopy2D(0, 0, 0, 0, b.width, n)
			}
			list = append(list, step{block: b})
		}
	}
	return list
}

// inRounds sorts blocks into their order, after all other steps.
func inRounds(list []step) []step {
	place := func(s step) (round, member int) {
		if s.block == nil {
			return -1, 0
		}
		return s.block.round, s.block.member
	}
	slices.SortStableFunc(list, func(a, b step) int {
		i, m := place(a)
		j, n := place(b)
		return cmp.Or(cmp.Compare(i, j), cmp.Compare(m, n))
	})
	return list
}

// load makes the voyages of an exchange's phases. The first voyage begins with headers.
func (e *exchange) load(parts []*exchange) {
	var mine, others []step
	for i, p := range parts {
		if p.device == nil {
			mine = append(mine, e.greeting(i, e.header))
			others = append(others, e.greeting(i, p.header))
		}
	}
	for k := range e.phases {
		p := &e.phases[k]
		p.voyage = &voyage{lane: e.lane, ranks: e.meeting.ranks, op: e.call.Op, headers: len(others),
			outs: append(mine, e.outs(parts, k)...), ins: append(others, p.steps...)}
		p.steps, mine, others = nil, nil, nil
	}
}

// greeting is the block of a header to or from a member.
func (e *exchange) greeting(member int, header []byte) step {
	return step{block: &block{pipe: e.pipes[member], member: member, header: header, bytes: link.HeaderLen}}
}

// outs returns what members elsewhere would fetch from here in a phase.
func (e *exchange) outs(parts []*exchange, phase int) (list []step) {
	if e.call.Op == graph.Recv {
		return nil
	}
	part := int64(0) // where a scatter's next part begins
	for i, p := range parts {
		lo, n := int64(0), int64(0)
		switch e.call.Op {
		case graph.AllGather:
			n = e.sourceBytes()
		case graph.ReduceScatter:
			lo, n = part, p.call.Args[graph.ReduceScatterDst].Bytes()
			part += n
		case graph.AllReduce:
			whose := i
			if phase > 0 {
				whose = e.member
			}
			lo, n = e.partOf(whose, len(parts))
		}
		switch {
		case p.device != nil:
		case e.call.Op == graph.Send:
			x := e.call.Args[graph.SendSrc]
			size := x.DType.Size()
			list = e.blocks(i, e.src, int64(x.Rows), int64(x.Cols)*size, int64(x.Stride)*size)
		case e.call.Op == graph.AllToAll:
			list = append(list, e.crossOuts(i)...)
		default:
			list = append(list, e.blocks(i, e.src+uintptr(lo), 1, n, n)...)
		}
	}
	return inRounds(list)
}
