//go:build linux

package cuda

import (
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cuda/internal/fake"
	"github.com/athanor-llm/athanor/graph"
)

// square is a product of matrices of bf16, 64 x 64, from an address on.
func square(addr int64) device.Call {
	at := func(i int64) device.Operand {
		return device.Operand{DType: graph.BF16, Addr: addr + i*(64*64*2), Rows: 64, Cols: 64, Stride: 64}
	}
	return device.Call{Op: graph.Linear, Args: []device.Operand{at(0), at(1), at(2)}}
}

// TestRefused: a product whose algorithm, chosen for many rows, has no room in the
// workspace for those that there are, is made by the plain kernel, and that is told.
func TestRefused(t *testing.T) {
	for _, need := range []int64{workspaceBytes, workspaceBytes + 1} {
		g := fake.New()
		g.Workspace = need
		d := opened(t, &Libraries{g.Driver(), fake.Compiler{}, g.Lt()}, Options{}, []int64{1 << 20})
		n, err := d.Prepare([]device.Call{square(0), square(0)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Launch(n)
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
		told, calls := d.Refused(), g.Calls()
		if fits := need == workspaceBytes; fits != slices.Contains(calls, "LtMatmul") || fits == slices.Contains(calls, "LaunchKernel") {
			t.Errorf("with a workspace of %d: %v", need, calls)
		} else if fits && len(told) > 0 || !fits && (len(told) != 1 || !strings.Contains(told[0], "bf16[64x64/64] = bf16[64x64/64] bf16[64x64/64]: ") || !strings.Contains(told[0], "33554433 bytes")) {
			t.Errorf("with a workspace of %d: %q", need, told)
		}
	}
}

// TestOneAlgorithm: wherever a program puts a product's operands, which it aligns to
// 64 bytes, the library is asked the same.
func TestOneAlgorithm(t *testing.T) {
	asked := map[algoKey]bool{}
	for _, addr := range []int64{0, 64, 128, 192, 256, 512} {
		c := square(addr)
		works, err := elsewhere.build(&c)
		if err != nil || len(works) != 1 || works[0].product == nil {
			t.Fatal(works, err)
		}
		p := works[0].product.describe(func(o device.Operand) uintptr { return elsewhere.base[o.Tier] + uintptr(o.Addr) })
		asked[algoKey{canonical(p)}] = true
	}
	if len(asked) != 1 {
		t.Errorf("%d questions: %v", len(asked), asked)
	}
}
