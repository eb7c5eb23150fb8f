package remote

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/build"
)

// A process runs the programs of its own ranks. The leader, which has planned, sends each its program as text, once, and
// then only says to run it:
//
//	load    the build, and the program          the host parses it, prints it again, proves it, prepares its calls
//	write   the rows of the batch, and scalars
//	run     the number of the program           the host's own loop launches the calls
//	sync    what the step took, its losses and norms
//
// Where buffers are is what a search found, which nobody repeats; so the text travels instead of the plan. A build that
// differs, or that reads the text as another program, is refused.

// mostResults and resultBytes bound what is read after a step.
const mostResults, resultBytes = 4, 64

// Script is a program as a host runs it.
type Script interface {
	Calls() []device.Call
	// Launch launches all calls, the first of which has been prepared as number first, with their waits.
	Launch(d device.Device, first int)
	// Results are what is read after each step: a few numbers.
	Results() []device.Operand
	// State returns access to what a device holds of the program's state.
	State(d device.Device) (State, error)
}

// State is what a device holds.
type State interface {
	ReadState(s device.StateRange, dst []byte) error
	WriteState(s device.StateRange, src []byte) error
	DrawState(s device.StateRange, d device.Beginning) error
}

// scripts are the programs of a device.
type scripts struct {
	parse  func(program string) (Script, error)
	loaded map[uint32]*loaded // by their first call
}

// loaded is a program that has been prepared.
type loaded struct {
	Script
	calls int
	after []device.Operand // what is read after a step
	state State            // nil: nobody has asked for it
}

// programMemory is what reading and proving a program is assumed to take, by its text: about what its calls take then.
const programMemory = 16

// load reads a program, and prepares it if it is one that this build would print like this.
func (s *scripts) load(e *lease, length uint32) error {
	if length > callsBytes {
		return fmt.Errorf("a program of %d bytes is too long, %d is the limit", length, callsBytes)
	}
	before := e.memory
	wrong := e.takeMemory(programMemory*int64(length), "a program")
	if wrong != nil {
		if _, err := e.in.Discard(int(length)); err != nil {
			return e.gone(err)
		}
		return e.reply(cmp.Or(e.ready(), wrong))
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(e.in, text); err != nil {
		return e.gone(err)
	}
	said, program, _ := strings.Cut(string(text), "\n")
	first, calls, err := 0, 0, e.ready()
	if err == nil && said != build.Text() {
		err = fmt.Errorf("rank 0 is another build, %q, than this process, %q; %s", said, build.Text(), versionHint)
	}
	if err == nil {
		first, calls, err = s.adopt(e, program, before)
	}
	if err != nil {
		e.giveBack(before)
		return e.reply(err)
	}
	e.answer = binary.LittleEndian.AppendUint32(append(e.answer[:0], 1), uint32(first))
	_, err = e.out.Write(binary.LittleEndian.AppendUint32(e.answer, uint32(calls)))
	return err
}

// adopt prepares a program. before is the memory that was taken before it.
func (s *scripts) adopt(e *lease, program string, before int64) (first, n int, err error) {
	p, err := s.parse(program)
	if err != nil {
		return 0, 0, fmt.Errorf("the program is not safe to run: %w", err)
	}
	results := p.Results()
	if len(results) > mostResults || slices.ContainsFunc(results, func(o device.Operand) bool { return o.Bytes() > resultBytes }) {
		return 0, 0, errors.New("load: too much is read after a step")
	}
	calls := p.Calls()
	e.giveBack(before)
	for i := range calls {
		if err := e.admit(&calls[i]); err != nil {
			return 0, 0, err
		}
	}
	if len(e.issued)+len(calls) > maxCalls {
		return 0, 0, fmt.Errorf("load: more than %d calls", maxCalls)
	}
	if first, err = e.resolve(calls, make([]device.Span, len(calls))); err == nil {
		s.loaded[uint32(first)] = &loaded{p, len(calls), results, nil}
	}
	return first, len(calls), err
}

// run launches a program.
func (s *scripts) run(e *lease, first uint32) {
	p, ok := s.loaded[first]
	if !ok {
		e.fail(fmt.Errorf("no program begins with call %d", int32(first)))
		return
	}
	for n := range uint32(p.calls) {
		e.count(first + n)
	}
	p.Launch(e.device, int(first))
	e.ran = p
}

// results appends what is read after a step of the program that ran last: their number; tier, address, length and bytes of each.
func (p *loaded) results(e *lease, b []byte) ([]byte, error) {
	if p == nil {
		return append(b, 0), nil
	}
	b = append(b, byte(len(p.after)))
	for i := range p.after {
		o := &p.after[i]
		b = binary.LittleEndian.AppendUint64(append(b, byte(o.Tier)), uint64(o.Addr))
		b = append(b, byte(o.Bytes()))
		at := len(b)
		b = append(b, make([]byte, o.Bytes())...)
		if err := e.device.Read(o.Tier, o.Addr, b[at:]); err != nil {
			return b, err
		}
	}
	return b, nil
}

// state returns access to what the device holds of a program's state.
func (s *scripts) state(e *lease, first uint32) (State, error) {
	p, ok := s.loaded[first]
	if !ok {
		return nil, fmt.Errorf("no program begins with call %d", int32(first))
	}
	if p.state == nil {
		var err error
		if p.state, err = p.State(e.device); err != nil {
			return nil, err
		}
	}
	return p.state, nil
}
