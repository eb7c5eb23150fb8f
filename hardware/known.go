package hardware

import (
	"fmt"
	"strings"

	"github.com/athanor-llm/athanor/device"
)

// Machines that one may not own. Peaks are the manufacturers' dense numbers
// with accumulation in fp32 (tensor cores for bf16, plain units for fp32), the
// memory bandwidths too; fractions of the peak are what good kernels reach.
// Sources: NVIDIA's architecture white papers and data sheets for GA102, AD102,
// GB202, A100, L4, H100, H200 and GH200; copies by nvbandwidth as people have
// published them.

// gpu is a row of the table. Rates in TFLOP/s and GB/s, memory in GiB.
type gpu struct {
	name      string
	memory    int64
	bf16, f32 float64
	bandwidth float64
	matmul    float64
	attention float64
	bus       string
	host      string
}

var gpus = []gpu{
	{"rtx3090", 24, 71, 35.6, 936, 0.85, 0.6, "pcie4", "desktop"},
	{"rtx4090", 24, 165.2, 82.6, 1008, 0.85, 0.65, "pcie4", "desktop"},
	{"rtx5090", 32, 209.5, 104.8, 1792, 0.85, 0.6, "pcie5", "desktop"},
	{"a100-40", 40, 312, 19.5, 1555, 0.8, 0.55, "pcie4", "server"},
	{"a100-80", 80, 312, 19.5, 2039, 0.8, 0.55, "pcie4", "server"},
	{"a800-80", 80, 312, 19.5, 2039, 0.8, 0.55, "pcie4", "server"},
	{"l4", 24, 121, 30.3, 300, 0.6, 0.5, "pcie4", "server"},
	{"h100", 80, 989.4, 67, 3350, 0.7, 0.4, "pcie5", "server"},
	{"h200", 141, 989.4, 67, 4800, 0.78, 0.4, "pcie5", "server"},
	{"gh200", 96, 989.4, 67, 4000, 0.7, 0.4, "c2c", "grace"},
}

// buses between host and device: GB/s one way, and each way when both are
// busy; generation 4 servers lose much of the second.
var buses = []struct {
	name             string
	up, down         float64
	upBoth, downBoth float64
	latency          float64
}{
	{"pcie3", 12.3, 12.8, 10, 10.5, 6e-6},
	{"pcie4", 25, 26, 13, 24, 6e-6},
	{"pcie5", 55, 56, 50, 50, 6e-6},
	{"c2c", 400, 300, 250, 200, 4e-6},
}

// hosts: GiB of memory, of which a run may use most, and of disk; GB/s.
var hosts = []struct {
	name         string
	memory, disk int64
	cores        int
	bandwidth    float64
	flops        float64 // fp32 GFLOP/s per core
	read, write  float64
}{
	{"desktop", 64, 1000, 16, 60, 100, 5, 4},
	{"server", 512, 4000, 32, 250, 100, 6, 4},
	{"grace", 480, 4000, 72, 450, 55, 6, 4},
}

const (
	gib = 1 << 30
	// contextBytes of a GPU are taken by driver, context and libraries.
	contextBytes = 1 * gib
)

// Names lists the known machines.
func Names() []string {
	var list []string
	for _, g := range gpus {
		list = append(list, g.name)
	}
	return list
}

// Known describes a machine by its GPU's name, with "/pcie3" and the like
// appended if its bus is another than usual.
func Known(name string) (*Hardware, error) {
	gpuName, bus, _ := strings.Cut(strings.ToLower(name), "/")
	for _, g := range gpus {
		if g.name == gpuName {
			if bus == "" {
				bus = g.bus
			}
			return g.machine(name, bus)
		}
	}
	return nil, fmt.Errorf("unknown hardware %q; hint: one of %s, or a file written by `probe --out`", name, strings.Join(Names(), ", "))
}

func (g gpu) machine(name, bus string) (*Hardware, error) {
	h := &Hardware{Name: name}
	for _, b := range buses {
		if b.name == bus {
			h.Links = []Link{
				{From: device.HostTier, To: device.DeviceTier, Latency: b.latency, Bandwidth: b.up * 1e9, Both: b.upBoth * 1e9},
				{From: device.DeviceTier, To: device.HostTier, Latency: b.latency, Bandwidth: b.down * 1e9, Both: b.downBoth * 1e9},
			}
		}
	}
	if h.Links == nil {
		return nil, fmt.Errorf("hardware %q: unknown bus %q; hint: pcie3, pcie4, pcie5 or c2c", name, bus)
	}
	h.Engines = []Engine{{
		Stream: device.Compute, Peak: Rate{g.f32 * 1e12, g.bf16 * 1e12}, Matmul: g.matmul, Attention: g.attention,
		Bandwidth: 0.85 * g.bandwidth * 1e9, Overhead: 3e-6,
	}}
	for _, o := range hosts {
		if o.name != g.host {
			continue
		}
		flops := o.flops * 1e9 * float64(o.cores)
		h.Cores = o.cores
		h.Memory = Memory{Device: g.memory*gib - contextBytes, Host: o.memory * gib * 7 / 8, Disk: o.disk * 1e9}
		h.Engines = append(h.Engines, Engine{
			Stream: device.HostCompute, Peak: Rate{flops, flops}, Matmul: 0.8, Attention: 0.5,
			Bandwidth: 0.8 * o.bandwidth * 1e9, Overhead: 5e-6,
		})
		h.Links = append(h.Links,
			Link{From: device.DiskTier, To: device.HostTier, Latency: 1e-4, Bandwidth: o.read * 1e9, Both: o.read / 2 * 1e9},
			Link{From: device.HostTier, To: device.DiskTier, Latency: 1e-4, Bandwidth: o.write * 1e9, Both: o.write / 2 * 1e9})
	}
	return h, nil
}
