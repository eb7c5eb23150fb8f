package remote

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/optimizer"
)

// A process writes what its ranks hold to the files of a checkpoint by itself, if it has the run's folder, and reads its
// parameters by itself from files that it sees as the leader does. The leader makes the files and says which elements are
// where; their bytes do not travel, what travels back is checksums. Nothing outside the run's folder is written
// (os.Root), and a process that only serves runs has no such folder, and reads no file either.

// fileName bounds the names of files.
const fileName = 1 << 10

// saveFields: u32 first call, u32 parameter, u8 kind, u8 type, u64 element, u32 elements, u64 offset, u16 length of the name.
const saveFields = 4 + 4 + 1 + 1 + 8 + 4 + 8 + 2

// shared is a file that both may see.
type shared struct{ Name, Mark string }

// Shares reports whether the process sees a file.
func (d *Device) Shares(name, mark string) (bool, error) {
	var err error
	if d.out, err = appendMessage(append(d.out, byte(doShares)), &shared{name, mark}); err != nil {
		return false, err
	}
	if err := d.ask(); err != nil {
		return false, err
	}
	err = d.receive(d.head[:8])
	return d.head[0] == 1, err
}

// Save has the process write elements to a file.
func (d *Device) Save(first int, file string, b device.FileBlock, s device.StateRange) {
	if b.Runs == nil {
		d.out = appendOrder(d.out, doSave, first, file, b.Offset, s)
	} else {
		var err error
		if d.out, err = appendMessage(append(d.out, byte(doSaveRuns)), &scattered{number(first), file, b, s}); err != nil {
			panic(err) // numbers and a name can be written
		}
	}
	_ = d.flush() // it begins at once; Saved reports what fails
}

// scattered are elements that do not follow each other in a file.
type scattered struct {
	Call  uint32 // the first of a program
	File  string
	Block device.FileBlock
	Range device.StateRange
}

// Fill has the process read elements from a file.
func (d *Device) Fill(first int, file string, offset int64, s device.StateRange) {
	d.known = d.known[:0]
	d.out = appendOrder(d.out, doFill, first, file, offset, s)
	_ = d.flush()
}

// drawn is a message.
type drawn struct {
	Call  uint32 // the first of a program
	Range device.StateRange
	From  device.Beginning
}

// Draw has the process draw elements.
func (d *Device) Draw(first int, from device.Beginning, s device.StateRange) {
	d.known = d.known[:0]
	out, err := appendMessage(append(d.out, byte(doDraw)), &drawn{number(first), s, from})
	if err != nil { // numbers and a name
		panic(err)
	}
	d.out = out
	_ = d.flush()
}

// summed is a part of a file.
type summed struct {
	File      string
	Offset, N int64
}

// Sum has the process read a part of a file.
func (d *Device) Sum(file string, offset, n int64) {
	out, err := appendMessage(append(d.out, byte(doSum)), &summed{file, offset, n})
	if err != nil { // numbers and a name
		panic(err)
	}
	d.out = out
	_ = d.flush() // it begins at once; Saved reports what fails
}

func appendOrder(b []byte, v verb, first int, file string, offset int64, s device.StateRange) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(append(b, byte(v)), number(first))
	b = append(le.AppendUint32(b, number(s.Param)), byte(s.Kind), byte(s.As))
	b = le.AppendUint32(le.AppendUint64(b, uint64(s.First)), number(s.N))
	b = le.AppendUint16(le.AppendUint64(b, uint64(offset)), uint16(min(len(file), fileName+1)))
	return append(b, file...)
}

// Saved waits until all is written.
func (d *Device) Saved() ([]uint32, error) {
	d.out = append(d.out, byte(doSaved))
	if err := d.ask(); err != nil {
		return nil, err
	}
	if err := d.receive(d.head[:4]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(d.head[:])
	if n > maxCalls {
		return nil, d.lose(fmt.Errorf("it has written %d parts, but %d is the limit", n, maxCalls))
	}
	sums := make([]uint32, n)
	for i := range sums {
		if err := d.receive(d.head[:4]); err != nil {
			return nil, err
		}
		sums[i] = binary.LittleEndian.Uint32(d.head[:])
	}
	return sums, nil
}

// saving is what a device has written, and read for sums, since its leader asked last.
type saving struct {
	folder string   // the run's; "": its leader has another, and nothing is written
	input  *os.File // that was read last; nil: none
	root   *os.Root
	files  map[string]*os.File
	sums   []uint32
	err    error
}

// shares reads a message, and answers whether a file is there.
func (s *saving) shares(e *lease) error {
	var f shared
	if err := readMessage(e.in, &f); err != nil {
		return err
	}
	if err := e.ready(); err != nil {
		return e.reply(err)
	}
	seen := uint64(0)
	if path, err := s.path(f.Name); err == nil {
		if mark, err := paths.Mark(path); err == nil && mark == f.Mark {
			seen = 1
		}
	}
	return e.reply(nil, seen)
}

// path returns where a file that is to be read is.
func (s *saving) path(name string) (string, error) {
	name = filepath.FromSlash(name)
	switch {
	case s.folder == "":
		return "", errors.New("this process reads no files for a run; hint: a launcher starts processes that do")
	case filepath.IsAbs(name):
		return name, nil
	case !filepath.IsLocal(name):
		return "", fmt.Errorf("%s is not in the run's folder", name)
	}
	return filepath.Join(s.folder, name), nil
}

// order reads the rest of an order, which is refused as wrong.
func (s *saving) order(e *lease, f []byte) (o fileOrder, wrong, err error) {
	le := binary.LittleEndian
	n := le.Uint16(f[saveFields-2:])
	if n > fileName {
		return o, nil, fmt.Errorf("a name of %d bytes is too long, %d is the limit", n, fileName)
	}
	name := make([]byte, n)
	if _, err := io.ReadFull(e.in, name); err != nil {
		return o, nil, e.gone(err)
	}
	o.what = device.StateRange{Param: int(le.Uint32(f[4:])), Kind: optimizer.Kind(f[8]), As: graph.DType(f[9]), First: int(le.Uint64(f[10:])), N: int(le.Uint32(f[18:]))}
	o.file, o.offset = string(name), int64(le.Uint64(f[22:]))
	if o.what.Kind >= optimizer.NumKinds || o.what.As >= graph.NumDTypes || o.what.N > pieceBytes || o.what.First < 0 || o.offset < 0 {
		return o, errors.New("impossible elements"), nil
	}
	if err := e.refuseWithinRound(); err != nil {
		return o, err, nil
	}
	if o.bytes, err = e.room(uint32(o.what.Bytes())); err == nil {
		o.state, err = e.scripts.state(e, le.Uint32(f))
	}
	return o, err, nil
}

// fileOrder is to move elements between a file and a state.
type fileOrder struct {
	file   string
	offset int64
	what   device.StateRange
	bytes  []byte // room for them
	state  State
}

// save writes elements to a file.
func (s *saving) save(e *lease, f []byte) error {
	o, wrong, err := s.order(e, f)
	if err == nil && wrong == nil && s.err == nil {
		wrong = s.write(&o)
	}
	s.err = cmp.Or(s.err, wrong)
	return err
}

// saveRuns reads a message, and writes elements to a file.
func (s *saving) saveRuns(e *lease, length uint32) error {
	var m scattered
	if err := readText(e.in, length, messageBytes, &m); err != nil {
		return err
	}
	if s.err == nil {
		s.err = s.writeRuns(e, &m)
	}
	return nil
}

func (s *saving) writeRuns(e *lease, m *scattered) error {
	r, b := m.Range, m.Block
	if r.Kind >= optimizer.NumKinds || r.As != graph.F32 && r.As != graph.BF16 || r.First < 0 || r.N < 1 || r.N > pieceBytes || b.Offset < 0 || b.Bytes < 0 || b.Bytes > pieceBytes {
		return errors.New("impossible elements")
	}
	if err := e.refuseWithinRound(); err != nil {
		return err
	}
	o := fileOrder{file: m.File, what: r}
	var err error
	if o.bytes, err = e.room(uint32(r.Bytes())); err != nil {
		return err
	}
	if o.state, err = e.scripts.state(e, m.Call); err != nil {
		return err
	}
	file, err := s.held(&o)
	if err != nil {
		return err
	}
	sum, err := b.Write(file, o.bytes, int(r.As.Size()))
	s.sums = append(s.sums, sum)
	return err
}

// draw reads a message, and draws elements.
func (s *saving) draw(e *lease, length uint32) error {
	var m drawn
	if err := readText(e.in, length, messageBytes, &m); err != nil {
		return err
	}
	wrong := cmp.Or(e.wrong, e.refuseWithinRound())
	if r := m.Range; wrong == nil && (r.Kind >= optimizer.NumKinds || r.First < 0 || r.N < 1 || r.N > pieceBytes/4) {
		wrong = errors.New("impossible elements")
	}
	if wrong == nil {
		var state State
		if state, wrong = e.scripts.state(e, m.Call); wrong == nil {
			wrong = state.DrawState(m.Range, m.From)
		}
	}
	e.wrong = wrong
	return nil
}

// sum reads a message, and a part of a file.
func (s *saving) sum(e *lease, length uint32) error {
	var m summed
	if err := readText(e.in, length, messageBytes, &m); err != nil {
		return err
	}
	if s.err == nil {
		var sum uint32
		sum, s.err = s.sumOf(e, &m)
		s.sums = append(s.sums, sum)
	}
	return nil
}

// sumOf returns the checksum of a part of a file, all of which must be there.
func (s *saving) sumOf(e *lease, m *summed) (sum uint32, err error) {
	path, err := s.path(m.File)
	if err != nil {
		return 0, err
	}
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	room, err := e.room(pieceBytes)
	for at, end := m.Offset, m.Offset+m.N; err == nil && at < end; at += int64(len(room)) {
		room = room[:min(int64(len(room)), end-at)]
		_, err = file.ReadAt(room, at)
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), room)
	}
	return sum, err
}

// fill reads elements from a file.
func (s *saving) fill(e *lease, f []byte) error {
	o, wrong, err := s.order(e, f)
	if err == nil && wrong == nil && e.wrong == nil {
		wrong = s.read(&o)
	}
	e.wrong = cmp.Or(e.wrong, wrong)
	return err
}

// read keeps the latest file open.
func (s *saving) read(o *fileOrder) error {
	path, err := s.path(o.file)
	if err != nil {
		return err
	}
	if s.input == nil || s.input.Name() != path {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		if s.input != nil {
			_ = s.input.Close() // it was only read
		}
		s.input = file
	}
	if _, err := s.input.ReadAt(o.bytes, o.offset); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return o.state.WriteState(o.what, o.bytes)
}

func (s *saving) write(o *fileOrder) error {
	file, err := s.held(o)
	if err != nil {
		return err
	}
	if _, err := file.WriteAt(o.bytes, o.offset); err != nil {
		return err
	}
	s.sums = append(s.sums, crc32.Checksum(o.bytes, crc32.MakeTable(crc32.Castagnoli)))
	return nil
}

// held opens the file of an order and reads the elements that are to be written to it.
func (s *saving) held(o *fileOrder) (*os.File, error) {
	file, err := s.open(o.file)
	if err != nil {
		return nil, err
	}
	return file, o.state.ReadState(o.what, o.bytes)
}

// open opens a file of the run's folder for writing, once.
func (s *saving) open(name string) (*os.File, error) {
	if f, ok := s.files[name]; ok {
		return f, nil
	}
	if s.folder == "" {
		return nil, errors.New("this process writes no files for a run; hint: a launcher starts processes that do")
	}
	if s.root == nil {
		root, err := os.OpenRoot(s.folder)
		if err != nil {
			return nil, err
		}
		s.root, s.files = root, map[string]*os.File{}
	}
	f, err := s.root.OpenFile(filepath.FromSlash(name), os.O_WRONLY, 0)
	if err == nil {
		s.files[name] = f
	}
	return f, err
}

// saved makes all durable and answers with its checksums.
func (s *saving) saved(e *lease) error {
	err := errors.Join(s.err, s.close())
	var system syscall.Errno
	if errors.As(err, &system) {
		err = &device.FileError{Text: err.Error(), Err: system}
	}
	sums := s.sums
	s.sums, s.err = nil, nil
	if err = errors.Join(e.ready(), err); err != nil {
		return e.reply(err)
	}
	e.answer = binary.LittleEndian.AppendUint32(append(e.answer[:0], 1), uint32(len(sums)))
	for _, sum := range sums {
		e.answer = binary.LittleEndian.AppendUint32(e.answer, sum)
	}
	_, err = e.out.Write(e.answer)
	return err
}

// close syncs and closes the files.
func (s *saving) close() (err error) {
	for _, f := range s.files {
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if s.root != nil {
		err = errors.Join(err, s.root.Close())
	}
	if s.input != nil {
		err = errors.Join(err, s.input.Close())
	}
	s.input, s.root, s.files = nil, nil, nil
	return err
}
