package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// Card is a GPU that was found.
type Card struct {
	Name      string `json:"name"`
	Arch      string `json:"arch"` // sm_90
	SMs       int    `json:"sms"`
	Memory    int64  `json:"memory"` // bytes
	BusID     string `json:"bus_id"`
	LinkGen   int    `json:"link_gen,omitempty"`
	LinkWidth int    `json:"link_width,omitempty"`
	Peers     []int  `json:"peers,omitempty"`   // other GPUs whose memory it can access directly
	Problem   string `json:"problem,omitempty"` // why it cannot be used; empty if it can
}

// Found is what this machine has of the backend's requirements.
type Found struct {
	OK       bool     `json:"ok"` // a GPU can be used
	Driver   string   `json:"driver,omitempty"`
	CUDA     string   `json:"cuda,omitempty"` // the newest CUDA that the driver runs
	NVRTC    string   `json:"nvrtc,omitempty"`
	CublasLt string   `json:"cublaslt,omitempty"`
	Cards    []Card   `json:"cards,omitempty"`
	Missing  []string `json:"missing,omitempty"` // one line each: what, why, hint
	Slow     string   `json:"slow,omitempty"`    // what works, but could be faster, and how
	Lost     bool     `json:"-"`                 // the driver hangs, or crashed
}

// Installed reports whether there is a driver, which a machine without a GPU seldom has.
func Installed() bool {
	_, err := nv.OpenDriver(nv.LocalDriver())
	return err == nil
}

// Find looks for libraries and GPUs in this process. A broken driver can crash the
// process; Probe does the same in a child.
func Find() *Found { return find(nv.Local()) }

func find(p nv.Places) *Found {
	f := &Found{}
	if d, err := nv.OpenDriver(p); err != nil {
		f.miss(err)
	} else {
		f.cards(d, p)
	}
	if c, err := nv.OpenNVRTC(p); err != nil {
		f.miss(err)
	} else if v, err := c.VersionString(); err != nil {
		f.miss(err)
	} else {
		f.NVRTC = v + " " + c.Lib.Path()
		f.Slow = f.slow(v)
	}
	if l, err := nv.OpenLt(p); err != nil {
		f.miss(err)
	} else {
		v := l.GetVersion()
		f.CublasLt = fmt.Sprintf("%d.%d.%d %s", v/10000, v/100%100, v%100, l.Lib.Path())
	}
	f.OK = len(f.Missing) == 0
	return f
}

// slow says what to do about too few queues, or about a compiler that generates slow code of some
// kernels for a card that is present. Compilers before CUDA 12.9 were tried from 12.4 on: they make
// Hopper's products of attention wait for each other.
func (f *Found) slow(version string) string {
	if err := fewQueues(); err != nil {
		return err.Error()
	}
	var major, minor int
	fmt.Sscanf(version, "%d.%d", &major, &minor)
	hopper := slices.ContainsFunc(f.Cards, func(c Card) bool { return strings.HasPrefix(c.Arch, "sm_90") })
	if !hopper || major > 12 || major == 12 && minor >= 9 {
		return ""
	}
	return fmt.Sprintf("NVRTC %s generates slower attention kernels for this card than 12.9 and later; hint: pip install nvidia-cuda-nvrtc", version)
}

func (f *Found) miss(err error) { f.Missing = append(f.Missing, err.Error()) }

// cards queries the driver for GPUs.
func (f *Found) cards(d *nv.Driver, p nv.Places) {
	var version, count int32
	if d.DriverGetVersion(nv.Addr(&version)) == nv.Success {
		f.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	if err := d.Check("cuInit", d.Init(0)); err != nil {
		f.miss(err)
		return
	}
	if err := d.Check("cuDeviceGetCount", d.DeviceGetCount(nv.Addr(&count))); err != nil {
		f.miss(err)
		return
	}
	ml, err := nv.OpenNVML(p) // optional
	if err == nil {
		defer ml.Close()
		f.Driver = ml.Driver()
	}
	usable := 0
	for i := range int(count) {
		c := card(d, i)
		for k := range int(count) {
			var can int32
			if k != i && d.DeviceCanAccessPeer(nv.Addr(&can), uintptr(i), uintptr(k)) == nv.Success && can != 0 {
				c.Peers = append(c.Peers, k)
			}
		}
		if ml != nil {
			c.LinkGen, c.LinkWidth = ml.Link(c.BusID)
		}
		if c.Problem == "" {
			usable++
		}
		f.Cards = append(f.Cards, c)
	}
	if usable == 0 {
		f.miss(errors.New("no GPU of compute capability 8.0 (Ampere) or later was found; hint: use device: cpu, which needs none"))
	}
}

func card(d *nv.Driver, i int) Card {
	var dev int32
	if err := d.Check("cuDeviceGet", d.DeviceGet(nv.Addr(&dev), uintptr(i))); err != nil {
		return Card{Problem: err.Error()}
	}
	n := int(dev)
	var bytes uint64
	d.DeviceTotalMem(nv.Addr(&bytes), uintptr(n))
	bus := make([]byte, 32)
	d.DeviceGetPCIBusId(nv.Addr(&bus[0]), uintptr(len(bus)), uintptr(n))
	id, _, _ := strings.Cut(string(bus), "\x00")
	major, minor := d.Attribute(n, nv.AttrMajor), d.Attribute(n, nv.AttrMinor)
	c := Card{Name: d.Name(n), Arch: fmt.Sprintf("sm_%d%d", major, minor), SMs: d.Attribute(n, nv.AttrSMs), Memory: int64(bytes), BusID: id}
	if major < 8 {
		c.Problem = "older than Ampere"
	}
	return c
}

// probeVar is the environment variable that makes a process the child of a Probe, see
// ServeProbe.
const probeVar = "ATHANOR_PROBE_CUDA"

// ServeProbe must be called first in main. In a child of Probe it prints the result of
// Find and returns true: main must then return.
func ServeProbe() bool {
	if os.Getenv(probeVar) == "" {
		return false
	}
	b, err := json.Marshal(Find())
	if err == nil {
		fmt.Printf("%s%s\n", probeVar, b)
	}
	return true
}

// Probe finds libraries and GPUs in a child process, which runs this executable with an
// environment variable that ServeProbe recognises. A driver that crashes or hangs costs
// at most the time limit.
func Probe(ctx context.Context, limit time.Duration) *Found {
	self, err := os.Executable()
	if err != nil {
		return &Found{Missing: []string{err.Error()}}
	}
	return probe(ctx, limit, exec.CommandContext, self)
}

func probe(ctx context.Context, limit time.Duration, command func(context.Context, string, ...string) *exec.Cmd, self string, args ...string) *Found {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := command(ctx, self, args...)
	c.Env = append(os.Environ(), probeVar+"=1")
	c.WaitDelay = time.Second
	out, err := c.Output()
	f := &Found{}
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, probeVar); ok && json.Unmarshal([]byte(text), f) == nil {
			return f
		}
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("the NVIDIA driver did not answer within %v; hint: check that nvidia-smi answers", limit)
	case err != nil:
		err = fmt.Errorf("the search for GPUs failed: %w; hint: check that nvidia-smi works", err)
	default:
		err = errors.New("the search for GPUs gave no answer; hint: let the program call cuda.ServeProbe first")
	}
	f.Lost = true
	f.miss(err)
	return f
}
