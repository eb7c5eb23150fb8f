package collocate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/hardware"
)

// planned returns a planner of jobs that need bytes and, on the whole card, a second a step, for a part of which it computes;
// on instances as much longer as they are smaller.
func planned(bytes []int64, busy float64) Planner {
	return func(job int, need Need) (*Run, string, error) {
		compute, room := 1.0, int64(39<<30)
		if _, name, ok := strings.Cut(need.On, "/"); ok {
			for _, in := range hardware.Instances("a100-40") {
				if in.Name == name {
					compute, room = in.Compute, int64(in.Memory*float64(40<<30))-hardware.ContextBytes
				}
			}
		}
		if need.Device > 0 {
			room = need.Device
		}
		if bytes[job] > room {
			return nil, fmt.Sprintf("it needs %d bytes", bytes[job]), nil
		}
		seconds := 1 - busy + busy/compute
		return &Run{Seconds: seconds, Tokens: 1000, Device: bytes[job], Host: 1 << 30, Use: Use{Processor: busy / compute}}, "", nil
	}
}

var card = Card{Name: "a100-40", Device: 39 << 30, Host: 100 << 30}

// TestCompare: jobs that leave the card idle run together; those that keep it busy one after another; what does not fit
// beside the others is not offered, and why is said.
func TestCompare(t *testing.T) {
	idle, err := card.Compare([]string{"a", "b"}, planned([]int64{4 << 30, 4 << 30}, 0.3))
	if err != nil {
		t.Fatal(err)
	}
	if w := idle.Ways[idle.Best]; w.Name != "mps" || math.Abs(w.Aggregate-2) > 1e-9 || w.Places[1].TokenRate != 1000 {
		t.Errorf("idle: %+v", w)
	}
	if w := idle.Ways[2]; w.Name != "mig" || w.Aggregate >= 2 || w.Aggregate < 1 || len(w.Layout) < 2 {
		t.Errorf("idle, divided: %+v", w)
	}
	busy, err := card.Compare([]string{"a", "b"}, planned([]int64{4 << 30, 4 << 30}, 1))
	if err != nil || busy.Ways[busy.Best].Name != "exclusive" {
		t.Errorf("busy: %+v, %v", busy, err)
	}
	large, err := card.Compare([]string{"a", "b", "c"}, planned([]int64{30 << 30, 4 << 30, 4 << 30}, 0.3))
	if err != nil || large.Ways[1].Places != nil || !strings.Contains(large.Ways[1].Why, "a does not fit") || large.Ways[2].Places != nil || !strings.Contains(large.Ways[2].Why, "a on ") {
		t.Errorf("large: %+v, %v", large, err)
	}
	if _, err := card.Compare([]string{"a"}, planned([]int64{50 << 30}, 1)); err == nil {
		t.Error("a job that does not fit at all is placed")
	}
	broken := errors.New("broken")
	if _, err := card.Compare([]string{"a"}, func(int, Need) (*Run, string, error) { return nil, "", broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// TestCompareHost: what jobs take of the host together is no more than there is.
func TestCompareHost(t *testing.T) {
	plan := planned([]int64{4 << 30, 4 << 30}, 0.3)
	small := card
	small.Host = 3 << 29
	asked := map[int64]int{}
	r, err := small.Compare([]string{"a", "b"}, func(job int, need Need) (*Run, string, error) {
		run, why, err := plan(job, need)
		if asked[need.Host]++; run != nil && need.Host > 0 {
			run.Host = need.Host
		}
		return run, why, err
	})
	if err != nil || asked[3<<28] == 0 {
		t.Fatalf("%v, %v", err, asked)
	}
	for _, w := range r.Ways[1:] {
		sum := int64(0)
		for _, p := range w.Places {
			sum += p.Host
		}
		if sum > small.Host {
			t.Errorf("%s takes %d bytes of the host", w.Name, sum)
		}
	}
}

// TestEnvironment: jobs on instances of the same kind get different ones.
func TestEnvironment(t *testing.T) {
	r, err := card.Compare([]string{"a", "b", "c"}, planned([]int64{4 << 30, 4 << 30, 4 << 30}, 0.3))
	if err != nil {
		t.Fatal(err)
	}
	mig, seen := r.Ways[2], map[string]string{}
	same := false
	for j, p := range mig.Places {
		v, _ := r.Environment(mig, j, 1)
		if _, again := seen[v[0]]; again || !strings.HasPrefix(v[0], "CUDA_VISIBLE_DEVICES=$(nvidia-smi -L") {
			t.Errorf("%s on %s: %v", r.Jobs[j], p.On, v)
		}
		same = same || slices.ContainsFunc(mig.Places[:j], func(q Place) bool { return q.On == p.On })
		seen[v[0]] = p.On
	}
	if !same {
		t.Errorf("no two jobs on instances of a kind: %v", mig.Layout)
	}
	if mps, _ := r.Environment(r.Ways[1], 0, 1); !slices.Equal(mps, []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5121M"}) {
		t.Errorf("%v", mps)
	}
	if cores, _ := r.Environment(Way{Name: "cores", Places: make([]Place, 3)}, 0, 8); !slices.Equal(cores, []string{"GOMAXPROCS=2"}) {
		t.Errorf("%v", cores)
	}
}
