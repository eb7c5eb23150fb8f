package remote

import (
	"bufio"
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
	"github.com/athanor-llm/athanor/internal/build"
	"github.com/athanor-llm/athanor/internal/clock"
)

// The leader's end of control.
//
// Whatever has no answer is appended to a buffer, which is sent when it is full or with sync: a step is
// its inputs and the number of a program that the host has. If the host's queues are full it stops reading;
// then TCP's windows fill and Launch blocks, as on a local device.
//
// Once a connection has failed the device is lost: its connections are closed, so that
// whoever waits for an answer stops waiting, and every method returns why.

const (
	segmentBytes = 1 << 16          // of launches and waits that are sent together
	pings        = 16               // when a device is opened
	closeLimit   = 10 * time.Second // for a host to close a device
)

var _ interface {
	device.Device
	device.Meter
	device.Watched
	device.Aborter
	device.Clock
	device.Clearer
	device.Repeater
	device.Tuner
	device.Runner
	device.Saver
} = (*Device)(nil)

// Device is a device on another host. It implements device.Device.
type Device struct {
	host   string
	origin time.Time // of the leader's clock
	info   device.Info
	tunes  bool          // it is a Tuner there
	least  time.Duration // of round trips
	spans  []*device.Span
	stats  device.Stats // the latest known
	known  []learnt     // of the latest round, until something can change them

	control net.Conn
	in      *bufio.Reader
	out     []byte          // not sent yet
	head    [spanBytes]byte // scratch of answers
	under   atomic.Bool     // a round is under way
	leaving atomic.Bool     // the host has been told to close the device, and may hang up
	round   atomic.Uint64   // rounds that have ended
	side    side

	mu   sync.Mutex
	err  error         // why the device is lost
	gone chan struct{} // closed when it is
}

// Open opens a device on the host that serves at addr. Its spans count from origin.
func Open(addr string, key []byte, p Place, origin time.Time) (*Device, error) {
	if err := p.check(); err != nil {
		return nil, at(addr, err)
	}
	control, err := dial(addr, key, &opening{Purpose: controlling, Place: p})
	if err != nil {
		return nil, at(addr, err)
	}
	d := &Device{
		host: addr, origin: origin, control: control, in: bufio.NewReaderSize(control, 64<<10),
		out: make([]byte, 0, 2*segmentBytes), gone: make(chan struct{}),
	}
	var about opened
	if err := readResult(d.in, &about); err != nil {
		_ = control.Close()
		return nil, at(addr, err)
	}
	conn, err := dial(addr, key, &opening{Purpose: siding, Lease: about.Lease})
	if err != nil {
		_ = control.Close()
		return nil, at(addr, err)
	}
	d.info, d.tunes = about.Info, about.Tunes
	d.info.Host = addr
	d.side.start(conn, d)
	if err := d.measure(); err != nil {
		return nil, err
	}
	return d, nil
}

// measure finds the least round trip.
func (d *Device) measure() error {
	d.least = math.MaxInt64
	for range pings {
		start := clock.Now()
		d.out = append(d.out, byte(doPing))
		if err := d.ask(); err != nil {
			return err
		}
		if err := d.receive(d.head[:8]); err != nil {
			return err
		}
		d.least = min(d.least, clock.Since(start))
	}
	return nil
}

// Info describes the device as its host does, and says where that is.
func (d *Device) Info() device.Info { return d.info }

// Reserve reserves the arena of a tier in the host's memory.
func (d *Device) Reserve(tier device.Tier, bytes int64) error {
	d.out = append(d.out, byte(doReserve), byte(tier))
	d.out = binary.LittleEndian.AppendUint64(d.out, uint64(bytes))
	return d.ask()
}

// Tune ships the calls, if the host's device can tune them.
func (d *Device) Tune(calls []device.Call, memory int64) error {
	if !d.tunes {
		return nil
	}
	message, err := appendCalls(nil, calls)
	if err != nil {
		return at(d.host, fmt.Errorf("tune: %w", err))
	}
	d.out = binary.LittleEndian.AppendUint64(append(d.out, byte(doTune)), uint64(memory))
	return d.ask(message)
}

// Prepare ships the calls, which the host's device checks and resolves.
func (d *Device) Prepare(calls []device.Call, spans []device.Span) (first int, err error) {
	if spans != nil && len(spans) != len(calls) {
		return 0, fmt.Errorf("prepare: %d spans for %d calls", len(spans), len(calls))
	}
	timed := byte(0)
	if spans != nil {
		timed = 1
	}
	message, err := appendCalls(nil, calls)
	if err != nil {
		return 0, at(d.host, fmt.Errorf("prepare: %w", err))
	}
	d.out = append(d.out, byte(doPrepare), timed)
	if err := d.ask(message); err != nil {
		return 0, err
	}
	if err := d.receive(d.head[:4]); err != nil {
		return 0, err
	}
	return d.number(len(calls), spans)
}

// number gives n calls their numbers, the first of which is the answer.
func (d *Device) number(n int, spans []device.Span) (first int, err error) {
	first = int(binary.LittleEndian.Uint32(d.head[:]))
	if first != len(d.spans) {
		return 0, d.lose(fmt.Errorf("it counts %d calls instead of %d", first, len(d.spans)))
	}
	for i := range n {
		if spans == nil {
			d.spans = append(d.spans, nil)
		} else {
			d.spans = append(d.spans, &spans[i])
		}
	}
	return first, nil
}

// Load ships a program, which the host proves to be in order and prepares by itself.
func (d *Device) Load(program string, spans []device.Span) (first int, err error) {
	said := build.Text() + "\n"
	if len(said)+len(program) > callsBytes {
		return 0, at(d.host, fmt.Errorf("load: a program of %d bytes, but %d is the limit; hint: use fewer, larger micro-batches", len(program), callsBytes))
	}
	d.out = binary.LittleEndian.AppendUint32(append(d.out, byte(doLoad)), uint32(len(said)+len(program)))
	if err := d.ask([]byte(said + program)); err != nil {
		return 0, err
	}
	if err := d.receive(d.head[:8]); err != nil {
		return 0, err
	}
	if n := binary.LittleEndian.Uint32(d.head[4:]); int64(n) != int64(len(spans)) {
		return 0, d.lose(fmt.Errorf("it has a program of %d calls instead of %d", n, len(spans)))
	}
	return d.number(len(spans), spans)
}

// Run launches all calls of a program.
func (d *Device) Run(first int) {
	d.known = d.known[:0]
	d.out = append(d.out, byte(doRun))
	d.out = binary.LittleEndian.AppendUint32(d.out, number(first))
	d.advance()
}

// Launch enqueues a prepared call.
func (d *Device) Launch(n int) {
	d.known = d.known[:0]
	d.out = append(d.out, byte(doLaunch))
	d.out = binary.LittleEndian.AppendUint32(d.out, number(n))
	d.advance()
}

// Wait blocks stream s until call n has completed.
func (d *Device) Wait(s device.Stream, n int) {
	d.out = append(d.out, byte(doWait), byte(s))
	d.out = binary.LittleEndian.AppendUint32(d.out, number(n))
	d.advance()
}

// number is a call's number as sent: one that cannot exist still does not.
func number(n int) uint32 { return uint32(min(uint(n), math.MaxUint32)) }

// advance sends what is buffered if it fills a segment. Sync reports what fails then.
func (d *Device) advance() {
	d.under.Store(true)
	if len(d.out) < segmentBytes {
		return
	}
	_ = d.flush()
}

// Sync ends the round and sets the spans of its calls, in the leader's time.
func (d *Device) Sync() error {
	d.out = append(d.out, byte(doSync))
	d.under.Store(true)
	err := d.ask()
	if err == nil {
		err = d.times(clock.Since(d.origin) - d.least/2)
	}
	if err == nil {
		err = d.learn()
	}
	d.round.Add(1)
	d.under.Store(false)
	return err
}

// times reads the spans of a round whose answer left its host at sent, on the leader's clock.
func (d *Device) times(sent time.Duration) error {
	if err := d.receive(d.head[:12]); err != nil {
		return err
	}
	le := binary.LittleEndian
	shift := sent.Seconds() - math.Float64frombits(le.Uint64(d.head[:]))
	for range le.Uint32(d.head[8:]) {
		if err := d.receive(d.head[:spanBytes]); err != nil {
			return err
		}
		n := le.Uint32(d.head[:])
		if int64(n) >= int64(len(d.spans)) || d.spans[n] == nil {
			return d.lose(fmt.Errorf("it sent a time for call %d, which is not timed", n))
		}
		*d.spans[n] = device.Span{
			Start: shift + math.Float64frombits(le.Uint64(d.head[4:])),
			End:   shift + math.Float64frombits(le.Uint64(d.head[12:])),
		}
	}
	return nil
}

// learnt is what is read after a step.
type learnt struct {
	tier  device.Tier
	addr  int64
	bytes int
	data  [resultBytes]byte
}

// learn reads the results of a round.
func (d *Device) learn() error {
	if err := d.receive(d.head[:1]); err != nil {
		return err
	}
	for range min(d.head[0], mostResults) {
		if err := d.receive(d.head[:10]); err != nil {
			return err
		}
		d.known = append(d.known, learnt{tier: device.Tier(d.head[0]), addr: int64(binary.LittleEndian.Uint64(d.head[1:])), bytes: int(min(d.head[9], resultBytes))})
		r := &d.known[len(d.known)-1]
		if err := d.receive(r.data[:r.bytes]); err != nil {
			return err
		}
	}
	return nil
}

// SetClock says whether rounds set spans.
func (d *Device) SetClock(on bool) {
	b := byte(0)
	if on {
		b = 1
	}
	d.out = append(d.out, byte(doClock), b)
}

// Write copies bytes into an arena. An error of the host's device is returned by the next method that
// waits for an answer.
func (d *Device) Write(tier device.Tier, addr int64, p []byte) error {
	d.known = d.known[:0]
	for first := true; first || len(p) > 0; first = false {
		piece := p[:min(len(p), pieceBytes)]
		d.header(doWrite, tier, addr, len(piece))
		if len(d.out)+len(piece) <= segmentBytes {
			d.out = append(d.out, piece...)
			return d.lost()
		}
		if err := d.flush(); err != nil {
			return err
		}
		if _, err := d.control.Write(piece); err != nil {
			return d.lose(err)
		}
		p, addr = p[len(piece):], addr+int64(len(piece))
	}
	return nil
}

// Read copies bytes out of an arena.
func (d *Device) Read(tier device.Tier, addr int64, p []byte) error {
	for i := range d.known {
		if r := &d.known[i]; r.tier == tier && r.addr == addr && r.bytes == len(p) {
			copy(p, r.data[:])
			return d.lost()
		}
	}
	for first := true; first || len(p) > 0; first = false {
		piece := p[:min(len(p), pieceBytes)]
		d.header(doRead, tier, addr, len(piece))
		if err := d.ask(); err != nil {
			return err
		}
		if err := d.receive(piece); err != nil {
			return err
		}
		p, addr = p[len(piece):], addr+int64(len(piece))
	}
	return nil
}

func (d *Device) header(v verb, tier device.Tier, addr int64, n int) {
	d.out = append(d.out, byte(v), byte(tier))
	d.out = binary.LittleEndian.AppendUint64(d.out, uint64(addr))
	d.out = binary.LittleEndian.AppendUint32(d.out, uint32(n))
	if len(d.out) >= segmentBytes {
		_ = d.flush()
	}
}

// Clear zeroes bytes of an arena.
func (d *Device) Clear(tier device.Tier, addr, n int64) error {
	d.known = d.known[:0]
	d.out = append(d.out, byte(doClear), byte(tier))
	d.out = binary.LittleEndian.AppendUint64(d.out, uint64(addr))
	d.out = binary.LittleEndian.AppendUint64(d.out, uint64(n))
	return d.ask()
}

// Repeat fills bytes of an arena with copies of the first period of them.
func (d *Device) Repeat(tier device.Tier, addr, period, n int64) error {
	d.known = d.known[:0]
	if period < 1 || period > pieceBytes {
		return at(d.host, fmt.Errorf("repeat: impossible period of %d bytes; hint: use 1 to %d", period, pieceBytes))
	}
	d.header(doRepeat, tier, addr, int(period))
	d.out = binary.LittleEndian.AppendUint64(d.out, uint64(n))
	return d.ask()
}

// Stats returns what was executed; for a lost device, what is known of it.
func (d *Device) Stats() device.Stats {
	d.out = append(d.out, byte(doStats))
	var s device.Stats
	if d.ask() != nil {
		return d.stats
	}
	if err := readMessage(d.in, &s); err != nil {
		_ = d.lose(err)
		return d.stats
	}
	d.stats = s
	return s
}

// Close closes the device on its host and waits until that has been done, so that its
// memory is free for the next one. During a round that another goroutine waits for, it
// only hangs up: then the host ends the round and closes the device by itself.
func (d *Device) Close() error {
	if d.under.Load() {
		_ = d.lose(errClosed)
		return nil
	}
	if d.lost() != nil { // which another method has reported
		return nil
	}
	_ = d.control.SetDeadline(time.Now().Add(closeLimit))
	d.leaving.Store(true)
	d.out = append(d.out, byte(doClose))
	err := d.ask()
	_ = d.lose(errClosed)
	return err
}

var errClosed = errors.New("the device is closed")

// flush sends what is buffered.
func (d *Device) flush() error {
	err := d.lost()
	if err == nil && len(d.out) > 0 {
		if _, failed := d.control.Write(d.out); failed != nil {
			err = d.lose(failed)
		}
	}
	d.out = d.out[:0]
	return err
}

// ask sends what is buffered, and the messages that follow it, which are not copied, and reads the beginning of the answer.
func (d *Device) ask(messages ...[]byte) error {
	if err := d.flush(); err != nil {
		return err
	}
	for _, m := range messages {
		if _, err := d.control.Write(m); err != nil {
			return d.lose(err)
		}
	}
	refused, err := readAnswer(d.in, d.head[:1])
	switch {
	case err != nil:
		return d.lose(err)
	case refused != nil:
		return d.placed(refused)
	}
	return nil
}

// placed adds the host to an error, unless it is the error of a call: the call's engine knows the rank.
func (d *Device) placed(err error) error {
	switch err.(type) {
	case *device.CallError, *device.PeerError:
		return err
	}
	return at(d.host, err)
}

// receive reads a part of an answer.
func (d *Device) receive(p []byte) error {
	if _, err := io.ReadFull(d.in, p); err != nil {
		return d.lose(err)
	}
	return nil
}

// lost returns why the device is lost, nil if it is not.
func (d *Device) lost() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// lose gives the device up and closes its connections. It returns the first reason.
func (d *Device) lose(why error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if d.err = at(d.host, why); why != errClosed {
		d.err = at(d.host, hinted(fmt.Errorf("the device is lost: %w", hungUp(why))))
	}
	close(d.gone)
	_ = d.control.Close()
	d.side.close()
	return d.err
}
