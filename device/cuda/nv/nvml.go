package nv

import "runtime"

// NVML reports what the driver API does not: the driver's own version and the PCIe link
// to the host. It is optional.
type NVML struct {
	Lib Library

	Init          Proc `sym:"nvmlInit_v2"`
	Shutdown      Proc `sym:"nvmlShutdown"`
	DriverVersion Proc `sym:"nvmlSystemGetDriverVersion"`
	HandleByBus   Proc `sym:"nvmlDeviceGetHandleByPciBusId_v2"`
	LinkMaxGen    Proc `sym:"nvmlDeviceGetMaxPcieLinkGeneration"`
	LinkMaxWidth  Proc `sym:"nvmlDeviceGetMaxPcieLinkWidth"`
}

// OpenNVML opens and initialises NVML. The caller must Close it.
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

// Close shuts NVML down.
func (n *NVML) Close() { n.Shutdown() }

// Driver returns the version of the driver, such as "580.159.03".
func (n *NVML) Driver() string {
	b := make([]byte, 96)
	if n.DriverVersion(Addr(&b[0]), uintptr(len(b))) != Success {
		return ""
	}
	return cString(b)
}

// Link returns generation and width of the best PCIe link that card and slot support;
// zeros if unknown. An idle link may currently run slower.
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
