package search

import (
	"errors"
	"iter"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/verify"
)

// blockOn searches for a block of a small model on an L4 with less memory.
func blockOn(t *testing.T, memory, host, disk int64, sequences int) (*BlockPlan, error) {
	t.Helper()
	s := blockSearchOn(t, memory, host, disk, sequences)
	return FindBlock(t.Context(), s.req, s.m)
}

// blockSearchOn returns such a search before it has begun.
func blockSearchOn(t *testing.T, memory, host, disk int64, sequences int) *blockSearch {
	t.Helper()
	m := *small(t).Graph.Model
	m.Layers = 2
	h, err := hardware.KnownRank("l4", 1)
	check(t, err)
	on := &Machine{Capacity: program.NoLimits, Cost: h}
	on.Capacity[device.DeviceTier], on.Capacity[device.HostTier], on.Capacity[device.DiskTier] = memory, host, disk
	req := &BlockRequest{Model: &m, DType: graph.F32, Context: 64, Sequences: sequences, Reads: []int{64, 16}, Prompt: 40, Tokens: 20, HostAttends: true}
	return &blockSearch{ctx: t.Context(), req: req, m: on, seen: map[blockPolicy]*BlockPlan{}}
}

// TestBestBlock: what is found is at most 3 % slower than the best of all policies of a few sequences, each of which is tried.
func TestBestBlock(t *testing.T) {
	sequences := testkit.Count(3, 4, 6)
	all, err := blockOn(t, 1<<40, 1<<40, 0, sequences)
	check(t, err)
	var misfit *Misfit
	if _, err := blockOn(t, 1, 1<<40, 0, sequences); !errors.As(err, &misfit) {
		t.Fatal(err)
	}
	parts := testkit.Count(1, 2, 6)
	for i := range parts {
		memory := misfit.Need + (all.Programs[0].Height[device.DeviceTier]-misfit.Need)*int64(i)/int64(parts)
		found, err := blockOn(t, memory, 1<<40, 0, sequences)
		check(t, err)
		best := found
		for p := range allBlocks(sequences) {
			b, err := blockSearchOn(t, memory, 1<<40, 0, sequences).try(p)
			check(t, err)
			if b != nil && b.Rate() > best.Rate() {
				best = b
			}
		}
		if found.Rate() < 0.97*best.Rate() {
			t.Errorf("with %d bytes: %+v generates %.0f tokens/s, %+v %.0f", memory, found.policy, found.Rate(), best.policy, best.Rate())
		}
	}
}

// allBlocks are all policies of so many sequences at most.
func allBlocks(sequences int) iter.Seq[blockPolicy] {
	return func(yield func(blockPolicy) bool) {
		for each := 1; each <= sequences; each++ {
			for batches := 1; each*batches <= sequences; batches++ {
				for i := range 8 * (batches + 1) {
					if !yield(blockPolicy{each: each, batches: batches, near: i / 8, attends: i&1 == 1, hidden: device.Tier(i >> 1 & 1), reads: i >> 2 & 1}) {
						return
					}
				}
			}
		}
	}
}

// TestFindBlock: the less memory the device has, the slower the block that is found, which fits, is safe and generates more per second than one
// sequence at a time on the same device; and what the error names suffices.
func TestFindBlock(t *testing.T) {
	var misfit *Misfit
	if _, err := blockOn(t, 1, 1<<40, 0, 12); !errors.As(err, &misfit) {
		t.Fatalf("in a byte: %v", err)
	}
	all, err := blockOn(t, 1<<40, 1<<40, 0, 12)
	check(t, err)
	before := all.Rate()
	for _, memory := range []int64{all.Programs[0].Height[device.DeviceTier] / 2, all.Programs[0].Height[device.DeviceTier] / 4, misfit.Need}[:testkit.Count(1, 2, 3)] {
		found, err := blockOn(t, memory, 1<<40, 0, 12)
		check(t, err)
		for _, p := range found.Programs {
			check(t, verify.Verify(p))
			if p.Height[device.DeviceTier] > memory {
				t.Errorf("with %d bytes, %s takes %d", memory, p.Name, p.Height[device.DeviceTier])
			}
		}
		one, err := blockOn(t, memory, 1<<40, 0, 1)
		check(t, err)
		t.Logf("%d bytes: %d x %d, reads %v, batches %+v, %.0f tokens/s, one by one %.0f", memory, found.Batches, found.Each, found.Reads, found.Plan.Batches, found.Rate(), one.Rate())
		if found.Rate() > before*1.001 || found.Rate() < one.Rate() {
			t.Errorf("with %d bytes %.0f tokens/s, with more memory %.0f, one by one %.0f", memory, found.Rate(), before, one.Rate())
		}
		before = found.Rate()
	}
}

// TestFindBlockDisk: where the host has no room for the weights that the device has none for, they are on the disk, and nothing else is lacking.
func TestFindBlockDisk(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	all, err := blockOn(t, 1<<40, 1<<40, 0, 4)
	check(t, err)
	memory := all.Programs[0].Height[device.DeviceTier] / 2
	far, err := blockOn(t, memory, 1<<40, 0, 4)
	check(t, err)
	host := far.Programs[0].Height[device.HostTier] / 2
	var misfit *Misfit
	if _, err := blockOn(t, memory, host, 0, 4); !errors.As(err, &misfit) || misfit.Tier != device.HostTier {
		t.Fatalf("without a disk: %v", err)
	}
	found, err := blockOn(t, memory, host, 1<<40, 4)
	check(t, err)
	for _, p := range found.Programs {
		check(t, verify.Verify(p))
		if p.Height[device.HostTier] > host || p.Height[device.DiskTier] == 0 {
			t.Errorf("%s takes %v bytes, of %d on the host", p.Name, p.Height, host)
		}
	}
	if found.Rate() > far.Rate()*1.001 {
		t.Errorf("%.0f tokens/s from the disk, %.0f from the host", found.Rate(), far.Rate())
	}
	// With less room still, caches are there, too.
	s := blockSearchOn(t, memory, 1<<40, 1<<40, 12)
	policy := blockPolicy{each: 1, batches: 12, attends: true}
	near, err := s.try(policy)
	check(t, err)
	policy.cold = 12
	cold, err := s.try(policy)
	check(t, err)
	if cold.Plan.Batches[11].Cache != device.DiskTier || cold.Rate() > near.Rate() {
		t.Errorf("%.0f tokens/s with caches on the disk, %.0f on the host", cold.Rate(), near.Rate())
	}
	s = blockSearchOn(t, memory, cold.Programs[0].Height[device.HostTier], 1<<40, 12)
	if found, err = FindBlock(t.Context(), s.req, s.m); err != nil || found.Rate() < cold.Rate() {
		t.Errorf("%v: slower than with caches on the disk", err)
	}
}
