package cuda

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/device/link"
	"github.com/athanor-llm/athanor/graph"
)

// Wires: communicators of NCCL, over which GPUs of several hosts exchange bytes without going through the hosts' memory.
//
// Every group of ranks has a wire, and so has every ordered pair that exchanges messages. Calls of one wire then come from
// one stream of each member, in an order that is the same everywhere (package link says why), and no call waits for another
// that it would not wait for over pipes. The first member draws the wire's identity and sends it with the headers of its calls.
//
// A wire is made beside the worker, as soon as a call is prepared that needs it: all members have to come, and some may still
// prepare. A first exchange on it sets up the connections, which would otherwise keep workers waiting for each other in the
// library. No call goes over any wire before all are made: the library allocates memory, for which the driver may wait until
// the GPU is idle. After that, calls are the stream's, and a worker waits for nobody. So all ranks must have prepared the same
// calls when one is launched.
//
// When a rank is lost, pipes are closed, which the other processes notice, since the clerk looks at them. Then all wires are
// aborted: their kernels end, and so do the streams that wait for them.
//
// Known weakness: a wire takes memory of the GPU that the plan does not know. When NCCL uses another algorithm for large
// gathers, it sets up connections once more, for which workers wait.

const (
	wireRest   = 50 * time.Millisecond // between looks at what has become of wires and pipes
	wireLimit  = 5 * time.Second       // for a wire to be made or closed when its device is closed
	abortAfter = time.Second           // for a worker to come back from the library
	warmBytes  = 256                   // of each member in the first exchange
)

// wiring is what all members of a wire in this process know of it. The fabric must be locked.
type wiring struct {
	id    nv.UniqueID
	known bool
}

// wire is a device's end of a communicator.
type wire struct {
	device *Device
	ranks  []int   // members
	own    int     // this device's number among them
	shared bool    // some members are on one host
	oneWay bool    // messages from the first to the second
	warm   uintptr // memory of the first exchange
	stream uintptr // of the first exchange
	opened bool    // or err says why not; the fabric must be locked
	err    error

	comm  atomic.Uintptr // communicator; 0: none yet
	using sync.Mutex     // of comm
	cut   atomic.Bool    // comm is no more
}

// UseNCCL makes calls with ranks of other processes go over NCCL, if lib is not nil. All processes must do the same, before a
// device is opened, and every rank must have a GPU of its own.
func (f *Fabric) UseNCCL(lib *nv.NCCL) {
	if f.hub != nil {
		f.nccl = lib
	}
}

// NCCLVariable is the environment variable that names the library, or says none.
const NCCLVariable = nv.NCCLVariable

// FindNCCL opens NCCL, where GPUs of several processes are to exchange bytes over it; nil if it is not to be used.
func FindNCCL() (*nv.NCCL, error) { return nv.OpenNCCL(nv.Local()) }

// recordLen is the length of what is sent when a call is prepared: its header and, over NCCL, the identity of its wire.
func (f *Fabric) recordLen() int {
	if f.nccl == nil {
		return link.HeaderLen
	}
	return link.HeaderLen + len(nv.UniqueID{})
}

// wireOf is the key of the wire that a call uses.
func wireOf(header []byte) link.Meeting {
	m := link.MeetingOf(header)
	m.Tag = 0 // messages of all tags are in one order
	return m
}

// wiringOf returns what is known of a wire. The fabric must be locked.
func (f *Fabric) wiringOf(key link.Meeting) *wiring {
	w := f.wirings[key]
	if w == nil {
		w = &wiring{}
		f.wirings[key] = w
	}
	return w
}

// learn takes a wire's identity from a record that has arrived. The fabric must be locked.
func (f *Fabric) learn(record []byte) {
	if f.nccl == nil {
		return
	}
	var id nv.UniqueID
	if copy(id[:], record[link.HeaderLen:]); id != (nv.UniqueID{}) {
		w := f.wiringOf(wireOf(record))
		w.id, w.known = id, true
	}
}

// record returns what the members elsewhere are told of a prepared call. The fabric must be locked.
func (f *Fabric) record(e *exchange) []byte {
	if f.nccl == nil {
		return e.header
	}
	var id nv.UniqueID
	if e.wire.own == 0 {
		id = f.wiringOf(wireOf(e.header)).id
	}
	return append(slices.Clone(e.header), id[:]...)
}

// wire gives a call its wire, which is made if there is none. The fabric must be locked.
func (f *Fabric) wire(e *exchange) error {
	d, ranks := e.device, e.meeting.ranks
	key := wireOf(e.header)
	w := f.wiringOf(key)
	if !w.known && f.isLocal(ranks[0]) {
		id, err := f.nccl.Draw()
		if err != nil {
			return err
		}
		w.id, w.known = *id, true
	}
	if e.wire = d.wires[key]; e.wire != nil {
		return nil
	}
	warm, err := d.driver.Word("cuMemAlloc", d.driver.MemAlloc, uintptr(warmBytes*(len(ranks)+1)))
	if err != nil {
		return err
	}
	e.wire = &wire{warm: warm, device: d, ranks: ranks, own: e.member, oneWay: device.IsMessage(e.call.Op)}
	for i, r := range ranks {
		e.wire.shared = e.wire.shared || slices.ContainsFunc(ranks[:i], func(o int) bool { return f.hub.ShareProcess(o, r) })
	}
	d.wires[key] = e.wire
	d.unmade++
	e.wire.stream, err = d.driver.Word("cuStreamCreate", d.driver.StreamCreate, nv.StreamNonBlocking)
	go e.wire.open(w)
	return err
}

// open makes a wire and says so.
func (w *wire) open(k *wiring) {
	f := w.device.options.Fabric
	f.mu.Lock()
	for !k.known && f.lost == nil && !w.device.closing {
		f.changed.Wait()
	}
	id, known := k.id, k.known && f.lost == nil
	f.mu.Unlock()
	err := errCut
	if known {
		err = w.connect(&id)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.opened, w.err = err == nil, err; err == nil {
		w.device.unmade--
	}
	f.changed.Broadcast()
}

// connect joins the communicator and makes the first exchange, on a thread of its own, which ends with it.
func (w *wire) connect(id *nv.UniqueID) error {
	runtime.LockOSThread()
	d := w.device
	v, lib := d.driver, d.options.Fabric.nccl
	if err := v.Check("cuCtxSetCurrent", v.CtxSetCurrent(d.work.context)); err != nil {
		return err
	}
	comm, err := lib.Join(id, w.own, len(w.ranks))
	if e := (*nv.Error)(nil); errors.As(err, &e) && e.Code == nv.NCCLRemote {
		return link.Lost(d.options.Rank, w.ranks[(w.own+1)%len(w.ranks)], graph.None, fmt.Errorf("or another of ranks %v: %w", w.ranks, err))
	}
	if err != nil {
		return fmt.Errorf("ranks %v cannot be joined by %s: %w; hint: NCCL_DEBUG=INFO makes it say why, and %s=none does without it", w.ranks, lib.Version(), err, nv.NCCLVariable)
	}
	w.comm.Store(comm)
	if d.options.Fabric.down.Load() { // else whoever lost it sees this wire
		w.abort()
		return errCut
	}
	return w.greet()
}

var errCut = errors.New("the wire is cut")

// greet makes the first exchange: a byte from each member to each, and a gather.
func (w *wire) greet() error {
	d, n := w.device, len(w.ranks)
	var ops []step
	for i := range n {
		if i == w.own {
			continue
		}
		if !w.oneWay || w.own == 0 {
			ops = append(ops, w.send(i, w.warm, 1, w.stream))
		}
		if !w.oneWay || w.own == 1 {
			ops = append(ops, w.recv(i, w.warm+uintptr(warmBytes*(1+i)), 1, w.stream))
		}
	}
	steps := w.group(ops)
	if w.shared && !w.oneWay {
		steps = append(steps, w.gather(w.warm, w.warm+warmBytes, 1, w.stream))
	}
	w.using.Lock()
	defer w.using.Unlock()
	if w.cut.Load() {
		return errCut
	}
	for _, s := range steps {
		if code := s.proc(s.args...); code != nv.Success {
			return s.explain(code)
		}
	}
	return d.driver.Check("cuStreamSynchronize", d.driver.StreamSynchronize(w.stream))
}

// The steps of NCCL. Numbers of members count within the wire.

func (w *wire) step(name string, p nv.Proc, words ...uintptr) step {
	lib := w.device.options.Fabric.nccl
	return step{proc: p, args: words, explain: func(code int32) error { return lib.Check(name, code) }}
}

func (w *wire) send(to int, at uintptr, bytes int64, stream uintptr) step {
	return w.step("ncclSend", w.device.options.Fabric.nccl.Send, at, uintptr(bytes), nv.NCCLBytes, uintptr(to), w.comm.Load(), stream)
}

func (w *wire) recv(from int, at uintptr, bytes int64, stream uintptr) step {
	return w.step("ncclRecv", w.device.options.Fabric.nccl.Recv, at, uintptr(bytes), nv.NCCLBytes, uintptr(from), w.comm.Load(), stream)
}

// gather gathers as many bytes of each member.
func (w *wire) gather(src, dst uintptr, bytes int64, stream uintptr) step {
	return w.step("ncclAllGather", w.device.options.Fabric.nccl.AllGather, src, dst, uintptr(bytes), nv.NCCLBytes, w.comm.Load(), stream)
}

// group makes steps one exchange, in which nobody waits for another's order.
func (w *wire) group(ops []step) []step {
	if len(ops) == 0 {
		return nil
	}
	lib := w.device.options.Fabric.nccl
	return slices.Concat([]step{w.step("ncclGroupStart", lib.GroupStart)}, ops, []step{w.step("ncclGroupEnd", lib.GroupEnd)})
}

// awaitWires returns when all wires are made, on the worker.
func (d *Device) awaitWires() error {
	f := d.options.Fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	for d.unmade > 0 && f.lost == nil {
		for _, w := range d.wires {
			if w.err != nil {
				return w.err
			}
		}
		f.changed.Wait()
	}
	if f.lost != nil {
		return f.lost
	}
	return nil
}

// wrong returns what NCCL has met meanwhile; nil while a worker is in the library.
func (w *wire) wrong() error {
	comm := w.comm.Load()
	if comm == 0 || !w.using.TryLock() {
		return nil
	}
	defer w.using.Unlock()
	if w.cut.Load() {
		return nil
	}
	return w.device.options.Fabric.nccl.Wrong(comm)
}

// abort ends what is under way, and the communicator. A worker that is in the library gets some time to come back: it may
// wait there for the rank that is lost.
func (w *wire) abort() {
	comm := w.comm.Load()
	if comm == 0 || w.cut.Swap(true) {
		return
	}
	if inTime(abortAfter, w.using.TryLock) {
		defer w.using.Unlock()
	}
	w.device.options.Fabric.nccl.Abort(comm)
}

// abortWires aborts all wires of this process.
func (f *Fabric) abortWires() {
	f.mu.Lock()
	var list []*wire
	for _, d := range f.devices {
		if d != nil {
			list = slices.AppendSeq(list, maps.Values(d.wires))
		}
	}
	f.mu.Unlock()
	for _, w := range list {
		w.abort()
	}
}

// wrongWire returns the error of a wire, and a rank that it goes to. The fabric must be locked.
func (f *Fabric) wrongWire() *device.PeerError {
	for _, d := range f.devices {
		if d == nil {
			continue
		}
		for _, w := range d.wires {
			if err := w.wrong(); err != nil {
				other := w.ranks[(w.own+1)%len(w.ranks)]
				return link.Lost(d.options.Rank, other, graph.None, fmt.Errorf("or another of ranks %v: %w", w.ranks, err))
			}
		}
	}
	return nil
}

// settleWires waits until all wires are made, or aborts them, on the worker.
func (d *Device) settleWires() {
	f := d.options.Fabric
	f.mu.Lock()
	d.closing = true
	limit := wireLimit
	if f.lost != nil { // who has not joined may never do so
		limit = 0
	}
	f.changed.Broadcast()
	f.mu.Unlock()
	for _, w := range d.wires {
		if !inTime(limit, func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return w.opened || w.err != nil
		}) {
			w.abort()
		}
	}
}

// closeWires closes all wires, on the worker, when the GPU is idle.
func (d *Device) closeWires() {
	lib := d.options.Fabric.nccl
	for _, w := range d.wires {
		if comm := w.comm.Load(); comm != 0 && !w.cut.Load() {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				w.using.Lock() // the clerk may be looking at it
				defer w.using.Unlock()
				lib.Destroy(comm) // nothing is left to fail
				w.cut.Store(true)
			}()
			select {
			case <-ended:
			case <-time.After(wireLimit):
				w.abort()
			}
		}
		if w.stream != 0 {
			d.driver.StreamDestroy(w.stream)
		}
		if w.warm != 0 {
			d.driver.MemFree(w.warm)
		}
	}
}

// inTime asks until the answer is yes, or time is over.
func inTime(limit time.Duration, ask func() bool) bool {
	for began := time.Now(); !ask(); time.Sleep(time.Millisecond) {
		if time.Since(began) > limit {
			return false
		}
	}
	return true
}
