//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
)

// TestAttentionWaits: copies to shared memory are waited for, by all threads, before
// they are read and before their place is filled again: without any one of the waits
// and barriers of the tiles' loops attention is wrong or stops, in one of the two
// orders of threads. This is also a test of the fake, which must show it.
func TestAttentionWaits(t *testing.T) {
	if onGPU() {
		t.Skip("of the kernels' text, which the fake runs")
	}
	for _, c := range []struct {
		op   graph.Op
		file string
	}{{graph.Attention, "attention_mma.cu"}, {graph.AttentionBwd, "attention_bwd_mma.cu"}} {
		t.Run(c.file, func(t *testing.T) {
			s := longSample(c.op)
			want := s.reference()
			run := func(edit func(string) string) error {
				var list []error
				for _, serial := range []bool{false, true} {
					list = append(list, s.edited(t, serial, c.file, edit, want))
				}
				return errors.Join(list...)
			}
			if err := run(func(text string) string { return text }); err != nil {
				t.Fatal(err)
			}
			for _, wait := range []string{"landed();", "__syncthreads();"} {
				count := 0
				run(func(text string) string { count = strings.Count(text, wait); return text })
				if count == 0 {
					t.Fatalf("there is no %s", wait)
				}
				for n := range count {
					without := func(text string) string {
						parts := strings.SplitAfterN(text, wait, n+2)
						parts[n] = strings.TrimSuffix(parts[n], wait)
						return strings.Join(parts, "")
					}
					if run(without) == nil {
						t.Errorf("without the %d. %s nothing is wrong", n+1, wait)
					}
				}
			}
		})
	}
}

// longSample is attention on a sequence of several tiles, in bf16; their numbers are
// odd, so that the last one lies where results pass through.
func longSample(op graph.Op) *sample {
	s := &sample{Rand: rand.New(rand.NewPCG(7, uint64(op))), image: make([]byte, imageBytes), wide: true, float: graph.BF16, tol: 8e-3}
	s.call.Op = op
	s.call.Attr = graph.Attr{Seq: 300, KVHeads: 1, Heads: 1, HeadDim: 16, Scale: 0.25}
	n, a := 300, s.call.Attr
	if op == graph.Attention {
		s.mat(n, 16)
		s.f32(n, 1)
		s.mat(n, 16)
		s.mat(n, 32)
		return s
	}
	s.mat(n, 16)
	s.mat(n, 32)
	s.f32(n, 1)
	s.mat(n, 16)
	q, kv := s.mat(n, 16), s.mat(n, 32)
	o, lse := s.mat(n, 16), s.f32(n, 1)
	kernel.Lookup(graph.Attention).Reference(nil, &a, []kernel.Tensor{tensor(s.image, o), tensor(s.image, lse), tensor(s.image, q), tensor(s.image, kv)})
	return s
}

// edited runs the sample's call on the fake after a change to the text of a file.
func (s *sample) edited(t *testing.T, serial bool, file string, edit func(string) string, want []byte) error {
	t.Helper()
	dir, err := shimDir()
	if err != nil {
		t.Fatal(err)
	}
	r, err := fake.NewRunner(dir)
	if err != nil {
		t.Skipf("kernels do not run on the CPU: %v", err)
	}
	r.Descending = serial
	g := fake.New()
	change := func(image []byte) []byte {
		before, after, ok := strings.Cut(string(image), fmt.Sprintf("#line 1 %q\n", file))
		if !ok {
			return image
		}
		return []byte(before + edit(after))
	}
	g.Load = func(image []byte) error { return r.Load(change(image)) }
	g.Kernel = func(image []byte, name string, grid, block [3]uint32, shared uint32, args unsafe.Pointer) error {
		return r.Kernel(change(image), name, grid, block, shared, args)
	}
	d, err := New(&Libraries{Driver: g.Driver(), Compiler: fake.Compiler{}}, Options{DiskPath: filepath.Join(t.TempDir(), "disk"), Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close() // which says once more that a kernel failed
	if err := d.Reserve(device.DeviceTier, imageBytes); err != nil {
		t.Fatal(err)
	}
	s.poison()
	if err := d.Write(device.DeviceTier, 0, s.image); err != nil {
		t.Fatal(err)
	}
	first, err := d.Prepare([]device.Call{s.call}, nil)
	if err != nil {
		return err
	}
	d.Launch(first)
	if err := d.Sync(); err != nil {
		return err
	}
	out := bytes.Clone(s.image)
	if err := d.Read(device.DeviceTier, 0, out); err != nil {
		return err
	}
	return s.check(out, bytes.Clone(want))
}
