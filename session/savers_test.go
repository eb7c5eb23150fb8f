package session

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
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
}

func (e *elsewhere) Info() device.Info { return device.Info{Host: e.host} }

func (e *elsewhere) Shares(string, string) (bool, error) { return !e.without, nil }

func (e *elsewhere) Save(_ int, _ string, offset int64, s device.StateRange) {
	e.begun = append(e.begun, s)
}

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

func (c *counter) Leave(n int64, begin func(file string, offset int64) func() (uint32, error)) error {
	c.left += n
	c.sums = append(c.sums, begin("file", c.written+c.left))
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
		v, without, err := NewSavers(s, "", "")
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
		if v, without, _ := NewSavers(s, "", ""); v != nil || without != "host3" {
			t.Errorf("%v, %q", v, without)
		}
		s.Close()
		check(t, CloseAll(devices))
	}
}
