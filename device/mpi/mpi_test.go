package mpi

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestStream: whatever is written, in whatever pieces and whenever the library notices, is read once and in order, both
// ways, on each of several streams; and when nothing is pending, the library has none of the writer's memory.
func TestStream(t *testing.T) {
	r := testkit.Rand(t)
	for range testkit.Count(2, 6, 200) {
		n := &network{random: r, sent: map[[3]int][]*message{}, requests: map[uintptr]*message{}}
		worlds := []*World{n.world(0, 2), n.world(1, 2)}
		var flows []*flow
		for tag := range 3 {
			a, b := worlds[0].Stream(1, 2*tag, 2*tag+1), worlds[1].Stream(0, 2*tag+1, 2*tag)
			flows = append(flows, newFlow(r, a, b), newFlow(r, b, a))
		}
		for left, steps := true, 0; left; steps++ {
			if left = false; steps > 100_000 {
				t.Fatal("bytes are missing")
			}
			for _, f := range flows {
				more, err := f.step(r)
				if err != nil {
					t.Fatal(err, n.faults)
				}
				left = left || more
			}
		}
		for i, f := range flows {
			if !bytes.Equal(f.got, f.want) {
				t.Fatalf("flow %d: %d bytes arrive, of %d, or others", i, len(f.got), len(f.want))
			}
		}
		if n.open != 0 || len(n.faults) > 0 {
			t.Fatalf("%d messages are not done; %s", n.open, strings.Join(n.faults, "; "))
		}
		if worlds[0].Stream(1, 0, 1) != flows[0].to {
			t.Error("a stream is another the second time")
		}
		if err := worlds[0].Finalize(); err != nil {
			t.Error(err)
		}
		if _, err := flows[0].to.Write([]byte{1}); err == nil {
			t.Error("something is sent after the end of the world")
		}
		if _, err := flows[1].from.Read(make([]byte, 1)); err == nil {
			t.Error("something is received after the end of the world")
		}
	}
}

// flow is what goes one way.
type flow struct {
	to, from        *Stream
	want, rest, got []byte
}

func newFlow(r *rand.Rand, to, from *Stream) *flow {
	f := &flow{to: to, from: from, want: make([]byte, r.IntN(4*pieceBytes))}
	for i := range f.want {
		f.want[i] = byte(r.Uint32())
	}
	f.rest = bytes.Clone(f.want)
	return f
}

// step writes a little and reads a little. What was taken is overwritten at once.
func (f *flow) step(r *rand.Rand) (left bool, err error) {
	piece := f.rest[:r.IntN(len(f.rest)+1)]
	k, err := f.to.Write(piece)
	if err != nil {
		return false, err
	}
	clear(piece[:k])
	f.rest = f.rest[k:]
	b := make([]byte, r.IntN(pieceBytes))
	k, err = f.from.Read(b)
	f.got = append(f.got, b[:k]...)
	return len(f.rest) > 0 || f.to.Pending() || len(f.got) < len(f.want), err
}

// TestFind: without a launcher of MPI nothing is loaded; a file that is no MPI library says why it is not used.
func TestFind(t *testing.T) {
	if l, err := Find("torchrun"); l != nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
	t.Setenv(Variable, "none")
	if l, err := Find("MPICH"); l != nil || err != nil {
		t.Errorf("none: %v, %v", l, err)
	}
	file := t.TempDir() + "/libmpi.so"
	if err := os.WriteFile(file, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, "/nowhere/libmpi.so"} {
		t.Setenv(Variable, path)
		if l, err := Find("MPICH"); l != nil || err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v", path, l, err)
		}
	}
}

// TestNames: the first line of what libraries say of themselves.
func TestNames(t *testing.T) {
	for said, want := range map[string]string{
		"MPICH Version:      5.0.2\nMPICH Release date: x\n\x00":             "MPICH 5.0.2",
		"Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, May 26\x00": "Open MPI v4.1.4",
	} {
		if got := summary(said); got != want {
			t.Errorf("%q: %q", said, got)
		}
	}
}

// TestABI: a library's binary interface is known by what it says, and one that is not known is refused.
func TestABI(t *testing.T) {
	standard := func(version int32) procedure {
		return func(a ...uintptr) int32 {
			memory[int32](a[0], 1)[0] = version
			return 0
		}
	}
	for _, c := range []struct {
		version string
		ask     procedure
		want    string
	}{
		{"MPICH Version: 5.0.2", standard(1), "the standard ABI"},
		{"MPICH Version: 5.0.2", standard(-1), "the ABI of MPICH"},
		{"MPICH Version: 4.0", nil, "the ABI of MPICH"},
		{"Intel(R) MPI Library 2021.10", nil, "the ABI of MPICH"},
		{"Open MPI v4.1.4", nil, "its own ABI"},
		{"Another MPI 1", nil, ""},
	} {
		l := &Library{Version: c.version, room: new(room), find: func(string) (uintptr, error) { return 1, nil }}
		l.call.abiVersion = c.ask
		err := l.choose()
		if (err == nil) != (c.want != "") || err == nil && l.abi.name != c.want {
			t.Errorf("%s: %+v, %v", c.version, l.abi, err)
		}
	}
}
