package remote

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// Frames.
//
// A frame is a verb and fields of fixed sizes, little-endian; a few are followed by
// bytes, or by a message, of a length that is one of the fields. A step of a program whose two calls, of which
// the first is number 7, were loaded before:
//
//	run 7       | 03 | 07 00 00 00 |
//	sync        | 11 |
//	  answer    | 01 | now | 2 | 7 start end | 8 start end | 1 | tier address 8 | loss |
//
// Calls that are timed by themselves are launched one by one. These verbs have no answer, nor has write; the next verb that has one answers
// with what went wrong. An answer is 1 and the verb's result, or 0 and an error.
//
// Messages are gobs, each from an encoder of its own, so that a message contains all that is needed to
// read it, and one that was cut off spoils no other. Calls are written one by one, so that each can be
// counted before the next is read: in memory a call may be some hundred times its size in a message.
//
// Invariants: no length is trusted before it is compared with its limit, and memory
// for bytes is bounded by pieceBytes.

type verb uint8

const (
	doLaunch   verb = 1 + iota // u32 call
	doWait                     // u8 stream, u32 call
	doRun                      // u32 call, the first of a program
	doWrite                    // u8 tier, u64 address, u32 length; bytes
	doClock                    // u8 on
	doSave                     // see saveFields; name
	doFill                     // likewise
	doSaveRuns                 // u32 length; message
	doDraw                     // u32 length; message
	doSum                      // u32 length; message
	doReserve                  // u8 tier, u64 bytes -> nothing
	doPrepare                  // u8 timed, u32 calls, u32 length; message -> u32 first
	doLoad                     // u32 length; the build and the program's text -> u32 first, u32 calls
	doTune                     // u64 memory, u32 calls, u32 length; message -> nothing
	doRead                     // u8 tier, u64 address, u32 length -> bytes
	doClear                    // u8 tier, u64 address, u64 length -> nothing
	doRepeat                   // u8 tier, u64 address, u32 period, u64 length -> nothing
	doSync                     // -> f64 now, u32 count, count times u32 call, f64 start, f64 end; results, see script.go
	doStats                    // -> u32 length; message
	doShares                   // u32 length; message -> u64 yes or no
	doSaved                    // -> u32 count, count times u32 checksum
	doPing                     // -> f64 now
	doClose                    // -> nothing

	// On side.
	doLook  // -> u64 progress, u64 round, u32 calls; one bit per call
	doAbort // u32 length; message of an error
)

// fieldBytes is the size of each verb's fields, by verb.
var fieldBytes = [...]int{
	doLaunch: 4, doWait: 5, doRun: 4, doWrite: 13, doClock: 1, doSave: saveFields, doFill: saveFields, doSaveRuns: 4, doDraw: 4, doSum: 4, doReserve: 9, doPrepare: 9, doLoad: 4, doTune: 16, doRead: 13,
	doClear: 17, doRepeat: 21, doSync: 0, doStats: 0, doShares: 0, doSaved: 0, doPing: 0, doClose: 0, doLook: 0, doAbort: 4,
}

const (
	pieceBytes   = 4 << 20  // that write and read move at a time
	messageBytes = 64 << 10 // of most messages
	callsBytes   = 64 << 20 // of a message of calls, or of a program
	callBytes    = 64 << 10 // of one call in it
	faultText    = 16 << 10 // of one error
	spanBytes    = 4 + 8 + 8
	lookBytes    = 8 + 8 + 4
	maxCalls     = 1 << 24
)

// appendMessage appends the length of a message and the message.
func appendMessage(b []byte, v any) ([]byte, error) {
	var text bytes.Buffer
	if err := gob.NewEncoder(&text).Encode(v); err != nil {
		return b, err
	}
	if text.Len() > math.MaxUint32 {
		return b, fmt.Errorf("a message of %d bytes is too long", text.Len())
	}
	return append(binary.LittleEndian.AppendUint32(b, uint32(text.Len())), text.Bytes()...), nil
}

// readMessage reads a message and its length.
func readMessage(r io.Reader, v any) error {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return err
	}
	return readText(r, binary.LittleEndian.Uint32(n[:]), messageBytes, v)
}

// readText reads a message of n bytes, at most limit.
func readText(r io.Reader, n, limit uint32, v any) error {
	if n > limit {
		return fmt.Errorf("a message of %d bytes is too long, %d is the limit", n, limit)
	}
	text := io.LimitReader(r, int64(n))
	if err := gob.NewDecoder(text).Decode(v); err != nil {
		return fmt.Errorf("a malformed message: %w", err)
	}
	_, err := io.Copy(io.Discard, text)
	return err
}

// appendCalls appends the number of calls, the length of a message of them, and the message.
func appendCalls(b []byte, calls []device.Call) ([]byte, error) {
	var text bytes.Buffer
	to := gob.NewEncoder(&text)
	for i := range calls {
		if err := to.Encode(&calls[i]); err != nil {
			return b, err
		}
	}
	if text.Len() > callsBytes || len(calls) > maxCalls {
		return b, fmt.Errorf("%d calls take %d bytes, but %d and %d are the limits; hint: use fewer, larger micro-batches", len(calls), text.Len(), maxCalls, callsBytes)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(calls)))
	b = binary.LittleEndian.AppendUint32(b, uint32(text.Len()))
	return append(b, text.Bytes()...), nil
}

// readCalls reads n calls from a message of length bytes. If admit refuses one, the rest is skipped.
func readCalls(in *bufio.Reader, n, length uint32, admit func(*device.Call) error) (calls []device.Call, refused, err error) {
	if length > callsBytes {
		return nil, nil, fmt.Errorf("a message of %d bytes is too long, %d is the limit", length, callsBytes)
	}
	text := &callReader{in: in, left: int(length)}
	from := gob.NewDecoder(text)
	for range n {
		text.call = callBytes
		var c device.Call
		if err := from.Decode(&c); err != nil {
			return nil, nil, fmt.Errorf("a malformed message: %w", err)
		}
		if refused = admit(&c); refused != nil {
			break
		}
		calls = append(calls, c)
	}
	_, err = in.Discard(text.left)
	return calls, refused, err
}

// callReader reads the bytes of a message, of which no call may have too many. It is an io.ByteReader, so
// a gob.Decoder does not read ahead.
type callReader struct {
	in         *bufio.Reader
	left, call int
}

func (r *callReader) Read(p []byte) (int, error) {
	p = p[:min(len(p), r.left, r.call)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	n, err := r.in.Read(p)
	r.left, r.call = r.left-n, r.call-n
	return n, err
}

func (r *callReader) ReadByte() (byte, error) {
	if min(r.left, r.call) == 0 {
		return 0, io.EOF
	}
	r.left, r.call = r.left-1, r.call-1
	return r.in.ReadByte()
}

// readAnswer reads the beginning of an answer: refused is the error that the other side
// answers with, err that of the connection.
func readAnswer(r io.Reader, scratch []byte) (refused, err error) {
	if _, err := io.ReadFull(r, scratch[:1]); err != nil {
		return nil, err
	}
	switch scratch[0] {
	case 0:
		var f fault
		if err := readMessage(r, &f); err != nil {
			return nil, err
		}
		return f.err(), nil
	case 1:
		return nil, nil
	}
	return nil, fmt.Errorf("a malformed answer, which begins with %d", scratch[0])
}

// readResult reads an answer whose result is a message.
func readResult(r io.Reader, v any) error {
	refused, err := readAnswer(r, make([]byte, 1))
	if err = errors.Join(refused, err); err != nil {
		return err
	}
	return readMessage(r, v)
}

// appendAnswer appends the beginning of an answer: that all is well, or err.
func appendAnswer(b []byte, err error) []byte {
	if err == nil {
		return append(b, 1)
	}
	return appendFault(append(b, 0), err)
}

func appendFault(b []byte, err error) []byte {
	b, failed := appendMessage(b, faultOf(err))
	if failed != nil {
		panic(failed) // a fault is numbers and texts
	}
	return b
}

// fault is an error as sent. Errors of calls, of peers and of memory arrive as what they were; of others
// only the text does.
type fault struct {
	Kind       faultKind
	Rank, Call int
	Op         graph.Op
	Text       string
	Cause      *fault // of a call's error; or, of another, the call's or peer's error in it
}

type faultKind uint8

const (
	plainFault faultKind = iota
	callFault
	peerFault
	memoryFault
	fileFault // its number is Call
)

func faultOf(err error) *fault {
	switch e := err.(type) {
	case nil:
		return nil
	case *device.CallError:
		return &fault{Kind: callFault, Call: e.Call, Op: e.Op, Cause: faultOf(e.Err)}
	case *device.PeerError:
		return &fault{Kind: peerFault, Rank: e.Rank, Call: e.Call, Op: e.Op, Text: shortened(e.Why)}
	}
	var file *device.FileError
	if errors.As(err, &file) {
		return &fault{Kind: fileFault, Call: int(file.Err), Text: shortened(err.Error())}
	}
	f := &fault{Text: shortened(err.Error())}
	if errors.Is(err, device.ErrMemory) {
		f.Kind = memoryFault
	}
	var call *device.CallError
	var peer *device.PeerError
	if errors.As(err, &call) {
		f.Cause = faultOf(call)
	} else if errors.As(err, &peer) {
		f.Cause = faultOf(peer)
	}
	return f
}

func shortened(text string) string { return text[:min(len(text), faultText)] }

func (f *fault) err() error {
	switch {
	case f == nil:
		return errors.New("no reason was given")
	case f.Kind == callFault:
		return &device.CallError{Call: f.Call, Op: f.Op, Err: f.Cause.err()}
	case f.Kind == peerFault:
		return &device.PeerError{Rank: f.Rank, Call: f.Call, Op: f.Op, Why: f.Text}
	case f.Kind == fileFault:
		return &device.FileError{Text: f.Text, Err: syscall.Errno(f.Call)}
	case f.Kind == memoryFault:
		return &told{f.Text, device.ErrMemory}
	case f.Cause == nil:
		return errors.New(f.Text)
	}
	return &told{f.Text, f.Cause.err()}
}

// told is an error with the text that it had where it was made.
type told struct {
	text  string
	cause error
}

func (e *told) Error() string { return e.text }
func (e *told) Unwrap() error { return e.cause }
