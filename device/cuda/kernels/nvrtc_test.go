//go:build linux

package kernels

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/nv"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// variants returns the variants of every unit that programs use: fp32, bf16 with
// fp32 gradients, and the odd widths.
func variants() []Unit {
	var list []Unit
	for _, t := range []string{"f32", "bf16"} {
		wide := map[string]string{"f32": "VEC=4", "bf16": "VEC=8"}[t]
		widths := map[string][]string{"f32": {"800", "4096"}, "bf16": {"1600", "8192"}}[t]
		heads := map[string]string{"f32": "ROW_THREADS=32 ROWS=4", "bf16": "ROW_THREADS=16 ROWS=8"}[t]
		types := "T0=" + t + " T1=" + t + " T2=" + t + " T3=" + t + " T4=" + t + " T5=" + t + " T6=" + t + " T7=f32"
		for _, rms := range []string{"0", "1"} {
			for _, size := range []string{" VEC=1 COLS=4101 PACKS=5 ROW_THREADS=832 ROWS=1", " " + wide + " COLS=" + widths[0] + " PACKS=7 ROW_THREADS=32 ROWS=4", " " + wide + " COLS=" + widths[1] + " PACKS=4 ROW_THREADS=256 ROWS=1"} {
				plain := " RMS=" + rms + " GROUPS=0 UNIT=0 RES=0 BIAS=" + map[string]string{"0": "1", "1": "0"}[rms]
				list = append(list, Unit{"norm", types + plain + size}, Unit{"norm_dx", types + plain + size})
			}
		}
		for _, kind := range []string{" RMS=1 GROUPS=1 UNIT=1 RES=0 BIAS=0 " + wide + " COLS=128 PACKS=1 " + heads, " RMS=1 GROUPS=0 UNIT=1 RES=1 BIAS=0 " + wide + " COLS=" + widths[1] + " PACKS=4 ROW_THREADS=256 ROWS=1"} {
			list = append(list, Unit{"norm", types + kind}, Unit{"norm_dx", types + kind})
		}
		for _, s := range []string{"0", "1", "2", "3", "4", "5"} {
			list = append(list, Unit{"sums", types + " SUM_ROWS=128 GROUPS=0 VEC=1 LANES=64 PARTS=4 STATS=" + s}, Unit{"sums", types + " SUM_ROWS=128 GROUPS=0 LANES=40 PARTS=4 " + wide + " STATS=" + s})
		}
		list = append(list, Unit{"sums", types + " SUM_ROWS=8 GROUPS=1 VEC=2 LANES=32 PARTS=8 STATS=1"})
		for _, head := range []string{"5", "64", "128", "256", "512"} {
			list = append(list, Unit{"attention", types + " HEAD=" + head}, Unit{"attention_bwd", types + " HEAD=" + head},
				Unit{"attention", types + " HEAD=" + head + " STARTS=4 SINKS=5"}, Unit{"attention_bwd", types + " HEAD=" + head + " STARTS=8"})
		}
		for _, name := range []string{"cast", "add", "scale"} {
			list = append(list, Unit{name, types + " VEC=1"}, Unit{name, types + " " + wide})
		}
		for k := range model.NumActivations {
			act := fmt.Sprintf(" ACT=%d", k)
			list = append(list, Unit{"act", types + act + " VEC=1"}, Unit{"act", types + act + " " + wide}, Unit{"act_bwd", types + act + " " + wide})
			list = append(list, Unit{"gate", types + act + " VEC=1"}, Unit{"gate", types + act + " " + wide}, Unit{"gate_bwd", types + act + " " + wide})
			list = append(list, Unit{"swiglu", types + act + " SLOTS=0 SUMS=0 " + wide}, Unit{"swiglu_bwd", types + act + " SLOTS=0 SUMS=0 " + wide}, Unit{"swiglu_bwd", types + act + " SLOTS=0 SUMS=0 VEC=1"},
				Unit{"swiglu", types + act + " SLOTS=8 SUMS=0 " + wide}, Unit{"swiglu_bwd", types + act + " SLOTS=2 SUMS=0 " + wide}, Unit{"swiglu_bwd", types + act + " SLOTS=8 SUMS=1 " + wide})
		}
		for _, at := range []string{" AT=0", " AT=1"} {
			list = append(list, Unit{"rope", types + at + " VEC=1"}, Unit{"rope", types + at + " " + wide}, Unit{"embed", types + at + " VEC=1"}, Unit{"embed", types + at + " " + wide})
		}
		for _, name := range []string{"cross_entropy", "product"} {
			list = append(list, Unit{name, types})
		}
		list = append(list, deltaUnits(t)...)
		list = append(list, Unit{"pos_bwd", "T0=f32 T1=" + t + " VEC=1"}, Unit{"pos_bwd", "T0=f32 T1=" + t + " VEC=4"})
		list = append(list, Unit{"soft_cap", "CAP=1 T0=" + t + " VEC=1"}, Unit{"soft_cap", "CAP=1 T0=" + t + " " + wide}, Unit{"attention", types + " HEAD=256 CAP=1"}, Unit{"attention_bwd", types + " HEAD=256 CAP=1"}, Unit{"attention_at", types + " HEAD=256 CAP=1"})
		for _, head := range []string{"5", "64", "128", "256", "512"} {
			list = append(list, Unit{"attention_at", types + " HEAD=" + head}, Unit{"attention_at", types + " HEAD=" + head + " SINKS=4"}, Unit{"attention_at", types + " HEAD=" + head + " BITS=8"}, Unit{"attention_at", types + " HEAD=" + head + " BITS=4"})
		}
		list = append(list, Unit{"embed_bwd", "T0=f32 T1=" + t + " T2=i32 VEC=1"}, Unit{"embed_bwd", "T0=f32 T1=" + t + " T2=i32 VEC=4"}, Unit{"clear", "T0=" + t + " " + wide})
	}
	list = append(list, Unit{"differ", ""})
	for _, slots := range []string{"2", "8"} {
		for _, t := range []string{"f32", "bf16"} {
			types := "T0=" + t + " T1=" + t + " T2=" + t
			list = append(list, Unit{"combine", types + " SLOTS=" + slots + " VEC=4"}, Unit{"expert_dw", "T0=f32 T1=" + t + " T2=" + t + " SLOTS=" + slots},
				Unit{"expert_linear", types + " WT=0 SLOTS=" + slots}, Unit{"expert_linear", types + " WT=1 SLOTS=" + slots},
				Unit{"expert_linear", types + " WT=0 NF4=1 SLOTS=" + slots}, Unit{"expert_linear", types + " WT=1 NF4=1 SLOTS=" + slots},
				Unit{"expert_linear", types + " T3=" + t + " BIAS=2 WT=1 SLOTS=" + slots}, Unit{"expert_db", "T0=f32 T1=" + t + " WEIGHTS=1 VEC=4 SLOTS=" + slots})
			for _, each := range []string{" EACH=1", " EACH=4", " EACH=16"} {
				list = append(list, Unit{"route", "T2=" + t + " SLOTS=" + slots + each}, Unit{"route", "T2=" + t + " T3=f32 BIAS=1 GROUPS=4 SIZE=8 BEST=2 SLOTS=" + slots + each})
				for _, balance := range []string{" BALANCE=0", " BALANCE=1"} {
					list = append(list, Unit{"route_bwd", "T0=" + t + " T4=" + t + " SLOTS=" + slots + each + balance})
				}
			}
		}
		list = append(list, Unit{"dispatch", "SLOTS=" + slots})
		for _, tile := range []string{"ROWS=128 COLS=256 DOWN=2 ACROSS=4", "ROWS=128 COLS=128 DOWN=2 ACROSS=2", "ROWS=64 COLS=256 DOWN=1 ACROSS=4", "ROWS=64 COLS=128 DOWN=1 ACROSS=2"} {
			list = append(list, Unit{"expert_linear_mma", tile + " SLOTS=" + slots + " WT=0"}, Unit{"expert_linear_mma", tile + " SLOTS=" + slots + " WT=1"}, Unit{"expert_linear_mma", tile + " SLOTS=" + slots + " WT=1 T3=bf16 BIAS=2"}, Unit{"expert_dw_mma", tile + " SLOTS=" + slots})
		}
		for _, tile := range []string{"ROWS=128 COLS=256 DOWN=2 ACROSS=4", "ROWS=128 COLS=128 DOWN=2 ACROSS=2", "ROWS=64 COLS=256 DOWN=2 ACROSS=4", "ROWS=64 COLS=128 DOWN=2 ACROSS=2"} {
			list = append(list, Unit{"expert_linear_mma", tile + " SLOTS=" + slots + " WT=0 NF4=1"}, Unit{"expert_linear_mma", tile + " SLOTS=" + slots + " WT=1 NF4=1"})
		}
		for _, tile := range []string{"192 COLS=256", "128 COLS=256", "128 COLS=128", "64 COLS=256", "64 COLS=128"} {
			tile = "ROWS=" + tile + " SLOTS=" + slots
			list = append(list, Unit{"expert_linear_wgmma", tile + " WT=0"}, Unit{"expert_linear_wgmma", tile + " WT=1"}, Unit{"expert_linear_wgmma", tile + " WT=1 T3=bf16 BIAS=2"}, Unit{"expert_dw_wgmma", tile})
		}
		for _, tile := range []string{"256 COLS=128", "128 COLS=128", "64 COLS=128"} {
			tile = "ROWS=" + tile + " SLOTS=" + slots
			list = append(list, Unit{"expert_linear_wgmma", tile + " WT=0 NF4=1"}, Unit{"expert_linear_wgmma", tile + " WT=1 NF4=1"})
		}
	}
	for i, head := range []string{"16", "64", "80", "112", "128", "144", "192", "256"} {
		backward := "attention_bwd_mma"
		if i > 4 {
			backward = "attention_bwd_wide"
		}
		list = append(list, Unit{"attention_mma", "HEAD=" + head}, Unit{backward, "HEAD=" + head},
			Unit{"attention_mma", "T5=bf16 HEAD=" + head + " STARTS=4 SINKS=5"}, Unit{backward, "HEAD=" + head + " STARTS=8"})
	}
	for _, head := range []string{"32", "64", "96", "128"} {
		list = append(list, Unit{"attention_bwd_wgmma", "HEAD=" + head}, Unit{"attention_bwd_wgmma", "HEAD=" + head + " STARTS=8"})
	}
	for _, head := range []string{"192", "256"} {
		list = append(list, Unit{"attention_bwd_wide_wgmma", "HEAD=" + head}, Unit{"attention_bwd_wide_wgmma", "HEAD=" + head + " STARTS=8"})
	}
	for _, head := range []string{"32", "64", "96", "128", "160", "224", "256"} {
		list = append(list, Unit{"attention_wgmma", "HEAD=" + head}, Unit{"attention_wgmma", "T5=bf16 HEAD=" + head + " STARTS=4 SINKS=5"})
	}
	for _, head := range []string{"64", "128", "256"} {
		list = append(list, Unit{"attention_mma", "HEAD=" + head + " CAP=1"}, Unit{"attention_wgmma", "HEAD=" + head + " CAP=1"})
	}
	list = append(list, Unit{"attention_bwd_mma", "HEAD=64 CAP=1"}, Unit{"attention_bwd_mma", "HEAD=128 CAP=1"}, Unit{"attention_bwd_wide", "HEAD=256 CAP=1"}, Unit{"attention_bwd_wide_wgmma", "HEAD=256 CAP=1"})
	for _, tile := range []string{"ROWS=128 COLS=256 DOWN=2 ACROSS=4", "ROWS=128 COLS=160 DOWN=2 ACROSS=2", "ROWS=128 COLS=128 DOWN=2 ACROSS=2", "ROWS=64 COLS=128 DOWN=2 ACROSS=2"} {
		list = append(list, Unit{"wgrad_mma", tile})
	}
	for _, tile := range []string{"128 COLS=256", "128 COLS=192", "128 COLS=128", "64 COLS=128"} {
		list = append(list, Unit{"wgrad_wgmma", "ROWS=" + tile}, Unit{"wgrad_wgmma", "ROWS=" + tile + " PAIR=1"})
	}
	for _, v := range []string{"1", "4"} {
		for _, t := range []string{"f32", "bf16"} {
			list = append(list, Unit{"muon_unit", "T0=" + t + " VEC=" + v}, Unit{"muon_poly", "T0=" + t + " T1=" + t + " VEC=" + v}, Unit{"muon_norm", "T0=f32 T1=" + t})
			for _, weights := range []string{"T3=f32 T4=f32", "T3=bf16 T4=u16"} {
				list = append(list, Unit{"muon_mean", "T0=" + t + " T1=f32 T2=f32 " + weights + " VEC=" + v}, Unit{"muon_mean", "T0=" + t + " T1=bf16 T2=f32 " + weights + " VEC=" + v})
			}
		}
		for _, types := range []string{"T0=f32 T1=f32 T2=f32 T3=f32", "T0=f32 T1=bf16 T2=bf16 T3=f32", "T0=bf16 T1=bf16 T2=f32 T3=f32", "T0=bf16 T1=bf16 T2=f32 T3=u16"} {
			list = append(list, Unit{"muon", types + " VEC=" + v})
		}
	}
	for o := range optimizer.NumOptimizers {
		if !o.Rule().Elementwise {
			continue
		}
		for _, v := range []string{"1", "4"} {
			for _, types := range [][4]string{{"f32", "f32", "f32", "f32"}, {"f32", "f32", "bf16", "f32"}, {"f32", "bf16", "bf16", "f32"}, {"bf16", "bf16", "f32", "f32"}, {"bf16", "f32", "f32", "u16"}, {"bf16", "bf16", "f32", "u16"}} {
				list = append(list, updateUnit(o.Rule(), types[0], types[1], types[2], types[3], v))
			}
		}
		for _, types := range [][2]string{{"f32", "f32"}, {"bf16", "u16"}} {
			packed := updateUnit(o.Rule(), types[0], "u8", "bf16", types[1], "1")
			list = append(list, Unit{packed.File, "PACKED=1 " + packed.Defines})
		}
	}
	return append(list, Unit{"sum", "T0=f32 VEC=4"}, Unit{"sum", "T0=f64 VEC=1"}, Unit{"loss_sum", ""}, Unit{"preference", ""}, Unit{"norm_part", "T1=f32 VEC=1 FLAT=false PART_THREADS=512"}, Unit{"norm_part", "T1=f32 VEC=4 FLAT=true PART_THREADS=512"}, Unit{"norm_all", ""})
}

// deltaUnits returns those of linear attention, and of the activation with parameters.
func deltaUnits(t string) (list []Unit) {
	list = append(list, Unit{"decay", "T0=f32 T1=" + t + " T2=" + t + " T3=" + t}, Unit{"decay_bwd", "T0=" + t + " T1=f32 T2=" + t + " T3=" + t + " T4=" + t})
	types := "T0=" + t + " T1=" + t + " T2=" + t + " T3=" + t
	for _, size := range []string{" ACT=3 TAPS=4 VEC=4", " ACT=3 TAPS=4 VEC=1"} {
		list = append(list, Unit{"short_conv", types + size}, Unit{"short_conv", types + size + " STARTS=3"}, Unit{"short_conv_dx", types + size}, Unit{"short_conv_dx", types + size + " STARTS=4"},
			Unit{"short_conv_dw", types + size + " SUM_ROWS=128"}, Unit{"short_conv_dw", types + size + " SUM_ROWS=128 STARTS=4"}, Unit{"short_conv_at", types + size})
		biased := " T4=i32 T5=" + t + size + " STARTS=4 BIAS=5 BIAS_TYPE=" + t
		list = append(list, Unit{"short_conv", types + " T4=" + t + size + " BIAS=4 BIAS_TYPE=" + t}, Unit{"short_conv_dx", types + biased},
			Unit{"short_conv_dw", types + biased + " DBIAS=6 SUM_ROWS=128"}, Unit{"short_conv_at", types + biased})
	}
	for _, size := range []string{" KEYS=128 VALUES=128 CHUNK=32 KEPT=256 STATE_COLS=64 VEC=4", " KEYS=20 VALUES=33 CHUNK=8 KEPT=16 STATE_COLS=42 VEC=1"} {
		list = append(list, Unit{"delta_rule", types + size}, Unit{"delta_rule", types + size + " STARTS=4"}, Unit{"delta_rule_bwd", types + size}, Unit{"delta_rule_bwd", types + size + " STARTS=6"})
	}
	for _, size := range []string{" KEYS=128 VALUES=128", " KEYS=33 VALUES=20"} {
		list = append(list, Unit{"delta_rule_at", types + size})
	}
	steps := " T4=" + t + " T5=" + t
	for _, size := range []string{" KEYS=128 VALUES=64 CHUNK=32 KEPT=256 STATE_COLS=32 VEC=1", " KEYS=20 VALUES=33 CHUNK=8 KEPT=16 STATE_COLS=42 VEC=1"} {
		list = append(list, Unit{"state_scan", types + steps + size}, Unit{"state_scan", types + steps + size + " STARTS=5"}, Unit{"state_scan_bwd", types + steps + size}, Unit{"state_scan_bwd", types + steps + size + " STARTS=8"})
	}
	list = append(list, Unit{"state_scan_at", types + steps + " KEYS=128 VALUES=64"}, Unit{"time_steps", types}, Unit{"time_steps_bwd", types + steps})
	for _, vec := range []string{" VEC=1", " VEC=4"} {
		types := "T0=" + t + " T1=" + t + " T2=" + t + " T3=" + t + " T4=" + t + " T5=" + t + " T6=" + t
		list = append(list, Unit{"xielu", types + vec}, Unit{"xielu_bwd", types + " TERMS=0" + vec}, Unit{"xielu_bwd", types + " T7=f32 TERMS=1" + vec})
	}
	list = append(list, Unit{"distil", "T0=f32 T1=" + t + " T2=i32 T3=f32 T4=i32 T5=f32"}, Unit{"top_logs", "T0=i32 T1=f32 T2=" + t})
	for _, vec := range []string{" VEC=1", " VEC=4"} {
		list = append(list, Unit{"drop", "T0=" + t + " T1=" + t + " T2=i32" + vec}, Unit{"jitter", "T0=" + t + " T1=i32" + vec})
	}
	for _, nf4 := range []string{" NF4=0 VEC=1", " NF4=1 VEC=4"} {
		types := "T0=" + t + " T1=" + t + " T2=" + t + " T3=" + t + " T4=" + t
		list = append(list, Unit{"direction", types + nf4}, Unit{"gain", types + " BIAS=0 RES=1 VEC=4"}, Unit{"gain", types + " BIAS=1 RES=0 VEC=1"})
	}
	return list
}

// updateUnit is the unit of an optimizer with the given types of weights, moments, copies and lower halves.
func updateUnit(rule *optimizer.Rule, weights, moments, copied, rest, vec string) Unit {
	types := append([]string{weights}, slices.Repeat([]string{moments}, len(rule.Moments))...)
	types = append(types, "f32", "f32", "f32", copied, rest)
	var defines strings.Builder
	for i, t := range types {
		fmt.Fprintf(&defines, "T%d=%s ", i, t)
	}
	return Unit{rule.Name, defines.String() + "VEC=" + vec}
}

// compiler returns NVRTC; it skips the test if there is none.
func compiler(t *testing.T) *nv.NVRTC {
	c, err := nv.OpenNVRTC(nv.Local())
	if err != nil {
		t.Skipf("kernels are not compiled: %v", err)
	}
	return c
}

// mostLocal is the most local memory that a kernel may use, in bytes per thread:
// some versions of the compiler spill a few words to fit one more block, and warps
// that only copy have few registers. A fragment indexed at run time would take far
// more, and much time.
const (
	mostLocal     = 48
	mostRegisters = 250 // of 255: near the limit the next version spills; products of experts in NF4 for sm_120 take these
)

// full has the units whose tiles are sized to fill the registers; mostLocal applies
// to them too.
var full = map[string]bool{"attention_mma": true, "attention_bwd_mma": true, "attention_bwd_wgmma": true, "attention_bwd_wide": true}

// TestCompile: every kernel compiles without warnings for the generations of cards
// since Ampere, and its fragments are in registers.
func TestCompile(t *testing.T) {
	c := compiler(t)
	version, err := c.VersionString()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("NVRTC %s", version)
	var archs []string
	for _, cc := range []int{80, 86, 89, 90, 100, 120} {
		if a := c.Target(cc); a == "sm_"+nv.Architecture(cc) { // compilers before 12.8 do not know the last two
			archs = append(archs, a)
		}
	}
	if len(archs) < 4 {
		t.Fatalf("only %v are known", archs)
	}
	for _, u := range spread(variants()) {
		list := chosen(u, archs)
		t.Run(u.String(), func(t *testing.T) {
			t.Parallel() // as programs compile them
			for _, arch := range list {
				compile(t, c, u, arch)
			}
		})
	}
}

// spread are the units that are compiled at this process's level: usually one of each file, since all take minutes.
func spread(all []Unit) (list []Unit) {
	byFile := map[string][]Unit{}
	for _, u := range all {
		byFile[u.File] = append(byFile[u.File], u)
	}
	for _, file := range testkit.Sample(slices.Sorted(maps.Keys(byFile)), 5, len(byFile)) {
		list = append(list, testkit.Sample(byFile[file], 1, 1)...)
	}
	return list
}

// chosen are the architectures that a unit is compiled for, since all take minutes: a data centre's first.
func chosen(u Unit, archs []string) []string {
	if strings.HasSuffix(u.File, "_wgmma") { // other cards lack these instructions
		return []string{"sm_90a"}
	}
	list := []string{"sm_80", "sm_90a"}
	for _, arch := range archs {
		if !slices.Contains(list, arch) {
			list = append(list, arch)
		}
	}
	usual := 1
	if full[u.File] { // where tiles fill the registers
		usual = 2
	}
	return testkit.Sample(list, 1, usual)
}

// compile compiles a unit and checks its resource use.
func compile(t *testing.T, c *nv.NVRTC, u Unit, arch string) {
	t.Helper()
	source, err := u.Source()
	if err != nil {
		t.Fatal(err)
	}
	code, log, err := c.Compile(u.File, source, u.Options(arch))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log, "warning") || strings.Contains(log, "Performance Loss") { // such as serialised wgmma products
		t.Errorf("%s: %s", arch, log)
	}
	uses, err := fake.Resources(code)
	if err != nil {
		t.Fatal(err)
	}
	if mixed, err := fake.Mixed(code); err != nil || mixed != nil {
		t.Errorf("%s: registers of one operand are used for another, see kernels/wgmma.cuh: %v, %v", arch, mixed, err)
	}
	for name, r := range uses {
		t.Logf("%v: %s for %s: %d registers", u, name, arch, r.Registers)
		if r.Local > mostLocal || r.Registers > mostRegisters && !full[u.File] {
			t.Errorf("%s for %s uses %d registers and %d bytes of local memory", name, arch, r.Registers, r.Local)
		}
	}
}

// TestTarget: cards that the compiler knows get machine code, newer ones PTX.
func TestTarget(t *testing.T) {
	c := compiler(t)
	if a := c.Target(90); a != "sm_90a" {
		t.Errorf("for 9.0: %s", a)
	}
	arch := c.Target(9990)
	if !strings.HasPrefix(arch, "compute_") {
		t.Fatalf("for 999.0: %s", arch)
	}
	u := Unit{"add", "T0=f32 T1=f32 VEC=4"}
	source, err := u.Source()
	if err != nil {
		t.Fatal(err)
	}
	code, _, err := c.Compile(u.File, source, u.Options(arch))
	if err != nil || !strings.Contains(string(code), ".target sm_"+arch[len("compute_"):]) || code[len(code)-1] != 0 {
		t.Errorf("for %s: %v, %.200q", arch, err, code)
	}
}
