package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/optimizer"
)

// Savers are the processes of a session, all of which see the same files. They divide the state among them to be written:
// each range by one of those that have it, of replicas by the one that has had least to write. They read what they have
// from files by themselves. Nothing is sent from one to another.
type Savers struct {
	session *Session
	folder  string          // the run's
	sees    map[string]bool // whether all see a file, by its path here
	process []int           // by rank; 0: this one
	bytes   []int64         // that each process writes of this checkpoint: what it alone holds from the beginning, then what it is given
	grain   int             // elements that are given to one of several at once
	writes  []writes
	room    []byte
}

// writes are what a rank of another process writes of this checkpoint.
type writes struct {
	begun int
	sums  []uint32
	err   error
}

// NewSavers returns those of a session; nil if all its ranks are in this process. By a file of the run's folder, which was
// just made, others see whether they have that folder; without is a host that has not, and then there are none either.
func NewSavers(s *Session, folder, file string) (v *Savers, without string, err error) {
	v = &Savers{session: s, folder: folder, sees: map[string]bool{}, process: make([]int, len(s.Devices)), writes: make([]writes, len(s.Devices))}
	hosts := []string{""}
	for r, d := range s.Devices {
		host := d.Info().Host
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
		v.process[r] = slices.Index(hosts, host)
	}
	if v.bytes = make([]int64, len(hosts)); len(hosts) == 1 {
		return nil, "", nil
	}
	blind, err := v.blind(filepath.Join(folder, file))
	if err != nil || blind >= 0 {
		return nil, hosts[max(blind, 0)], err
	}
	return v, "", nil
}

// blind returns a process that does not see a file as this one does; -1: all see it.
func (v *Savers) blind(path string) (process int, err error) {
	mark, err := paths.Mark(path)
	if err != nil {
		return 0, err
	}
	file, err := v.named(path)
	if err != nil {
		return 0, err
	}
	asked := 0
	for r, p := range v.process {
		if p <= asked {
			continue
		}
		asked = p
		saver, ok := v.session.Devices[r].(device.Saver)
		if !ok {
			return p, nil
		}
		shares, err := saver.Shares(file, mark)
		switch {
		case err != nil:
			return p, v.session.lost(r, err)
		case !shares:
			return p, nil
		}
	}
	return -1, nil
}

// named returns what others call a file: its path from the run's folder, if it is in there, else its whole path.
func (v *Savers) named(path string) (string, error) {
	if name, err := filepath.Rel(v.folder, path); err == nil && filepath.IsLocal(name) {
		return filepath.ToSlash(name), nil
	}
	return filepath.Abs(path)
}

// Sees reports whether all see a file.
func (v *Savers) Sees(path string) (bool, error) {
	sees, known := v.sees[path]
	if !known {
		blind, err := v.blind(path)
		if err != nil {
			return false, err
		}
		sees = blind < 0
		v.sees[path] = sees
	}
	return sees, nil
}

// Processes returns how many there are, this one included.
func (v *Savers) Processes() int { return len(v.bytes) }

// Sum has a process other than this one, which is 0, read n bytes of a file that all see, and returns what waits for their
// checksum, CRC-32C.
func (v *Savers) Sum(process int, path string, offset, n int64) (wait func() (uint32, error)) {
	saver := v.session.Devices[slices.Index(v.process, process)].(device.Saver)
	name, err := v.named(path)
	if err == nil {
		saver.Sum(name, offset, n)
	}
	return func() (uint32, error) {
		if err != nil {
			return 0, err
		}
		sums, err := saver.Saved()
		if err == nil && len(sums) != 1 {
			err = fmt.Errorf("%d parts of %s were read, not one", len(sums), path)
		}
		if err != nil {
			return 0, err
		}
		return sums[0], nil
	}
}

// Begin begins a checkpoint of so many bytes.
func (v *Savers) Begin(ctx context.Context, bytes int64) error {
	if err := v.session.Settle(ctx); err != nil {
		return err
	}
	v.collect() // of a checkpoint that failed
	clear(v.writes)
	clear(v.bytes)
	v.grain = int(min(max(bytes/int64(256*len(v.bytes)), 1), 1<<18))
	kinds := append(v.session.moments(), optimizer.Weights)
	for i, p := range v.session.Graph.Params {
		for _, kind := range kinds {
			if MomentOf(v.session, i, kind).Packed() || !WrittenApart(v.session.Graph, i) { // this process writes them
				continue
			}
			slab, _ := v.session.Graph.Slab(i)
			for k := range slab.Parts {
				for s := (device.StateRange{Param: i, Kind: kind, As: graph.F32, N: int(p.Elems()) / slab.Parts}); s.N > 0; {
					part := s
					rank, alone := v.holder(&part, k)
					if alone {
						v.bytes[v.process[rank]] += int64(part.Bytes())
					}
					s.First, s.N = s.First+part.N, s.N-part.N
				}
			}
		}
	}
	return nil
}

// Fill has the other processes read elements of a parameter's state, from index first on, from where they are in files. It
// reports whether they do, and whether a rank here is left that has some of them.
func (v *Savers) Fill(param int, kind optimizer.Kind, first int, list []safetensors.Place) (done, here bool, err error) {
	for _, p := range list {
		sees, err := v.Sees(p.Path)
		if err != nil {
			return false, true, err
		}
		if !sees || p.DType != safetensors.F32 && p.DType != safetensors.BF16 {
			return false, true, nil
		}
	}
	for _, p := range list {
		all := device.StateRange{Param: param, Kind: kind, As: graph.F32, First: first, N: p.Elements}
		if p.DType == safetensors.BF16 {
			all.As = graph.BF16
		}
		file, err := v.named(p.Path)
		if err != nil {
			return false, true, err
		}
		for r := range v.process {
			here = v.fill(r, file, p.Offset, all) || here
		}
		first += p.Elements
	}
	return true, here, nil
}

// Filled waits until all is read.
func (v *Savers) Filled() error {
	errs := make([]error, len(v.process))
	var all sync.WaitGroup
	for r, p := range v.process {
		if p != 0 {
			all.Go(func() { _, errs[r] = v.session.Devices[r].(device.Saver).Saved() })
		}
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			return v.session.lost(r, err)
		}
	}
	return nil
}

// fill has a rank's process read what the rank has of a range, which is in a file from an offset on. It reports whether that is
// left to this process.
func (v *Savers) fill(rank int, file string, offset int64, all device.StateRange) (here bool) {
	const most = 1 << 20 // elements of an order
	e := v.session.ranks[rank].engines[0]
	for s := e.Keeps(all); s.N > 0; {
		if v.process[rank] == 0 {
			return true
		}
		part := s
		part.N = min(s.N, most)
		e.Fill(file, offset+int64(part.First-all.First)*part.As.Size(), part)
		s.First, s.N = part.First+part.N, all.First+all.N-part.First-part.N
		if s.N > 0 {
			s = e.Keeps(s)
		}
	}
	return false
}

// Write writes a range of a parameter of which parts can be read, or has others write it.
func (v *Savers) Write(to safetensors.Divided, s device.StateRange) error {
	return v.writeSlab(to, s, 0)
}

// WriteDivided is Write for a parameter that ranks divide, see graph.Slab, or that files order differently, of which WrittenApart holds.
func (v *Savers) WriteDivided(to safetensors.Divided, s device.StateRange) error {
	slab, divided := v.session.Graph.Slab(s.Param)
	if divided && !slab.InRuns() {
		return v.writeColumns(to, s, slab)
	}
	p := &v.session.Graph.Params[s.Param]
	for at, end := s.First, s.First+s.N; at < end; at += s.N {
		k := 0
		s.First, s.N = p.FromFileAt(at)
		if divided {
			var n int
			k, s.First, n = slab.Locate(s.First)
			s.N = min(s.N, n)
		}
		s.N = min(s.N, end-at, pieceElems)
		if err := v.writeSlab(to, s, k); err != nil {
			return err
		}
	}
	return nil
}

// writeColumns writes a matrix that ranks divide by columns, in blocks of rows. In a block the elements that a slab has follow each other in
// the slab, but not in the file.
func (v *Savers) writeColumns(to safetensors.Divided, s device.StateRange, slab graph.Slab) error {
	const most = 1 << 11 // runs, so that orders are short
	all := min(max(v.grain*slab.Parts, slab.Cols), pieceElems)
	for at, end := s.First, s.First+s.N; at < end; {
		first, last := at, min(at+all, end)
		parts, runs := make([]device.StateRange, slab.Parts), make([][]device.Run, slab.Parts)
		for n, count := 0, 0; at < last && count < most; at, count = at+n, count+1 {
			var k, ours int
			k, ours, n = slab.Locate(at)
			n = min(n, last-at)
			if p := &parts[k]; p.N == 0 {
				*p = s
				p.First, p.N = ours, 0
			}
			parts[k].N += n
			runs[k] = append(runs[k], device.Run{At: at - first, N: n})
		}
		var begin []func(file string, offset int64) func() (uint32, error)
		bytes := int64(at-first) * s.As.Size()
		for k := range parts {
			list, err := v.orders(to, bytes, parts[k], k, runs[k])
			if err != nil {
				return err
			}
			begin = append(begin, list...)
		}
		if err := to.Leave(bytes, begin...); err != nil {
			return err
		}
	}
	return nil
}

// orders divides elements of a slab, which are in runs of a block of a file, among those that hold them.
func (v *Savers) orders(to safetensors.Divided, bytes int64, s device.StateRange, slab int, runs []device.Run) (begin []func(string, int64) func() (uint32, error), err error) {
	for s.N > 0 {
		part := s
		rank, alone := v.holder(&part, slab)
		if rank < 0 {
			return nil, v.nobody(s)
		}
		if !alone {
			v.bytes[v.process[rank]] += int64(part.Bytes())
		}
		var own []device.Run
		for left := part.N; left > 0; {
			r := runs[0]
			if r.N = min(r.N, left); r.N == runs[0].N {
				runs = runs[1:]
			} else {
				runs[0] = device.Run{At: runs[0].At + r.N, N: runs[0].N - r.N}
			}
			own, left = append(own, r), left-r.N
		}
		begin = append(begin, func(file string, offset int64) func() (uint32, error) {
			b := device.FileBlock{Offset: offset, Bytes: bytes, Runs: own}
			if v.process[rank] != 0 {
				v.session.ranks[rank].engines[0].Save(file, b, part)
				return v.begun(rank)
			}
			sum, err := v.writeRuns(to, b, rank, part)
			return func() (uint32, error) { return sum, err }
		})
		s.First, s.N = s.First+part.N, s.N-part.N
	}
	return begin, nil
}

// writeRuns writes elements of a rank of this process.
func (v *Savers) writeRuns(to safetensors.Divided, b device.FileBlock, rank int, s device.StateRange) (uint32, error) {
	if err := v.read(rank, s); err != nil {
		return 0, err
	}
	return b.Write(to, v.room, int(s.As.Size()))
}

// read reads elements of a rank of this process into v.room.
func (v *Savers) read(rank int, s device.StateRange) error {
	v.room = slices.Grow(v.room[:0], s.Bytes())[:s.Bytes()]
	if err := v.session.ranks[rank].engines[0].ReadState(s, v.room); err != nil {
		return v.session.lost(rank, err)
	}
	return nil
}

// nobody is the error that no rank holds the first elements of a range.
func (v *Savers) nobody(s device.StateRange) error {
	return fmt.Errorf("no rank holds element %d of parameter %s", s.First, v.session.Graph.Params[s.Param].Name)
}

// writeSlab writes a range of a slab, of which there is one if ranks do not divide the parameter.
func (v *Savers) writeSlab(to safetensors.Divided, s device.StateRange, slab int) error {
	for s.N > 0 {
		part := s
		rank, alone := v.holder(&part, slab)
		if rank < 0 {
			return v.nobody(s)
		}
		if !alone {
			part.N = min(part.N, v.grain)
			v.bytes[v.process[rank]] += int64(part.Bytes())
		}
		if err := v.write(to, rank, part); err != nil {
			return err
		}
		s.First, s.N = s.First+part.N, s.N-part.N
	}
	return nil
}

// holder returns who writes the first elements of a range of a slab, and whether no other process has them, and cuts the range off
// after those; -1: nobody has them.
func (v *Savers) holder(s *device.StateRange, slab int) (rank int, alone bool) {
	rank, alone = -1, true
	n, next := 0, s.N // next: elements before another process may have them
	for r, p := range v.process {
		if !v.session.holds(r, s.Param, slab) {
			continue
		}
		e := v.session.ranks[r].engines[0]
		held := e.HeldFrom(s.Param, s.Kind, s.First)
		switch {
		case held == 0:
			if at := e.HeldAfter(s.Param, s.Kind, s.First); at > 0 {
				next = min(next, at)
			}
			continue
		case rank >= 0 && p != v.process[rank]:
			alone = false
		}
		if rank < 0 || v.bytes[p] < v.bytes[v.process[rank]] {
			rank, n = r, held
		}
	}
	if s.N = min(s.N, n, next); rank < 0 {
		s.N = next
	}
	return rank, alone && rank >= 0
}

// write writes a range that a rank holds.
func (v *Savers) write(to safetensors.Divided, rank int, s device.StateRange) error {
	if v.process[rank] != 0 {
		return to.Leave(int64(s.Bytes()), func(file string, offset int64) func() (uint32, error) {
			v.session.ranks[rank].engines[0].Save(file, device.FileBlock{Offset: offset}, s)
			return v.begun(rank)
		})
	}
	if err := v.read(rank, s); err != nil {
		return err
	}
	_, err := to.Write(v.room)
	return err
}

// begun counts what a rank of another process was told to write, and returns what waits for its checksum.
func (v *Savers) begun(rank int) func() (uint32, error) {
	w := &v.writes[rank]
	n := w.begun
	w.begun++
	return func() (uint32, error) {
		if n >= len(w.sums) {
			v.collect()
		}
		var file *device.FileError
		switch {
		case errors.As(w.err, &file):
			return 0, w.err
		case n >= len(w.sums):
			return 0, v.session.lost(rank, w.err)
		}
		return w.sums[n], nil
	}
}

// collect waits for what others have begun to write.
func (v *Savers) collect() {
	var all sync.WaitGroup
	for r := range v.writes {
		w := &v.writes[r]
		if w.begun == len(w.sums) || w.err != nil {
			continue
		}
		all.Go(func() {
			sums, err := v.session.Devices[r].(device.Saver).Saved()
			if err == nil && len(w.sums)+len(sums) != w.begun {
				err = fmt.Errorf("%d of %d parts of the checkpoint are written", len(w.sums)+len(sums), w.begun)
			}
			if w.err = err; err == nil {
				w.sums = append(w.sums, sums...)
			}
		})
	}
	all.Wait()
}

// Bytes returns how many bytes each process has written of the latest checkpoint, this one first, without what is read from
// files or put together from several ranks.
func (v *Savers) Bytes() []int64 { return v.bytes }
