package schedule

import (
	"math"
	"testing"
)

// zbRow is one line of Tables 5 and 6 of Qi et al. 2024 (arXiv 2401.10241): measured times
// in ms and the bubble rates computed from them. The activations of a layer are 34h+5as
// bytes per token before B and 32h until W (h hidden, a heads, s = 1024).
type zbRow struct {
	p, m                        int
	tf, tb, tw, tc              float64
	oneF, inter, h1, h2, z1, z2 float64
	hidden, heads               float64
}

func zbTable() []zbRow {
	return []zbRow{
		{8, 24, 18.522, 18.086, 9.337, .601, .2431, .1055, .1585, .1083, .1585, .0433, 2304, 24},
		{8, 32, 18.513, 18.086, 9.331, .626, .1985, .0818, .1242, .0837, .1242, .0039, 2304, 24},
		{8, 24, 29.718, 29.444, 19.927, .527, .2347, .0808, .1323, .0698, .1323, .0029, 4096, 32},
		{8, 64, 29.935, 29.621, 19.388, .535, .1091, .0320, .0554, .0294, .0554, .0010, 4096, 32},
		{16, 48, 11.347, 11.248, 8.132, .377, .2552, .1104, .1397, .0672, .1397, .0066, 5120, 40},
		{16, 128, 11.325, 11.308, 8.109, .378, .1251, .0445, .0576, .0266, .0576, .0028, 5120, 40},
		{32, 128, 10.408, 10.204, 7.703, .408, .2168, .1164, .1106, .0490, .1106, .0029, 6144, 48},
		{32, 256, 10.402, 10.248, 7.698, .460, .1352, .0624, .0594, .0257, .0594, .0018, 6144, 48},
	}
}

func TestZeroBubbleTable(t *testing.T) {
	for _, row := range zbTable() {
		c := Costs{Times: Times{row.tf, row.tb, row.tw}, Comm: row.tc,
			WeightMemory: 32 * row.hidden / (34*row.hidden + 5*row.heads*1024)}
		for _, x := range []struct {
			name      string
			cap       int
			want, tol float64
		}{
			{"1f1b", 0, row.oneF, 5e-5}, {"zb-h1", 0, row.h1, 5e-5}, {"zb-h2", 0, row.h2, 5e-5},
			{"zb-auto", row.p, row.z1, 1e-4}, {"zb-auto", 2 * row.p, row.z2, 1e-4},
		} {
			q := Request{Ranks: row.p, Micros: row.m, Costs: c, Cap: float64(x.cap)}
			s, tl := simulate(t, x.name, q)
			if got := tl.Rate(); math.Abs(got-x.want) > x.tol {
				t.Errorf("%s p=%d m=%d cap=%d: rate %.4f, want %.4f", x.name, row.p, row.m, x.cap, got, x.want)
			}
			if x.cap > 0 {
				if err := s.CheckCap(c, float64(x.cap)); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestInterleavedTable: the published rates count 2vp-2-p message times in the bubble;
// simulation exposes up to 2vp-2 of them, so its rate is up to 5 % higher.
func TestInterleavedTable(t *testing.T) {
	chunks := []int{3, 3, 4, 4, 3, 3, 2, 2}
	for i, row := range zbTable() {
		v := float64(chunks[i])
		c := Costs{Times: Times{row.tf / v, row.tb / v, row.tw / v}, Comm: row.tc}
		work := row.tf + row.tb + row.tw
		bubble := float64(row.p-1)*work/v + (2*v*float64(row.p)-2-float64(row.p))*row.tc
		if rate := bubble / (float64(row.m)*work + bubble); math.Abs(rate-row.inter) > 5e-5 {
			t.Errorf("p=%d m=%d: formula %.4f, published %.4f", row.p, row.m, rate, row.inter)
		}
		_, tl := simulate(t, "interleaved", Request{Ranks: row.p, Micros: row.m, Chunks: chunks[i], Costs: c})
		if got := tl.Rate(); got < row.inter-5e-5 || got > row.inter*1.05 {
			t.Errorf("p=%d m=%d: rate %.4f, published %.4f", row.p, row.m, got, row.inter)
		}
	}
}

// TestMeasuredThroughput: simulated speedups over 1F1B are within 10 % of measured ones
// (samples per GPU and second, the first row of each model).
func TestMeasuredThroughput(t *testing.T) {
	measured := map[string][]float64{"zb2": {14.5, 4.32, 1.81, .99}, "zb1": {12.9, 3.88, 1.61, .87}, "plain": {11.8, 3.50, 1.40, .76}}
	for i := range 4 {
		row := zbTable()[2*i]
		c := Costs{Times: Times{row.tf, row.tb, row.tw}, Comm: row.tc, WeightMemory: 32 * row.hidden / (34*row.hidden + 5*row.heads*1024)}
		span := func(name string, cap int) float64 {
			_, tl := simulate(t, name, Request{Ranks: row.p, Micros: row.m, Costs: c, Cap: float64(cap)})
			return tl.Span()
		}
		plain := span("1f1b", 0)
		for name, cap := range map[string]int{"zb1": row.p, "zb2": 2 * row.p} {
			predicted, want := plain/span("zb-auto", cap), measured[name][i]/measured["plain"][i]
			if math.Abs(predicted/want-1) > .1 {
				t.Errorf("p=%d %s: %.3f times the throughput of 1F1B, measured %.3f", row.p, name, predicted, want)
			}
		}
	}
}
