// Package crashfs is a file system in memory that forgets what was not synced, for tests of code that must survive kill -9
// and power failure.
//
// What a crash leaves is what POSIX promises and no more:
//
//   - a file's bytes survive up to its last Sync; of later bytes any prefix may survive, the rest being cut off or
//     zero
//   - a change of a directory (create, remove, rename) is certain to survive only after SyncDir on that directory;
//     before, each change may independently have reached the disk or not, but a rename is never half done
//
// Example: count the operations of a save in one run, then for each number n: FailFrom(n), save, Crash, inspect.
// FailOnce injects other faults in the same way, and Capacity a full disk.
//
// Known weakness: no links, no permissions, no renames across directories, no overwriting in place.
package crashfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// ErrCrashed is the error of every operation from the one given to FailFrom on.
var ErrCrashed = errors.New("crashed")

// FS is the file system. Its methods may be called concurrently.
type FS struct {
	// Capacity is the number of bytes that all files together may hold; 0 is no limit.
	Capacity int64

	mu        sync.Mutex
	root      *node
	ops       int
	failFrom  int // operations from this number on fail with ErrCrashed; 0 never
	failOnce  int // the operation of this number fails with onceError
	onceError error
}

// node is a directory if entries is not nil, else a file.
type node struct {
	entries map[string]*node
	durable map[string]*node
	pending []change // since the last SyncDir, oldest first

	data   []byte
	synced int // bytes
}

// change sets the directory's entry name to node to and, for a rename, removes the entry from.
type change struct {
	name string
	to   *node // nil: removed
	from string
}

// New returns an empty file system with the root directory "/".
func New() *FS { return &FS{root: newDir()} }

func newDir() *node { return &node{entries: map[string]*node{}, durable: map[string]*node{}} }

// Ops returns the number of operations so far. Creating, writing, syncing, closing, renaming, removing, listing and
// opening are one each, a RemoveAll is one for each thing removed.
func (f *FS) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// FailFrom makes operation n (counted from 1) and all after it fail with ErrCrashed, without effect.
func (f *FS) FailFrom(n int) { f.failFrom = n }

// FailOnce makes operation n fail with err; a failing write still writes half of its bytes.
func (f *FS) FailOnce(n int, err error) { f.failOnce, f.onceError = n, err }

// step counts an operation and injects its fault.
func (f *FS) step(op, name string) error {
	f.ops++
	if f.failFrom > 0 && f.ops >= f.failFrom {
		return &fs.PathError{Op: op, Path: name, Err: ErrCrashed}
	}
	if f.ops == f.failOnce {
		return &fs.PathError{Op: op, Path: name, Err: f.onceError}
	}
	return nil
}

// Crash returns a new file system with a possible content of the disk after a power failure now; chance decides which
// unsynced changes reached the disk.
func (f *FS) Crash(chance *rand.Rand) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &FS{Capacity: f.Capacity, root: f.root.afterCrash(chance)}
}

func (n *node) afterCrash(chance *rand.Rand) *node {
	if n.entries == nil {
		size := n.synced + chance.IntN(len(n.data)-n.synced+1)
		data := slices.Clone(n.data[:size])
		if chance.IntN(2) == 0 { // the size reached the disk, the bytes did not
			data = append(data, make([]byte, len(n.data)-size)...)
		}
		return &node{data: data, synced: len(data)}
	}
	entries := maps.Clone(n.durable)
	for _, c := range n.pending {
		if chance.IntN(2) == 0 {
			continue
		}
		c.apply(entries)
	}
	after := newDir()
	for _, name := range slices.Sorted(maps.Keys(entries)) { // sorted, so that chance is reproducible
		after.entries[name] = entries[name].afterCrash(chance)
	}
	after.durable = maps.Clone(after.entries)
	return after
}

func (c change) apply(entries map[string]*node) {
	switch {
	case c.to == nil:
		delete(entries, c.name)
	case c.from != "" && entries[c.from] != c.to: // the renamed entry never reached the disk
	default:
		delete(entries, c.from)
		entries[c.name] = c.to
	}
}

func (n *node) change(c change) {
	c.apply(n.entries)
	n.pending = append(n.pending, c)
}

// find returns the node of a path.
func (f *FS) find(name string) (*node, error) {
	n := f.root
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+name), "/"), "/") {
		if part == "" {
			continue
		}
		if n.entries == nil {
			return nil, syscall.ENOTDIR
		}
		if n = n.entries[part]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

// dir returns the node of a directory.
func (f *FS) dir(name string) (*node, error) {
	n, err := f.find(name)
	if err == nil && n.entries == nil {
		err = syscall.ENOTDIR
	}
	return n, err
}

// add adds an entry to an existing directory.
func (f *FS) add(op, name string, n *node) error {
	if err := f.step(op, name); err != nil {
		return err
	}
	parent, err := f.dir(path.Dir(name))
	if err == nil && parent.entries[path.Base(name)] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	parent.change(change{name: path.Base(name), to: n})
	return nil
}

// Mkdir makes one directory.
func (f *FS) Mkdir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.add("mkdir", name, newDir())
}

// Create makes a new file for writing.
func (f *FS) Create(name string) (*Writer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := &node{}
	if err := f.add("create", name, n); err != nil {
		return nil, err
	}
	return &Writer{f, n, name}, nil
}

// Open opens a file for reading.
func (f *FS) Open(name string) (*Reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.step("open", name)
	if err != nil {
		return nil, err
	}
	n, err := f.find(name)
	if err == nil && n.entries != nil {
		err = syscall.EISDIR
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &Reader{strings.NewReader(string(n.data))}, nil
}

// ReadDir returns the names in a directory, sorted.
func (f *FS) ReadDir(name string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.step("readdir", name); err != nil {
		return nil, err
	}
	n, err := f.dir(name)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	return slices.Sorted(maps.Keys(n.entries)), nil
}

// Rename renames a file or directory within its directory. The target must not be an existing directory.
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.step("rename", from); err != nil {
		return err
	}
	parent, err := f.dir(path.Dir(from))
	switch {
	case err != nil:
	case path.Dir(from) != path.Dir(to):
		err = errors.New("crashfs: rename across directories")
	case parent.entries[path.Base(from)] == nil:
		err = fs.ErrNotExist
	case parent.entries[path.Base(to)] != nil && parent.entries[path.Base(to)].entries != nil:
		err = fs.ErrExist
	default:
		parent.change(change{name: path.Base(to), to: parent.entries[path.Base(from)], from: path.Base(from)})
	}
	if err != nil {
		return &fs.PathError{Op: "rename", Path: from, Err: err}
	}
	return nil
}

// RemoveAll removes a file or directory, children first; a missing one is no error.
func (f *FS) RemoveAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.removeAll(name)
}

func (f *FS) removeAll(name string) error {
	n, err := f.find(name)
	if err != nil {
		return nil
	}
	for _, child := range slices.Sorted(maps.Keys(n.entries)) {
		if err := f.removeAll(path.Join(name, child)); err != nil {
			return err
		}
	}
	if err := f.step("remove", name); err != nil {
		return err
	}
	parent, err := f.dir(path.Dir(name))
	if err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	parent.change(change{name: path.Base(name)})
	return nil
}

// SyncDir makes the changes of a directory durable.
func (f *FS) SyncDir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.step("syncdir", name); err != nil {
		return err
	}
	n, err := f.dir(name)
	if err != nil {
		return &fs.PathError{Op: "syncdir", Path: name, Err: err}
	}
	n.durable = maps.Clone(n.entries)
	n.pending = nil
	return nil
}

// Change edits a file's bytes without counting an operation, as a failing disk would. The result is durable.
func (f *FS) Change(name string, edit func([]byte) []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if err != nil || n.entries != nil {
		return fmt.Errorf("crashfs: no file %s", name)
	}
	n.data = edit(slices.Clone(n.data))
	n.synced = len(n.data)
	return nil
}

// Files lists the paths of all files, sorted.
func (f *FS) Files() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	f.root.walk("/", func(name string, _ *node) { list = append(list, name) })
	return list
}

func (n *node) walk(name string, visit func(string, *node)) {
	if n.entries == nil {
		visit(name, n)
	}
	for _, child := range slices.Sorted(maps.Keys(n.entries)) {
		n.entries[child].walk(path.Join(name, child), visit)
	}
}

// used returns the bytes in all files.
func (f *FS) used() int64 {
	sum := int64(0)
	f.root.walk("/", func(_ string, n *node) { sum += int64(len(n.data)) })
	return sum
}

// Writer is a file open for writing.
type Writer struct {
	fs   *FS
	node *node
	name string
}

// Write appends. A fault leaves half of p written, a full disk as much as fits.
func (w *Writer) Write(p []byte) (int, error) {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	n, err := len(p), w.fs.step("write", w.name)
	switch {
	case errors.Is(err, ErrCrashed):
		n = 0
	case err != nil:
		n /= 2
	case w.fs.Capacity > 0 && w.fs.used()+int64(n) > w.fs.Capacity:
		n = int(max(0, w.fs.Capacity-w.fs.used()))
		err = &fs.PathError{Op: "write", Path: w.name, Err: syscall.ENOSPC}
	}
	w.node.data = append(w.node.data, p[:n]...)
	return n, err
}

// Sync makes the bytes written so far durable, but not the file's directory entry.
func (w *Writer) Sync() error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	if err := w.fs.step("sync", w.name); err != nil {
		return err
	}
	w.node.synced = len(w.node.data)
	return nil
}

// Close does not sync.
func (w *Writer) Close() error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	return w.fs.step("close", w.name)
}

// Reader is a file open for reading; it sees the bytes as of Open.
type Reader struct{ *strings.Reader }

// Close does nothing.
func (*Reader) Close() error { return nil }

var (
	_ io.WriteCloser = (*Writer)(nil)
	_ io.ReaderAt    = (*Reader)(nil)
)
