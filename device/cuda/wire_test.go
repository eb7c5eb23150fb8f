//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// wiredRanks returns joined devices by rank, on the given hosts, that exchange bytes over a fake NCCL. If faultless, that must
// find no fault in the end.
func wiredRanks(t *testing.T, c *fake.Cluster, hosts []int, faultless bool, arena int64) []*Device {
	t.Helper()
	t.Cleanup(func() { // after the devices are closed
		if err := c.Faults(); err != nil && faultless {
			t.Error(err)
		}
	})
	fabrics := fabricsOn(t, hosts, smallSlot)
	libs := make([]*Libraries, len(fabrics))
	for i, f := range fabrics {
		g := fake.New()
		g.Cards = len(hosts)
		libs[i] = &Libraries{Driver: g.Driver(), Compiler: asText(t, g, false)}
		f.UseNCCL(c.NCCL(g))
		t.Cleanup(func() {
			if err := errors.Join(g.Failure(), g.Leaks()); err != nil {
				t.Error(err)
			}
		})
	}
	var arenas []int64 // none: the user of the devices has them reserved
	if arena > 0 {
		arenas = []int64{arena}
	}
	var list []*Device
	for r, host := range hosts {
		list = append(list, opened(t, libs[host], Options{Rank: r, Fabric: fabrics[host], Index: r}, arenas))
	}
	return list
}

// TestWires: random calls over NCCL leave the bits and count the bytes that the CPU's ranks do in one process, between ranks
// that are each alone on a host and between several of them; the library finds no fault.
func TestWires(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	layouts := [][]int{{0, 1, 0, 1}, {0, 1}, {0, 1, 2}, {0, 0, 1, 2, 1, 1, 2, 0}, {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}
	for i, hosts := range testkit.Sample(layouts, 1, 2) {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			c := fake.NewCluster()
			agreeOn(t, newJoint(uint64(40+i), len(hosts)), wiredRanks(t, c, hosts, true, rankArena))
			if n := c.Moves(); n[0] == 0 || n[2] == 0 {
				t.Errorf("%v transfers, gathers and communicators", n)
			}
		})
	}
}

// TestWiredRounds: sums in several rounds, of parts of different lengths, some of which are empty, have the bits of one
// process; gathers of equal parts between hosts with several ranks are the library's.
func TestWiredRounds(t *testing.T) {
	testkit.Needs(t, testkit.All)
	hosts := []int{0, 1, 0, 1}
	j := &joint{Rand: rand.New(rand.NewPCG(1, 32)), arena: 64 << 20, calls: make([][]device.Call, len(hosts))}
	j.over(graph.ReduceScatter, graph.F32, []int{0, 1, 2, 3}, []int{1 << 20, 1<<20 + 5, 0, 9})
	j.over(graph.AllReduce, graph.F32, []int{0, 1, 2, 3}, []int{1 << 20, 0, 0, 0})
	j.over(graph.AllGather, graph.F32, []int{0, 1, 2, 3}, []int{5, 5, 5, 5})
	c := fake.NewCluster()
	agreeOn(t, j, wiredRanks(t, c, hosts, true, j.arena))
	if n := c.Moves(); n[1] < 16 { // each member's first exchange, and the calls in two rounds
		t.Errorf("%v transfers, gathers and communicators", n)
	}
}

// TestWiredSwap: blocks of an all_to_all that are packed in several rounds arrive whole, whether they have many rows or one
// that is longer than what is packed at once.
func TestWiredSwap(t *testing.T) {
	testkit.Needs(t, testkit.All)
	for _, c := range [][2]int{{600, 2003}, {1, 1<<20 + 5}} {
		chunk, cols := c[0], c[1]
		j := &joint{Rand: rand.New(rand.NewPCG(1, 34)), arena: 160 << 20, calls: make([][]device.Call, 4)}
		for r := range j.calls {
			matrix := func(rows, cols int) device.Operand {
				o := j.flat(graph.BF16, rows*(cols+3))
				o.Rows, o.Cols, o.Stride = rows, cols, cols+3
				return o
			}
			args := []device.Operand{matrix(8*chunk, cols), matrix(2*chunk, 4*cols)}
			j.calls[r] = []device.Call{{Op: graph.AllToAll, Stream: device.Collective, Peers: []int{0, 1, 2, 3}, Args: args}}
		}
		agreeOn(t, j, wiredRanks(t, fake.NewCluster(), []int{0, 1, 0, 1}, true, j.arena))
	}
}

// TestWiredGaps: rows with gaps between them arrive whole, whichever side has gaps, also where not even one row can be
// packed at once.
func TestWiredGaps(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const half = 36 << 20
	gpus := wiredRanks(t, fake.NewCluster(), []int{0, 1}, true, 2*half)
	matrix := func(at int64, rows, cols, stride int) device.Operand {
		return device.Operand{DType: graph.BF16, Addr: at, Rows: rows, Cols: cols, Stride: stride}
	}
	image := make([]byte, half)
	for i, r := 0, rand.New(rand.NewPCG(1, 33)); i < len(image); i++ {
		image[i] = byte(r.Uint32())
	}
	if err := gpus[0].Write(device.DeviceTier, 0, image); err != nil {
		t.Fatal(err)
	}
	for _, m := range [][2]device.Operand{
		{matrix(0, 5000, 1001, 1003), matrix(half, 5000, 1001, 1001)},
		{matrix(0, 5000, 1001, 1001), matrix(half, 5000, 1001, 1002)},
		{matrix(6, 3, packBytes/2+7, packBytes/2+9), matrix(half, 3, packBytes/2+7, packBytes/2+8)},
	} {
		errs := round(t, []device.Device{gpus[0], gpus[1]}, [][]device.Call{
			{{Op: graph.Send, Stream: device.Send, Peers: []int{1}, Tag: 1, Args: m[:1]}},
			{{Op: graph.Recv, Stream: device.Recv, Peers: []int{0}, Tag: 1, Args: m[1:]}},
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, m[1].End()-m[1].Addr)
		if err := gpus[1].Read(device.DeviceTier, m[1].Addr, got); err != nil {
			t.Fatal(err)
		}
		for row := range m[0].Rows {
			if !bytes.Equal(got[2*row*m[1].Stride:][:2*m[1].Cols], image[int(m[0].Addr)+2*row*m[0].Stride:][:2*m[0].Cols]) {
				t.Fatalf("row %d of %v comes as other bytes", row, m[0])
			}
		}
	}
}

// TestWireLost: when a rank fails at any moment, or its connections end, all others end with an error that names a rank
// elsewhere, although their streams wait for it in the library; later rounds fail too, and everything is given back.
func TestWireLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	broken := errors.New("switched off")
	for seed := range uint64(testkit.Count(1, 2, 20)) {
		for _, hosts := range [][]int{{0, 1}, {0, 1, 2, 1}} {
			r := rand.New(rand.NewPCG(seed, 6))
			victim := r.IntN(len(hosts))
			gpus := wiredRanks(t, fake.NewCluster(), hosts, true, rankArena)
			end := func() { gpus[victim].Abort(broken) }
			if seed%2 == 1 {
				end = func() { gpus[victim].options.Fabric.hub.Close() }
			}
			for k, err := range until(t, gpus, victim, r.IntN(5), end) {
				var lost *device.PeerError
				if k != victim && !errors.As(err, &lost) {
					t.Errorf("rank %d of %v says of rank %d %v", k, hosts, victim, err)
				}
			}
		}
	}
}

// TestWireFaults: the fake finds what wires must not do: other sizes, another order, a member that does not come, one that
// comes twice, two of one card, and use after the end.
func TestWireFaults(t *testing.T) {
	g := fake.New()
	g.Cards = 2
	d, c := g.Driver(), fake.NewCluster()
	c.Patience = 0
	lib := c.NCCL(g)
	first, err := opened(t, &Libraries{Driver: d, Compiler: fake.Compiler{}}, Options{}, []int64{1 << 12}), error(nil)
	id, err := lib.Draw()
	if err != nil {
		t.Fatal(err)
	}
	try := func(f func() error) error { return first.work.do(f) }
	if err := try(func() error { _, err := lib.Join(id, 0, 2); return err }); err == nil {
		t.Error("one of two has joined alone")
	}
	for _, wrong := range []func() error{
		func() error { _, err := lib.Join(id, 0, 2); return err },
		func() error { _, err := lib.Join(id, 1, 2); return err },
		func() error { _, err := lib.Join(&nv.UniqueID{9}, 0, 1); return err },
		func() error {
			alone, err := lib.Draw()
			if err != nil {
				return err
			}
			comm, err := lib.Join(alone, 0, 1)
			if err != nil {
				return err
			}
			at, s := first.arenas.memory, first.work.streams[0]
			if lib.AllGather(at, at, 0, nv.NCCLBytes, comm, s) == nv.Success || lib.AllGather(at, at, 1<<13, nv.NCCLBytes, comm, s) == nv.Success ||
				lib.Send(at, 1, nv.NCCLBytes, 0, comm, s) == nv.Success {
				t.Error("nothing, too much, or something to itself was moved")
			}
			return errors.Join(lib.Check("abort", lib.Abort(comm)), lib.Check("use", lib.AllGather(at, at, 8, nv.NCCLBytes, comm, s)))
		},
	} {
		if err := try(wrong); err == nil {
			t.Error("a fault is none")
		}
	}
	if c.Faults() == nil {
		t.Error("faults are not listed")
	}
}

// TestRealWire: on a GPU, the real library makes a communicator of one member, gathers its bytes on a stream of ours, has met
// no error, and ends.
func TestRealWire(t *testing.T) {
	if !onGPU() {
		t.Skip("needs a GPU")
	}
	lib, err := FindNCCL()
	if err != nil || lib == nil {
		t.Skip(err)
	}
	d, _ := machine(t, Options{}, 1<<16)
	want := bytes.Repeat([]byte("athanor "), 1<<10)
	if err := d.Write(device.DeviceTier, 0, want); err != nil {
		t.Fatal(err)
	}
	err = d.work.do(func() error {
		id, err := lib.Draw()
		if err != nil {
			return err
		}
		comm, err := lib.Join(id, 0, 1)
		if err != nil {
			return err
		}
		at, s := d.arenas.memory, d.work.streams[device.Collective]
		return errors.Join(
			lib.Check("ncclAllGather", lib.AllGather(at, at+1<<15, uintptr(len(want)), nv.NCCLBytes, comm, s)),
			d.driver.Check("cuStreamSynchronize", d.driver.StreamSynchronize(s)),
			lib.Wrong(comm), lib.Check("ncclCommDestroy", lib.Destroy(comm)))
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := d.Read(device.DeviceTier, 1<<15, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes are gathered, or %v", err)
	}
}
