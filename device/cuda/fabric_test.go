//go:build linux

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

const rankArena = 1 << 20

// joint is random calls between ranks, all on bytes of their own.
type joint struct {
	*rand.Rand
	arena int64           // of each rank, in bytes
	calls [][]device.Call // of each rank
	end   int64
}

// flat places a vector of n elements; it is absent if there are none.
func (j *joint) flat(dt graph.DType, n int) device.Operand {
	at := (j.end + 15) &^ 15
	at += int64(j.IntN(3)) * dt.Size() // packs are not always whole
	j.end = at + int64(n)*dt.Size()
	return vector(dt, at, n)
}

func vector(dt graph.DType, at int64, n int) device.Operand {
	if n == 0 {
		return device.Operand{}
	}
	return device.Operand{DType: dt, Addr: at, Rows: 1, Cols: n, Stride: n}
}

// group picks some ranks, ascending.
func (j *joint) group() (list []int) {
	for len(list) == 0 {
		for k := range j.calls {
			if j.IntN(4) > 0 {
				list = append(list, k)
			}
		}
	}
	return list
}

// collective adds a call of a random group, with uneven and empty parts, in place
// and not.
func (j *joint) collective() {
	if j.IntN(4) == 0 {
		j.crossing()
		return
	}
	op := []graph.Op{graph.AllGather, graph.ReduceScatter, graph.AllReduce}[j.IntN(3)]
	dt := []graph.DType{graph.F32, graph.F64}[j.IntN(2)]
	if op != graph.ReduceScatter && j.IntN(2) == 0 {
		dt = graph.BF16
	}
	peers := j.group()
	if op == graph.AllReduce && dt == graph.BF16 && len(peers) > 8 {
		dt = graph.F32 // more ranks do not share matrices (graph.BuildSlab): their sums would be rounded in between
	}
	parts, total := make([]int, len(peers)), 0
	for i := range parts {
		if parts[i] = j.IntN(300) * j.IntN(2); j.IntN(4) == 0 {
			parts[i] = 256
		}
		if i == len(parts)-1 && total == 0 {
			parts[i] = 3
		}
		total += parts[i]
	}
	j.over(op, dt, peers, parts)
}

// over adds a call of a group with parts of the given lengths.
func (j *joint) over(op graph.Op, dt graph.DType, peers, parts []int) {
	total, at := 0, 0
	for _, n := range parts {
		total += n
	}
	whole, place, acc := j.flat(dt, total), j.IntN(2) == 0, j.IntN(2) == 0
	for i, r := range peers {
		part := vector(dt, whole.Addr+int64(at)*dt.Size(), parts[i])
		if !place {
			part = j.flat(dt, parts[i])
		}
		c := device.Call{Op: op, Stream: device.Collective, Peers: peers, Args: []device.Operand{whole, part}}
		switch op {
		case graph.ReduceScatter:
			c.Attr.Acc = acc && !place
			c.Args = []device.Operand{part, whole}
		case graph.AllReduce:
			c.Args = c.Args[:1]
		}
		j.calls[r] = append(j.calls[r], c)
		at += parts[i]
	}
}

// crossing adds an all_to_all of a random group, one way or the other, with gaps between rows and without.
func (j *joint) crossing() {
	peers, chunk, cols := j.group(), 1+j.IntN(5), 1+j.IntN(40)
	n := len(peers)
	groups := n / []int{1, 2 - n%2, n}[j.IntN(3)]
	back := groups == n && j.IntN(2) == 0
	for _, r := range peers {
		matrix := func(rows, cols int) device.Operand {
			o := j.flat(graph.BF16, rows*(cols+3))
			o.Rows, o.Cols, o.Stride = rows, cols, cols+3*j.IntN(2)
			return o
		}
		columns, rows := matrix(2*n*chunk, cols), matrix(2*chunk, groups*cols)
		if back {
			columns, rows = rows, columns
		}
		j.calls[r] = append(j.calls[r], device.Call{Op: graph.AllToAll, Stream: device.Collective, Peers: peers, Args: []device.Operand{columns, rows}})
	}
}

// message adds a matrix from one rank to another.
func (j *joint) message(tag int) {
	from := j.IntN(len(j.calls))
	to := (from + 1 + j.IntN(len(j.calls)-1)) % len(j.calls)
	rows, cols := 1+j.IntN(5), 1+j.IntN(40)
	matrix := func() device.Operand {
		o := j.flat(graph.BF16, rows*(cols+3))
		o.Rows, o.Cols, o.Stride = rows, cols, cols+3*j.IntN(2)
		return o
	}
	j.calls[from] = append(j.calls[from], device.Call{Op: graph.Send, Stream: device.Send, Peers: []int{to}, Tag: tag, Args: []device.Operand{matrix()}})
	j.calls[to] = append(j.calls[to], device.Call{Op: graph.Recv, Stream: device.Recv, Peers: []int{from}, Tag: tag, Args: []device.Operand{matrix()}})
}

func newJoint(seed uint64, n int) *joint {
	j := &joint{Rand: rand.New(rand.NewPCG(seed, 21)), arena: rankArena, calls: make([][]device.Call, n)}
	for tag := 1; tag <= 12; tag++ {
		j.collective()
		j.message(tag)
	}
	return j
}

// image is a rank's memory: numbers whose sum in any other order rounds differently, as bf16, fp32 and float64. None is NaN, whose
// bits after a sum devices choose.
func (j *joint) image() []byte {
	b := make([]byte, j.arena)
	const period = 1<<20 - 8 // no two ranks' numbers are at the same place of it for long
	some := b[:min(len(b), period)]
	for i := 0; i < len(some); i += 2 { // of a wider number the lower halves are any digits
		x := float32(j.NormFloat64() * math.Exp(3*j.NormFloat64()))
		binary.LittleEndian.PutUint16(b[i:], uint16(math.Float32bits(x)>>16))
	}
	for at := period; at < len(b); at += period {
		copy(b[at:], some)
	}
	return b
}

// round prepares the calls of all ranks, runs them and returns the errors.
func round(t *testing.T, list []device.Device, calls [][]device.Call) []error {
	t.Helper()
	first, errs := make([]int, len(list)), make([]error, len(list))
	var all sync.WaitGroup
	for r, d := range list {
		var err error
		if first[r], err = d.Prepare(calls[r], make([]device.Span, len(calls[r]))); err != nil {
			t.Fatal(err)
		}
	}
	for r, d := range list {
		all.Go(func() {
			for i := range calls[r] {
				d.Launch(first[r] + i)
			}
			errs[r] = d.Sync()
		})
	}
	all.Wait()
	return errs
}

// TestCollectives: random calls between ranks leave the bits and count the bytes that the CPU's fabric
// does, with and without peer access, also on more ranks than one sum has operands, and with all ranks
// on one card, whose context one rank must not wait for while another waits for that rank.
func TestCollectives(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	collectivesAgree(t, asText, 4)
}

func collectivesAgree(t *testing.T, w way, usual int) {
	t.Helper()
	for _, seed := range casesOf([]uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, usual) {
		n := []int{2, 3, 4, 9}[seed%4]
		cards, peers := n, seed/4 == 0
		if seed/4 == 2 || onGPU() {
			cards, n = 1, min(n, 5) // of a card's 32 queues each has six
		}
		hosts := make([]int, n)
		agreeOn(t, newJoint(seed, n), ranksAcross(t, w, hosts, cards, fabricsOn(t, hosts, smallSlot), Options{}, peers, rankArena))
	}
}

// agreeOn compares calls on the given devices with those on the CPU's ranks of one process.
func agreeOn(t *testing.T, j *joint, gpus []*Device) {
	t.Helper()
	n := len(gpus)
	fabric := cpu.NewFabric(n)
	var list [2][]device.Device
	for r, d := range gpus {
		c := cpu.New(cpu.Options{Workers: 1, Fabric: fabric, Rank: r})
		defer c.Close()
		if err := c.Reserve(device.DeviceTier, j.arena); err != nil {
			t.Fatal(err)
		}
		list[0], list[1] = append(list[0], c), append(list[1], d)
		image := j.image()
		if err := errors.Join(c.Write(device.DeviceTier, 0, image), d.Write(device.DeviceTier, 0, image)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, devices := range list {
			if err := errors.Join(round(t, devices, j.calls)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for r := range n {
		got, want := make([]byte, j.arena), make([]byte, j.arena)
		if err := errors.Join(list[1][r].Read(device.DeviceTier, 0, got), list[0][r].Read(device.DeviceTier, 0, want)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("rank %d of %d has other bits than on the CPU", r, n)
		}
		if a, b := gpus[r].Stats().Network, list[0][r].(*cpu.Device).Stats().Network; a != b {
			t.Errorf("rank %d received %v, on the CPU %v", r, a, b)
		}
	}
}

// TestLost: when a rank fails at any moment, all others end their rounds with an error that names it
// or, on other hosts, a rank of another host. Later rounds fail too.
func TestLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	broken := errors.New("switched off")
	layouts := [][]int{{0, 0, 0, 0}, {0, 1, 0, 1}, {1, 0, 0, 0}, {0, 1, 2, 1}, {0, 1}}
	if onGPU() { // four ranks have more streams than one card has queues, it seems, and wait for each other forever
		layouts = [][]int{{0, 0, 0}, {0, 1, 0}, {1, 0, 0}, {0, 1, 2}, {0, 1}}
	}
	for seed := range uint64(testkit.Count(1, 2, 6)) {
		for _, hosts := range layouts {
			t.Run(fmt.Sprint(seed, hosts), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 4))
				victim := r.IntN(len(hosts))
				gpus := ranksAcross(t, asText, hosts, len(hosts), fabricsOn(t, hosts, smallSlot), Options{}, true, rankArena)
				errs := until(t, gpus, victim, r.IntN(40), func() { gpus[victim].Abort(broken) })
				for k, err := range errs {
					var lost *device.PeerError
					switch is := errors.As(err, &lost); {
					case k == victim && !errors.Is(err, broken):
						t.Errorf("rank %d, which failed, says %v", k, err)
					case k != victim && (!is || hosts[k] == hosts[victim] && lost.Rank != victim || hosts[k] != hosts[victim] && hosts[k] == hosts[lost.Rank]):
						t.Errorf("rank %d says of rank %d %v", k, victim, err)
					}
				}
			})
		}
	}
}

// TestHostLost: when the connections of a host end at any moment, all ranks end with an error that
// names a rank of another host.
func TestHostLost(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	hosts := []int{0, 1, 0, 1}
	if onGPU() { // see TestLost
		hosts = hosts[:3]
	}
	for seed := range uint64(testkit.Count(1, 2, 6)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			victim := r.IntN(len(hosts))
			gpus := ranksAcross(t, asText, hosts, len(hosts), fabricsOn(t, hosts, smallSlot), Options{}, true, rankArena)
			errs := until(t, gpus, victim, r.IntN(40), func() { gpus[victim].options.Fabric.hub.Close() })
			for k, err := range errs {
				var lost *device.PeerError
				if !errors.As(err, &lost) || hosts[lost.Rank] == hosts[k] {
					t.Errorf("rank %d on hosts %v says %v", k, hosts, err)
				}
			}
		})
	}
}

// until runs rounds until all ranks have failed, which they do again in the next round. The victim
// fails by itself after some rounds.
func until(t *testing.T, gpus []*Device, victim, after int, end func()) []error {
	t.Helper()
	n := len(gpus)
	errs, first, everybody := make([]error, n), make([]int, n), make([]int, n)
	for k := range gpus {
		everybody[k] = k
	}
	for k, d := range gpus {
		calls := []device.Call{
			{Op: graph.AllReduce, Stream: device.Collective, Peers: everybody, Args: []device.Operand{vector(graph.F32, 0, 999)}},
			{Op: graph.Send, Stream: device.Send, Peers: []int{(k + 1) % n}, Tag: 1, Args: []device.Operand{vector(graph.F32, 4096, 9)}},
			{Op: graph.Recv, Stream: device.Recv, Peers: []int{(k + n - 1) % n}, Tag: 1, Args: []device.Operand{vector(graph.F32, 8192, 9)}},
		}
		var err error
		if first[k], err = d.Prepare(calls, nil); err != nil {
			t.Fatal(err)
		}
	}
	defer untangled(t, gpus)()
	var all sync.WaitGroup
	for k, d := range gpus {
		all.Go(func() {
			for n := 0; errs[k] == nil; n++ {
				d.Launch(first[k])
				if k == victim && n == after {
					end()
					errs[k] = d.Sync()
					continue
				}
				d.Launch(first[k] + 1)
				d.Launch(first[k] + 2)
				errs[k] = d.Sync()
			}
		})
	}
	all.Wait()
	for k, d := range gpus {
		d.Launch(first[k])
		if err := d.Sync(); err == nil || !strings.Contains(err.Error(), "peer lost: rank") {
			t.Errorf("rank %d goes on: %v", k, err)
		}
	}
	return errs
}

// untangled ends ranks that wait for each other forever, and fails the test with the state of each
// one's ferry, unless the function that it returns is called in time.
func untangled(t *testing.T, gpus []*Device) func() bool {
	return time.AfterFunc(30*time.Second, func() {
		for k, d := range gpus {
			t.Errorf("rank %d waits for ever%s", k, d.ferry)
			d.Abort(errors.New("ended by the test"))
		}
	}).Stop
}

// String says how far voyages are; the numbers may be of different moments.
func (f *ferry) String() string {
	if f == nil {
		return ", without a ferry"
	}
	var b strings.Builder
	for s, l := range f.lanes {
		if l != nil {
			fmt.Fprintf(&b, "; stream %v: ready %d, begun %d, done %d, copies out %d of %d, in %d of %d",
				device.Stream(s), l.ready.Load(), l.begun.Load(), l.done.Load(), l.out.landed.Load(), l.out.asked, l.in.landed.Load(), l.in.asked)
		}
	}
	return b.String()
}

// TestDisagree: calls that meet and do not match are an error, not a hang, and so are ranks that do not
// exist.
func TestDisagree(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 1}} {
		gpus := ranksAcross(t, asText, hosts, 2, fabricsOn(t, hosts, smallSlot), Options{}, true, rankArena)
		reduce := func(n int) []device.Call {
			return []device.Call{{Op: graph.AllReduce, Stream: device.Collective, Peers: []int{0, 1}, Args: []device.Operand{vector(graph.F32, 0, n)}}}
		}
		errs := round(t, []device.Device{gpus[0], gpus[1]}, [][]device.Call{reduce(8), reduce(9)})
		if err := errors.Join(errs...); err == nil || !strings.Contains(err.Error(), "rank 0 sums 8 elements, but rank 1 sums 9") {
			t.Errorf("8 elements met 9: %v", err)
		}
		bad := reduce(8)
		bad[0].Peers = []int{0, 2}
		if _, err := gpus[0].Prepare(bad, nil); err == nil || !strings.Contains(err.Error(), "peer 2 does not exist") {
			t.Errorf("rank 2 of 2: %v", err)
		}
		if _, err := New(gpus[0].lib, Options{Fabric: gpus[0].options.Fabric, Rank: 0}); err == nil || !strings.Contains(err.Error(), "is taken") {
			t.Errorf("rank 0 twice: %v", err)
		}
	}
}

// TestFewQueues: ranks that would wait for each other forever, since streams have to share queues, are
// refused; a single rank works, and its user is told.
func TestFewQueues(t *testing.T) {
	for _, name := range []string{"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS"} {
		for value, refused := range map[string]bool{"1": true, "6": true, "7": false, "32": false, "": false, "many": false} {
			t.Setenv(name, value)
			g := fake.New()
			lib := &Libraries{Driver: g.Driver(), Compiler: asText(t, g, false)}
			opened(t, lib, Options{}, nil)
			d, err := New(lib, Options{Fabric: NewFabric(2), Rank: 1})
			told := (&Found{}).slow("13.0")
			if refused != (err != nil && strings.Contains(err.Error(), "with "+name+"="+value) && strings.Contains(err.Error(), "hint: unset it")) || refused != strings.Contains(told, name) {
				t.Errorf("%s=%s: %v; told %q", name, value, err, told)
			}
			if err == nil {
				d.Close()
			}
		}
		t.Setenv(name, "")
	}
}

// TestLeaving: a call does not end while others fetch what it exposed to them: whatever overwrites a
// source waits for that.
func TestLeaving(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	for _, hosts := range [][]int{{0, 0, 0}, {0, 1, 0}} {
		leaveOn(t, ranksAcross(t, asText, hosts, 3, fabricsOn(t, hosts, smallSlot), Options{}, true, rankArena))
	}
}

func leaveOn(t *testing.T, gpus []*Device) {
	t.Helper()
	const n = rankArena / 16
	part, other := vector(graph.F32, 0, n/4), vector(graph.F32, rankArena/2, n/4)
	whole := vector(graph.F32, rankArena/4, 3*n/4)
	first := make([]int, 3)
	for r, d := range gpus {
		var err error
		first[r], err = d.Prepare([]device.Call{
			{Op: graph.AllGather, Stream: device.Collective, Peers: []int{0, 1, 2}, Args: []device.Operand{whole, part}},
			copyCall(device.Compute, part, other),
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	for turn := range 30 {
		var all sync.WaitGroup
		errs := make([]error, 3)
		for r, d := range gpus {
			fill := func(o device.Operand, v int) error {
				return d.Write(o.Tier, o.Addr, bytes.Repeat([]byte{byte(v)}, int(o.Bytes())))
			}
			if err := errors.Join(fill(part, 8*turn+r), fill(other, 8*turn+7)); err != nil {
				t.Fatal(err)
			}
		}
		for r, d := range gpus {
			all.Go(func() {
				d.Launch(first[r])
				d.Wait(device.Compute, first[r])
				d.Launch(first[r] + 1)
				errs[r] = d.Sync()
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for r, d := range gpus {
			got := make([]byte, whole.Bytes())
			if err := d.Read(whole.Tier, whole.Addr, got); err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				if want := byte(8*turn + i/int(part.Bytes())); v != want {
					t.Fatalf("turn %d: rank %d has %d at byte %d, want %d", turn, r, v, i, want)
				}
			}
		}
	}
}
