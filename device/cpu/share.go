package cpu

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/kernel"
)

// What a backend with other device memory has in common with this one: arenas
// in the host's memory, the disk tier, kernels on the host's cores.

// Arena is page-aligned memory outside of Go's heap, all of it provided.
type Arena struct{ arena }

// NewArena makes an arena of n bytes, if the machine has them to spare.
func NewArena(n int64) (*Arena, error) {
	if err := enoughMemory(n); err != nil {
		return nil, err
	}
	bytes, mapping, err := mapArena(n)
	if err != nil {
		return nil, err
	}
	return &Arena{arena{size: n, bytes: bytes, mapping: mapping}}, nil
}

// Bytes is the memory. It must not be used after Close.
func (a *Arena) Bytes() []byte { return a.bytes }

// Close gives it back.
func (a *Arena) Close() error { return unmapArena(a.mapping) }

// Tensor is an operand in the arena, which has been checked, as kernels take it.
func (a *Arena) Tensor(o device.Operand) kernel.Tensor { return tensorOf(a.bytes, o) }

// Disk is the file of a disk tier. Streams that use it at once have an
// access each.
type Disk struct{ disk *disk }

// OpenDisk makes the file with all of its blocks.
func OpenDisk(path string, size int64) (*Disk, error) {
	d, err := openDisk(path, size)
	if err != nil {
		return nil, err
	}
	return &Disk{d}, nil
}

// Access makes an access; m sees how it gets on.
func (d *Disk) Access(m *Meter) *DiskAccess { return d.disk.access(m) }

// Close ends the file's existence.
func (d *Disk) Close() error { return d.disk.close() }

// CopyBytes copies in pieces that the garbage collector can come between.
func CopyBytes(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Sprintf("cpu: copy of %d bytes to %d", len(src), len(dst)))
	}
	copyBytes(dst, src)
}

// Transfer is a copy of rows of Width bytes, each a step of bytes after the last.
type Transfer struct {
	From, To         device.Tier
	Rows             int
	Width            int64
	Src, Dst         int64
	SrcStep, DstStep int64
}

// NewTransfer is a copy between operands, in as few rows as there can be.
func NewTransfer(dst, src device.Operand) *Transfer {
	t := &Transfer{From: src.Tier, To: dst.Tier, Src: src.Addr, Dst: dst.Addr, Rows: 1, Width: src.Bytes()}
	if !dst.Contiguous() || !src.Contiguous() {
		t.Rows, t.Width = src.Rows, src.Bytes()/int64(src.Rows)
		t.SrcStep = int64(src.Stride) * src.DType.Size()
		t.DstStep = int64(dst.Stride) * dst.DType.Size()
	}
	return t
}

// Bytes are those that it moves.
func (t *Transfer) Bytes() int64 { return t.Width * int64(t.Rows) }

// Move copies between the arenas of the two tiers; the disk has none, but an access.
func (t *Transfer) Move(to, from []byte, disk *DiskAccess) error {
	src, dst := t.Src, t.Dst
	for range t.Rows {
		var err error
		switch {
		case t.From == device.DiskTier:
			err = disk.Read(to[dst:][:t.Width:t.Width], src)
		case t.To == device.DiskTier:
			err = disk.Write(from[src:][:t.Width:t.Width], dst)
		default:
			copyBytes(to[dst:][:t.Width], from[src:][:t.Width])
		}
		if err != nil {
			return err
		}
		src, dst = src+t.SrcStep, dst+t.DstStep
	}
	return nil
}
