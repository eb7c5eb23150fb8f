package hardware

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// Known machines: a GPU of gpus.go, its bus and its share of a host. Rates of copies are published results of nvbandwidth,
// those of collectives of nccl-tests (bus bandwidth).

// nominal returns the peaks that a card's maker states, or 0 for an unknown card. A run's MFU is usually
// given relative to that of bf16.
func nominal(card string) Rate {
	card, part, divided := strings.Cut(card, " MIG ") // as the driver calls an instance
	g := gpuOf(card)
	if divided {
		in := instanceOf(card, part)
		if g == nil || in == nil {
			return Rate{}
		}
		return g.peak().times(in.Compute)
	}
	if g != nil {
		return g.peak()
	}
	return Rate{}
}

// gpuOf returns the GPU of a name, the driver's or as people write it (RTX 4090, 4090, A100-80GB), without its memory if there is only one
// such (A800); nil: it is not known.
func gpuOf(name string) *gpu {
	for _, c := range cards {
		if strings.EqualFold(c.card, name) {
			name = c.gpu
		}
	}
	var begins []*gpu
	for i := range gpus {
		g := &gpus[i]
		if plainName(g.name) == plainName(strings.ToLower(name)) {
			return g
		}
		if strings.HasPrefix(g.name, strings.ToLower(name)+"-") {
			begins = append(begins, g)
		}
	}
	if len(begins) == 1 {
		return begins[0]
	}
	return nil
}

// busRates are GB/s one way, and each way when both directions are busy.
type busRates struct {
	name             string
	up, down         float64
	upBoth, downBoth float64
	latency          float64
}

// buses between host and device. With both directions busy, servers with PCIe 4 lose much.
var buses = []busRates{
	{"pcie3", 12.3, 12.8, 10, 10.5, 6e-6},
	{"pcie4", 25, 26, 13, 24, 6e-6},
	{"pcie5", 55, 56, 50, 50, 6e-6},
	{"elixir", 25, 18.1, 25, 18.1, 6e-6},
	{"c2c", 400, 300, 250, 200, 4e-6},
}

// unified is the bus of a GPU whose memory is its host's: a copy reads and writes it, and copies in both directions share
// what that leaves. No more than copyShare of the memory's bandwidth is assumed to go into them.
const (
	unified   = "unified"
	copyShare = 0.8
)

// elixir returns the rates of the host measured in the Elixir paper (2212.05339):
// the fits in the authors' code to 1, 2 and 4 A100s, for all n together. Links are in
// GB/s, Adam in 1e9 elements per second. There is no fit for both directions of a
// link at once. Arithmetic and NVLink, not fitted, are those of an A100.
func elixir(n float64) (up, down, gpuAdam, hostAdam float64) {
	return 16.3*n + 8.7, 15.8*n + 2.3, 50 * n, 1.66*math.Log(n) + 5.15
}

// PerHost is the number of GPUs that share a host.
const PerHost = 8

// adamBytes is the memory traffic of an fp32 Adam update in bytes per element: the
// parameter and two moments read and written, and the gradient read.
const adamBytes = 28

// hosts: memory in GiB, of which a run may use 7/8, disk in GB, rates in GB/s.
var hosts = []struct {
	name         string
	memory, disk int64
	cores        int
	bandwidth    float64
	flops        float64 // fp32 GFLOP/s per core
	read, write  float64
}{
	{"desktop", 64, 1000, 16, 60, 100, 5, 4},
	{"laptop", 32, 1000, 8, 60, 80, 5, 4},
	{"server", 512, 4000, 32, 250, 100, 6, 4},
	{"grace", 480, 4000, 72, 450, 55, 6, 4},
	{"elixir", 1024, 4000, 128, 250, 50, 6, 4},
	{"spark", 128, 4000, 20, 150, 80, 6, 4},
	{"thor", 128, 1000, 14, 150, 80, 5, 4},
	{"orin-64", 64, 1000, 12, 100, 35, 3, 2},
	{"orin-32", 32, 1000, 8, 100, 35, 3, 2},
	{"orin-16", 16, 500, 8, 60, 32, 3, 2},
	{"orin-8", 8, 500, 6, 60, 27, 3, 2},
}

const (
	gib = 1 << 30
	// ContextBytes is the GPU memory used by driver, context and libraries.
	ContextBytes = 1 * gib
)

// Names lists the known machines.
func Names() []string {
	var list []string
	for _, g := range gpus {
		list = append(list, g.name)
	}
	return list
}

// KnownRank describes one of n ranks on a machine with n GPUs of this name: a GPU, its bus, and its share of
// the host. The name may be the driver's, or as people write it (RTX 4090, 4090, A100-80GB). A suffix such as "/pcie3"
// selects a bus other than the usual one, one such as "/3g.20gb" an instance of a card that is divided, and one such as "/50%" a
// share of it that processes are given (MPS). A host has PerHost GPUs at most; more ranks use more hosts.
func KnownRank(name string, n int) (*Hardware, error) {
	if n < 1 {
		return nil, fmt.Errorf("hardware %q: impossible number of %d ranks; hint: use at least 1", name, n)
	}
	gpuName, suffix, _ := strings.Cut(strings.ToLower(name), "/")
	g := gpuOf(gpuName)
	if g == nil {
		return nil, unknownGPU(name, gpuName)
	}
	bus, in, err := suffixes(gpuName, suffix)
	if err != nil {
		return nil, fmt.Errorf("hardware %q: %w", name, err)
	}
	h, err := g.machine(name, cmp.Or(bus, g.bus))
	if err != nil {
		return nil, err
	}
	if g.bus == unified && n > 1 {
		return nil, fmt.Errorf("hardware %q: %d ranks on one host, which has one such GPU; hint: set hardware.hosts to the number of ranks", name, n)
	}
	if in != nil {
		if n > 1 {
			return nil, fmt.Errorf("hardware %q: %d ranks, but parts of a card cannot reach each other's memory; hint: use one rank, or the whole card", name, n)
		}
		h.cut(in, g.memory*gib)
	}
	h = h.Share(min(n, PerHost))
	if cmp.Or(bus, g.bus) == "elixir" {
		h.elixir(float64(n))
	} else {
		h.yield()
	}
	return h, nil
}

// suffixes splits what follows a card's name: a bus, an instance, or both.
func suffixes(card, text string) (bus string, in *Instance, err error) {
	if text == "" {
		return "", nil, nil
	}
	for part := range strings.SplitSeq(text, "/") {
		if percent, ok := strings.CutSuffix(part, "%"); ok {
			p, err := strconv.ParseFloat(percent, 64)
			if err != nil || !(p > 0 && p <= 100) {
				return "", nil, fmt.Errorf("%s is no share of a card; hint: use one such as 50%%", part)
			}
			in = &Instance{Name: part, Compute: p / 100, Memory: p / 100}
			continue
		}
		if !strings.HasSuffix(part, "gb") {
			bus = part
			continue
		}
		if in = instanceOf(card, part); in == nil {
			var names []string
			for _, i := range Instances(card) {
				names = append(names, i.Name)
			}
			if len(names) == 0 {
				return "", nil, fmt.Errorf("this card cannot be divided; hint: leave /%s out", part)
			}
			return "", nil, fmt.Errorf("it cannot be divided into %s; hint: use one of %s", part, strings.Join(names, ", "))
		}
	}
	return bus, in, nil
}

// otherMakers are what names of other makers' devices begin with.
var otherMakers = []string{"mi1", "mi2", "mi3", "mi4", "instinct", "radeon", "rx", "gaudi", "arc", "tpu", "apple", "mac", "m1", "m2", "m3", "m4", "m5", "amd", "ryzen", "strix", "intel", "core"}

// unknownGPU is the error for a name that no GPU has.
func unknownGPU(name, gpuName string) error {
	const most = 4 // names in a hint
	plain := plainName(gpuName)
	hint := "use the name of a card as its maker writes it, such as rtx4090, a100-80 or h100"
	if slices.ContainsFunc(otherMakers, func(p string) bool { return strings.HasPrefix(plain, p) && plain != "rx" }) {
		hint = "of GPUs, Athanor computes on NVIDIA's, but also on any machine's cores: use the name of a card"
	} else if m := counted.FindStringSubmatch(gpuName); m != nil {
		hint = countedHint(m)
	} else if near := nearNames(plain); len(near) > 0 && len(near) <= most {
		hint = "did you mean " + strings.Join(near, " or ") + "? Else use the name of a card as its maker writes it"
	}
	return fmt.Errorf("unknown hardware %q; hint: %s, or a file written by `athanor probe --out` on the machine itself", name, hint)
}

// counted matches what names a card and says how many there are: "8x h100", "2x8 a100".
var counted = regexp.MustCompile(`^(\d+) *x *(?:(\d+) *x? +)?(\S.*)$`)

// countedHint says how numbers of cards are written, for what counted matches.
func countedHint(m []string) string {
	card := slices.Concat(nearNames(plainName(m[3])), []string{m[3]})[0]
	hosts, each := 1, m[1]
	if m[2] != "" {
		hosts, _ = strconv.Atoi(m[1])
		each = m[2]
	}
	n, _ := strconv.Atoi(each)
	hint := fmt.Sprintf("name one card, and say apart how many there are: hardware.name=%s ranks=%d", card, hosts*n)
	if hosts > 1 {
		hint += fmt.Sprintf(" hardware.hosts=%d", hosts)
	}
	return hint
}

// nearNames lists the GPUs whose names begin with a plain name, or the one whose name is nearest.
func nearNames(plain string) (list []string) {
	known := plainNames()
	for i, name := range known {
		if plain != "" && strings.HasPrefix(name, plain) {
			list = append(list, gpus[i].name)
		}
	}
	if i := slices.Index(known, suggest.Nearest(plain, known)); i >= 0 && len(list) == 0 {
		list = append(list, gpus[i].name)
	}
	return list
}

// plainName is what different ways to write a GPU's name have in common: what is left without its maker, series, units
// and signs.
func plainName(name string) string {
	for _, word := range []string{"nvidia", "geforce", "tesla", "quadro", "rtx", "generation", "gpu", "gb", "-", "_", " "} {
		name = strings.ReplaceAll(name, word, "")
	}
	return name
}

func plainNames() (list []string) {
	for _, name := range Names() {
		list = append(list, plainName(name))
	}
	return list
}

// yield adds contention of the host's engine with copies to and from the device: the
// memory controllers serve copies first, so their bandwidth is not available to cores.
func (h *Hardware) yield() {
	host := h.Engine(device.HostCompute).Bandwidth
	for _, way := range [][2]device.Stream{{device.HostToDev, device.DevToHost}, {device.DevToHost, device.HostToDev}} {
		for _, l := range h.Links {
			if streamOf(l.From, l.To) == way[0] && l.From != l.To {
				copied := l.Bandwidth / (1 + h.Slowdown(way[0], way[1])) // with the other direction busy too
				h.contend(device.HostCompute, way[0], host, max(host-copied, host/(1+contendMost)))
			}
		}
	}
}

// elixir sets the rates that the paper's fits give, for one of n ranks.
func (h *Hardware) elixir(n float64) {
	up, down, gpuAdam, hostAdam := elixir(n)
	rate := map[device.Tier]float64{device.DeviceTier: up, device.HostTier: down} // by the link's destination
	for i := range h.Links {
		l := &h.Links[i]
		if l.From != device.DiskTier && l.To != device.DiskTier && l.From != l.To {
			l.Bandwidth = rate[l.To] / n * 1e9
		}
	}
	h.Engine(device.Compute).Bandwidth = gpuAdam / n * adamBytes * 1e9
	h.Engine(device.HostCompute).Bandwidth = hostAdam / n * adamBytes * 1e9
}

// Share returns what each of n ranks gets of a host that they share: memory, cores,
// disk and their rates. Unless Memory.Shared is set, a device and its links to the
// host belong to one rank. Links between ranks stay as measured.
func (h *Hardware) Share(n int) *Hardware {
	s := *h
	s.Cores = max(h.Cores/n, 1)
	s.Memory.Host, s.Memory.Disk = h.Memory.Host/int64(n), h.Memory.Disk/int64(n)
	if s.Memory.Shared {
		s.Memory.Device = h.Memory.Device / int64(n)
	}
	s.AtOnce = h.AtOnce * n
	s.Engines, s.Links, s.Contention, s.Duties = slices.Clone(h.Engines), slices.Clone(h.Links), slices.Clone(h.Contention), slices.Clone(h.Duties)
	f := float64(n)
	for i := range s.Engines {
		if e := &s.Engines[i]; e.Stream == device.HostCompute || s.Memory.Shared {
			e.Peak.F32, e.Peak.BF16, e.Peak.FP8, e.Bandwidth = e.Peak.F32/f, e.Peak.BF16/f, e.Peak.FP8/f, e.Bandwidth/f
		}
	}
	for i := range s.Links {
		if l := &s.Links[i]; l.From == device.DiskTier || l.To == device.DiskTier || s.Memory.Shared && l.From != l.To {
			l.Bandwidth, l.Curve = l.Bandwidth/f, nil
		}
	}
	if n > 1 { // times were measured with the whole host
		s.Times, s.Factors = nil, map[string]float64{}
		for family, f := range h.Factors {
			if strings.HasPrefix(family, device.Collective.String()+" ") {
				s.Factors[family] = f
			}
		}
	}
	return &s
}

func (g gpu) machine(name, bus string) (*Hardware, error) {
	h := &Hardware{Name: name}
	rate := copyShare / 2 * g.bandwidth
	for _, b := range append(buses, busRates{unified, rate, rate, rate / 2, rate / 2, 4e-6}) {
		if b.name == bus {
			h.Links = []Link{
				{From: device.HostTier, To: device.DeviceTier, Latency: b.latency, Bandwidth: b.up * 1e9},
				{From: device.DeviceTier, To: device.HostTier, Latency: b.latency, Bandwidth: b.down * 1e9},
				{From: device.DeviceTier, To: device.DeviceTier, Latency: 1e-5, Bandwidth: g.peers * 1e9},
			}
			h.contend(device.HostToDev, device.DevToHost, b.up, b.upBoth)
			h.contend(device.DevToHost, device.HostToDev, b.down, b.downBoth)
		}
	}
	if h.Links == nil {
		return nil, fmt.Errorf("hardware %q: unknown bus %q; hint: use pcie3, pcie4, pcie5 or c2c", name, bus)
	}
	h.Engines = []Engine{{
		Stream: device.Compute, Peak: g.peak(), Matmul: g.matmul, Attention: g.attention,
		Bandwidth: 0.85 * g.bandwidth * 1e9, Overhead: 3e-6,
	}}
	for _, o := range hosts {
		if o.name != g.host {
			continue
		}
		flops := o.flops * 1e9 * float64(o.cores)
		h.Cores = o.cores
		h.Memory = Memory{Device: g.memory*gib - ContextBytes, Host: o.memory * gib * 7 / 8, Disk: o.disk * 1e9, WholeDisk: o.disk * 1e9}
		if g.bus == unified {
			h.Memory.Host -= ContextBytes
			h.Memory.Device, h.Memory.Shared, h.Memory.Unified = h.Memory.Host, true, true
		}
		h.Engines = append(h.Engines, Engine{
			Stream: device.HostCompute, Peak: Rate{F32: flops, BF16: flops}, Matmul: 0.8, Attention: 0.5,
			Bandwidth: 0.8 * o.bandwidth * 1e9, Overhead: 5e-6,
		})
		h.Links = append(h.Links,
			Link{From: device.DiskTier, To: device.HostTier, Latency: 1e-4, Bandwidth: o.read * 1e9},
			Link{From: device.HostTier, To: device.DiskTier, Latency: 1e-4, Bandwidth: o.write * 1e9})
		h.contend(device.DiskRead, device.DiskWrite, 1, 0.5) // reads and writes share the disk
		h.contend(device.DiskWrite, device.DiskRead, 1, 0.5)
	}
	return h, nil
}
