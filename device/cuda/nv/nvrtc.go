package nv

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// NVRTC is NVIDIA's run-time compiler. Distinct programs may be compiled concurrently.
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

// OpenNVRTC opens the compiler. The loader looks for the compiler's second library, the
// built-ins, by name and may not know its folder; opening it first makes it found.
func OpenNVRTC(p Places) (*NVRTC, error) {
	n := &NVRTC{}
	for _, path := range p.NVRTC {
		if !filepath.IsAbs(path) {
			continue
		}
		builtins, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "libnvrtc-builtins.so.*"))
		for _, b := range builtins {
			_ = openGlobal(b) // the compiler reports it if they are missing
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

// VersionString returns major.minor.
func (n *NVRTC) VersionString() (string, error) {
	var major, minor int32
	if err := n.check("nvrtcVersion", n.Version(Addr(&major), Addr(&minor))); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d.%d", major, minor), nil
}

// Architecture returns the architecture name for a compute capability (90 is 9.0). For
// Hopper it is the one with architecture-specific instructions (wgmma).
func Architecture(cc int) string {
	if cc == 90 {
		return "90a"
	}
	return strconv.Itoa(cc)
}

// Target returns the architecture to compile for on a card of compute capability cc:
// the card's own or, if the card is newer than the compiler, the newest virtual one,
// whose PTX the driver translates.
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
		return fmt.Sprintf("sm_%d", cc) // it does not know 90a
	}
	return "sm_" + Architecture(cc)
}

// Compile translates a source to a cubin, or to PTX for a virtual architecture. It also
// returns the compiler's log.
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
		return nil, log, fmt.Errorf("%s: the compiler returned no code; hint: install NVRTC 11.1 or later", name)
	}
	return cubin, log, nil
}

// fetch reads bytes after asking for their number; nil on an error.
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
