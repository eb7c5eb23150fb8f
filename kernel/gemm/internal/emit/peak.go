package emit

import "fmt"

// peaks writes loops of only independent multiply-adds, which measure a core's peak rate: 16 chains of 512 bits, or
// 12 of 256, enough to hide latency.
func peaks(a *asm) {
	for _, p := range []struct {
		name, reg string
		chains    int
		multiply  func(a *asm, x, y, sum string)
	}{
		{"peakFMA512", "Z", 16, fma},
		{"peakFMA256", "Y", 12, fma},
		{"peakBF16", "Z", 16, dpbf16},
	} {
		a.routine(p.name, "peak")
		a.op("MOVQ (DI), CX")
		for i := range p.chains + 2 {
			r := fmt.Sprintf("%s%d", p.reg, i)
			a.op("VXORPS %s, %s, %s", r, r, r)
		}
		a.op("PCALIGN $32")
		a.at("loop")
		for range peakUnroll {
			for i := range p.chains {
				p.multiply(a, fmt.Sprintf("%s%d", p.reg, p.chains), fmt.Sprintf("%s%d", p.reg, p.chains+1), fmt.Sprintf("%s%d", p.reg, i))
			}
		}
		a.op("DECQ CX")
		a.op("JNZ loop")
		a.end()
	}
}

// peakUnroll is the number of multiply-adds of each chain in one round of a peak loop.
const peakUnroll = 4
