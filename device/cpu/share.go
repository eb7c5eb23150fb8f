package cpu

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/kernel"
)

// Shared with backends that have other device memory: arenas in host memory, the disk
// tier, kernels on the host's cores.

// Arena is page-aligned, fully resident memory outside Go's heap.
type Arena struct {
	arena
	space []byte // of an arena that can be resized: its address space
}

// NewArena returns an arena of n bytes, or an error if the machine lacks the memory.
func NewArena(n int64) (*Arena, error) {
	if err := enoughMemory(n); err != nil {
		return nil, err
	}
	bytes, mapping, err := mapArena(n)
	if err != nil {
		return nil, err
	}
	return &Arena{arena: arena{size: n, bytes: bytes, mapping: mapping}}, nil
}

// NewSpace returns an empty arena with addresses, but no memory, for most bytes. Resize
// gives it memory.
func NewSpace(most int64) (*Arena, error) {
	space, mapping, err := reserveSpace(hugePages(most))
	if err != nil {
		return nil, err
	}
	return &Arena{arena{bytes: space[:0], mapping: mapping}, space}, nil
}

// Resize makes the first n bytes of a space resident and releases the memory of those after. Bytes that
// it had before keep their address and contents; the contents of new ones are arbitrary. After an error
// the arena keeps its size.
func (a *Arena) Resize(n int64) error {
	was, is := hugePages(a.size), hugePages(n)
	switch {
	case n < 0 || is > int64(len(a.space)):
		return fmt.Errorf("%d bytes do not fit into a space of %d bytes", n, len(a.space))
	case is > was:
		if err := enoughMemory(is - was); err != nil {
			return err
		}
		if err := commit(a.space[was:is]); err != nil {
			return err
		}
	case is < was:
		if err := decommit(a.space[is:was]); err != nil {
			return err
		}
	}
	a.size, a.bytes = n, a.space[:n:n]
	return nil
}

// Most returns the size that a space can have, in bytes.
func (a *Arena) Most() int64 { return int64(len(a.space)) }

// hugePages rounds a size up to huge pages.
func hugePages(n int64) int64 { return (n + hugePage - 1) / hugePage * hugePage }

// Bytes returns the memory. It must not be used after Close.
func (a *Arena) Bytes() []byte { return a.bytes }

// Close releases the memory.
func (a *Arena) Close() error { return unmapArena(a.mapping) }

// Tensor returns a checked operand in the arena as kernels take it.
func (a *Arena) Tensor(o device.Operand) kernel.Tensor { return tensorOf(a.bytes, o) }

// Disk is the file of a disk tier. Streams that use it concurrently need an Access
// each.
type Disk struct{ disk *disk }

// OpenDisk creates the file with all of its blocks.
func OpenDisk(path string, size int64) (*Disk, error) {
	d, err := openDisk(path, size)
	if err != nil {
		return nil, err
	}
	return &Disk{d}, nil
}

// Access returns a new access that reports its progress to m.
func (d *Disk) Access(m *Meter) *DiskAccess { return d.disk.access(m) }

// Close closes and removes the file.
func (d *Disk) Close() error { return d.disk.close() }

// CopyBytes copies in pieces, so that the garbage collector can intervene.
func CopyBytes(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Sprintf("cpu: copy of %d bytes to %d", len(src), len(dst)))
	}
	copyBytes(dst, src)
}

// Transfer is a copy of Rows rows of Width bytes, with a step between rows at each end.
type Transfer struct {
	From, To         device.Tier
	Rows             int
	Width            int64
	Src, Dst         int64
	SrcStep, DstStep int64
}

// NewTransfer returns a copy between operands, in as few rows as possible.
func NewTransfer(dst, src device.Operand) *Transfer {
	t := &Transfer{From: src.Tier, To: dst.Tier, Src: src.Addr, Dst: dst.Addr, Rows: 1, Width: src.Bytes()}
	if !dst.Contiguous() || !src.Contiguous() {
		t.Rows, t.Width = src.Rows, src.Bytes()/int64(src.Rows)
		t.SrcStep = int64(src.Stride) * src.DType.Size()
		t.DstStep = int64(dst.Stride) * dst.DType.Size()
	}
	return t
}

// Bytes returns the number of bytes moved.
func (t *Transfer) Bytes() int64 { return t.Width * int64(t.Rows) }

// Move copies between the arenas of two tiers. The disk has no arena, but an access.
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
