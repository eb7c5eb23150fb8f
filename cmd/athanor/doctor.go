package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/device/cuda"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/kernel/simd"
	"github.com/athanor-llm/athanor/machine"
)

type doctorCmd struct {
	Path  string   `help:"Folder where runs will be written." default:"." placeholder:"FOLDER"`
	Meet  bool     `help:"Started by a launcher: let all its processes meet by the folder of --path, as those of a run do, and try what is between them."`
	Hosts []string `help:"Also try other hosts, on which athanor serve waits, with this one's ATHANOR_KEY." placeholder:"ADDRESS"`
}

// finding is the result of one examination. Advice says what to do about a fault.
type finding struct {
	Name   string `json:"name"`
	State  state  `json:"state"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"`
}

type state string

const (
	good   state = "ok"
	slow   state = "slow"   // works, but not as well as it could
	broken state = "broken" // training will not work
)

// examinations are doctor's checks, in the order of the report.
var examinations = []func(v *doctorCmd) finding{findProgram, findProcessor, findMemory, findHugePages, findDisk, findCache, findGPU, findNCCL, findLauncher, findMPI, findCorpus}

func (v *doctorCmd) Run(c *cli.Context) error {
	together, done, err := v.meet(c)
	if done || err != nil {
		return err
	}
	report := struct {
		OK       bool      `json:"ok"`
		Findings []finding `json:"findings"`
	}{OK: true}
	for _, look := range examinations {
		report.Findings = append(report.Findings, look(v))
	}
	for _, h := range v.Hosts {
		report.Findings = append(report.Findings, findHost(h))
	}
	report.Findings = append(report.Findings, together...)
	for _, f := range report.Findings {
		report.OK = report.OK && f.State != broken
	}
	if c.JSON {
		if err := c.Print(report); err != nil {
			return err
		}
	} else {
		for _, f := range report.Findings {
			c.Textf("%-8s %-11s %s\n", f.State, f.Name, f.Found)
			for line := range strings.Lines(f.Advice) {
				c.Textf("%20s -> %s\n", "", strings.TrimSpace(line))
			}
		}
	}
	if !report.OK {
		return errors.New("training will not work here; hint: follow the advice below the lines marked broken")
	}
	return nil
}

func findProgram(*doctorCmd) finding {
	return finding{"program", good, cli.Version("athanor"), ""}
}

// findProcessor reports the vector instructions and the kernels chosen for them,
// including those of matrix products: the system may forbid tile registers that the
// processor has.
func findProcessor(*doctorCmd) finding {
	var have []string
	for _, f := range []struct {
		name string
		have bool
	}{
		{"AVX2", cpu.X86.HasAVX2}, {"FMA", cpu.X86.HasFMA}, {"AVX-512", cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL},
		{"AVX512-BF16", cpu.X86.HasAVX512BF16}, {"AMX-BF16", cpu.X86.HasAMXBF16}, {"NEON", cpu.ARM64.HasASIMD},
	} {
		if f.have {
			have = append(have, f.name)
		}
	}
	if len(have) == 0 {
		have = []string{"no vector instructions that Athanor uses"}
	}
	best := simd.Best().Name
	f := finding{"processor", good, fmt.Sprintf("%d cores, %s; kernels: %s, products %s", runtime.GOMAXPROCS(0), strings.Join(have, ", "), best, gemm.Kernels()), ""}
	if best == simd.Portable().Name {
		f.State, f.Advice = slow, "the portable kernels run, some ten times slower: use a machine with AVX2, AVX-512 or NEON"
	}
	return f
}

func findMemory(*doctorCmd) finding {
	mem, err := sysmem.Read()
	if err != nil {
		return finding{"memory", slow, err.Error(), "set limits.device and limits.host in the configuration"}
	}
	f := finding{"memory", good, fmt.Sprintf("%s of %s available", size.Format(mem.Available), size.Format(mem.Total)), ""}
	if mem.Available < 512<<20 {
		f.State, f.Advice = slow, "end other programs, or allow this container more memory"
	}
	return f
}

func findHugePages(*doctorCmd) finding {
	const file = "/sys/kernel/mm/transparent_hugepage/enabled"
	text, err := os.ReadFile(file)
	if err != nil {
		return finding{"huge pages", good, "not reported by this system", ""}
	}
	_, mode, _ := strings.Cut(string(text), "[")
	mode, _, _ = strings.Cut(mode, "]")
	if mode == "never" {
		return finding{"huge pages", slow, mode, "echo madvise > " + file}
	}
	return finding{"huge pages", good, mode, ""}
}

func findDisk(v *doctorCmd) finding {
	where, err := filepath.Abs(v.Path)
	if err != nil {
		return finding{"disk", broken, err.Error(), "give another --path"}
	}
	free, _, err := hardware.DiskSpace(where)
	if err != nil {
		return finding{"disk", slow, err.Error(), "set limits.disk in the configuration"}
	}
	f := finding{"disk", good, fmt.Sprintf("%s free at %s", size.Format(free), where), ""}
	switch err := machine.Writable(where); {
	case err != nil:
		f.State, f.Found, f.Advice = broken, err.Error(), "give --path a folder that can be written, and set `out` to it"
	case hardware.InMemory(where) != "":
		f.State, f.Found, f.Advice = slow, f.Found+", in memory ("+hardware.InMemory(where)+")", "set limits.disk_path to a folder on a disk, if plans are to use one"
	case free < 1<<30:
		f.State, f.Advice = slow, "free some space: checkpoints take up to twelve bytes per parameter each"
	}
	return f
}

func findCache(*doctorCmd) finding {
	const advice = "set XDG_CACHE_HOME to a permanent folder that can be written"
	dir, err := machine.CacheDir()
	if err != nil {
		return finding{"cache", broken, err.Error(), advice}
	}
	if home, err := os.UserCacheDir(); err != nil || filepath.Dir(dir) != home {
		return finding{"cache", slow, dir + ", since the user's cache folder cannot be written", advice}
	}
	return finding{"cache", good, dir, ""}
}

// findGPU looks for GPUs in a child process, since broken drivers crash. Having
// none is no fault: the CPU backend suffices.
func findGPU(*doctorCmd) finding {
	found := cuda.Probe(stdctx.Background(), machine.DriverPatience)
	var cards []string
	for _, card := range found.Cards {
		text := fmt.Sprintf("%s, %s, %s", card.Name, card.Arch, size.Format(card.Memory))
		if card.LinkWidth > 0 { // narrow links make offloading slow
			text += fmt.Sprintf(", PCIe %d x%d", card.LinkGen, card.LinkWidth)
		}
		cards = append(cards, strings.TrimSpace(text+" "+card.Problem))
	}
	f := finding{"GPU", good, strings.Join(cards, "; "), strings.Join(found.Missing, "\n")}
	switch {
	case found.OK:
		f.Found += fmt.Sprintf("; driver %s, CUDA %s; NVRTC %s; cublasLt %s", found.Driver, found.CUDA, found.NVRTC, found.CublasLt)
		if n := len(found.Cards); n > 1 && len(found.Cards[0].Peers) < n-1 {
			f.Found += "; not all GPUs can access each other's memory: data between ranks goes through the host"
		}
		if found.Slow != "" {
			f.State, f.Advice = slow, found.Slow
		}
	case len(cards) == 0:
		f.Found, f.Advice = "none: computing on the CPU", ""
		if len(found.Missing) > 0 {
			f.Found += " (" + found.Missing[0] + ")"
		}
	default:
		f.State = slow
	}
	return f
}

// findCorpus looks for the text that examples/quickstart.yaml trains on.
func findCorpus(*doctorCmd) finding {
	c, err := data.OpenCorpus("$GOROOT/src/net/**/*.go")
	if err != nil {
		return finding{"quickstart", slow, "its text, the source of Go's net packages, is not here", "give another corpus: data=path/to/**/*.txt"}
	}
	return finding{"quickstart", good, fmt.Sprintf("its text: %d files of Go, %s", len(c.Files()), size.Format(c.Bytes())), ""}
}
