package session

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
)

// elsewhere is a device of another process, as far as saving goes: it notes what it is to write.
type elsewhere struct {
	*cpu.Device
	host    string
	without bool // it does not see the run's folder
	begun   []device.StateRange
	fails   error
	arenas  *exec.Arenas
	dir     string
	read    int64 // bytes
	drawn   int
}

func (e *elsewhere) Info() device.Info { return device.Info{Host: e.host} }

func (e *elsewhere) Shares(string, string) (bool, error) { return !e.without, nil }

var _ device.Saver = (*elsewhere)(nil)

func (e *elsewhere) Save(_ int, name string, b device.FileBlock, s device.StateRange) {
	e.begun = append(e.begun, s)
	if e.arenas == nil {
		return
	}
	if b.Runs == nil {
		b.Bytes, b.Runs = int64(s.Bytes()), []device.Run{{At: 0, N: s.N}}
	}
	values := make([]byte, s.Bytes())
	file, err := os.OpenFile(filepath.Join(e.dir, name), os.O_WRONLY, 0)
	if err = errors.Join(err, e.arenas.ReadState(s, values)); err == nil {
		_, err = b.Write(file, values, int(s.As.Size()))
	}
	e.fails = errors.Join(e.fails, err, file.Close())
}

func (e *elsewhere) Fill(_ int, file string, offset int64, s device.StateRange) {
	text, err := os.ReadFile(filepath.Join(e.dir, file))
	if err == nil {
		err = e.arenas.WriteState(s, text[offset:][:s.Bytes()])
	}
	e.read, e.fails = e.read+int64(s.Bytes()), errors.Join(e.fails, err)
}

func (e *elsewhere) Draw(_ int, from device.Beginning, s device.StateRange) {
	e.drawn, e.fails = e.drawn+s.N, errors.Join(e.fails, DrawState(e.arenas, s, from))
}

func (e *elsewhere) Sum(string, int64, int64) {}

func (e *elsewhere) Saved() ([]uint32, error) {
	sums := make([]uint32, len(e.begun))
	e.begun = nil
	return sums, e.fails
}

// counter is a file whose bytes are counted; the others' are waited for at the end.
type counter struct {
	written, left int64
	sums          []func() (uint32, error)
}

func (c *counter) Write(p []byte) (int, error) {
	c.written += int64(len(p))
	return len(p), nil
}

func (c *counter) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (c *counter) Leave(n int64, begin ...func(file string, offset int64) func() (uint32, error)) error {
	c.left += n
	for _, b := range begin {
		c.sums = append(c.sums, b("file", c.written+c.left))
	}
	return nil
}

func (c *counter) close() error {
	for _, sum := range c.sums {
		if _, err := sum(); err != nil {
			return err
		}
	}
	return nil
}

// TestSavers: of a checkpoint of four processes each writes what it holds, together all of it, and replicas no more than a quarter
// and 5 % each; a process that fails to write fails the checkpoint, and the next
// one succeeds; and one that does not see the run's folder is named.
func TestSavers(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	for _, shard := range testkit.Sample(plan.Shardings(), 1, 2) {
		pl := plan.Plain(f.graph, 1)
		pl.Ranks, pl.MicroBatches = 4, 1
		for i := range pl.Chunks {
			pl.Chunks[i].Shard = shard
		}
		pl.Cache = pl.CacheNeeded(f.graph)
		devices := cpu.OpenRanks(cpu.Options{Workers: 1}, 4)
		var others []*elsewhere
		for r := 1; r < 4; r++ {
			e := &elsewhere{Device: devices[r].(*cpu.Device), host: fmt.Sprint("host", r)}
			devices[r], others = e, append(others, e)
		}
		s, err := Open(f.graph, devices, f.lower(t, pl))
		check(t, err)
		check(t, s.Load(f.read))
		dir := t.TempDir()
		check(t, os.WriteFile(dir+"/file", nil, 0o644))
		v, without, err := NewSavers(s, dir, "file")
		check(t, err)
		if v == nil || without != "" {
			t.Fatalf("%v, %q", v, without)
		}
		save := func() error {
			var c counter
			sum := int64(0)
			all := int64(0)
			for _, p := range f.graph.Params {
				all += 4 * p.Elems() * int64(len(optimizer.AdamW.Rule().State()))
			}
			check(t, v.Begin(t.Context(), all))
			for _, kind := range optimizer.AdamW.Rule().State() {
				for i, p := range f.graph.Params {
					check(t, v.Write(&c, device.StateRange{Param: i, Kind: kind, As: graph.F32, N: int(p.Elems())}))
				}
			}
			err := c.close()
			if err == nil && c.written+c.left != all {
				t.Errorf("%s: %d bytes of %d", shard, c.written+c.left, all)
			}
			for p, n := range v.Bytes() { // what only one has, it must write
				if float64(n) > 1.05/4*float64(all) && shard == "" {
					t.Errorf("process %d writes %d bytes of %d", p, n, all)
				}
				sum += n
			}
			if sum != all {
				t.Errorf("%s: %d bytes are counted of %d", shard, sum, all)
			}
			return err
		}
		check(t, save())
		others[1].fails = fmt.Errorf("disk full")
		if err := save(); err == nil {
			t.Error("a process that fails is not missed")
		}
		others[1].fails = nil
		check(t, save())
		others[2].without = true
		if v, without, _ := NewSavers(s, dir, "file"); v != nil || without != "host3" {
			t.Errorf("%v, %q", v, without)
		}
		s.Close()
		check(t, CloseAll(devices))
	}
}

// TestFill: four processes that read their parameters from a file by themselves, or draw them, each what it has of them, in fp32 and in
// bf16, have what they would have been sent, replicas and owners of parts alike.
func TestFill(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	f := load(t, filepath.Join("../testdata/torch", "gpt2-untied", "config.json"))
	for _, shard := range testkit.Sample(plan.Shardings(), 1, 2) {
		for _, as := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
			pl := plan.Plain(f.graph, 1)
			pl.Ranks, pl.MicroBatches = 4, 1
			for i := range pl.Chunks {
				pl.Chunks[i].Shard = shard
			}
			pl.Cache = pl.CacheNeeded(f.graph)
			devices, ps := cpu.OpenRanks(cpu.Options{Workers: 1}, 4), f.lower(t, pl)
			var others []*elsewhere
			for r := 1; r < 4; r++ {
				e := &elsewhere{Device: devices[r].(*cpu.Device), host: fmt.Sprint("host", r)}
				devices[r], others = e, append(others, e)
			}
			s, err := Open(f.graph, devices, ps)
			check(t, err)
			dir := t.TempDir()
			for i, e := range others {
				e.arenas, err = exec.NewArenas(ps[i+1], e.Device)
				check(t, err)
				e.dir = dir
			}
			values := map[string][]float32{}
			var list []safetensors.Tensor
			for _, p := range f.graph.Params {
				values[p.Name] = make([]float32, p.Elems())
				Initial(p, 7, 0, values[p.Name])
				list = append(list, safetensors.Float32s(p.Name, as, []int{int(p.Elems())}, values[p.Name]))
			}
			err = safetensors.WriteSet(func(name string) (io.WriteCloser, error) { return os.Create(filepath.Join(dir, name)) }, "model", 0, nil, list)
			check(t, err)
			set, err := safetensors.OpenFolder(dir)
			check(t, err)
			v, _, err := NewSavers(s, dir, "model.safetensors")
			check(t, err)
			read := func(p model.Param, first int, dst []float32) error { return set.ReadFloat32(p.Name, first, dst) }
			check(t, NewLoader(s, v).Load(func(p model.Param) Supply {
				from := Supply{Read: func(first int, dst []float32) error { return read(p, first, dst) }}
				if from.Drawn, from.Seed = as == safetensors.F32 && p.Name == f.graph.Params[0].Name, 7; !from.Drawn {
					from.Places = func(first, n int) []safetensors.Place {
						place, ok := set.Place(p.Name, first, n)
						if !ok {
							t.Fatal("no place")
						}
						return []safetensors.Place{place}
					}
				}
				return from
			}))
			for i, p := range f.graph.Params {
				want, got := make([]float32, p.Elems()), make([]float32, p.Elems())
				check(t, read(p, 0, want))
				for r := range 4 {
					clear(got)
					e := s.ranks[r].engines[0]
					check(t, e.ReadHome(i, optimizer.Weights, 0, got))
					for _, part := range e.Parts(i, optimizer.Weights) {
						if !slices.Equal(want[part[0]:part[1]], got[part[0]:part[1]]) {
							t.Fatalf("%q, %s, %s: rank %d has other elements %v", shard, as, p.Name, r, part)
						}
					}
				}
			}
			for i, e := range others {
				if e.read == 0 || shard == "" && (e.drawn == 0) != (as == safetensors.BF16) {
					t.Errorf("process %d reads %d bytes and draws %d numbers", i+1, e.read, e.drawn)
				}
			}
			check(t, set.Close())
			s.Close()
			check(t, CloseAll(devices))
		}
	}
}

// dividedFile is a file of which other processes write parts.
type dividedFile struct {
	*os.File
	at int64
}

func (f *dividedFile) Write(p []byte) (int, error) {
	n, err := f.WriteAt(p, f.at)
	f.at += int64(n)
	return n, err
}

func (f *dividedFile) Leave(n int64, begin ...func(file string, offset int64) func() (uint32, error)) error {
	for _, b := range begin {
		b("file", f.at)
	}
	f.at += n
	return nil
}

// TestSaversDivided: of parameters that ranks divide, by rows or columns, and of those that files order head by head, each process writes
// its own elements, under drawn plans; together they are those that are read through one process, whole and part by part.
func TestSaversDivided(t *testing.T) {
	r := testkit.Rand(t)
	names := slices.DeleteFunc(slices.Clone(slabNames), func(name string) bool { return strings.Contains(name, "lora") })
	forms := [3]int{} // by columns, in another order, by rows
	for _, name := range append([]string{"gpt2-tiny", "neox-tiny"}, testkit.Sample(names, 2, 40)...) {
		one, n := slabCase(t, r, name)
		f := one.slabs(t, n)
		pl := f.inGroups(r, n)
		devices, ps := cpu.OpenRanks(cpu.Options{Workers: 1}, pl.Ranks), f.lower(t, pl)
		dir := t.TempDir()
		for i := 1; i < pl.Ranks; i++ {
			e := &elsewhere{Device: devices[i].(*cpu.Device), host: fmt.Sprint("host", i), dir: dir}
			var err error
			e.arenas, err = exec.NewArenas(ps[i], e.Device)
			check(t, err)
			devices[i] = e
		}
		s, err := Open(f.graph, devices, ps)
		check(t, err)
		check(t, s.Load(f.read))
		check(t, os.WriteFile(dir+"/file", nil, 0o644))
		v, _, err := NewSavers(s, dir, "file")
		check(t, err)
		all := int64(0)
		for _, p := range f.graph.Params {
			all += 4 * p.Elems()
		}
		check(t, v.Begin(t.Context(), all))
		for i, p := range f.graph.Params {
			slab, divided := f.graph.Slab(i)
			if !(divided || p.Reordered()) || !WrittenApart(f.graph, i) {
				if divided && !p.Reordered() {
					t.Errorf("%s: %s is put together", name, p.Name)
				}
				continue
			}
			switch {
			case divided && !slab.InRuns():
				forms[0]++
			case p.Reordered():
				forms[1]++
			default:
				forms[2]++
			}
			file, err := os.OpenFile(dir+"/file", os.O_RDWR|os.O_TRUNC, 0)
			check(t, err)
			to := &dividedFile{File: file}
			cut := r.IntN(int(p.Elems()))
			before := slices.Clone(v.Bytes())
			for _, part := range [][2]int{{0, cut}, {cut, int(p.Elems()) - cut}} {
				check(t, v.WriteDivided(to, device.StateRange{Param: i, As: graph.F32, First: part[0], N: part[1]}))
			}
			want := make([]float32, p.Elems())
			check(t, s.Read(i, optimizer.Weights, want))
			var text bytes.Buffer
			check(t, safetensors.WriteFloat32(&text, safetensors.F32, want))
			if got, err := os.ReadFile(dir + "/file"); err != nil || !bytes.Equal(got, text.Bytes()) {
				t.Errorf("%s, %d ranks: %s differs, %v", name, pl.Ranks, p.Name, err)
			}
			given := int64(0)
			for p := range before {
				given += v.Bytes()[p] - before[p]
			}
			if given > 4*p.Elems() {
				t.Errorf("%s: %d bytes of %s are given, which has %d", name, given, p.Name, 4*p.Elems())
			}
			check(t, file.Close())
		}
		s.Close()
		check(t, CloseAll(devices))
	}
	if slices.Contains(forms[:], 0) {
		t.Errorf("parameters by columns, in another order, by rows: %v", forms)
	}
}

// onFour opens a fixture on four processes, as replicas or with parts of what they would else have several times.
func (f *fixture) onFour(t *testing.T, shard string) (*Session, *Savers) {
	t.Helper()
	pl := plan.Plain(f.graph, 1)
	pl.Ranks, pl.MicroBatches = 4, 1
	for i := range pl.Chunks {
		pl.Chunks[i].Shard = shard
	}
	pl.Cache = pl.CacheNeeded(f.graph)
	devices := cpu.OpenRanks(cpu.Options{Workers: 1}, 4)
	for r := 1; r < 4; r++ {
		devices[r] = &elsewhere{Device: devices[r].(*cpu.Device), host: fmt.Sprint("host", r)}
	}
	s, err := Open(f.graph, devices, f.lower(t, pl))
	check(t, err)
	t.Cleanup(func() {
		s.Close()
		check(t, CloseAll(devices))
	})
	check(t, s.Load(f.read))
	dir := t.TempDir()
	check(t, os.WriteFile(dir+"/file", nil, 0o644))
	v, _, err := NewSavers(s, dir, "file")
	check(t, err)
	return s, v
}

// TestSaversEven: of four processes, two of which share each matrix, and two of which are replicas, none writes more of a checkpoint than
// it must and 5 %. With replicas that is a quarter. Owners of parts are unequal in small models: what only some of the processes have
// is divided by their number at best, and by Hall's theorem nothing else is in the way.
func TestSaversEven(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, name := range []string{"llama-tiny", "gpt2-tiny even", "neox-tiny"} {
		for _, shard := range plan.Shardings() {
			one := load(t, filepath.Join("../testdata/torch", strings.Fields(name)[0], "config.json"))
			if strings.HasSuffix(name, "even") { // tokens are divided, too
				one.evenVocabulary(t)
			}
			f := one.slabs(t, 2)
			s, v := f.onFour(t, shard)
			all, sum := int64(0), int64(0)
			for _, p := range f.graph.Params {
				all += 4 * p.Elems() * int64(len(optimizer.AdamW.Rule().State()))
			}
			check(t, v.Begin(t.Context(), all))
			var c counter
			var had [1 << 4]int64
			for _, kind := range optimizer.AdamW.Rule().State() {
				for i, p := range f.graph.Params {
					write := v.WriteDivided
					if InParts(f.graph, i) {
						write = v.Write
					}
					check(t, write(&c, device.StateRange{Param: i, Kind: kind, As: graph.F32, N: int(p.Elems())}))
					s.countHolders(i, kind, had[:])
				}
			}
			check(t, c.close())
			best := fewest(had[:])
			for p, n := range v.Bytes() {
				sum += n
				if float64(n) > 1.05*best || shard == "" && float64(n) > 1.05/4*float64(all) {
					t.Errorf("%s, %q: process %d of %v bytes writes %d of %d, at best %.0f", name, shard, p, v.Bytes(), n, all, best)
				}
			}
			if sum != all || c.written+c.left != all {
				t.Errorf("%s, %q: %d and %d bytes of %d", name, shard, sum, c.written+c.left, all)
			}
		}
	}
}

// fewest returns how many bytes the process that writes most has to write, if that is as few as can be, of as many as each set of processes has.
func fewest(had []int64) (best float64) {
	for set := 1; set < len(had); set++ {
		only := int64(0) // that no other process has
		for of, n := range had {
			if of&^set == 0 {
				only += n
			}
		}
		best = max(best, float64(only)/float64(bits.OnesCount(uint(set))))
	}
	return best
}

// countHolders adds the bytes of a parameter's state to those of the sets of ranks that have them, whose bits are the ranks'.
func (s *Session) countHolders(param int, kind optimizer.Kind, bytes []int64) {
	slab, divided := s.Graph.Slab(param)
	holders := make([]map[int]int, max(slab.Parts, 1)) // by slab and element
	for r := range s.ranks {
		k := 0
		if divided {
			k = slab.Of(r)
		}
		if holders[k] == nil {
			holders[k] = map[int]int{}
		}
		for _, part := range s.ranks[r].engines[0].Parts(param, kind) {
			for i := part[0]; i < part[1]; i++ {
				holders[k][i] |= 1 << r
			}
		}
	}
	for _, of := range holders {
		for _, set := range of {
			bytes[set] += 4
		}
	}
}
