package hardware

import (
	"bytes"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/cpu"
	"github.com/athanor-llm/athanor/graph"
)

// TestFill: all memory that calls use is filled, with the same numbers whether they are written or copied.
func TestFill(t *testing.T) {
	for _, size := range []int64{2 * 12345, seedBytes, seedBytes + 2, 3*seedBytes + 2*777} {
		d := cpu.New(cpu.Options{Workers: 1})
		o := device.Operand{DType: graph.BF16, Rows: 1, Cols: int(size / 2), Stride: int(size / 2)}
		host := device.Operand{Tier: device.HostTier, DType: graph.BF16, Rows: 1, Cols: o.Cols, Stride: o.Cols}
		if err := d.Reserve(device.DeviceTier, size); err != nil {
			t.Fatal(err)
		}
		if err := d.Reserve(device.HostTier, size); err != nil {
			t.Fatal(err)
		}
		if err := fill([]device.Call{{Op: graph.Copy, Stream: device.HostToDev, Args: []device.Operand{o, host}}}, d); err != nil {
			t.Fatal(err)
		}
		const piece = 1 << 20
		got, want := make([]byte, piece), make([]byte, piece)
		for at := int64(0); at < size; at += piece {
			n := min(piece, size-at)
			if err := d.Read(device.DeviceTier, at, got[:n]); err != nil {
				t.Fatal(err)
			}
			if err := d.Read(device.HostTier, at, want[:n]); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got[:n], want[:n]) || bytes.Count(want[:n], []byte{0}) > int(n/64) {
				t.Fatalf("%d bytes: what lies at %d differs, or is zero", size, at)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
