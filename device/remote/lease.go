package remote

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/internal/clock"
)

// lease is one device of a host, opened for one leader.
//
// One goroutine reads control and drives the device. It keeps the launches and waits of a round until
// all have arrived: as soon as kernels run they occupy all cores, and it would read the rest late, when
// Go's scheduler looks at the network. While the device's queues are full or a round ends, it does not
// read. The leader's Launch then blocks, as it should, and side has to notice if the leader hangs up:
// its goroutine ends the round and closes control. Then the first goroutine returns from the device,
// finds control closed, and closes the device.
//
// What the leader says is checked here where the device does not check it: indices, lengths and the
// order of rounds.
type lease struct {
	name    string
	control net.Conn
	side    net.Conn // set before joined is closed
	joined  chan struct{}
	device  device.Device
	origin  time.Time // where the clock of its spans begins

	budget       *Budget
	onGPU        bool  // the device tier is not the host's memory
	memory, disk int64 // taken of the budget

	in       *bufio.Reader
	out      *bufio.Writer
	fields   [saveFields]byte
	answer   []byte // scratch
	piece    []byte // bytes of a read or write
	spans    []*device.Span
	scripts  scripts
	ran      *loaded // in this round; nil: none
	saving   saving
	issued   []uint64 // round, counted from 1, in which a call was launched
	orders   []order  // launches and waits that have not been passed to the device
	launched []uint32 // calls of this round
	timed    bool     // the leader wants spans
	begun    bool     // a round is under way
	wrong    error    // of a verb without an answer
	reserved [device.NumTiers]int64
	round    atomic.Uint64 // rounds that have ended

	still  sync.Mutex // held to prepare calls, to close the device, or to look at it
	mu     sync.Mutex
	closed bool   // the device is, or will be at once
	looks  uint64 // of a device that cannot be watched
}

// order is a launch, of a call or of all calls of a program or, on a stream, a wait.
type order struct {
	verb   verb
	stream device.Stream
	call   uint32
}

// mostOrders bounds what is kept of a round before the device is told.
const mostOrders = 1 << 20

func newLease(conn net.Conn, d device.Device, before time.Time, b *Budget) *lease {
	e := &lease{
		control: conn, budget: b, joined: make(chan struct{}), device: d, origin: before, timed: true,
		in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10), scripts: scripts{loaded: map[uint32]*loaded{}},
	}
	if d, ok := d.(Dated); ok {
		e.origin = d.Origin()
	}
	return e
}

// awaitSide waits for the first verb on control. A leader sends it once it has side.
func (e *lease) awaitSide() error {
	if err := e.control.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		return gone(err)
	}
	if _, err := e.in.Peek(1); err != nil {
		return gone(err)
	}
	select {
	case <-e.joined:
		return e.control.SetReadDeadline(time.Time{})
	default:
		return errors.New("the leader did not open its second connection")
	}
}

// serve does what the leader says. It returns nil when the leader has closed the device.
func (e *lease) serve() error {
	for {
		b, err := e.in.ReadByte()
		if err != nil {
			return e.gone(err)
		}
		v := verb(b)
		if v == 0 || v > doClose {
			return fmt.Errorf("unknown verb %d", v)
		}
		f := e.fields[:fieldBytes[v]]
		if _, err := io.ReadFull(e.in, f); err != nil {
			return e.gone(err)
		}
		if err := e.do(v, f); err != nil || v == doClose {
			return err
		}
	}
}

// gone is the error of control's end. A leader whose bytes were changed on the way is told so, as the
// answer that it waits for or will ask for next.
func (e *lease) gone(err error) error {
	if isDamage(err) {
		_ = e.reply(err)
		_ = e.out.Flush()
	}
	return gone(err)
}

func isDamage(err error) bool {
	var damaged *sealed.DamagedError
	return errors.As(err, &damaged)
}

// gone explains why control ended.
func gone(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return errLeft
	}
	if isDamage(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errLeft, err)
}

// do executes one verb. An error ends the lease.
func (e *lease) do(v verb, f []byte) error {
	le := binary.LittleEndian
	switch v {
	case doLaunch:
		e.keep(order{verb: v, call: le.Uint32(f)})
		return nil
	case doRun:
		e.keep(order{verb: v, call: le.Uint32(f)})
		return nil
	case doWait:
		e.keep(order{v, device.Stream(f[0]), le.Uint32(f[1:])})
		return nil
	case doClock:
		e.setClock(f[0] != 0)
		return nil
	case doSave:
		return e.saving.save(e, f)
	case doFill:
		return e.saving.fill(e, f)
	case doSaveRuns:
		return e.saving.saveRuns(e, binary.LittleEndian.Uint32(f))
	case doDraw:
		return e.saving.draw(e, binary.LittleEndian.Uint32(f))
	case doSum:
		return e.saving.sum(e, binary.LittleEndian.Uint32(f))
	case doWrite:
		return e.write(device.Tier(f[0]), int64(le.Uint64(f[1:])), le.Uint32(f[9:]))
	}
	if err := e.request(v, f); err != nil {
		return err
	}
	if err := e.out.Flush(); err != nil {
		return gone(err)
	}
	return nil
}

// request executes a verb that has an answer. If an earlier one without an answer went wrong, the
// answer is its error, and nothing but the end of a round or of the device is executed.
func (e *lease) request(v verb, f []byte) error {
	switch v {
	case doSync:
		return e.sync()
	case doPrepare: // more has to be read first
		return e.prepare(f[0] != 0, binary.LittleEndian.Uint32(f[1:]), binary.LittleEndian.Uint32(f[5:]))
	case doLoad: // likewise
		return e.scripts.load(e, binary.LittleEndian.Uint32(f))
	case doShares: // likewise
		return e.saving.shares(e)
	case doSaved:
		return e.saving.saved(e)
	case doTune: // more has to be read first
		return e.tune(int64(binary.LittleEndian.Uint64(f)), binary.LittleEndian.Uint32(f[8:]), binary.LittleEndian.Uint32(f[12:]))
	case doClose:
		return e.reply(e.leave())
	}
	if err := e.ready(); err != nil {
		return e.reply(err)
	}
	le := binary.LittleEndian
	switch v {
	case doReserve:
		return e.reply(e.reserve(device.Tier(f[0]), int64(le.Uint64(f[1:]))))
	case doRead:
		return e.read(device.Tier(f[0]), int64(le.Uint64(f[1:])), le.Uint32(f[9:]))
	case doRepeat:
		return e.reply(e.repeat(device.Tier(f[0]), int64(le.Uint64(f[1:])), le.Uint32(f[9:]), int64(le.Uint64(f[13:]))))
	case doClear:
		return e.reply(e.clear(device.Tier(f[0]), int64(le.Uint64(f[1:])), int64(le.Uint64(f[9:]))))
	case doStats:
		return e.stats()
	default: // doPing
		return e.reply(nil, e.now())
	}
}

// leave closes the device for its leader.
func (e *lease) leave() error {
	err := e.refuseWithinRound()
	if err == nil {
		err = e.close()
	}
	if e.wrong != nil {
		err = e.wrong
	}
	return err
}

// reply answers with err, or else with numbers.
func (e *lease) reply(err error, numbers ...uint64) error {
	e.answer = appendAnswer(e.answer[:0], err)
	if err == nil {
		for _, n := range numbers {
			e.answer = binary.LittleEndian.AppendUint64(e.answer, n)
		}
	}
	_, err = e.out.Write(e.answer)
	return err
}

// now is the time on the device's clock, as sent.
func (e *lease) now() uint64 { return math.Float64bits(clock.Since(e.origin).Seconds()) }

// refuseWithinRound refuses what must not happen within a round.
func (e *lease) refuseWithinRound() error {
	if e.begun {
		return errors.New("a round is under way; hint: end it first")
	}
	return nil
}

// ready returns what went wrong unanswered, or what is out of order now.
func (e *lease) ready() error {
	if err := e.wrong; err != nil {
		e.wrong = nil
		return err
	}
	return e.refuseWithinRound()
}

// keep adds an order to the round.
func (e *lease) keep(o order) {
	e.begun = true
	if e.orders = append(e.orders, o); len(e.orders) == mostOrders {
		e.issue()
	}
}

// issue passes to the device what has been kept.
func (e *lease) issue() {
	for _, o := range e.orders {
		switch o.verb {
		case doRun:
			e.scripts.run(e, o.call)
		case doLaunch:
			e.launch(o.call)
		case doWait:
			e.wait(o.stream, o.call)
		}
	}
	e.orders = e.orders[:0]
}

func (e *lease) launch(n uint32) {
	if int64(n) >= int64(len(e.issued)) {
		e.fail(fmt.Errorf("launch of call %d, but only %d calls are prepared", int32(n), len(e.issued)))
		return
	}
	e.count(n)
	e.device.Launch(int(n))
}

// count records that a call is launched in this round.
func (e *lease) count(n uint32) {
	if round := e.round.Load() + 1; e.issued[n] != round {
		e.issued[n] = round
		if e.spans[n] != nil {
			e.launched = append(e.launched, n)
		}
	}
}

func (e *lease) wait(s device.Stream, n uint32) {
	if s >= device.NumStreams || int64(n) >= int64(len(e.issued)) || e.issued[n] != e.round.Load()+1 {
		e.fail(fmt.Errorf("stream %s waits for call %d, which has not been launched in this round", s, int32(n)))
		return
	}
	e.device.Wait(s, int(n))
}

// fail fails the round because of what the leader said.
func (e *lease) fail(err error) {
	e.abort(err)
	if e.wrong == nil {
		e.wrong = err
	}
}

// abort fails the round of a device that can be told so. Any goroutine may call it.
func (e *lease) abort(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a, ok := e.device.(device.Aborter); ok && !e.closed {
		a.Abort(err)
	}
}

// sync ends the round and answers with the spans of its calls.
func (e *lease) sync() error {
	e.issue()
	err := e.device.Sync()
	if e.wrong != nil {
		err, e.wrong = e.wrong, nil
	}
	ran := e.ran
	e.begun, e.ran = false, nil
	e.round.Add(1)
	launched := e.launched
	e.launched = e.launched[:0]
	if err != nil {
		return e.reply(err)
	}
	if !e.timed {
		launched = nil
	}
	le := binary.LittleEndian
	e.answer = le.AppendUint64(append(e.answer[:0], 1), e.now())
	e.answer = le.AppendUint32(e.answer, uint32(len(launched)))
	for _, n := range launched {
		s := e.spans[n]
		e.answer = le.AppendUint32(e.answer, n)
		e.answer = le.AppendUint64(e.answer, math.Float64bits(s.Start))
		e.answer = le.AppendUint64(e.answer, math.Float64bits(s.End))
	}
	if e.answer, err = ran.results(e, e.answer); err != nil {
		return e.reply(err)
	}
	_, err = e.out.Write(e.answer)
	return err
}

func (e *lease) setClock(on bool) {
	if err := e.refuseWithinRound(); err != nil {
		e.wrong = err
		return
	}
	e.timed = on
	if c, ok := e.device.(device.Clock); ok {
		c.SetClock(on)
	}
}

func (e *lease) reserve(tier device.Tier, bytes int64) error {
	if err := e.take(tier, bytes); err != nil {
		return err
	}
	err := e.device.Reserve(tier, bytes)
	if err == nil && tier < device.NumTiers {
		e.reserved[tier] = bytes
	}
	return err
}

// take counts the bytes of an arena, also of one that the device will refuse: its leader gives up then.
func (e *lease) take(tier device.Tier, bytes int64) error {
	what := fmt.Sprintf("the %s tier of a rank", tier)
	switch {
	case bytes <= 0 || tier >= device.NumTiers || e.onGPU && tier == device.DeviceTier:
		return nil
	case tier != device.DiskTier:
		return e.takeMemory(bytes, what)
	}
	err := e.budget.takeDisk(bytes, what)
	if err == nil {
		e.disk += bytes
	}
	return err
}

func (e *lease) takeMemory(n int64, what string) error {
	err := e.budget.takeMemory(n, what)
	if err == nil {
		e.memory += n
	}
	return err
}

// giveBack returns the memory that was taken since e had taken before.
func (e *lease) giveBack(before int64) {
	e.budget.give(Limits{Memory: e.memory - before})
	e.memory = before
}

// prepare reads a message of n calls.
func (e *lease) prepare(timed bool, n, length uint32) error {
	before := e.memory
	calls, refused, err := readCalls(e.in, n, length, e.admit)
	if err != nil {
		return err
	}
	if err := cmp.Or(e.ready(), refused); err != nil {
		e.giveBack(before)
		return e.reply(err)
	}
	if len(e.issued)+len(calls) > maxCalls {
		e.giveBack(before)
		return e.reply(fmt.Errorf("prepare: more than %d calls", maxCalls))
	}
	var spans []device.Span
	if timed {
		spans = make([]device.Span, len(calls))
	}
	first, err := e.resolve(calls, spans)
	if err != nil {
		e.giveBack(before)
		return e.reply(err)
	}
	e.answer = binary.LittleEndian.AppendUint32(append(e.answer[:0], 1), uint32(first))
	_, err = e.out.Write(e.answer)
	return err
}

// admit counts what a call takes.
func (e *lease) admit(c *device.Call) error { return e.takeMemory(costOf(c), "a prepared call") }

// tune reads a message of n calls. A device that cannot tune them leaves them as they are.
func (e *lease) tune(memory int64, n, length uint32) error {
	before := e.memory
	calls, refused, err := readCalls(e.in, n, length, e.admit)
	if err != nil {
		return err
	}
	defer e.giveBack(before)
	err = cmp.Or(e.ready(), refused)
	if t, ok := e.device.(device.Tuner); ok && err == nil {
		err = t.Tune(calls, memory)
	}
	return e.reply(err)
}

// resolve prepares calls while nobody looks.
func (e *lease) resolve(calls []device.Call, spans []device.Span) (first int, err error) {
	e.still.Lock()
	defer e.still.Unlock()
	first, err = e.device.Prepare(calls, spans)
	if err != nil {
		return 0, err
	}
	for i := range calls {
		var s *device.Span
		if spans != nil {
			s = &spans[i]
		}
		e.spans, e.issued = append(e.spans, s), append(e.issued, 0)
	}
	return first, nil
}

// room returns n bytes of the buffer of reads and writes.
func (e *lease) room(n uint32) ([]byte, error) {
	if n > pieceBytes {
		return nil, fmt.Errorf("%d bytes at once, but %d is the limit", n, pieceBytes)
	}
	if int(n) > len(e.piece) {
		e.piece = make([]byte, n)
	}
	return e.piece[:n], nil
}

func (e *lease) write(tier device.Tier, addr int64, n uint32) error {
	p, err := e.room(n)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(e.in, p); err != nil {
		return e.gone(err)
	}
	if err = e.refuseWithinRound(); err == nil && e.wrong == nil {
		err = e.device.Write(tier, addr, p)
	}
	if e.wrong == nil {
		e.wrong = err
	}
	return nil
}

func (e *lease) read(tier device.Tier, addr int64, n uint32) error {
	p, err := e.room(n)
	if err != nil {
		return err
	}
	err = e.device.Read(tier, addr, p)
	if failed := e.reply(err); err != nil || failed != nil {
		return failed
	}
	_, err = e.out.Write(p)
	return err
}

func (e *lease) clear(tier device.Tier, addr, n int64) error {
	if c, ok := e.device.(device.Clearer); ok {
		return c.Clear(tier, addr, n)
	}
	if n < 0 {
		return fmt.Errorf("clear: impossible number of %d bytes", n)
	}
	zeros, err := e.room(uint32(min(n, pieceBytes)))
	clear(zeros)
	for err == nil && n > 0 {
		part := zeros[:min(n, pieceBytes)]
		err = e.device.Write(tier, addr, part)
		addr, n = addr+int64(len(part)), n-int64(len(part))
	}
	return err
}

// repeat writes the first period of n bytes again and again.
func (e *lease) repeat(tier device.Tier, addr int64, period uint32, n int64) error {
	p, err := e.room(period)
	if err == nil && (len(p) == 0 || n < 0) {
		err = fmt.Errorf("repeat: impossible period of %d bytes for %d bytes", period, n)
	}
	if err == nil {
		err = e.device.Read(tier, addr, p)
	}
	for err == nil && n > int64(len(p)) {
		addr, n = addr+int64(len(p)), n-int64(len(p))
		err = e.device.Write(tier, addr, p[:min(n, int64(len(p)))])
	}
	return err
}

func (e *lease) stats() error {
	var s device.Stats
	if m, ok := e.device.(device.Meter); ok {
		s = m.Stats()
	}
	answer, err := appendMessage(appendAnswer(e.answer[:0], nil), &s)
	if err == nil {
		_, err = e.out.Write(answer)
	}
	return err
}

// watch reads side until it ends, which is no error unless its bytes were changed on the way.
func (e *lease) watch(in *bufio.Reader) error {
	var answer []byte
	for {
		b, err := in.ReadByte()
		switch {
		case isDamage(err):
			return err
		case err != nil:
			return nil
		}
		switch verb(b) {
		case doLook:
			answer = e.look(answer[:0])
			if _, err := e.side.Write(answer); err != nil {
				return nil
			}
		case doAbort:
			var f fault
			if err := readMessage(in, &f); err != nil {
				return err
			}
			e.abort(f.err())
		default:
			return fmt.Errorf("verb %d cannot be used here", b)
		}
	}
}

// look appends what is seen of the round. A device that cannot be watched always seems to progress.
func (e *lease) look(b []byte) []byte {
	var progress uint64
	calls := 0
	d, can := e.device.(device.Watched)
	if can && e.still.TryLock() {
		defer e.still.Unlock()
		if !e.isClosed() {
			progress, calls = d.Progress(), len(e.issued)
		}
	} else {
		e.looks++
		progress = e.looks
	}
	le := binary.LittleEndian
	b = le.AppendUint64(b, progress)
	b = le.AppendUint64(b, e.round.Load())
	b = le.AppendUint32(b, uint32(calls))
	for i := 0; i < calls; i += 8 {
		var bits byte
		for k := range min(8, calls-i) {
			if d.Done(i + k) {
				bits |= 1 << k
			}
		}
		b = append(b, bits)
	}
	return b
}

func (e *lease) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// hangUp ends the round and closes control, which ends the lease.
func (e *lease) hangUp() {
	e.abort(errLeft)
	_ = e.control.Close()
}

var errLeft = errors.New("the leader hung up")

// close closes the device, whose round must have ended, once.
func (e *lease) close() error {
	e.still.Lock() // nobody looks at it
	e.mu.Lock()
	closed := e.closed
	e.closed = true
	e.mu.Unlock()
	e.still.Unlock()
	if closed {
		return nil
	}
	return e.device.Close()
}

// end closes the device in whatever state it is, as soon as its round has ended.
func (e *lease) end(note func(string)) {
	_ = e.control.Close()
	select {
	case <-e.joined:
		_ = e.side.Close()
	default:
	}
	if e.begun {
		e.abort(errLeft)
		timer := time.AfterFunc(restLimit, func() { note(e.name + " has not ended its round; its memory stays reserved") })
		_ = e.device.Sync()
		timer.Stop()
	}
	if err := errors.Join(e.saving.close(), e.close()); err != nil {
		note(fmt.Sprintf("%s: %v", e.name, err))
	}
	e.budget.give(Limits{Memory: e.memory, Disk: e.disk, Ranks: 1})
	var sum int64
	for _, n := range e.reserved {
		sum += n
	}
	note(fmt.Sprintf("%s closed, %d MiB were reserved", e.name, sum>>20))
}
