package search

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/plan"
)

// Approach. The decisions are nested, the costliest outermost:
//
//	micro-batch x grouping x placement   enumerated
//	  recomputation                      the least that fits, by bisection over
//	                                     a list from all kept to all recomputed
//	  chunk size, blocks, head rows      a few values, by decreasing memory
//	  chunks that may stay on the device as many as fit, by bisection
//
// Keeping more takes more memory and less time, so for each choice of the outer
// decisions the least recomputation that fits is the best. Swapping to the host is
// then considered for the fastest of these, see activations.go.
//
// Example: a model whose states are four times the device's memory. Placement "all on the device" fails its
// memory bound at once; "states on the host" fits with full recomputation; "weights and gradients too" fits
// with none. The simulator says which is faster.
//
// Known weakness: only a prefix of the chunks stays on the device. Apart from that and from who updates them,
// all chunks are treated alike; uneven choices that the packing would reward are not seen.

// enumerate tries all outer decisions, or only those whose steps can be shortened, until the effort is spent.
func (s *search) enumerate(shortened bool) error {
	s.allowed = s.spent + enough/2
	for kind := range 2 { // micro-batches one at a time first: the cost of judging these does not grow with the batch
		for _, b := range s.microBatches() {
			groups := s.groups(b)
			if kind >= len(groups) || shortened && !shortens(s.batch/b, groups[kind]) {
				continue
			}
			s.ladders = s.retentions(b, groups[kind])
			if err := s.residencies(b, groups[kind]); err != nil {
				return err
			}
		}
	}
	return nil
}

// slight is the share of the device's memory that a placement must save, compared with a nearer one that fits,
// to be tried too: what less memory can buy is not worth the copies.
const slight = 0.02

// residencies tries placements, near tiers first. If everything fits on the device
// without recomputation, farther tiers only cost time, except for updates (see
// released). The disk is tried only if the host cannot hold everything.
func (s *search) residencies(b, group int) error {
	inMemory, roomy := false, false
	var fit []residency
	for _, r := range residenciesOf(s.ranks) {
		if roomy && r.state != device.DeviceTier || s.tired() {
			break
		}
		if r.shard == "state" && group*b == s.batch && s.req.Pins.MicroBatch == 0 {
			continue // gradients are complete after one visit, so sharding them costs nothing
		}
		if r.state == device.DeviceTier && group > 1 && s.ranks == 1 && s.req.Pins.Group == 0 {
			continue // nothing is sent that several micro-batches could share
		}
		if !s.req.Pins.allow(r) || s.hopeless(b, r) || r.state == device.DiskTier && inMemory && s.req.Pins.State == nil {
			continue
		}
		if slices.ContainsFunc(fit, func(than residency) bool {
			return r.farther(than) && s.placed(than, device.DeviceTier)-s.placed(r, device.DeviceTier) < slight*float64(s.m.Capacity[device.DeviceTier])
		}) {
			continue
		}
		f := arrangement{r, group > 1}
		if best := s.fastest(); best != nil && s.reached[f] > f.hopelessness()*best.Seconds() {
			continue
		}
		c, err := s.try(b, group, r)
		if err != nil {
			return err
		}
		if c == nil {
			continue
		}
		s.reached[f] = min(cmp.Or(s.reached[f], c.Seconds()), c.Seconds())
		fit = append(fit, r)
		inMemory = true
		roomy = roomy || r.state == device.DeviceTier && c.Plan.Activations[0] == s.ladders[0][0][0]
		if s.any {
			return nil
		}
	}
	return nil
}

// arrangement is what candidates with micro-batches of different sizes have in common.
type arrangement struct {
	residency
	together bool // all micro-batches go through a layer before the next
}

// hopelessness bounds how far, as a ratio of times, an arrangement may trail with larger micro-batches and still be
// tried with smaller ones. Smaller ones can save only recomputation, at most a third of a step, and hardly any
// of it if all of them go through a layer together, since their activations then wait together too.
func (f arrangement) hopelessness() float64 {
	if f.together {
		return 1.1
	}
	return 1.5
}

// try looks for the best inner decisions for given outer ones; nil if none fits.
func (s *search) try(b, group int, r residency) (*Candidate, error) {
	s.say(fmt.Sprintf("planning: micro-batch %d, group %d, %s", b, group, r.label))
	var best *Candidate
	for _, ladder := range s.ladders {
		c, err := s.climb(b, group, r, ladder)
		if err != nil {
			return nil, err
		}
		if best == nil || c != nil && c.Seconds() < best.Seconds() {
			best = c
		}
		if best != nil && (s.any || r.state == device.DeviceTier && best.Plan.Activations[0] == ladder[0][0]) {
			break
		}
	}
	return best, nil
}

// climb returns the candidate with the first activation policy of a ladder that
// fits, in the first style where one does; nil if none fits.
func (s *search) climb(b, group int, r residency, ladder [][]plan.Retention) (*Candidate, error) {
	for _, st := range s.styles(b, r) {
		ch := choice{b: b, group: group, r: r, st: st}
		at := func(i int) choice { ch.keep = ladder[i]; return ch }
		fit, err := s.first(len(ladder), at)
		if fit == nil && err == nil {
			if ch.residents, err = s.relieve(at(len(ladder) - 1)); ch.residents > 0 && err == nil {
				fit, err = s.first(len(ladder), at)
			}
		}
		if err != nil {
			return nil, err
		}
		if fit == nil {
			continue
		}
		if err := s.keep(fit); err != nil {
			return nil, err
		}
		if r.state != device.DeviceTier && !s.any {
			if err := s.promote(fit); err != nil {
				return nil, err
			}
		}
		return fit, nil // styles that need less memory are slower
	}
	return nil, nil
}

// relieve returns how many chunks must be on the device for the others to fit on the host; 0 if it is not the
// host that is short of memory.
func (s *search) relieve(ch choice) (int, error) {
	if s.pinsChunks() || s.placed(ch.r, device.HostTier) <= float64(s.m.Capacity[device.HostTier]) {
		return 0, nil
	}
	c, err := s.evaluate(ch)
	if err != nil || c.Program.Over(device.DeviceTier) {
		return 0, err
	}
	chunks := len(c.Plan.Chunks)
	var failed error
	n := 1 + sort.Search(chunks-1, func(i int) bool {
		ch.residents = i + 1
		c, err := s.evaluate(ch)
		failed = cmp.Or(failed, err)
		return err != nil || !c.Program.Over(device.HostTier)
	})
	return n, failed
}

// pinsChunks reports whether the user has decided where chunks live.
func (s *search) pinsChunks() bool {
	return s.req.Pins.Weights != nil || s.req.Pins.State != nil || s.req.Pins.Grads != nil
}

// first finds by bisection the first of n choices that fits; nil if none does.
// Choices must be sorted by decreasing memory.
func (s *search) first(n int, at func(int) choice) (*Candidate, error) {
	last, err := s.evaluate(at(n - 1))
	if err != nil || last.Program.Over(device.DeviceTier) {
		return nil, err // the last choice needs least device memory, though it may need more of other tiers
	}
	if s.any && last.Fits {
		return last, nil
	}
	fits := map[int]*Candidate{}
	var failed error
	i := sort.Search(n, func(i int) bool {
		c, err := s.evaluate(at(i))
		if err != nil {
			failed = cmp.Or(failed, err)
			return true
		}
		if c.Fits {
			fits[i] = c
		}
		return c.Fits
	})
	return fits[i], failed
}

// promote places as many more chunks as fit wholly on the device, starting with the
// first. The others follow the base's placement.
func (s *search) promote(base *Candidate) error {
	chunks := len(base.Plan.Chunks)
	if s.pinsChunks() || base.choice.residents >= chunks {
		return nil
	}
	fit, err := s.first(chunks-base.choice.residents, func(i int) choice {
		ch := base.choice
		ch.residents = chunks - i
		return ch
	})
	if err != nil || fit == nil {
		return err
	}
	return s.keep(fit)
}
