package nv

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// NVRTC is NVIDIA's run-time compiler. Distinct programs may be compiled at
// once.
type NVRTC struct {
	Lib Library

	Version           Proc `sym:"nvrtcVersion"`
	CreateProgram     Proc `sym:"nvrtcCreateProgram"`
	CompileProgram    Proc `sym:"nvrtcCompileProgram"`
	GetProgramLogSize Proc `sym:"nvrtcGetProgramLogSize"`
	GetProgramLog     Proc `sym:"nvrtcGetProgramLog"`
	GetCUBINSize      Proc `sym:"nvrtcGetCUBINSize"`
	GetCUBIN          Proc `sym:"nvrtcGetCUBIN"`
	GetPTXSize        Proc `sym:"nvrtcGetPTXSize"`
	GetPTX            Proc `sym:"nvrtcGetPTX"`
	GetNumArchs       Proc `sym:"nvrtcGetNumSupportedArchs,?"` // from 11.2 on
	GetArchs          Proc `sym:"nvrtcGetSupportedArchs,?"`
	DestroyProgram    Proc `sym:"nvrtcDestroyProgram"`
}

// OpenNVRTC opens the compiler. Its second half, the built-ins, is looked for
// by the loader, who does not know the folder: opened before, it is found.
func OpenNVRTC(p Places) (*NVRTC, error) {
	n := &NVRTC{}
	for _, path := range p.NVRTC {
		if !filepath.IsAbs(path) {
			continue
		}
		builtins, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "libnvrtc-builtins.so.*"))
		for _, b := range builtins {
			_ = openGlobal(b) // the compiler says so if it misses them
		}
	}
	lib, err := p.openFirst(n, "the kernel compiler NVRTC (libnvrtc.so.13 or .12)", "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit", p.NVRTC)
	if err != nil {
		return nil, err
	}
	n.Lib = lib
	return n, nil
}

func (n *NVRTC) check(call string, code int32) error {
	if code == Success {
		return nil
	}
	return &Error{Call: call, Code: code}
}

// VersionString is major.minor.
func (n *NVRTC) VersionString() (string, error) {
	var major, minor int32
	if err := n.check("nvrtcVersion", n.Version(Addr(&major), Addr(&minor))); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d.%d", major, minor), nil
}

// Architecture is a card's by its compute capability (90 is 9.0): of Hopper the one with
// instructions that no other card has (wgmma).
func Architecture(cc int) string {
	if cc == 90 {
		return "90a"
	}
	return strconv.Itoa(cc)
}

// Target is the architecture to compile for, for a card of compute capability
// cc: the card's own, or for a card that is newer than the compiler
// the newest virtual one, whose PTX the driver translates.
func (n *NVRTC) Target(cc int) string {
	var count int32
	newest := 0
	if n.GetNumArchs != nil && n.GetArchs != nil && n.GetNumArchs(Addr(&count)) == Success && count > 0 {
		list := make([]int32, count)
		if n.GetArchs(Addr(&list[0])) == Success {
			for _, a := range list {
				if int(a) <= cc {
					newest = max(newest, int(a))
				}
			}
		}
	}
	if newest != 0 && newest != cc {
		return fmt.Sprintf("compute_%d", newest)
	}
	var major, minor int32
	if n.Version(Addr(&major), Addr(&minor)) == Success && major < 12 {
		return fmt.Sprintf("sm_%d", cc) // it has not heard of 90a
	}
	return "sm_" + Architecture(cc)
}

// Compile translates a source to a cubin, or PTX for a virtual architecture, and
// returns the compiler's log with it.
func (n *NVRTC) Compile(name, source string, options []string) (cubin []byte, log string, err error) {
	var prog uintptr
	text(source, func(src uintptr) {
		text(name, func(nm uintptr) {
			err = n.check("nvrtcCreateProgram", n.CreateProgram(Addr(&prog), src, nm, 0, 0, 0))
		})
	})
	if err != nil {
		return nil, "", err
	}
	defer func() { n.DestroyProgram(Addr(&prog)) }()
	list := make([][]byte, len(options)+1) // never empty
	addrs := make([]uintptr, len(list))
	for i, o := range options {
		list[i] = append([]byte(o), 0)
		addrs[i] = Addr(&list[i][0])
	}
	code := n.CompileProgram(prog, uintptr(len(options)), Addr(&addrs[0]))
	runtime.KeepAlive(list)
	if b := n.fetch(prog, n.GetProgramLogSize, n.GetProgramLog); len(b) > 0 {
		log = strings.TrimSpace(cString(b))
	}
	if code != Success {
		return nil, log, fmt.Errorf("%s does not compile with %s: %w\n%s", name, strings.Join(options, " "), n.check("nvrtcCompileProgram", code), log)
	}
	cubin = n.fetch(prog, n.GetCUBINSize, n.GetCUBIN)
	if len(cubin) == 0 {
		cubin = n.fetch(prog, n.GetPTXSize, n.GetPTX)
	}
	if len(cubin) == 0 {
		return nil, log, fmt.Errorf("%s: no code; hint: NVRTC 11.1 or later is needed", name)
	}
	return cubin, log, nil
}

// fetch gets bytes whose number is asked for first; none on an error.
func (n *NVRTC) fetch(prog uintptr, size, get Proc) []byte {
	var bytes uint64
	if size(prog, Addr(&bytes)) != Success || bytes == 0 {
		return nil
	}
	b := make([]byte, bytes)
	if get(prog, Addr(&b[0])) != Success {
		return nil
	}
	return b
}
