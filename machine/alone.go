package machine

import "github.com/athanor-llm/athanor/device"

// Alone is one device that is opened without a configuration, and the memory that programs may take there.
type Alone struct {
	device.Device
	Capacity [device.NumTiers]int64
	Shared   int64 // what device and host tier draw on together, in bytes; 0: they are separate
	HeadUnit int   // see search.Request
}

// OpenAlone opens one device, cpu or cuda, for sequences of seq tokens, 0 for generation, which sums nothing over tokens. A limit above 0
// bounds the bytes of device memory that programs may take.
func OpenAlone(name string, seq int, limit int64) (*Alone, error) {
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	b, err := newLocal(&Request{Device: name, Ranks: 1, Sequence: seq}, dir)
	if err != nil {
		return nil, err
	}
	d, memory, err := b.openOne()
	if err != nil {
		return nil, err
	}
	a := &Alone{Device: d, Capacity: memory.Tiers(), HeadUnit: b.headUnit(seq)}
	if memory.Shared {
		a.Shared = memory.Host
	}
	if limit > 0 {
		a.Capacity[device.DeviceTier] = min(limit, memory.Device)
	}
	return a, nil
}
