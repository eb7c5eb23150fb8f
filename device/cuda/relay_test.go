//go:build linux

package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
)

// relaySample is a gradient, or a pair of them, in parts of pieces, that groups of this many blocks
// divide on cards with the number of SMs that it returns.
func relaySample(t *testing.T, seed uint64, pair bool, roles int64) (s *sample, parts []device.Call, piece, sms int) {
	t.Helper()
	s = sumSample(seed)
	for try := range 10000000 {
		if try%50000 == 49999 { // with some seeds they are rare
			seed++
			s = sumSample(seed)
		}
		sms = int(roles)*(1+s.IntN(2)) + s.IntN(2)
		in, out, n := 1+s.IntN(400), 2*(1+s.IntN(200)), int(roles)*(64*leastSteps+s.IntN(400))
		if seed%2 == 0 {
			in, out = (in+7)&^7, (out+7)&^7
		}
		list := []extent{{in, out}}
		if pair {
			list = append(list, extent{1 + s.IntN(300), 2 * (1 + s.IntN(150))})
		}
		bytes := 0
		for _, y := range list {
			bytes += 2*n*(y.rows+y.cols+32) + 4*y.rows*(y.cols+16)
		}
		card := target{sms: sms, major: 9, hopper: true}
		if _, way, _ := card.sumTile(n, list...); way.roles != roles || bytes > imageBytes*7/8 || pair && !card.sharesLaunch(n, list[0], list[1]) {
			continue
		}
		s.sums(in, out, n)
		if pair {
			s.gradient(list[1].rows, list[1].cols, n)
		}
		piece = []int{n, 1 + s.IntN(n), 65 + s.IntN(200)}[s.IntN(3)]
		for r0 := 0; r0 < n; {
			rows := min(piece*(1+s.IntN(n/piece)), n-r0)
			parts = append(parts, s.cut(r0, rows))
			r0 += rows
		}
		return s, parts, piece, sms
	}
	t.Fatalf("no small gradient has %d roles", roles)
	return nil, nil, 0, 0
}

// Roles of groups for gradients that fit a sample: one gradient has more than a pair.
var alone, together = []int64{2, 3, 5}, []int64{1, 2, 3, 4}

// TestRelay: blocks that continue each other's sums give the bits of blocks that do not, in any order,
// in one call and in several, and leave the flags as they were.
func TestRelay(t *testing.T) {
	if !onGPU() {
		t.Skip("TestCompiledRelay takes seconds for it, the text minutes")
	}
	relaysAgree(t, unaided, false, alone...)
	relaysAgree(t, unaided, true, together...)
}

func TestCompiledRelay(t *testing.T) {
	testkit.Needs(t, testkit.All)
	relaysAgree(t, compiled, false, testkit.Sample(alone, 1, 1)...)
	relaysAgree(t, compiled, true, testkit.Sample(together, 1, 1)...)
}

// relaysAgree compares with a card of one SM, where gradients are summed one by one in whole tiles.
func relaysAgree(t *testing.T, machine maker, pair bool, list ...int64) {
	t.Helper()
	for _, roles := range list {
		seed := testkit.Seed(t)
		s, parts, piece, sms := relaySample(t, seed, pair, roles)
		want := s.reference()
		s.poison()
		var plain []byte
		for _, way := range []struct {
			sms    int
			serial bool // on the fake: in descending order
		}{{1, false}, {sms, false}, {sms, true}} {
			d, _ := machine(t, Options{SumRows: piece, Serial: way.serial}, imageBytes)
			d.chip.sms, d.chip.major = way.sms, 9
			have := execute(t, d, s.call, s.image)
			if plain == nil {
				if err := s.check(bytes.Clone(have), bytes.Clone(want)); err != nil {
					t.Errorf("seed %d: %v: %v", seed, s, err)
				}
				plain = have
			}
			what := fmt.Sprintf("seed %d: %v, pieces of %d on %d SMs, %d roles, serial %v", seed, s, piece, way.sms, roles, way.serial)
			if !bytes.Equal(have, plain) {
				t.Errorf("%s: other bits", what)
			}
			if !bytes.Equal(execute(t, d, s.call, s.image), plain) {
				t.Errorf("%s: other bits the second time", what)
			}
			if !bytes.Equal(executeAll(t, d, parts, s.image), plain) {
				t.Errorf("%s: other bits in %d parts", what, len(parts))
			}
		}
	}
}

// unaided is the GPU without NVIDIA's matrix library, whose sums have other bits: a card of so few SMs
// may leave a gradient to it.
func unaided(t *testing.T, o Options, sizes ...int64) (*Device, *fake.GPU) {
	t.Helper()
	lib, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	lib.Lt = nil
	return opened(t, lib, o, sizes), nil
}

// TestRelayLarge: the same on all SMs of a GPU, with weights of GPT-2 XL.
func TestRelayLarge(t *testing.T) {
	if !onGPU() {
		t.Skip("takes hours on the fake")
	}
	numbers := rand.New(rand.NewPCG(3, 3))
	for _, c := range []struct {
		tokens int
		list   []extent
	}{
		{4096, []extent{{1600, 6400}}}, {5000, []extent{{6400, 1600}}}, {8192, []extent{{1280, 3840}}},
		{8192, []extent{{768, 2304}, {768, 768}}}, {8192, []extent{{768, 3072}, {3072, 768}}}, {4096, []extent{{1600, 4800}, {1600, 1600}}},
	} {
		call := device.Call{Op: graph.LinearDW}
		var size, inputs int64
		place := func(dt graph.DType, rows, cols int) device.Operand {
			o := device.Operand{DType: dt, Addr: size, Rows: rows, Cols: cols, Stride: cols}
			size += o.Bytes()
			return o
		}
		for _, y := range c.list {
			call.Args = append(call.Args, device.Operand{}, place(graph.BF16, c.tokens, y.rows), place(graph.BF16, c.tokens, y.cols))
		}
		inputs = size
		for i, y := range c.list {
			call.Args[3*i] = place(graph.F32, y.rows, y.cols)
		}
		d, _ := machine(t, Options{SumRows: 1024}, size)
		if err := d.Write(device.DeviceTier, 0, randomBF16(numbers, int(inputs))); err != nil {
			t.Fatal(err)
		}
		sum := func() []byte {
			first, err := d.Prepare([]device.Call{call}, nil)
			if err != nil {
				t.Fatal(err)
			}
			out := make([]byte, size-inputs)
			if err := d.Write(device.DeviceTier, inputs, bytes.Repeat([]byte{0xff}, len(out))); err != nil {
				t.Fatal(err)
			}
			d.Launch(first)
			if err := d.Sync(); err != nil {
				t.Fatal(err)
			}
			if err := d.Read(device.DeviceTier, inputs, out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		all := d.chip.sms
		d.chip.sms = 1
		plain := sum()
		d.chip.sms = all
		for range 20 {
			if !bytes.Equal(sum(), plain) {
				t.Fatalf("%v over %d tokens: other bits", c.list, c.tokens)
			}
		}
	}
}

// TestRelayMatters: whatever keeps blocks of a relay apart is needed.
func TestRelayMatters(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	s, _, piece, sms := relaySample(t, 2, false, 2)
	s.poison()
	var want []byte
	run := func(edit func(string) string) error {
		g := fake.New()
		lib := &Libraries{Driver: g.Driver(), Compiler: editing{asCode(t, g, true), within("relay.cuh", edit)}}
		d, err := New(lib, Options{SumRows: piece, Workers: 1, DiskPath: filepath.Join(t.TempDir(), "disk")})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close() // which says once more that a kernel failed
		if err := d.Reserve(device.DeviceTier, imageBytes); err != nil {
			t.Fatal(err)
		}
		d.chip.sms, d.chip.major = sms, 9
		first, err := d.Prepare([]device.Call{s.call, s.call}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if err := d.Write(device.DeviceTier, 0, s.image); err != nil {
				t.Fatal(err)
			}
			d.Launch(first + i)
			if err := d.Sync(); err != nil {
				return err
			}
			out := bytes.Clone(s.image)
			if err := d.Read(device.DeviceTier, 0, out); err != nil {
				return err
			}
			if want == nil {
				want = out
			}
			if !bytes.Equal(out, want) {
				return fmt.Errorf("launch %d: other bits", i)
			}
		}
		return nil
	}
	if err := run(func(text string) string { return text }); err != nil {
		t.Fatal(err)
	}
	for _, what := range testkit.Sample([]string{"if (set) break;|break;", "*flag = 0;|", "__syncthreads();|", "__syncthreads();|last"}, 1, 2) {
		old, with, _ := strings.Cut(what, "|")
		err := run(func(text string) string {
			if !strings.Contains(text, old) {
				t.Fatalf("there is no %s", old)
			}
			if with == "last" {
				at := strings.LastIndex(text, old)
				return text[:at] + text[at+len(old):]
			}
			return strings.Replace(text, old, with, 1)
		})
		t.Logf("%s: %v", what, err)
		if err == nil {
			t.Errorf("without %s nothing is wrong", old)
		}
	}
}

// TestTogether: which gradients an H200 sums in pairs: those that would otherwise leave part of its SMs
// idle.
func TestTogether(t *testing.T) {
	for _, c := range []struct {
		tokens        int
		first, second extent
		want          bool
	}{
		{32768, extent{768, 2304}, extent{768, 768}, true}, {32768, extent{768, 3072}, extent{3072, 768}, true},
		{16384, extent{3072, 2048}, extent{2048, 2048}, false}, {16384, extent{1600, 4800}, extent{1600, 1600}, false}, {16384, extent{28672, 4096}, extent{4096, 14336}, false},
	} {
		card := target{sms: 132, major: 9, hopper: true}
		tile, way, _ := card.sumTile(c.tokens, c.first, c.second)
		t.Logf("%v and %v: %dx%d %+v", c.first, c.second, tile.rows, tile.cols, way)
		if have := card.sharesLaunch(c.tokens, c.first, c.second); have != c.want {
			t.Errorf("%v and %v over %d tokens: %v", c.first, c.second, c.tokens, have)
		}
	}
}

// TestDivide: which gradients are summed in relays on an H200.
func TestDivide(t *testing.T) {
	for _, c := range []struct {
		m, n, tokens int
		roles        int64
	}{{1600, 6400, 16384, 2}, {6400, 1600, 16384, 3}, {1600, 4800, 16384, 1}, {768, 768, 16384, 1}, {8192, 2048, 16384, 1}, {1600, 6400, 512, 1}} {
		tile, way, _ := (target{sms: 132, major: 9, hopper: true}).sumTile(c.tokens, extent{c.m, c.n})
		t.Logf("%d x %d x %d: %dx%d %+v", c.m, c.n, c.tokens, tile.rows, tile.cols, way)
		if way.roles != c.roles {
			t.Errorf("%d x %d over %d tokens: %+v", c.m, c.n, c.tokens, way)
		}
	}
}
