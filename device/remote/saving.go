package remote

import (
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
	"github.com/athanor-llm/athanor/optimizer"
)

// A process writes what its ranks hold to the files of a checkpoint by itself, if it has the run's folder. The leader makes
// the files and says which elements go where; their bytes do not travel, what travels back is their checksums. Nothing
// outside the run's folder can be named (os.Root).

// fileName bounds the names of files.
const fileName = 1 << 10

// saveFields: u32 first call, u32 parameter, u8 kind, u8 type, u64 element, u32 elements, u64 offset, u16 length of the name.
const saveFields = 4 + 4 + 1 + 1 + 8 + 4 + 8 + 2

// shared is a file that both may see.
type shared struct{ Name, Content string }

// Shares reports whether the process sees a file in its run's folder.
func (d *Device) Shares(name, content string) (bool, error) {
	var err error
	if d.out, err = appendMessage(append(d.out, byte(doShares)), &shared{name, content}); err != nil {
		return false, err
	}
	if err := d.ask(); err != nil {
		return false, err
	}
	err = d.receive(d.head[:8])
	return d.head[0] == 1, err
}

// Save has the process write elements to a file.
func (d *Device) Save(first int, file string, offset int64, s device.StateRange) {
	le := binary.LittleEndian
	d.out = le.AppendUint32(append(d.out, byte(doSave)), number(first))
	d.out = append(le.AppendUint32(d.out, number(s.Param)), byte(s.Kind), byte(s.As))
	d.out = le.AppendUint32(le.AppendUint64(d.out, uint64(s.First)), number(s.N))
	d.out = le.AppendUint16(le.AppendUint64(d.out, uint64(offset)), uint16(min(len(file), fileName+1)))
	d.out = append(d.out, file...)
	_ = d.flush() // it begins at once; Saved reports what fails
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

// saving is what a device has written since its leader asked last.
type saving struct {
	folder string // the run's; "": its leader has another, and nothing is written
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
	if s.folder != "" && filepath.IsLocal(f.Name) {
		if text, err := os.ReadFile(filepath.Join(s.folder, f.Name)); err == nil && string(text) == f.Content {
			seen = 1
		}
	}
	return e.reply(nil, seen)
}

// save reads a name, and writes elements to the file.
func (s *saving) save(e *lease, f []byte) error {
	le := binary.LittleEndian
	n := le.Uint16(f[saveFields-2:])
	if n > fileName {
		return fmt.Errorf("a name of %d bytes is too long, %d is the limit", n, fileName)
	}
	name := make([]byte, n)
	if _, err := io.ReadFull(e.in, name); err != nil {
		return e.gone(err)
	}
	what := device.StateRange{Param: int(le.Uint32(f[4:])), Kind: optimizer.Kind(f[8]), As: graph.DType(f[9]), First: int(le.Uint64(f[10:])), N: int(le.Uint32(f[18:]))}
	if s.err == nil {
		s.err = e.refuseWithinRound()
	}
	if s.err == nil {
		s.err = s.write(e, le.Uint32(f), string(name), int64(le.Uint64(f[22:])), what)
	}
	return nil
}

func (s *saving) write(e *lease, first uint32, name string, offset int64, what device.StateRange) error {
	if what.Kind >= optimizer.NumKinds || what.As >= graph.NumDTypes || what.N > pieceBytes || what.First < 0 || offset < 0 {
		return errors.New("save: impossible elements")
	}
	bytes, err := e.room(uint32(what.Bytes()))
	if err != nil {
		return err
	}
	state, err := e.scripts.state(e, first)
	if err != nil {
		return err
	}
	file, err := s.open(name)
	if err != nil {
		return err
	}
	if err := state.ReadState(what, bytes); err != nil {
		return err
	}
	if _, err := file.WriteAt(bytes, offset); err != nil {
		return err
	}
	s.sums = append(s.sums, crc32.Checksum(bytes, crc32.MakeTable(crc32.Castagnoli)))
	return nil
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
	s.root, s.files = nil, nil
	return err
}
