//go:build linux

package cuda

import (
	"testing"

	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/device/cuda/nv"
)

// What other tests want of the kernels' text is wanted here of what NVIDIA's
// compiler makes of it.

func TestCompiledOperators(t *testing.T) { operatorsAgree(t, compiled) }

func TestCompiledUpdates(t *testing.T) { updatesAgree(t, compiled) }

func TestCompiledCuts(t *testing.T) { cutsAgree(t, compiled) }

func TestCompiledSlices(t *testing.T) { slicesAgree(t, compiled) }

func TestCompiledDocuments(t *testing.T) { documentsAreSkipped(t, compiled) }

// TestCompiledWaits: without a wait or a barrier the interpreter stops, in whatever
// order threads run, since it knows who used which bytes.
func TestCompiledWaits(t *testing.T) {
	c, err := nv.OpenNVRTC(nv.Local())
	if err != nil || onGPU() {
		t.Skipf("kernels are not compiled: %v", err)
	}
	waitsMatter(t, func(edit func(string) string, _ bool) *Libraries {
		g := fake.New()
		r := &fake.Interpreter{GPU: g}
		g.Kernel, g.Load = r.Kernel, r.Load
		return &Libraries{Driver: g.Driver(), Compiler: editing{fake.Virtual{NVRTC: c}, edit}}
	}, false)
}
