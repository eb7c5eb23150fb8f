package schedule

import (
	"math"
	"testing"
)

// zbRow is one line of Tables 5 and 6 of Qi et al. 2024: measured times (ms) and the bubble rates computed from them.
// hidden and heads give the activation memory of B and W: 34h+5as and 32h bytes per token, s = 1024.
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
