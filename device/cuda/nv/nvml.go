package nv

import "runtime"

// NVML tells what the driver does not: the driver's own version and the link
// to the host. Nothing needs it.
type NVML struct {
	Lib Library

	Init          Proc `sym:"nvmlInit_v2"`
	Shutdown      Proc `sym:"nvmlShutdown"`
	DriverVersion Proc `sym:"nvmlSystemGetDriverVersion"`
	HandleByBus   Proc `sym:"nvmlDeviceGetHandleByPciBusId_v2"`
	LinkMaxGen    Proc `sym:"nvmlDeviceGetMaxPcieLinkGeneration"`
	LinkMaxWidth  Proc `sym:"nvmlDeviceGetMaxPcieLinkWidth"`
}

// OpenNVML opens NVML and initialises it. Close it.
func OpenNVML(p Places) (*NVML, error) {
	n := &NVML{}
	lib, err := p.openFirst(n, "NVML (libnvidia-ml.so.1)", "install the NVIDIA driver", p.NVML)
	if err != nil {
		return nil, err
	}
	n.Lib = lib
	if code := n.Init(); code != Success {
		return nil, &Error{Call: "nvmlInit", Code: code}
	}
	return n, nil
}

// Close gives the library back.
func (n *NVML) Close() { n.Shutdown() }

// Driver is the version of the driver, such as "580.159.03".
func (n *NVML) Driver() string {
	b := make([]byte, 96)
	if n.DriverVersion(Addr(&b[0]), uintptr(len(b))) != Success {
		return ""
	}
	return cString(b)
}

// Link is generation and width of the best PCIe link that card and slot could
// have; zeros if it has none. What it has now may be less when idle.
func (n *NVML) Link(busID string) (gen, width int) {
	var h uintptr
	var g, w int32
	b := append([]byte(busID), 0)
	if n.HandleByBus(Addr(&b[0]), Addr(&h)) == Success {
		n.LinkMaxGen(h, Addr(&g))
		n.LinkMaxWidth(h, Addr(&w))
	}
	runtime.KeepAlive(b)
	return int(g), int(w)
}
