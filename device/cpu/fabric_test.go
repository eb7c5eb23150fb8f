package cpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/internal/testkit"
)

const fabricArena = 1 << 21

func newFabric(t *testing.T, n int, o Options) []*Device {
	t.Helper()
	return joined(t, make([]int, n), o)
}

// joined returns devices by rank, on the given hosts: in a fabric for each.
func joined(t *testing.T, hosts []int, o Options) []*Device {
	t.Helper()
	fabrics := fabricsOn(t, hosts)
	list := make([]*Device, len(hosts))
	for r := range list {
		o.Rank, o.Fabric = r, fabrics[hosts[r]]
		list[r] = New(o)
		if err := list[r].Reserve(device.DeviceTier, fabricArena); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, d := range list {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return list
}

// together runs the calls of each rank in one round and returns the errors.
func together(t *testing.T, list []*Device, calls [][]device.Call) []error {
	t.Helper()
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for r, d := range list {
		first, err := d.Prepare(calls[r], nil)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for i := range calls[r] {
				d.Launch(first + i)
			}
			errs[r] = d.Sync()
		})
	}
	all.Wait()
	return errs
}

func vector(dt graph.DType, addr int64, n int) device.Operand {
	if n == 0 {
		return device.Operand{}
	}
	return device.Operand{DType: dt, Addr: addr, Rows: 1, Cols: n, Stride: n}
}

// The oracle's memory of a rank is numbers at addresses, which it reads and
// writes as float64; f32 sums are rounded after each addition.
func get(t *testing.T, d *Device, o device.Operand) []float64 {
	t.Helper()
	if o.Absent() {
		return nil
	}
	b := make([]byte, o.Bytes())
	if err := d.Read(o.Tier, o.Addr, b); err != nil {
		t.Fatal(err)
	}
	list := make([]float64, o.Rows*o.Cols)
	for i := range list {
		switch o.DType {
		case graph.F32:
			list[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		case graph.F64:
			list[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		case graph.BF16:
			list[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
		}
	}
	return list
}

// scramble fills an operand with numbers whose sum in any other order rounds differently.
func scramble(t *testing.T, r *rand.Rand, d *Device, o device.Operand) {
	t.Helper()
	b := make([]byte, o.Bytes())
	for i := range o.Rows * o.Cols {
		x := r.NormFloat64() * math.Exp(3*r.NormFloat64())
		switch o.DType {
		case graph.F32:
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(x)))
		case graph.F64:
			binary.LittleEndian.PutUint64(b[8*i:], math.Float64bits(x))
		case graph.BF16:
			binary.LittleEndian.PutUint16(b[2*i:], uint16(math.Float32bits(float32(x))>>16))
		}
	}
	if !o.Absent() {
		if err := d.Write(o.Tier, o.Addr, b); err != nil {
			t.Fatal(err)
		}
	}
}

func plus(dt graph.DType, a, b float64) float64 {
	if dt != graph.F64 {
		return float64(float32(a) + float32(b))
	}
	return a + b
}

// group picks some of n ranks, ascending.
func group(r *rand.Rand, n int) (list []int) {
	for len(list) == 0 {
		for k := range n {
			if r.IntN(4) > 0 {
				list = append(list, k)
			}
		}
	}
	return list
}

// lengths of parts: uneven, often empty, now and then more than a worker's task.
func lengths(r *rand.Rand, n int) (list []int, total int) {
	for range n {
		k := 0
		switch r.IntN(5) {
		case 0:
		case 1:
			k = 1 + r.IntN(3)
		case 2:
			k = r.IntN(30_000 / n)
		default:
			k = r.IntN(300)
		}
		list = append(list, k)
		total += k
	}
	if total == 0 {
		list[0], total = 5, 5
	}
	return list, total
}

// TestCollectives: gathers, scatters and sums are, bit for bit, what plain loops in the order of the
// group compute, for groups of any size within up to eight ranks, with uneven and empty parts, in place
// and not; and the devices count the bytes.
func TestCollectives(t *testing.T) {
	for _, hosts := range [][]int{{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}, {0, 1}, {0, 1, 2}, {0, 1, 0, 1}, {0, 0, 1, 2, 1, 1, 2, 0}} {
		n := len(hosts)
		list := joined(t, hosts, Options{Workers: 2})
		for seed := range uint64(25) {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			peers := group(r, n)
			name := fmt.Sprintf("ranks on hosts %v, seed %d, group %v", hosts, seed, peers)
			dt := []graph.DType{graph.F32, graph.F64, graph.BF16}[r.IntN(3)]
			parts, total := lengths(r, len(peers))
			before := received(list)
			var want int64
			switch op := []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce, graph.AllToAll}[r.IntN(4)]; {
			case op == graph.AllToAll:
				want = checkCrossing(t, name, r, list, peers, dt)
			case op == graph.AllGather || op == graph.ReduceScatter && dt == graph.BF16:
				checkGather(t, name, r, list, peers, dt, parts, total)
				want = int64(total*(len(peers)-1)) * dt.Size()
			case op == graph.ReduceScatter:
				checkScatter(t, name, r, list, peers, dt, parts, total)
				want = int64(total*(len(peers)-1)) * dt.Size()
			default:
				checkReduce(t, name, r, list, peers, dt, total)
				want = 2 * int64(total*(len(peers)-1)) * dt.Size()
			}
			if got := received(list) - before; got != want {
				t.Errorf("%s: %d bytes received, want %d", name, got, want)
			}
		}
	}
}

func received(list []*Device) (sum int64) {
	for _, d := range list {
		for _, n := range d.Stats().Network {
			sum += n
		}
	}
	return sum
}

// everyone runs one call on each member of a group.
func everyone(t *testing.T, name string, list []*Device, peers []int, call func(k int) device.Call) {
	t.Helper()
	members, calls := make([]*Device, len(peers)), make([][]device.Call, len(peers))
	for k, rank := range peers {
		c := call(k)
		c.Stream, c.Peers = device.Collective, peers
		members[k], calls[k] = list[rank], []device.Call{c}
	}
	if err := errors.Join(together(t, members, calls)...); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func same(t *testing.T, name string, got, want []float64) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: element %d is %v, want %v", name, i, got[i], want[i])
		}
	}
}

func checkGather(t *testing.T, name string, r *rand.Rand, list []*Device, peers []int, dt graph.DType, parts []int, total int) {
	t.Helper()
	dst, src := make([]device.Operand, len(peers)), make([]device.Operand, len(peers))
	var want []float64
	at := 0
	for k, rank := range peers {
		dst[k] = vector(dt, int64(r.IntN(9))*8, total)
		src[k] = vector(dt, fabricArena/2, parts[k])
		if r.IntN(2) == 0 && parts[k] > 0 { // its own place
			src[k].Addr = dst[k].Addr + int64(at)*dt.Size()
		}
		scramble(t, r, list[rank], dst[k])
		scramble(t, r, list[rank], src[k])
		want = append(want, get(t, list[rank], src[k])...)
		at += parts[k]
	}
	everyone(t, name, list, peers, func(k int) device.Call {
		return device.Call{Op: graph.AllGather, Args: []device.Operand{dst[k], src[k]}}
	})
	for k, rank := range peers {
		same(t, fmt.Sprintf("%s: all_gather on rank %d", name, rank), get(t, list[rank], dst[k]), want)
	}
}

// checkCrossing exchanges rows for columns, of which several members may take the same, or columns for rows, in operands with gaps between their
// rows, and returns the bytes that are received.
func checkCrossing(t *testing.T, name string, r *rand.Rand, list []*Device, peers []int, dt graph.DType) int64 {
	t.Helper()
	n, chunk, cols := len(peers), 1+r.IntN(5), 1+r.IntN(40)
	groups := n / []int{1, 2 - n%2, n}[r.IntN(3)]
	back := groups == n && r.IntN(2) == 0
	matrix := func(addr int64, rows, cols int) device.Operand {
		return device.Operand{DType: dt, Addr: addr, Rows: rows, Cols: cols, Stride: cols + r.IntN(4)}
	}
	rows, columns := make([]device.Operand, n), make([]device.Operand, n)
	read := func(k int, o device.Operand) []float64 {
		return get(t, list[peers[k]], vector(dt, o.Addr, o.Rows*o.Stride))
	} // with what is between rows
	want, given := make([][]float64, n), make([][]float64, n)
	for k, rank := range peers {
		rows[k], columns[k] = matrix(int64(r.IntN(9))*8, 2*chunk, groups*cols), matrix(fabricArena/2, 2*n*chunk, cols)
		for _, o := range []device.Operand{rows[k], columns[k]} {
			scramble(t, r, list[rank], vector(dt, o.Addr, o.Rows*o.Stride))
		}
		want[k], given[k] = read(k, columns[k]), read(k, rows[k])
		if back {
			want[k], given[k] = given[k], want[k]
		}
	}
	for i := range n { // who has all rows
		for k := range n {
			for x := range 2 * chunk {
				whole := k*chunk + x
				if x >= chunk {
					whole = (2*n-1-k)*chunk + x - chunk
				}
				for c := range cols {
					row, column := x*rows[k].Stride+i/(n/groups)*cols+c, whole*columns[i].Stride+c
					if back {
						want[k][row] = given[i][column]
					} else {
						want[i][column] = given[k][row]
					}
				}
			}
		}
	}
	to := columns
	if back {
		to, rows = rows, columns
	}
	everyone(t, name, list, peers, func(k int) device.Call {
		return device.Call{Op: graph.AllToAll, Args: []device.Operand{to[k], rows[k]}}
	})
	for k, rank := range peers {
		same(t, fmt.Sprintf("%s: all_to_all on rank %d", name, rank), read(k, to[k]), want[k])
	}
	return int64(n*(n-1)*2*chunk*cols) * dt.Size()
}

func checkScatter(t *testing.T, name string, r *rand.Rand, list []*Device, peers []int, dt graph.DType, parts []int, total int) {
	t.Helper()
	dst, src, acc := make([]device.Operand, len(peers)), make([]device.Operand, len(peers)), make([]bool, len(peers))
	old := make([][]float64, len(peers))
	var sum []float64
	at := 0
	for k, rank := range peers {
		src[k] = vector(dt, int64(r.IntN(9))*8, total)
		dst[k] = vector(dt, fabricArena/2, parts[k])
		acc[k] = r.IntN(2) == 0
		if !acc[k] && r.IntN(2) == 0 && parts[k] > 0 {
			dst[k].Addr = src[k].Addr + int64(at)*dt.Size()
		}
		scramble(t, r, list[rank], dst[k])
		scramble(t, r, list[rank], src[k])
		old[k] = get(t, list[rank], dst[k])
		s := get(t, list[rank], src[k])
		for i, x := range s {
			if k == 0 {
				sum = append(sum, x)
			} else {
				sum[i] = plus(dt, sum[i], x)
			}
		}
		at += parts[k]
	}
	everyone(t, name, list, peers, func(k int) device.Call {
		return device.Call{Op: graph.ReduceScatter, Attr: graph.Attr{Acc: acc[k]}, Args: []device.Operand{dst[k], src[k]}}
	})
	at = 0
	for k, rank := range peers {
		want := append([]float64(nil), sum[at:at+parts[k]]...)
		for i := range want {
			if acc[k] {
				want[i] = plus(dt, old[k][i], want[i])
			}
		}
		same(t, fmt.Sprintf("%s: reduce_scatter on rank %d", name, rank), get(t, list[rank], dst[k]), want)
		at += parts[k]
	}
}

func checkReduce(t *testing.T, name string, r *rand.Rand, list []*Device, peers []int, dt graph.DType, total int) {
	t.Helper()
	x := make([]device.Operand, len(peers))
	var want []float64
	for k, rank := range peers {
		x[k] = vector(dt, int64(r.IntN(9))*8, total)
		if total%2 == 0 {
			x[k].Rows, x[k].Cols, x[k].Stride = 2, total/2, total/2
		}
		scramble(t, r, list[rank], x[k])
		for i, v := range get(t, list[rank], x[k]) {
			if k == 0 {
				want = append(want, v)
			} else {
				want[i] = plus(dt, want[i], v)
			}
		}
	}
	if dt == graph.BF16 { // rounded once
		for i, v := range want {
			want[i] = float64(float16.FromBF16(float16.ToBF16(float32(v))))
		}
	}
	everyone(t, name, list, peers, func(k int) device.Call {
		return device.Call{Op: graph.AllReduce, Args: []device.Operand{x[k]}}
	})
	for k, rank := range peers {
		same(t, fmt.Sprintf("%s: all_reduce on rank %d", name, rank), get(t, list[rank], x[k]), want)
	}
}

// TestLarge: a sum that is divided among the workers.
func TestLarge(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 1}} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) { checkLarge(t, joined(t, hosts, Options{Workers: 2})) })
	}
}

func checkLarge(t *testing.T, list []*Device) {
	r := rand.New(rand.NewPCG(1, 2))
	const total = 3*sumTask/4 + 77
	checkScatter(t, "large", r, list, []int{0, 1}, graph.F32, []int{total - 3, 3}, total)
	checkReduce(t, "large", r, list, []int{0, 1}, graph.F32, total)
}

func message(op graph.Op, o device.Operand, peer, tag int) device.Call {
	s := device.Send
	if op == graph.Recv {
		s = device.Recv
	}
	return device.Call{Op: op, Stream: s, Args: []device.Operand{o}, Peers: []int{peer}, Tag: tag}
}

// TestMessages: two ranks exchange matrices with gaps between rows, both
// launching the receive first; tags tell messages apart.
func TestMessages(t *testing.T) {
	for _, hosts := range [][]int{{0, 0, 0}, {0, 1, 0}, {2, 1, 0}} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) { checkMessages(t, joined(t, hosts, Options{Workers: 1})) })
	}
}

func checkMessages(t *testing.T, list []*Device) {
	r := rand.New(rand.NewPCG(3, 3))
	wide := func(addr int64, stride int) device.Operand {
		return device.Operand{DType: graph.F32, Addr: addr, Rows: 5, Cols: 6, Stride: stride}
	}
	calls := make([][]device.Call, 3)
	var sent [3][]float64
	for k, d := range list {
		scramble(t, r, d, vector(graph.F32, 0, 1000))
		sent[k] = get(t, d, vector(graph.F32, 0, 5*8))
		next, last := (k+1)%3, (k+2)%3
		calls[k] = []device.Call{
			message(graph.Recv, wide(4096, 6+k), last, 7),
			message(graph.Recv, wide(8192, 6), last, 8),
			message(graph.Send, wide(0, 8), next, 7),
			message(graph.Send, wide(256, 6), next, 8),
		}
	}
	if err := errors.Join(together(t, list, calls)...); err != nil {
		t.Fatal(err)
	}
	for k, d := range list {
		got := get(t, d, vector(graph.F32, 4096, 5*(6+k)))
		for row := range 5 {
			for c := range 6 {
				if want := sent[(k+2)%3][row*8+c]; got[row*(6+k)+c] != want {
					t.Fatalf("rank %d: row %d, column %d is %v, want %v", k, row, c, got[row*(6+k)+c], want)
				}
			}
		}
		if n := d.Stats().Network[graph.Recv]; n != 2*5*6*4 {
			t.Errorf("rank %d received %d bytes", k, n)
		}
	}
}

// TestSteadyFabric: rounds with every kind of call allocate nothing and leave
// no goroutine behind.
func TestSteadyFabric(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, hosts := range [][]int{{0, 0, 0, 0}, {0, 1, 1, 0}} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) { checkSteady(t, hosts) })
	}
}

func checkSteady(t *testing.T, hosts []int) {
	const n = 4
	before := runtime.NumGoroutine()
	t.Cleanup(func() { testkit.GoroutinesEnd(t, before) }) // after the devices are closed
	list := joined(t, hosts, Options{Workers: 1})
	starts, ends := make([]chan bool, n), make(chan error, n)
	for k, d := range list {
		x, part := vector(graph.F32, 0, 64), vector(graph.F32, int64(64*k), 16)
		next, last := (k+1)%n, (k+n-1)%n
		everybody := []int{0, 1, 2, 3}
		pair := []int{k &^ 1, k | 1}
		calls := []device.Call{
			{Op: graph.AllGather, Stream: device.Collective, Peers: everybody, Args: []device.Operand{x, part}},
			message(graph.Send, x, next, 1),
			message(graph.Recv, vector(graph.F32, 4096, 64), last, 1),
			{Op: graph.ReduceScatter, Stream: device.Collective, Peers: everybody, Args: []device.Operand{part, x}},
			{Op: graph.AllReduce, Stream: device.Collective, Peers: pair, Args: []device.Operand{vector(graph.F64, 8192, 1)}},
			{Op: graph.AllReduce, Stream: device.Collective, Peers: everybody, Args: []device.Operand{x}},
		}
		first, err := d.Prepare(calls, nil)
		if err != nil {
			t.Fatal(err)
		}
		starts[k] = make(chan bool)
		go func() {
			for range starts[k] {
				for i := range calls {
					d.Launch(first + i)
					if i == 2 { // what is sent must not change before
						d.Wait(device.Collective, first+1)
					}
				}
				ends <- d.Sync()
			}
			ends <- nil
		}()
	}
	round := func() {
		for _, c := range starts {
			c <- true
		}
		for range n {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
	}
	if a := testing.AllocsPerRun(1000, round); a >= 1 {
		t.Errorf("%v allocations per round", a)
	}
	for _, c := range starts {
		close(c)
	}
	for range n {
		<-ends
	}
}

// TestSlowFabric: with a rate a collective takes at least as long as the ring, and its span is the same
// on all ranks except for when each reads the clock: it begins when all have arrived.
func TestSlowFabric(t *testing.T) {
	o := Options{Workers: 1}
	o.Rate[device.Collective] = 50e6
	list := newFabric(t, 2, o)
	var spans [2][]device.Span
	var all sync.WaitGroup
	for k, d := range list {
		spans[k] = make([]device.Span, 1)
		x := vector(graph.F32, 0, 250_000)
		c := device.Call{Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 1}, Args: []device.Operand{x}}
		first, err := d.Prepare([]device.Call{c}, spans[k])
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			d.Launch(first)
			if err := d.Sync(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	const ring = 1e6 / 50e6 // 2 * (2-1)/2 of a megabyte
	for k, s := range spans {
		if s[0].End-s[0].Start < ring {
			t.Errorf("rank %d: %v s, the ring takes %v", k, s[0].End-s[0].Start, ring)
		}
	}
	if spans[0][0].Start > spans[1][0].End || spans[1][0].Start > spans[0][0].End {
		t.Errorf("the ranks' spans of one call do not overlap: %v, %v", spans[0], spans[1])
	}
}

// BenchmarkMeeting: all_reduces of all ranks, with a worker each, as fast as possible: short ones for
// the rendezvous, long ones for the memory.
func BenchmarkMeeting(b *testing.B) {
	for _, n := range []int{2, 4} {
		for _, elems := range []int{16, 1 << 20} {
			b.Run(fmt.Sprintf("ranks=%d/bytes=%d", n, 4*elems), func(b *testing.B) {
				f := NewFabric(n)
				peers := make([]int, n)
				list := make([]*Device, n)
				for r := range list {
					peers[r] = r
					list[r] = New(Options{Workers: 1, Fabric: f, Rank: r})
					defer list[r].Close()
					if err := list[r].Reserve(device.DeviceTier, 4<<20); err != nil {
						b.Fatal(err)
					}
				}
				var all sync.WaitGroup
				for _, d := range list {
					first, err := d.Prepare([]device.Call{{Op: graph.AllReduce, Stream: device.Collective, Peers: peers, Args: []device.Operand{vector(graph.F32, 0, elems)}}}, nil)
					if err != nil {
						b.Fatal(err)
					}
					all.Go(func() {
						for range b.N {
							d.Launch(first)
							if err := d.Sync(); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(4*float64(elems)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
	}
}
