//go:build linux

package fake

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Use is a kernel's use of a multiprocessor's resources.
type Use struct {
	Registers int // per thread
	Local     int // bytes of local memory per thread, for what did not fit the registers
	Shared    int // static bytes per block, in addition to what a launch requests
}

// Resources returns the resource use of each kernel of a cubin, by name. The ELF
// section .nv.info has records per function, {symbol, value}: EIATTR_REGCOUNT
// (0x2f) and EIATTR_FRAME_SIZE (0x11); .nv.shared.NAME is its shared memory.
func Resources(cubin []byte) (map[string]Use, error) {
	f, err := openCubin(cubin)
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	info := f.Section(".nv.info")
	if info == nil {
		return nil, errors.New("a cubin without .nv.info")
	}
	b, err := info.Data()
	if err != nil {
		return nil, err
	}
	out := usesOf(b, symbols)
	for _, s := range f.Sections {
		if name, ok := strings.CutPrefix(s.Name, ".nv.shared."); ok {
			if u, ok := out[name]; ok {
				u.Shared = int(s.Size)
				out[name] = u
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("a cubin without kernels")
	}
	return out, nil
}

// Mixed returns registers of Hopper's products that a kernel of a cubin both loads with ldmatrix (LDSM)
// and fills with sums as bf16 (F2FP) before its last product: then an operand that must last for the
// whole kernel has lost its registers to one that is made for a tile. The compiler has done that.
func Mixed(cubin []byte) (list []string, err error) {
	f, err := openCubin(cubin)
	if err != nil {
		return nil, err
	}
	for _, s := range f.Sections {
		name, ok := strings.CutPrefix(s.Name, ".text.")
		if !ok {
			continue
		}
		code, err := s.Data()
		if err != nil {
			return nil, err
		}
		var loaded, packed, found [256]bool
		for ; len(code) >= 16; code = code[16:] { // an instruction: 12 bits of operation, 4 of predicate, 8 each of registers
			to, a := int(code[2]), int(code[3])
			switch binary.LittleEndian.Uint16(code) & 0xfff {
			case 0x83b: // LDSM of 4 registers
				for r := to; r < min(to+4, 256); r++ {
					loaded[r] = true
				}
			case 0x23e: // F2FP
				packed[to] = true
			case 0xdf0: // HGMMA with an operand in registers
				for r := a; r < min(a+4, 256); r++ {
					if loaded[r] && packed[r] && !found[r] {
						found[r], list = true, append(list, fmt.Sprintf("%s: R%d", name, r))
					}
				}
			}
		}
	}
	return list, nil
}

// openCubin reads a cubin as ELF.
func openCubin(cubin []byte) (*elf.File, error) {
	cubin = bytes.Clone(cubin)
	if len(cubin) < 64 {
		return nil, errors.New("no cubin")
	}
	cubin[elf.EI_VERSION] = byte(elf.EV_CURRENT) // CUDA 12 stores its own number there
	binary.LittleEndian.PutUint32(cubin[20:], uint32(elf.EV_CURRENT))
	return elf.NewFile(bytes.NewReader(cubin))
}

// usesOf returns the registers and local memory in the records b of .nv.info.
func usesOf(b []byte, symbols []elf.Symbol) map[string]Use {
	out := map[string]Use{}
	for len(b) >= 4 {
		size := 0
		if b[0] == 4 { // a record with a size
			size = int(binary.LittleEndian.Uint16(b[2:]))
		}
		if attr := b[1]; size == 8 && (attr == 0x2f || attr == 0x11) {
			sym, value := binary.LittleEndian.Uint32(b[4:]), int(binary.LittleEndian.Uint32(b[8:]))
			name := symbols[sym-1].Name
			u := out[name]
			if attr == 0x2f {
				u.Registers = value
			} else {
				u.Local = value
			}
			out[name] = u
		}
		b = b[4+size:]
	}
	return out
}
