// Package session holds a model on the devices of all ranks and steps it.
//
//	Prove(graph, plan, programs)            safe, and equal to the plain program
//	Open(graph, devices, programs...)  --> Session
//	Session.Load, Read, Write               parameters and moments by parameter
//	Session.Step(i, batch, scalars) --> Outcome
//
// Ownership. A Session runs several steps, such as training and evaluation, in one
// set of arenas. The first step owns the parameters; the others are lowered with it
// as their base. Between steps the only copy of weights and moments is in the
// arenas. The devices belong to the caller, who closes them after the session
// (CloseAll).
//
// Invariants. The programs of a step belong to one plan, one per rank, and together
// the ranks hold every parameter completely; Open refuses anything else. A session
// decides nothing and draws nothing at random: what a step computes is a function
// of its programs, the arenas and the arguments of Step. So any plan gives the
// losses, weights and moments of the plain one, bit for bit or, where sums are
// divided among ranks, up to their order. The tests here hold that law (L1), and
// those of peaks (L2) and bytes (L3), against numbers from PyTorch; see
// ARCHITECTURE.md.
//
// Where to look:
//
//	session.go  Session: opening, stepping, state by parameter
//	prove.go    what is checked before programs run
//	moments.go  moments in 8 bits
//	init.go     initial parameters
//	settle.go   updates that a step leaves for the next one
//	pairs.go    additional inputs and outputs of steps on pairs
//	culprit.go  what made a step's numbers not finite
//	savers.go   which process writes what of a checkpoint, and reads what
//	measure.go  steps on random text, for trials and benchmarks
package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/exec"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/program"
	"github.com/athanor-llm/athanor/sim"
	"github.com/athanor-llm/athanor/verify"
)

// Session is a model on the devices of all ranks. Its steps share one set of
// arenas; the first step owns the parameters. A Session is not safe for concurrent
// use.
type Session struct {
	Graph   *graph.Graph    // of a model whose vocabulary is in one part: parameters are those of files
	Devices []device.Device // by rank
	ranks   []rank
	groups  []*exec.Group // of all ranks' engines, by step
	settles int           // index of the step that makes deferred updates, if there is one
	latest  []float32     // scalars of the latest step 0
	fed     []float32     // the scalars written last
	pending bool          // the latest step 0 has left deferred updates
	noise   noise         // of that batch
	pairs   pairs         // in that batch
}

// rank is one rank's part of a session; the slices are indexed by step.
type rank struct {
	engines []*exec.Engine
	progs   []*program.Program
	batch   []int32 // room for the rows of an input, where they are not consecutive
	floats  []float32
}

// Open reserves the arenas and prepares the programs: for each step, one per
// device. All steps but the first must have been lowered with the first as their
// base. Open refuses those that were not, and ranks whose plans differ. Close the
// session before the devices.
func Open(g *graph.Graph, devices []device.Device, steps ...[]*program.Program) (*Session, error) {
	return OpenDeferred(g, devices, nil, steps...)
}

// OpenDeferred is Open for training steps that may defer updates to the next one, with the programs of these updates, one per
// device. Without these programs, parameters cannot be read after steps that defer updates.
func OpenDeferred(g *graph.Graph, devices []device.Device, updates []*program.Program, steps ...[]*program.Program) (*Session, error) {
	if err := compatible(updates, steps); err != nil {
		return nil, err
	}
	g, err := graph.Undivided(g)
	if err != nil {
		return nil, err
	}
	s := &Session{Graph: g, Devices: devices, ranks: make([]rank, len(devices)), latest: make([]float32, graph.NumScalars), fed: make([]float32, graph.NumScalars)}
	s.settles = len(steps)
	if updates != nil {
		steps = append(slices.Clip(steps), updates)
	}
	for r, d := range devices {
		for _, step := range steps {
			s.ranks[r].progs = append(s.ranks[r].progs, step[r])
		}
		if err := exec.Reserve(d, s.ranks[r].progs...); err != nil {
			s.Close()
			return nil, err
		}
		for _, p := range s.ranks[r].progs {
			e, err := exec.New(p, d)
			if err != nil {
				s.Close()
				return nil, err
			}
			s.ranks[r].engines = append(s.ranks[r].engines, e)
		}
	}
	for i := range steps {
		engines := make([]*exec.Engine, len(devices))
		for r := range engines {
			engines[r] = s.ranks[r].engines[i]
		}
		s.groups = append(s.groups, exec.NewGroup(engines))
	}
	if err := s.begin(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// compatible checks that programs may run in one set of arenas.
func compatible(updates []*program.Program, steps [][]*program.Program) error {
	for _, step := range append(slices.Clip(steps), updates) {
		if err := agree(step); err != nil {
			return err
		}
	}
	for _, step := range steps[1:] {
		for r := range step {
			if err := verify.VerifyBeside(steps[0][r], step[r]); err != nil {
				return err
			}
		}
	}
	for r := range updates {
		if err := verify.Shares(steps[0][r], updates[r]); err != nil {
			return err
		}
	}
	return nil
}

// agree checks that programs by rank belong to one plan.
func agree(ps []*program.Program) error {
	var hashes []string
	for _, p := range ps {
		hashes = append(hashes, p.PlanHash)
	}
	return verify.SamePlan(hashes)
}

// begin checks that the ranks together hold every parameter completely, and writes constants. Of ranks that share matrices the first may be
// the only one that has a parameter that is whole.
func (s *Session) begin() error {
	for i := range s.Graph.Params {
		_, divided := s.Graph.Slab(i)
		for class := range s.Graph.Shared() / s.Graph.Terms(i) {
			if n, all := s.covered(i, class, optimizer.Weights), s.Graph.Stored(i).Elems(); n != all && (n > 0 || divided || class == 0) {
				return fmt.Errorf("the ranks hold %d elements of the %d of parameter %s", n, all, s.Graph.Params[i].Name)
			}
		}
	}
	for v := range s.Graph.Values {
		if s.Graph.Values[v].Kind != graph.Constant {
			continue
		}
		if err := s.writeConstant(v); err != nil {
			return err
		}
	}
	return s.settled()
}

// writeConstant writes a value of kind Constant on the ranks that read it.
func (s *Session) writeConstant(v int) error {
	value, table := &s.Graph.Values[v], s.Graph.Constant(v)
	for r := range s.ranks {
		e := s.ranks[r].engines[0]
		if e.BufferLen(value.Name) == 0 {
			continue
		}
		if err := e.WriteFloats(value.Name, table); err != nil {
			return err
		}
	}
	return nil
}

// covered counts the distinct elements of a parameter's state that ranks hold: one class of those that share matrices, which have the same
// of it and update it together.
func (s *Session) covered(param, class int, kind optimizer.Kind) (n int64) {
	seen := map[[2]int]bool{}
	for r := range s.ranks {
		if r%s.Graph.Shared()/s.Graph.Terms(param) != class {
			continue
		}
		for _, p := range s.ranks[r].engines[0].Parts(param, kind) {
			if !seen[p] {
				seen[p] = true
				n += int64(p[1] - p[0])
			}
		}
	}
	return n
}

// Close closes the engines. The devices stay open.
func (s *Session) Close() {
	for _, g := range s.groups {
		g.Close()
	}
	for r := range s.ranks {
		for _, e := range s.ranks[r].engines {
			e.Close()
		}
	}
}

// CloseAll closes the devices of all ranks.
func CloseAll(devices []device.Device) error {
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Engine returns the first rank's engine of step i.
func (s *Session) Engine(i int) *exec.Engine { return s.ranks[0].engines[i] }

// Program returns the first rank's program of step i.
func (s *Session) Program(i int) *program.Program { return s.ranks[0].progs[i] }

// Scalars are the inputs of a step that change from step to step.
type Scalars struct {
	Rate         float64 // learning rate
	Step         int     // optimizer step, from 1, for the bias correction
	Beta1, Beta2 float64
	Targets      int // target tokens in the global batch, or pairs: the denominator of the loss
	Seed         uint64
	Bound        float64 // a gradient norm above it skips the update; 0: any finite norm is accepted
	// Reference holds, by token of the batch, the log-probability of each document of a pair under the reference, at the document's
	// first token; nil: all are 0. Verdicts are what the loss of single documents wants, see graph.Preference, likewise.
	Reference, Verdicts []float32
	Teacher             Teacher   // of the batch, where the graph has one
	Values              []float32 // of a regression, by token of the batch, the value of each text at its last token; nil: all are 0
}

// Outcome is the result of a step.
type Outcome struct {
	Loss    float64 // mean over the target tokens, or pairs
	Norm    float64 // of the gradient before clipping; 0 without optimizer
	Skipped bool    // the norm is above the bound or not finite: weights and moments are unchanged. Never without clipping
	Seconds float64
	// Ratios hold, for steps on pairs, by token of the batch, each document's log-probability minus that under the reference, at the
	// document's first token; else they are empty. They are valid until the next step.
	Ratios []float32
	// Executed holds each rank's result of this step; it is valid until the next
	// step.
	Executed []exec.Result
}

// Batch holds for each token, of rows x sequence length in row-major order, its id, that of the token after it, which
// does not count if it is negative, and the position in its row at which its document begins; the last may be nil for
// a graph that does not tell documents apart.
type Batch struct{ Tokens, Targets, Starts []int32 }

// Step runs step i on a batch.
func (s *Session) Step(ctx context.Context, i int, b Batch, sc Scalars) (Outcome, error) {
	if i != 0 {
		if err := s.Settle(ctx); err != nil {
			return Outcome{}, err
		}
	}
	if err := s.feed(i, b, sc); err != nil {
		return Outcome{}, err
	}
	results, err := s.groups[i].Step(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if i == 0 { // only once this step has run are the deferred updates its own, with its scalars
		copy(s.latest, s.fed)
		s.pending = s.defers()
	}
	out := Outcome{Executed: results}
	var total, clip [2]float64
	for r := range s.ranks {
		e := s.ranks[r].engines[i]
		out.Seconds = max(out.Seconds, out.Executed[r].Seconds)
		if e.BufferLen("loss.total") > 0 {
			if err := e.ReadBuffer("loss.total", total[:1]); err != nil {
				return out, s.lost(r, err)
			}
			out.Loss += total[0]
		}
		if i == 0 && e.BufferLen(program.Clip) > 0 { // the same on all ranks
			if err := e.ReadBuffer(program.Clip, clip[:]); err != nil {
				return out, s.lost(r, err)
			}
			out.Norm, out.Skipped = clip[1], clip[0] == 0
		}
	}
	out.Loss /= float64(max(sc.Targets, 1))
	out.Ratios, err = s.ratios(i)
	return out, err
}

// feed writes the inputs of step i on all ranks.
func (s *Session) feed(i int, b Batch, sc Scalars) error {
	var values [graph.NumScalars]float32
	values[graph.ScalarLR] = float32(sc.Rate)
	values[graph.ScalarCorrection1] = float32(1 - math.Pow(sc.Beta1, float64(sc.Step)))
	values[graph.ScalarCorrection2] = float32(1 - math.Pow(sc.Beta2, float64(sc.Step)))
	values[graph.ScalarLossScale] = 1 / float32(max(sc.Targets, 1))
	values[graph.ScalarChance] = graph.Chance(sc.Seed, sc.Step)
	values[graph.ScalarBound] = math.MaxFloat32
	if sc.Bound > 0 {
		values[graph.ScalarBound] = float32(min(sc.Bound, math.MaxFloat32))
	}
	if s.Graph.Noise >= 0 {
		s.noise.draw(len(b.Tokens), i == 0, sc)
	}
	for r := range s.ranks {
		if k := &s.ranks[r]; k.progs[i].Defers() {
			if err := k.engines[i].WriteFloats(program.PendingScalars, s.latest); err != nil {
				return s.lost(r, err)
			}
		}
		if err := s.ranks[r].feed(i, b, s.noise, values[:]); err != nil {
			return s.lost(r, err)
		}
	}
	copy(s.fed, values[:])
	if s.Graph.TeacherIDs >= 0 {
		return feedTeacher(s, i, len(b.Tokens), sc.Teacher)
	}
	if s.Graph.Preference() > 0 {
		return s.feedPairs(i, len(b.Tokens), sc)
	}
	if s.Graph.Regressed >= 0 {
		if err := feedNumbers(s, i, len(b.Tokens), "batch.values", sc.Values); err != nil {
			return err
		}
	}
	if model.Classifies(s.Graph.Model) {
		return clearLogits(s, i)
	}
	return nil
}

// SetClock turns the timing of calls on or off on devices where it costs time, and reports whether there are such devices.
// With timing off, the timelines of later steps are meaningless.
func (s *Session) SetClock(on bool) (costs bool) {
	for _, d := range s.Devices {
		if d, ok := d.(device.Clock); ok {
			d.SetClock(on)
			costs = true
		}
	}
	return costs
}

// Timelines returns the timelines of the latest step i by rank, on one clock. They
// are valid until the next step.
func (s *Session) Timelines(i int) ([]*sim.Timeline, error) { return s.groups[i].Timelines() }

// feed writes a rank's inputs: its rows of the batch, and the scalars.
func (k *rank) feed(i int, b Batch, noise []int32, scalars []float32) error {
	e, p := k.engines[i], k.progs[i]
	for _, in := range []struct {
		name string
		all  []int32
	}{{"batch.tokens", b.Tokens}, {"batch.targets", b.Targets}, {"batch.starts", b.Starts}, {"batch.noise", noise}} {
		n := e.BufferLen(in.name)
		if n == 0 {
			continue
		}
		rows, err := rowsOfRank(p, in.name, in.all, n, 1, &k.batch)
		if err == nil {
			err = e.WriteInts(in.name, rows)
		}
		if err != nil {
			return err
		}
	}
	return e.WriteFloats(program.StepScalars, scalars)
}

// rowsOfRank returns the n rows of so many columns of the batch that a rank has, in room if it shares sequences.
func rowsOfRank[T any](p *program.Program, name string, all []T, n, cols int, room *[]T) ([]T, error) {
	first, end := p.BatchRow, p.GlobalRow(n-1)+1
	if end*cols > len(all) {
		return nil, fmt.Errorf("%s: rank %d needs rows %d to %d, but there are only %d", name, p.Rank, first, end, len(all)/cols)
	}
	if len(p.Runs) == 0 {
		return all[first*cols : end*cols], nil
	}
	rows := (*room)[:0]
	for len(rows) < n*cols {
		for _, r := range p.Runs {
			first := p.GlobalRow(len(rows) / cols)
			rows = append(rows, all[first*cols:(first+r.Rows)*cols]...)
		}
	}
	*room = rows
	return rows, nil
}

// Read copies one kind of a parameter's state into dst, in the
// order of files, from whichever ranks and tiers hold it.
func (s *Session) Read(param int, kind optimizer.Kind, dst []float32) error {
	if err := s.Settle(context.Background()); err != nil {
		return err
	}
	p := &s.Graph.Params[param]
	if int64(len(dst)) != p.Elems() {
		return fmt.Errorf("there is room for %d elements of parameter %s, which has %d", len(dst), p.Name, p.Elems())
	}
	if !p.Reordered() {
		return s.read(param, kind, dst)
	}
	held := make([]float32, len(dst))
	if err := s.read(param, kind, held); err != nil {
		return err
	}
	p.ToFile(dst, held)
	return nil
}

// ReadPart is Read for the elements from index first on, as many as dst holds. Parameters that files order differently, that
// are in 4 bits or that ranks share, and moments in 8 bits, can only be read whole.
func (s *Session) ReadPart(param int, kind optimizer.Kind, first int, dst []float32) error {
	if err := s.partly(param, kind, first, len(dst)); err != nil {
		return err
	}
	return s.each(func(e *exec.Engine) error { return e.ReadHome(param, kind, first, dst) })
}

// ReadHalves is ReadPart for state that is stored in bf16, without conversion: dst has two bytes per element.
func (s *Session) ReadHalves(param int, kind optimizer.Kind, first int, dst []byte) error {
	if err := s.partly(param, kind, first, len(dst)/2); err != nil {
		return err
	}
	return s.each(func(e *exec.Engine) error { return e.ReadBytes(param, kind, graph.BF16, first, dst) })
}

// partly prepares for reading n elements of a parameter by themselves, or refuses it.
func (s *Session) partly(param int, kind optimizer.Kind, first, n int) error {
	if p := &s.Graph.Params[param]; !InParts(s.Graph, param) || MomentOf(s, param, kind).Packed() || first < 0 || int64(first+n) > p.Elems() {
		return fmt.Errorf("elements %d to %d of parameter %s, which has %d, cannot be read or written by themselves", first, first+n, p.Name, p.Elems())
	}
	return s.Settle(context.Background())
}

// read is Read in the order of operators.
func (s *Session) read(param int, kind optimizer.Kind, dst []float32) error {
	slab, divided := s.Graph.Slab(param)
	if !divided {
		return s.readHeld(param, kind, dst, 0)
	}
	held := make([]float32, int64(len(dst))/int64(slab.Parts))
	for k := range slab.Parts {
		if err := s.readHeld(param, kind, held, k); err != nil {
			return err
		}
		slab.Put(dst, held, k)
	}
	return nil
}

// readHeld reads a slab of a parameter from the ranks that have it, or parts of it.
func (s *Session) readHeld(param int, kind optimizer.Kind, dst []float32, slab int) error {
	switch p := &s.Graph.Params[param]; {
	case p.State:
		held := make([]float32, s.Graph.Stored(param).Elems())
		err := s.withSlab(param, slab, func(e *exec.Engine) error { return e.ReadHome(param, kind, 0, held) })
		graph.JoinState(dst, held)
		return err
	case MomentOf(s, param, kind).Packed():
		return MomentOf(s, param, kind).readNumbers(dst)
	case !p.NF4 && (p.Unit == 0 || kind != optimizer.Weights):
		return s.withSlab(param, slab, func(e *exec.Engine) error { return e.ReadHome(param, kind, 0, dst) })
	}
	d := s.Graph.Stored(param)
	packed := make([]byte, d.Bytes())
	err := s.withSlab(param, slab, func(e *exec.Engine) error { return e.ReadBytes(param, kind, d.DType, 0, packed) })
	switch p := &s.Graph.Params[param]; {
	case err != nil:
	case p.NF4:
		_, cols := s.Graph.Held(param)
		kernel.UnpackNF4(dst, packed, cols)
	default:
		kernel.UnpackInt8(dst, packed, p.Unit)
	}
	return err
}

// Write copies src, in the order of files, to one kind of a parameter's state on every
// rank that holds part of it.
func (s *Session) Write(param int, kind optimizer.Kind, src []float32) error {
	if err := s.Settle(context.Background()); err != nil {
		return err
	}
	p := &s.Graph.Params[param]
	if int64(len(src)) != p.Elems() {
		return fmt.Errorf("%d elements are given of parameter %s, which has %d", len(src), p.Name, p.Elems())
	}
	if p.Reordered() {
		ours := make([]float32, len(src))
		p.FromFile(ours, src)
		src = ours
	}
	slab, divided := s.Graph.Slab(param)
	if !divided {
		return s.writeHeld(param, kind, src, 0)
	}
	held := make([]float32, int64(len(src))/int64(slab.Parts))
	for k := range slab.Parts {
		slab.Take(held, src, k)
		if err := s.writeHeld(param, kind, held, k); err != nil {
			return err
		}
	}
	return nil
}

// writeHeld is the inverse of readHeld. What is in 4 bits is frozen and has weights only.
func (s *Session) writeHeld(param int, kind optimizer.Kind, src []float32, slab int) error {
	switch p := &s.Graph.Params[param]; {
	case p.State:
		held := graph.SplitState(src, s.Graph.Stored(param).Rows)
		return s.withSlab(param, slab, func(e *exec.Engine) error { return e.WriteHome(param, kind, 0, held) })
	case p.Unit > 0 && kind == optimizer.Weights:
		packed := kernel.PackInt8(src, p.Unit)
		return s.withSlab(param, slab, func(e *exec.Engine) error { return e.WriteBytes(param, kind, 0, packed) })
	case MomentOf(s, param, kind).Packed():
		return MomentOf(s, param, kind).writeNumbers(src)
	case !p.NF4:
		return s.withSlab(param, slab, func(e *exec.Engine) error { return e.WriteHome(param, kind, 0, src) })
	case kind != optimizer.Weights:
		return nil
	}
	_, cols := s.Graph.Held(param)
	packed := kernel.PackNF4(src, cols)
	return s.withSlab(param, slab, func(e *exec.Engine) error { return e.WriteBytes(param, kind, 0, packed) })
}

// WritePart is Write for the elements from index first on, as many as src has, of parameters of which ReadPart reads parts.
func (s *Session) WritePart(param int, kind optimizer.Kind, first int, src []float32) error {
	if err := s.partly(param, kind, first, len(src)); err != nil {
		return err
	}
	return s.each(func(e *exec.Engine) error { return e.WriteHome(param, kind, first, src) })
}

// each calls access for each rank.
func (s *Session) each(access func(e *exec.Engine) error) error {
	return s.some(func(int) bool { return true }, access)
}

// withSlab calls access for each rank that has a slab of a parameter.
func (s *Session) withSlab(param, slab int, access func(e *exec.Engine) error) error {
	return s.some(func(rank int) bool { return s.holds(rank, param, slab) }, access)
}

// some calls access for some ranks.
func (s *Session) some(which func(rank int) bool, access func(e *exec.Engine) error) error {
	for r := range s.ranks {
		if !which(r) {
			continue
		}
		if err := access(s.ranks[r].engines[0]); err != nil {
			return s.lost(r, err)
		}
	}
	return nil
}

// holds reports whether a rank has a slab of a parameter, of which there is one if ranks do not divide it.
func (s *Session) holds(rank, param, slab int) bool {
	of, divided := s.Graph.Slab(param)
	return !divided || of.Of(rank) == slab
}

// lost wraps an error of one rank between steps: to the other ranks, if any, it is
// a lost peer.
func (s *Session) lost(r int, err error) error {
	if len(s.ranks) == 1 {
		return err
	}
	return &exec.PeerLostError{Rank: r, Instr: -1, Err: err}
}

// clearMoments zeroes the moments of a parameter on every rank.
func (s *Session) clearMoments(param int) error {
	for _, kind := range s.moments() {
		if err := s.each(func(e *exec.Engine) error { return e.ClearHome(param, kind) }); err != nil {
			return err
		}
	}
	return nil
}

// moments lists the kinds of moments that training steps keep.
func (s *Session) moments() []optimizer.Kind { return s.ranks[0].progs[0].Moments() }
