//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/device/link/loopback"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// smallSlot is the bytes of a slot where blocks are to be small.
const smallSlot = 256

// fabricsOn returns the fabrics of hosts that have the given ranks, joined by connections over the
// loopback interface if there are several. These cut what they exchange into blocks of a slot's bytes.
func fabricsOn(t *testing.T, hosts []int, slot int64) []*Fabric {
	t.Helper()
	n := slices.Max(hosts) + 1
	if n == 1 {
		return []*Fabric{NewFabric(len(hosts))}
	}
	hubs, fabrics := loopback.Hubs(hosts, n), make([]*Fabric, n)
	for i := range hubs {
		fabrics[i] = NewFabricAcross(len(hosts), hubs[i])
		fabrics[i].slot = slot
		t.Cleanup(func() { hubs[i].Close() })
	}
	return fabrics
}

// TestFarCollectives: random calls between ranks of several hosts leave the bits and count the bytes
// that the CPU's ranks do in one process, with and without peer access, on one card of a host and on
// several.
func TestFarCollectives(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	layouts := [][]int{{0, 1}, {0, 1, 2}, {0, 1, 0, 1}, {0, 0, 1, 2, 1, 1, 2, 0}, {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}
	var cases [][2]int // a layout, and whether there is peer access or only one card
	for i := range layouts {
		cases = append(cases, [2]int{i, 0}, [2]int{i, 1}, [2]int{i, 2})
	}
	for _, c := range casesOf(cases, 4) {
		hosts, seed := layouts[c[0]], uint64(c[1])
		if onGPU() && len(hosts) > 4 {
			continue // of a card's 32 queues each has seven
		}
		t.Run(fmt.Sprint(hosts, " ", seed), func(t *testing.T) {
			cards, peers := len(hosts), seed == 0
			if seed == 2 || onGPU() {
				cards = 1
			}
			gpus := ranksAcross(t, asText, hosts, cards, fabricsOn(t, hosts, smallSlot), Options{}, peers, rankArena)
			agreeOn(t, newJoint(seed+100*uint64(c[0]), len(hosts)), gpus)
		})
	}
}

// TestFarOrder: no hosts wait for each other forever, however much more all of them send than the
// network accepts before it is read.
func TestFarOrder(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	hosts := []int{0, 1, 2, 1}
	j := &joint{Rand: rand.New(rand.NewPCG(1, 31)), arena: 96 << 20, calls: make([][]device.Call, len(hosts))}
	for _, op := range []graph.Op{graph.AllGather, graph.AllReduce} {
		j.over(op, graph.F32, []int{0, 1, 2, 3}, []int{3 << 20, 4<<20 + 5, 2 << 20, 0})
	}
	agreeOn(t, j, ranksAcross(t, asText, hosts, 2, fabricsOn(t, hosts, 64<<10), Options{}, true, j.arena))
}

// TestFarLarge: operands larger than all slots together, in rows of any length, arrive whole.
func TestFarLarge(t *testing.T) {
	testkit.Needs(t, testkit.All)
	const half = 16 << 20
	hosts := []int{0, 1}
	gpus := ranksAcross(t, asText, hosts, 1, fabricsOn(t, hosts, slotBytes), Options{}, true, 2*half)
	r := rand.New(rand.NewPCG(1, 30))
	matrix := func(at int64, rows, cols, stride int) device.Operand {
		return device.Operand{DType: graph.BF16, Addr: at, Rows: rows, Cols: cols, Stride: stride}
	}
	for _, m := range [][2]device.Operand{
		{matrix(0, 1, half/2, half/2), matrix(half, 1, half/2, half/2)},
		{matrix(0, 5000, 1001, 1003), matrix(half, 5000, 1001, 1600)},
		{matrix(0, 5000, 1001, 1001), matrix(half, 5000, 1001, 1002)},
		{matrix(6, 3, 2<<20, 2<<20+5), matrix(half, 3, 2<<20, 2<<20)},
		{matrix(2, 9, slotBytes/4+1, slotBytes/4+2), matrix(half+2, 9, slotBytes/4+1, slotBytes/4+1)},
	} {
		image := make([]byte, half)
		for i := range image {
			image[i] = byte(r.Uint32())
		}
		if err := gpus[0].Write(device.DeviceTier, 0, image); err != nil {
			t.Fatal(err)
		}
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

// TestFarStart: a call starts when all its members have arrived, on every host.
func TestFarStart(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	const late = 200 * time.Millisecond
	hosts := []int{0, 1}
	gpus := ranksAcross(t, asText, hosts, 1, fabricsOn(t, hosts, smallSlot), Options{}, true, rankArena)
	spans, errs := make([][]device.Span, 2), make(chan error)
	for k, d := range gpus {
		spans[k] = make([]device.Span, 1)
		n, err := d.Prepare([]device.Call{{Op: graph.AllReduce, Stream: device.Collective, Peers: hosts, Args: []device.Operand{vector(graph.F32, 0, 9)}}}, spans[k])
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Duration(k) * late)
			d.Launch(n)
			errs <- d.Sync()
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	for k, s := range spans {
		if took := s[0].End - s[0].Start; took <= 0 || took > late.Seconds()/2 {
			t.Errorf("rank %d: the call took %v s", k, took)
		}
	}
}

// TestFarMixedUp: ranks that launch their calls in different orders get an error.
func TestFarMixedUp(t *testing.T) {
	hosts := []int{0, 1}
	gpus := ranksAcross(t, asText, hosts, 1, fabricsOn(t, hosts, smallSlot), Options{}, true, rankArena)
	errs := make(chan error)
	for k, d := range gpus {
		var calls []device.Call
		for i := range int64(2) {
			calls = append(calls, device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: hosts, Args: []device.Operand{vector(graph.F32, i<<10, 9)}})
		}
		n, err := d.Prepare(calls, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			d.Launch(n + k)
			d.Launch(n + 1 - k)
			errs <- d.Sync()
		}()
	}
	if err := errors.Join(<-errs, <-errs); err == nil || !strings.Contains(err.Error(), "is at another call") {
		t.Errorf("two calls in different orders: %v", err)
	}
}

// TestSteadyFar: rounds with every kind of call between hosts allocate nothing for what they exchange.
// The fake's procedures do, so they are replaced by ones that do at once what a stream would do.
func TestSteadyFar(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	hosts := []int{0, 1, 1, 0}
	before := runtime.NumGoroutine()
	t.Cleanup(func() { testkit.GoroutinesEnd(t, before) }) // after the devices are closed
	fabrics := fabricsOn(t, hosts, smallSlot)
	var list []*Device
	for r, host := range hosts {
		driver := fake.New().Driver()
		atOnce(driver)
		list = append(list, opened(t, &Libraries{Driver: driver, Compiler: fake.Compiler{}}, Options{Untimed: true, Fabric: fabrics[host], Rank: r}, []int64{1 << 16}))
	}
	starts, ends := make([]chan bool, len(hosts)), make(chan error)
	for k, d := range list {
		everybody, other := []int{0, 1, 2, 3}, k^1
		whole, part := vector(graph.F32, 0, 2048), vector(graph.F32, int64(2048*k), 512)
		messages := []device.Call{
			{Op: graph.Send, Stream: device.Send, Peers: []int{other}, Tag: 1, Args: []device.Operand{whole}},
			{Op: graph.Recv, Stream: device.Recv, Peers: []int{other}, Tag: 1, Args: []device.Operand{vector(graph.F32, 1<<14, 2048)}},
		}
		if k > other { // since here a stream's wait keeps the worker
			slices.Reverse(messages)
		}
		n, err := d.Prepare(append(messages,
			device.Call{Op: graph.AllGather, Stream: device.Collective, Peers: everybody, Args: []device.Operand{whole, part}},
			device.Call{Op: graph.ReduceScatter, Stream: device.Collective, Peers: everybody, Args: []device.Operand{part, whole}},
			device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: everybody, Args: []device.Operand{whole}},
		), nil)
		if err != nil {
			t.Fatal(err)
		}
		starts[k] = make(chan bool)
		go func() {
			for range starts[k] {
				for i := range 5 {
					d.Launch(n + i)
				}
				ends <- d.Sync()
			}
		}()
	}
	per := testing.AllocsPerRun(20, func() {
		for _, c := range starts {
			c <- true
		}
		for range starts {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
	})
	for _, c := range starts {
		close(c)
	}
	if blocks := list[0].ferry.blocks.Load() / 21; per > 16 || blocks < 100 { // four for the tasks that end a rank's round
		t.Errorf("%v allocations per round of %d blocks", per, blocks)
	}
}

// atOnce makes a driver do at once what a step needs.
func atOnce(driver *nv.Driver) {
	none := func(...uintptr) int32 { return 0 }
	for _, p := range []*nv.Proc{&driver.LaunchKernel, &driver.MemcpyPeerAsync, &driver.EventRecord, &driver.EventSynchronize, &driver.StreamSynchronize} {
		*p = none
	}
	word := func(p uintptr) *atomic.Uint32 { return *(**atomic.Uint32)(unsafe.Pointer(&p)) }
	memory := func(p, n uintptr) []byte { return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), n) }
	driver.MemcpyAsync = func(a ...uintptr) int32 {
		copy(memory(a[0], a[2]), memory(a[1], a[2]))
		return 0
	}
	driver.StreamWriteValue32 = func(a ...uintptr) int32 {
		word(a[1]).Store(uint32(a[2]))
		return 0
	}
	driver.StreamWaitValue32 = func(a ...uintptr) int32 {
		for int32(word(a[1]).Load()-uint32(a[2])) < 0 {
			runtime.Gosched()
		}
		return 0
	}
}
