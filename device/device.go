// Package device is the interface between programs and the hardware that runs them.
//
// A device owns one arena per memory tier, reserved once, and a few in-order streams.
// It is told, instruction by instruction, what to launch on which stream and which
// events to wait for. It makes no decisions: no allocation, no reordering, no planning.
// The same calls drive the CPU backend (device/cpu), a virtual clock without arithmetic
// (device/null) and CUDA (device/cuda):
//
//	err := dev.Reserve(device.DeviceTier, 64<<20) // arenas, once
//	first, err := dev.Prepare(calls, spans)       // resolve operands, once
//	dev.Wait(device.Compute, first+3)             // every step, in program order:
//	dev.Launch(first + 7)                         // on the stream that the call names
//	err = dev.Sync()                              // all streams idle, first error
//
// A call's number is its event: Wait(s, n) blocks stream s until call n of this round
// has completed.
package device

import (
	"fmt"
	"syscall"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/optimizer"
)

// ErrMemory reports an arena for which there is no memory.
var ErrMemory = sysmem.ErrMemory

// Tier is a memory tier of one rank.
type Tier uint8

const (
	DeviceTier Tier = iota // what operators of the compute stream access
	HostTier               // the host's memory, pinned where the device needs it
	DiskTier               // a file
	NumTiers
)

var tiers = [...]string{"device", "host", "disk"}

func (t Tier) String() string {
	if int(t) < len(tiers) {
		return tiers[t]
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// ParseTier is the inverse of Tier.String.
func ParseTier(s string) (Tier, error) {
	for i, name := range tiers {
		if name == s {
			return Tier(i), nil
		}
	}
	return 0, fmt.Errorf("unknown memory tier %q; hint: use device, host or disk", s)
}

// Stream is an in-order queue of one resource of a rank. Streams run
// concurrently; only events order work across them.
type Stream uint8

const (
	Compute     Stream = iota // operators on the device
	HostToDev                 // copies host -> device
	DevToHost                 // copies device -> host
	DiskRead                  // copies disk -> host
	DiskWrite                 // copies host -> disk
	HostCompute               // operators on the host's cores (optimizer)
	Collective                // gathers and reductions over ranks
	Send                      // to the next or previous stage
	Recv
	NumStreams
)

// QueueLen is the minimum number of commands (calls and waits) that every backend's
// streams can queue, launched but not complete. Beyond that, Launch and Wait may block
// their caller. Verify proves that ranks complete with queues of this length.
const QueueLen = 1024

var streams = [...]string{"compute", "h2d", "d2h", "disk_read", "disk_write", "host", "collective", "send", "recv"}

func (s Stream) String() string {
	if int(s) < len(streams) {
		return streams[s]
	}
	return fmt.Sprintf("stream(%d)", uint8(s))
}

// ParseStream is the inverse of Stream.String.
func ParseStream(s string) (Stream, error) {
	for i, name := range streams {
		if name == s {
			return Stream(i), nil
		}
	}
	return 0, fmt.Errorf("unknown stream %q", s)
}

// Operand is a matrix in an arena: Rows x Cols elements, Stride elements from
// row to row, the first at byte Addr. Rows == 0 marks an absent operand.
type Operand struct {
	Tier               Tier
	DType              graph.DType
	Addr               int64
	Rows, Cols, Stride int
}

// Call is one operator on resolved operands.
type Call struct {
	Op     graph.Op
	Attr   graph.Attr
	Args   []Operand
	Stream Stream
	// Peers are the ranks of a collective, this one included, or the other end of a
	// message. Tag distinguishes messages between two ranks.
	Peers []int
	Tag   int
	// Rank is whose call it is; only its price depends on it, where ranks are on several hosts.
	Rank int
}

// Span is the time in which a call ran, in seconds since the device was opened (on the
// null device: of virtual time since the start of the round). A call between ranks
// starts when all its members have arrived. Joined devices share one clock origin.
type Span struct{ Start, End float64 }

// Stats counts what was actually executed since the device was opened.
type Stats struct {
	// Peak is the end of the highest byte that any call touched.
	Peak [NumTiers]int64
	// Moved counts the bytes copied, by tier of source and destination.
	Moved [NumTiers][NumTiers]int64
	// Network counts the bytes received from other ranks, by operator; see
	// Received.
	Network [graph.NumOps]int64
	// Issued counts the driver calls of steps: launches, copies, events and waits; 0
	// without a driver.
	Issued int64
	// Worked is the time in seconds, by stream, in which calls kept a core of this
	// machine busy. It excludes sleeping on a throttled link and waiting for a disk or
	// other ranks.
	Worked [NumStreams]float64
}

// Info describes a device.
type Info struct {
	Name  string
	Cores int    // cores that host operators may use
	Host  string // address of the host that it is on; "": this one
}

// IsGPU reports whether the device of a name that configurations have, cpu or cuda, is a GPU, with memory of its own.
// Whatever else differs is behind a device, or behind package machine's backend.
func IsGPU(name string) bool { return name == "cuda" }

// Device executes calls. Its methods are not safe for concurrent use.
type Device interface {
	Info() Info
	// Reserve reserves the arena of a tier; once per tier, before Prepare.
	Reserve(tier Tier, bytes int64) error
	// Prepare resolves calls and returns the number of the first; the others follow.
	// spans (nil, or one per call) receives the time of each call's latest execution;
	// it may be read after Sync.
	Prepare(calls []Call, spans []Span) (first int, err error)
	// Launch enqueues a prepared call on its stream. It must not allocate.
	Launch(call int)
	// Wait blocks stream s until call, launched since the last Sync, has completed.
	Wait(s Stream, call int)
	// Sync waits until all streams are idle, ends the round and returns the
	// first error of any call since the last Sync. After an error the contents
	// of the arenas are undefined.
	Sync() error
	// Read and Write copy bytes out of and into an arena, between rounds.
	Read(tier Tier, addr int64, p []byte) error
	Write(tier Tier, addr int64, p []byte) error
	Close() error
}

// Optional interfaces of a device. Callers must work without them.

// Meter counts what was actually executed.
type Meter interface{ Stats() Stats }

// Watched is a device whose progress in the current round can be queried from another
// goroutine. Hangs of other devices cannot be detected.
type Watched interface {
	Done(call int) bool // has it completed?
	Progress() uint64   // changes while long calls progress
}

// Aborter can end a device's round from another goroutine: its calls fail with the
// error, and so do those of ranks that were to meet them.
type Aborter interface{ Abort(error) }

// Clock is a device on which timing calls costs time. It is on at first; call SetClock between rounds.
// Rounds without it leave spans as they are.
type Clock interface{ SetClock(on bool) }

// Clearer is a device that zeroes bytes of the device or the host tier faster than zeros can be written
// to it; call it between rounds.
type Clearer interface {
	Clear(tier Tier, addr, n int64) error
}

// Repeater is a device that can repeat what is already in an arena faster than it can be written to;
// call it between rounds. Repeat fills n bytes from addr on with copies of the first period bytes
// there.
type Repeater interface {
	Repeat(tier Tier, addr, period, n int64) error
}

// Tuner is a device that may compute calls in several ways with the same bits. Tune tries which is fastest
// and remembers that. For as long as it runs it takes at most the given bytes of device memory, which are to be
// the arena's: call it before Reserve.
type Tuner interface {
	Tune(calls []Call, memory int64) error
}

// Runner is a device that has programs itself, since telling it call by call would cost more: that of another process. Load
// prepares the calls of a program, printed as text, as Prepare does; Run launches all of them, with their waits.
type Runner interface {
	Load(program string, spans []Span) (first int, err error)
	Run(first int)
}

// StateRange is N consecutive elements of one kind of a parameter's state, as files have them.
type StateRange struct {
	Param    int
	Kind     optimizer.Kind
	As       graph.DType // F32, or the type in which they are stored
	First, N int
}

// Beginning is what a parameter begins with, see session.Initial.
type Beginning struct {
	Name string
	Init uint8 // a model.Init
	Std  float64
	Seed uint64
}

// Bytes returns their size in a file.
func (s StateRange) Bytes() int { return s.N * int(s.As.Size()) }

// Saver is a Runner whose process reads and writes files by itself, if it sees the same ones. They are named by their paths from
// the run's folder, or by absolute ones, which are only read.
type Saver interface {
	// Shares reports whether it sees a file with a mark, see paths.Mark.
	Shares(file, mark string) (bool, error)
	// Fill reads a range from a file, in which it is as s.As says, from an offset on, into the state of the program whose first call
	// is first, as far as the rank has it. It does not wait for that; an error is that of the next call that does.
	Fill(first int, file string, offset int64, s StateRange)
	// Draw is Fill with the numbers with which a parameter begins.
	Draw(first int, d Beginning, s StateRange)
	// Save writes a range that the rank holds, of the state of the program whose first call is first, to a file that is there: to the
	// runs of a block or, if it has none, from its offset on. It does not wait for that.
	Save(first int, file string, b FileBlock, s StateRange)
	// Sum reads n bytes of a file from an offset on. It does not wait for that.
	Sum(file string, offset, n int64)
	// Saved waits until all is written since the last time, durably, and read for sums, and returns the checksums, CRC-32C, of
	// both, in the order in which it was told.
	Saved() ([]uint32, error)
}

// FileError is an error of the system that a Saver's process got from a file: the device is as good as before.
type FileError struct {
	Text string
	Err  syscall.Errno
}

func (e *FileError) Error() string { return e.Text }
func (e *FileError) Unwrap() error { return e.Err }

// Refuser runs calls that a library rejects in a slower way. Refused says which calls, and why; call it
// between rounds.
type Refuser interface{ Refused() []string }

// MarshalText encodes tiers by name in plans.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText decodes a tier's name.
func (t *Tier) UnmarshalText(b []byte) (err error) {
	*t, err = ParseTier(string(b))
	return err
}

// MarshalText encodes streams by name in hardware descriptions.
func (s Stream) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes a stream's name.
func (s *Stream) UnmarshalText(b []byte) (err error) {
	*s, err = ParseStream(string(b))
	return err
}
