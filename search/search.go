// Package search finds the fastest plan that fits.
//
// A plan decides where data lives, which activations are kept, swapped or
// recomputed, and how the batch is cut. The compiler itself judges a candidate: the
// candidate is lowered to its program, whose packing gives its memory to the byte,
// and the program is simulated, which gives its time:
//
//	decisions --Lower--> program --place--> bytes per tier
//	                        |
//	                        '------sim----> seconds per step
//
// So what the search assumes is what the run does. Lower bounds keep the search short: the memory that a
// placement needs whatever else is chosen, and the time that arithmetic alone takes. Steps of many
// micro-batches are judged by three of them, and lowered in full only for candidates that are kept (short.go).
//
// A search is a list of stages (see stages), each of which makes a longer or better shortlist of a shortlist:
//
//	func(ctx, *problem, shortlist) (shortlist, error)
//
// What is asked is a problem, which never changes; a stage keeps what it knows in values of its own. So a stage
// can be run alone, repeated, or left out, and at each moment the first candidate is the best plan so far.
//
// Terms used in the code:
//
//	residency   placement: the tiers of weights, gradients and optimizer state,
//	            and how ranks shard them
//	retention   a layer's activation policy: what is kept, swapped or recomputed
//	fate        the same for one class of a layer's activations
//	ladder      activation policies for all layers, sorted from least work to
//	            least memory; a rung is an index into it
//	style       chunk size, cache, prefetch and head rows
//	frugal      needing least memory
//
// Given only a machine's description, Search is a function of its arguments. A
// Machine may also have functions that time operators and try finalists on real
// hardware. The plan then depends on what they measure, and so on the moment.
package search

import (
	"context"
	"slices"
)

// stage takes the best candidates so far, fastest first, and returns those that are best now.
type stage func(ctx context.Context, p *problem, found shortlist) (shortlist, error)

// namedStage is a row of a table of stages.
type namedStage struct {
	name   string
	run    stage
	sketch bool // the stage has a part in sketches, see Request.Sketch
}

// stages are what a search does, in this order.
var stages = []namedStage{
	{"uniform plans", planUniform, true},
	{"pipelines", planPipelines, true},
	{"rivals", addRivals, false},
	{"last resort", resortToFrugalest, true},
	{"measuring", measureFastest, false},
	{"repetition", repeatWithPrices, false},
	{"exchange", tryOtherExchange, true},
	{"thrift", preferThrifty, false},
	{"all ranks", lowerAllRanks, true},
	{"trials", tryFinalists, false},
	{"packing", packFastest, false},
}

// stageOrder states which stage must precede which, and why. A test checks it against the tables.
var stageOrder = []struct{ before, after, why string }{
	{"memory", "deferral", "updates that wait for the next step are divided anew, beginning with memory as it is without"},
	{"deferral", "activations", "what is swapped takes link time from weights and updates, so it is decided once it is known when these are"},
	{"tables", "memory", "what tables on the host leave free is divided with all else"},
	{"memory", "activations", "what is swapped takes link time from weights, so it is decided once these have their cache"},
	{"activations", "whole steps", "hundreds of changes are judged by steps of three micro-batches, and only what is left in full"},
	{"uniform plans", "pipelines", "a pipeline is lowered only if its bound is below the time of the best plan so far"},
	{"pipelines", "rivals", "the search must not depend on what others would decide"},
	{"rivals", "last resort", "it is for when nothing has been found"},
	{"last resort", "measuring", "there is a plan from here on"},
	{"measuring", "repetition", "how long trials may take follows from the measured time"},
	{"repetition", "exchange", "what is tried is the best plan at the prices that hold"},
	{"exchange", "thrift", "whatever is exchanged, of plans that are as fast the thriftiest is taken"},
	{"repetition", "thrift", "predictions must be as good as they get before they are called too close to tell"},
	{"thrift", "all ranks", "only the plan that is taken is lowered for all ranks"},
	{"all ranks", "trials", "a candidate that does not fit some rank cannot be tried"},
	{"trials", "packing", "only the plan that will run is packed tighter"},
}

// Search returns the fastest plan that fits, with runners-up. progress (may be nil)
// receives messages about what is being tried. The error is a *Misfit if nothing
// fits; it is ErrBatch, ErrPins or ErrPipeline if the request cannot be met at all.
func Search(ctx context.Context, req *Request, m *Machine, progress func(string)) (*Result, error) {
	p := newProblem(req, m)
	p.told.progress = progress
	p.told.say(planning, nil)
	var found shortlist
	for _, s := range stages {
		if req.Sketch && !s.sketch {
			continue
		}
		var err error
		found, err = s.run(ctx, p, found)
		p.known.settle() // what comes next may time operators
		if err != nil {
			return nil, err
		}
	}
	r := found.result()
	r.Evaluated, r.Cut = p.told.evaluated, p.told.cut()
	return r, r.Best.draw()
}

// Result is the result of a search.
type Result struct {
	Best      *Candidate
	RunnersUp []*Candidate // the best of other kinds, fastest first, as predicted
	Evaluated int          // candidates lowered
	Cut       bool         // the user had enough before the search ended
}

// Fastest returns the least predicted time. It is the best plan's unless trials
// changed the order, or the best is thriftier and hardly slower.
func (r *Result) Fastest() float64 {
	least := r.Best.Seconds()
	for _, c := range r.RunnersUp {
		least = min(least, c.Seconds())
	}
	return least
}

// result returns the first candidate as the best, with the next one and the best of every other kind.
func (l shortlist) result() *Result {
	r := &Result{Best: l[0]}
	kinds := map[string]bool{}
	for _, c := range l[1:] {
		if len(kinds) == 0 || !kinds[c.Kind] && c.Kind != r.Best.Kind {
			kinds[c.Kind], r.RunnersUp = true, append(r.RunnersUp, c)
		}
	}
	return r
}

// aim is what is looked for.
type aim uint8

const (
	fastestPlan aim = iota
	anyPlan         // the first plan that fits is enough
	anyFrugal       // the same, among plans whose small decisions need least memory
)

// Fits returns nil if any plan fits. It does not look for the fastest.
func Fits(ctx context.Context, req *Request, m *Machine) error {
	p := newProblem(req, m)
	p.untimed = true
	if found, err := planExists(ctx, p, anyPlan); found || err != nil {
		return err
	}
	_, err := resortToFrugalest(ctx, p, nil)
	return err
}

// FitsFrugally reports whether a plan with minimum-memory small decisions fits, for a shortened step if there are many
// micro-batches. If none does, others seldom do; if one does, Fits seldom disagrees. It takes a small fraction of the time
// that Fits takes.
func FitsFrugally(ctx context.Context, req *Request, m *Machine) (bool, error) {
	p := newProblem(req, m)
	p.untimed = true
	return planExists(ctx, p, anyFrugal)
}

// planExists reports whether any plan that is looked for fits on all ranks.
func planExists(ctx context.Context, p *problem, of aim) (bool, error) {
	if p.divisible() && !p.req.Pins.pipelined() {
		e, slots := newEnumeration(p, nil, of), 0
		if of == anyFrugal {
			slots = 1
		}
		sizes := p.microBatches()
		slices.Reverse(sizes) // small ones need least memory
		for _, b := range sizes {
			for _, group := range p.groups(b) {
				if err := e.tryPlacements(ctx, choice{b: b, group: group, slots: slots, tables: p.tables, short: shortens(p.batch/b, group)}); err != nil {
					return false, err
				}
				if of == anyFrugal && len(e.found) > 0 {
					return true, nil
				}
				if done, err := fitsWhole(ctx, p, e.found); done || err != nil {
					return done, err
				}
				e.found = nil
			}
		}
	}
	found, err := searchPipelines(ctx, p, nil, of)
	if err != nil {
		return false, err
	}
	return fitsAllRanks(ctx, p, found)
}

// fitsWhole reports whether one of the candidates, some of which may be shortened, fits with a whole step and on all ranks.
func fitsWhole(ctx context.Context, p *problem, found shortlist) (bool, error) {
	var whole shortlist
	for _, c := range found {
		if c.missing > 0 {
			ch := c.choice
			ch.short = false
			var err error
			if c, err = p.evaluate(ctx, ch); err != nil {
				return false, err
			}
		}
		if c.Fits {
			whole = append(whole, c)
		}
	}
	return fitsAllRanks(ctx, p, whole)
}

// fitsAllRanks reports whether one of the candidates fits on all ranks.
func fitsAllRanks(ctx context.Context, p *problem, found shortlist) (bool, error) {
	for _, c := range found {
		if fits, err := c.Complete(ctx, p.req); fits || err != nil {
			return fits, err
		}
	}
	return false, nil
}
