// Package hardware describes machines: how much memory each tier has, how
// fast data moves between tiers and how fast operators run. A description is
// a small JSON value, measured by Probe, looked up by Known or written by hand,
// so that a plan can be made for a machine that one does not have.
//
// The price of a call, in seconds, comes from the best source available:
//
//	measured   the call's key (operator, attributes, extents) is in Times
//	calibrated the roofline below, times the median ratio of measured time to
//	           roofline over the operator's other keys
//	roofline   overhead + max(FLOPs / rate, bytes / bandwidth), or for a copy
//	           latency + bytes / bandwidth of the link
//
// Approach of the roofline: Williams, Waterman, Patterson, CACM 52(4), 2009.
// Example: a product of 512 x 768 x 768 is 604 MFLOP; at 80 % of 165 TFLOP/s
// it takes 4.6 us plus 3 us for the launch. Prices are those of a call that runs
// alone; Contention says how much longer it takes while other streams are busy.
// Known weakness: Contention is per stream, not per operator, so a copy slows
// memory-bound and compute-bound operators by the same factor.
package hardware

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/stat"
)

// Hardware is one rank's share of a machine.
type Hardware struct {
	Name  string `json:"name"`
	Cores int    `json:"cores"` // host cores that operators may use
	// AtOnce is the number of ranks that have this many cores at the same time;
	// 0: ranks do not compete for cores.
	AtOnce int `json:"at_once,omitempty"`
	// Duties of the streams that need those cores.
	Duties []Duty `json:"duties,omitempty"`
	// Memory is the number of bytes that a run may use, per tier. 0: no such
	// tier.
	Memory  Memory   `json:"memory"`
	Engines []Engine `json:"engines"`
	Links   []Link   `json:"links"`
	// Network joins the hosts that ranks are on; nil: they are on one, or the link between ranks is the network.
	Network *Network `json:"network,omitempty"`
	// Contention of pairs of streams; pairs not listed do not slow each other
	// down.
	Contention []Contention `json:"contention,omitempty"`
	// Times maps a Key to measured seconds, Factors a family of calls (appendFamily)
	// to the ratio of measured time to roofline.
	Times   map[string]float64 `json:"times,omitempty"`
	Factors map[string]float64 `json:"factors,omitempty"`
}

// Memory is bytes per tier.
type Memory struct {
	Device int64 `json:"device"`
	Host   int64 `json:"host"`
	Disk   int64 `json:"disk"`
	// WholeDisk is the size of a host's disk, of which Disk are free; 0: not known.
	WholeDisk int64 `json:"whole_disk,omitempty"`
	// Shared says that the device tier is part of the host's memory, so together
	// they may use no more than the larger of the two.
	Shared bool `json:"shared,omitempty"`
	// Unified says that a GPU's memory is that of its host, so Shared is set too, and that there is one GPU to a host.
	Unified bool `json:"unified,omitempty"`
	// Process is left to the process for what it has besides its arenas: its heap, what it reads and writes in pieces.
	Process int64 `json:"-"`
}

// Tiers returns the sizes in the order of the tiers.
func (m Memory) Tiers() [device.NumTiers]int64 {
	return [device.NumTiers]int64{m.Device, m.Host, m.Disk}
}

// Engine describes the processor that executes the operators of a stream.
type Engine struct {
	Stream device.Stream `json:"stream"` // compute or host
	// Peak is the arithmetic limit by storage type, accumulating in fp32: the reference for MFU. A measured
	// bf16 peak is the rate that the products of a step reach together, divided by Matmul.
	Peak Rate `json:"peak"`
	// Matmul and Attention are the fractions of the peak that matrix products
	// and attention reach.
	Matmul    float64 `json:"matmul"`
	Attention float64 `json:"attention"`
	Bandwidth float64 `json:"bandwidth"` // of the tier's memory, bytes/s
	Overhead  float64 `json:"overhead"`  // seconds per call
	// Launch is the seconds between two calls that Overhead does not include,
	// measured with Times.
	Launch float64 `json:"launch,omitempty"`
}

// Rate is FLOP/s by storage type of the operands.
type Rate struct {
	F32  float64 `json:"f32"`
	BF16 float64 `json:"bf16"`
	FP8  float64 `json:"fp8,omitempty"` // of products in FP8; 0: there are no instructions for them
}

// times returns the rates of so many times as many processors.
func (r Rate) times(n float64) Rate { return Rate{r.F32 * n, r.BF16 * n, r.FP8 * n} }

// Link joins two tiers, in one direction. A link from the device tier to itself
// joins the devices of two ranks.
type Link struct {
	From      device.Tier `json:"from"`
	To        device.Tier `json:"to"`
	Latency   float64     `json:"latency"`   // seconds per copy
	Bandwidth float64     `json:"bandwidth"` // bytes/s while nothing else runs
	// Curve has measured points, ascending, interpolated linearly. If it is empty,
	// the time is latency + bytes/bandwidth.
	Curve []Point `json:"curve,omitempty"`
}

// Point is the time of a copy of some bytes on a link.
type Point struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// Contention is how much longer work on stream Of takes while By is busy, because
// they share cores, a bus, or the two directions of a link.
type Contention struct {
	Of     device.Stream `json:"of"`
	By     device.Stream `json:"by"`
	Factor float64       `json:"factor"` // 0.5 makes 3 s of 2 s
}

// Launch returns the seconds between two calls of a stream; see Engine.Launch.
func (h *Hardware) Launch(s device.Stream) float64 {
	if e := h.Engine(s); e != nil {
		return e.Launch
	}
	return 0
}

// Slowdown returns the contention factor of a pair of streams, 0 for none.
func (h *Hardware) Slowdown(of, by device.Stream) float64 {
	for _, c := range h.Contention {
		if c.Of == of && c.By == by {
			return c.Factor
		}
	}
	return 0
}

// contend adds contention: the rate of stream of falls from alone to both while
// stream by is busy.
func (h *Hardware) contend(of, by device.Stream, alone, both float64) {
	if both < alone {
		h.Contention = append(h.Contention, Contention{of, by, alone/both - 1})
	}
}

// Throttle limits a link to rate bytes/s. Its contention and its duty then shrink,
// since it uses shared resources for less of its time.
func (h *Hardware) Throttle(from, to device.Tier, rate float64) {
	l := h.Link(from, to)
	if l == nil || rate >= l.Bandwidth {
		return
	}
	for i := range h.Contention {
		if c := &h.Contention[i]; c.Of == streamOf(from, to) {
			c.Factor = max((1+c.Factor)*rate/l.Bandwidth-1, 0)
		}
	}
	for i := range h.Duties {
		if d := &h.Duties[i]; d.Stream == streamOf(from, to) {
			d.Part *= rate / l.Bandwidth
		}
	}
	l.Bandwidth, l.Curve = rate, nil
}

// Quicker returns a copy of the machine on which copies and collectives on the given streams are faster by the
// factor times. Latencies not measured as part of a curve stay.
func (h *Hardware) Quicker(times float64, streams ...device.Stream) *Hardware {
	q := *h
	q.Links, q.Times = slices.Clone(h.Links), maps.Clone(h.Times)
	for i := range q.Links {
		if l := &q.Links[i]; slices.Contains(streams, streamOf(l.From, l.To)) {
			*l = l.quicker(times)
		}
	}
	for key := range q.Times {
		name, _, _ := strings.Cut(key, " ")
		if slices.ContainsFunc(streams, func(s device.Stream) bool { return s.String() == name }) {
			q.Times[key] /= times
		}
	}
	if h.Network != nil && slices.Contains(streams, device.Recv) {
		q.Network = h.QuickerNetwork(times).Network
	}
	return &q
}

// QuickerNetwork returns a copy of the machine between whose hosts, of which there are several, links are faster by the factor
// times.
func (h *Hardware) QuickerNetwork(times float64) *Hardware {
	q, n := *h, *h.Network
	n.Link = n.Link.quicker(times)
	q.Network = &n
	return &q
}

// streamOf returns the stream of a link's copies; Recv between ranks.
func streamOf(from, to device.Tier) device.Stream {
	switch [2]device.Tier{from, to} {
	case [2]device.Tier{device.HostTier, device.DeviceTier}:
		return device.HostToDev
	case [2]device.Tier{device.DeviceTier, device.HostTier}:
		return device.DevToHost
	case [2]device.Tier{device.DiskTier, device.HostTier}:
		return device.DiskRead
	case [2]device.Tier{device.HostTier, device.DiskTier}:
		return device.DiskWrite
	}
	return device.Recv
}

// Cost returns the seconds that a call takes, +Inf if the machine cannot execute it.
func (h *Hardware) Cost(c *device.Call) float64 {
	var buf [256]byte
	if len(h.Times) > 0 {
		if t, ok := h.Times[string(h.Network.appendSpread(appendKey(buf[:0], c), c))]; ok {
			return t
		}
	}
	t := h.roofline(c)
	if len(h.Factors) > 0 {
		if f, ok := h.Factors[string(h.Network.appendSpread(appendFamily(buf[:0], c), c))]; ok {
			t *= f
		}
	}
	return t
}

// Parts are what the price of a call comes from, in seconds. Arithmetic and memory overlap.
type Parts struct {
	Arithmetic, Memory float64
	Trailing           float64 // memory, after the rest
	Overhead           float64
	Link               float64 // a copy between tiers, or an exchange between ranks
}

// Seconds is the price.
func (p Parts) Seconds() float64 {
	return p.Overhead + max(p.Arithmetic, p.Memory) + p.Trailing + p.Link
}

// roofline returns the price in seconds of a call that was never measured.
func (h *Hardware) roofline(c *device.Call) float64 { return h.Parts(c).Seconds() }

// Parts returns what the price of a call would come from if it had never been measured.
func (h *Hardware) Parts(c *device.Call) Parts {
	if c.Op == graph.Copy && c.Args[graph.CopyDst].Tier != c.Args[graph.CopySrc].Tier {
		l := h.Link(c.Args[graph.CopySrc].Tier, c.Args[graph.CopyDst].Tier)
		if l == nil {
			return Parts{Link: math.Inf(1)}
		}
		return Parts{Link: l.Seconds(c.Args[graph.CopyDst].Bytes())}
	}
	if c.Op.Info().Between {
		return Parts{Link: h.exchangeSeconds(c)}
	}
	e := h.Engine(c.Stream)
	if e == nil {
		return Parts{Overhead: math.Inf(1)}
	}
	var list [16]graph.Dim
	dims := list[:0]
	rate := e.Peak.F32
	for _, a := range c.Args {
		dims = append(dims, a.Dim())
		if a.DType == graph.BF16 && !a.Absent() {
			rate = e.Peak.BF16
		}
	}
	if c.Attr.FP8 && e.Peak.FP8 > 0 {
		rate = e.Peak.FP8
	}
	switch c.Op {
	case graph.Attention, graph.AttentionBwd:
		rate *= e.Attention
	case graph.DeltaRule, graph.DeltaRuleBwd, graph.DeltaRuleAt, graph.StateScan, graph.StateScanBwd, graph.StateScanAt: // whose states are fp32, whatever the tokens are
		rate = e.Peak.F32 * e.Matmul
	default:
		rate *= e.Matmul
	}
	return Parts{Arithmetic: float64(c.Op.FLOPs(&c.Attr, dims)) / rate, Memory: float64(c.Op.Bytes(&c.Attr, dims)) / e.Bandwidth,
		Trailing: float64(c.Op.TrailingBytes(&c.Attr, dims)) / e.Bandwidth, Overhead: e.Overhead}
}

// Engine returns the engine of a stream's operators, or nil.
func (h *Hardware) Engine(s device.Stream) *Engine {
	for i := range h.Engines {
		if h.Engines[i].Stream == s {
			return &h.Engines[i]
		}
	}
	return nil
}

// Link returns the link from one tier to another, or nil.
func (h *Hardware) Link(from, to device.Tier) *Link {
	for i := range h.Links {
		if l := &h.Links[i]; l.From == from && l.To == to {
			return l
		}
	}
	return nil
}

// Seconds returns the time of a copy of n bytes; +Inf where there is no link.
func (l *Link) Seconds(n int64) float64 {
	if l == nil {
		return math.Inf(1)
	}
	i, _ := slices.BinarySearchFunc(l.Curve, n, func(p Point, n int64) int { return int(min(max(p.Bytes-n, -1), 1)) })
	switch {
	case len(l.Curve) == 0:
		return l.Latency + float64(n)/l.Bandwidth
	case i == 0:
		return l.Curve[0].Seconds
	case i == len(l.Curve): // past the last point: the bandwidth
		p := l.Curve[i-1]
		return p.Seconds + float64(n-p.Bytes)/l.Bandwidth
	}
	a, b := l.Curve[i-1], l.Curve[i]
	return a.Seconds + (b.Seconds-a.Seconds)*float64(n-a.Bytes)/float64(b.Bytes-a.Bytes)
}

// round returns the time of n bytes that follow others without a pause, as in a ring; +Inf where there is no link.
func (l *Link) round(n float64) float64 {
	if l == nil {
		return math.Inf(1)
	}
	return l.Latency + n/l.Bandwidth
}

// quicker returns the link with times the rate. A latency that is not measured as part of a curve stays.
func (l Link) quicker(times float64) Link {
	l.Bandwidth *= times
	l.Curve = slices.Clone(l.Curve)
	for k := range l.Curve {
		l.Curve[k].Seconds /= times
	}
	return l
}

// Add stores measured times and derives the calibration of unmeasured calls: per
// family of calls the median of measured time over roofline, per engine the mean gap
// between calls.
func (h *Hardware) Add(measured []Measurement) {
	ratios := map[string][]float64{}
	if h.Times == nil {
		h.Times = map[string]float64{}
	}
	var gaps, runs [device.NumStreams]float64
	for i := range measured {
		m := &measured[i]
		h.Times[string(h.Network.appendSpread(appendKey(nil, &m.Call), &m.Call))] = m.Seconds
		if m.Gap > 0 {
			gaps[m.Call.Stream] += m.Gap * float64(m.Runs)
			runs[m.Call.Stream] += float64(m.Runs)
		}
		if r := h.roofline(&m.Call); r > 0 && !math.IsInf(r, 0) && m.Seconds > 0 {
			family := string(h.Network.appendSpread(appendFamily(nil, &m.Call), &m.Call))
			ratios[family] = append(ratios[family], m.Seconds/r)
		}
	}
	for i := range h.Engines {
		if e := &h.Engines[i]; runs[e.Stream] > 0 {
			e.Launch = gaps[e.Stream] / runs[e.Stream]
		}
	}
	if h.Factors == nil {
		h.Factors = map[string]float64{}
	}
	for family, list := range ratios {
		h.Factors[family] = stat.Median(list)
	}
}

// Print writes the description as indented JSON.
func (h *Hardware) Print(w io.Writer) error {
	text, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return fmt.Errorf("hardware %s: %w", h.Name, err)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// Parse is the inverse of Print. It rejects unknown fields and impossible
// numbers.
func Parse(text []byte) (*Hardware, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var h Hardware
	if err := d.Decode(&h); err != nil {
		return nil, fmt.Errorf("hardware file: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("hardware file: there is more text after the closing brace")
	}
	if err := h.Validate(); err != nil {
		return nil, fmt.Errorf("hardware file: %w", err)
	}
	return &h, nil
}

// Validate rejects zero, negative, NaN and absurd numbers. Its error names the field.
func (h *Hardware) Validate() error {
	var v validator
	if h.Cores < 1 || h.Cores > 1<<16 {
		v.fail("cores", h.Cores, "use 1 to 65536")
	}
	v.requireRange("at_once", float64(h.AtOnce), 0, 1<<16)
	for t, n := range h.Memory.Tiers() {
		v.requireRange("memory."+device.Tier(t).String(), float64(n), 0, 1<<60)
	}
	v.engines(h)
	v.links(h)
	v.sharing(h)
	for _, key := range slices.Sorted(maps.Keys(h.Times)) {
		v.requireRange(fmt.Sprintf("times[%q]", key), h.Times[key], 1e-12, 1e6)
	}
	for _, key := range slices.Sorted(maps.Keys(h.Factors)) {
		v.requireRange(fmt.Sprintf("factors[%q]", key), h.Factors[key], 1e-6, 1e6)
	}
	return v.err
}

// validator keeps the first error.
type validator struct{ err error }

func (v *validator) engines(h *Hardware) {
	if len(h.Engines) == 0 || h.Engine(device.Compute) == nil {
		v.fail("number of engines", len(h.Engines), "describe at least that of the compute stream")
	}
	for i, e := range h.Engines {
		at := fmt.Sprintf("engines[%d].", i)
		v.requireRange(at+"peak.f32", e.Peak.F32, 1e6, 1e18)
		v.requireRange(at+"peak.bf16", e.Peak.BF16, 1e6, 1e18)
		v.requireRange(at+"peak.fp8", e.Peak.FP8, 0, 1e18)
		v.requireRange(at+"matmul", e.Matmul, 1e-4, 1)
		v.requireRange(at+"attention", e.Attention, 1e-4, 1)
		v.requireRange(at+"bandwidth", e.Bandwidth, 1e5, 1e15)
		v.requireRange(at+"overhead", e.Overhead, 0, 1)
		v.requireRange(at+"launch", e.Launch, 0, 1)
		if h.Engine(e.Stream) != &h.Engines[i] {
			v.fail(at+"stream", e.Stream, "describe each stream once")
		}
	}
}

func (v *validator) links(h *Hardware) {
	for i, l := range h.Links {
		at := fmt.Sprintf("links[%d].", i)
		v.link(at, l)
		if l.From == l.To && l.To != device.DeviceTier || h.Link(l.From, l.To) != &h.Links[i] {
			v.fail(at+"to", l.To, "describe each pair of different tiers once, and device to device")
		}
	}
	if n := h.Network; n != nil {
		v.requireRange("network.hosts", float64(n.Hosts), 2, MostHosts)
		v.requireRange("network.per_host", float64(n.PerHost), 1, 1<<16)
		v.link("network.link.", n.Link)
		v.requireRange("network.duty", n.Duty, 0, 1)
		if n.Counts != nil && (len(n.Counts) != n.Hosts || slices.Min(n.Counts) < 1 || slices.Max(n.Counts) != n.PerHost) {
			v.fail("network.counts", n.Counts, "give the number of ranks of each host, of which network.per_host is the largest")
		}
	}
}

// link checks the rates of a link; at begins the fields' names.
func (v *validator) link(at string, l Link) {
	v.requireRange(at+"latency", l.Latency, 0, 10)
	v.requireRange(at+"bandwidth", l.Bandwidth, 1e3, 1e15)
	var last Point
	for k, p := range l.Curve {
		at := fmt.Sprintf("%scurve[%d].", at, k)
		v.requireRange(at+"seconds", p.Seconds, max(last.Seconds, 1e-12), 1e6)
		v.requireRange(at+"bytes", float64(p.Bytes), float64(last.Bytes+1), 1<<60)
		last = p
	}
}

// sharing checks how streams slow each other down.
func (v *validator) sharing(h *Hardware) {
	for i, d := range h.Duties {
		at := fmt.Sprintf("duties[%d].", i)
		v.requireRange(at+"part", d.Part, 0, 1)
		if slices.IndexFunc(h.Duties, func(o Duty) bool { return o.Stream == d.Stream }) != i {
			v.fail(at+"stream", d.Stream, "describe each stream once")
		}
	}
	for i, c := range h.Contention {
		at := fmt.Sprintf("contention[%d].", i)
		v.requireRange(at+"factor", c.Factor, 0, 1e3)
		same := func(o Contention) bool { return o.Of == c.Of && o.By == c.By }
		if c.Of == c.By || slices.IndexFunc(h.Contention, same) != i {
			v.fail(at+"by", c.By, "describe each pair of different streams once")
		}
	}
}

func (v *validator) requireRange(field string, x, low, high float64) {
	if !(x >= low && x <= high) { // NaN is neither
		v.fail(field, x, fmt.Sprintf("use %g to %g", low, high))
	}
}

func (v *validator) fail(field string, x any, hint string) {
	if v.err == nil {
		v.err = fmt.Errorf("%s is %v; hint: %s", field, x, hint)
	}
}
