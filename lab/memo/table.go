package memo

import "fmt"

// Comparison is the paper's ablation on one machine.
type Comparison struct {
	Machine Machine  `json:"machine"`
	Units   float64  `json:"units"` // of a layer
	Rows    []Row    `json:"rows"`
	Longest []Length `json:"longest"`
}

// Row is one sequence length.
type Row struct {
	Tokens    int     `json:"tokens"`
	Attention float64 `json:"attention_share"` // of a layer's forward FLOPs
	Skeletal  float64 `json:"skeletal_bytes"`  // of all layers, per GPU
	Alpha     Share   `json:"alpha"`           // MEMO's
	Arms      []Named `json:"arms"`
}

// Named is an arm's result.
type Named struct {
	Name string `json:"name"`
	Result
}

// Length is the longest sequence of an arm, in tokens.
type Length struct {
	Name   string `json:"name"`
	Tokens int    `json:"tokens"`
}

// Lengths returns the sequence lengths of the paper's configuration, in tokens.
func Lengths() []int {
	var list []int
	for _, k := range []int{64, 128, 192, 256, 384, 512, 640, 768, 896, 1024} {
		list = append(list, k<<10)
	}
	return list
}

// Compare runs all arms at the given lengths; work returns the work of a sequence of that
// many tokens.
func Compare(m Machine, lengths []int, work func(tokens int) (Work, error)) (Comparison, error) {
	t := Comparison{Machine: m}
	for _, tokens := range lengths {
		w, err := work(tokens)
		if err != nil {
			return t, err
		}
		c := m.Costs(w)
		t.Units = w.Units()
		row := Row{Tokens: tokens, Attention: w.AttentionShare(), Skeletal: float64(c.Layers) * c.Skeletal(), Alpha: m.Alpha(c)}
		for _, a := range Arms() {
			r, err := a.Run(m, c)
			if err != nil {
				return t, fmt.Errorf("%s at %d tokens: %w", a.Name, tokens, err)
			}
			row.Arms = append(row.Arms, Named{a.Name, r})
		}
		t.Rows = append(t.Rows, row)
	}
	for _, a := range Arms() {
		n, err := longest(m, a, work)
		if err != nil {
			return t, err
		}
		t.Longest = append(t.Longest, Length{a.Name, n})
	}
	return t, nil
}

// longest returns the longest sequence that an arm can train, in steps of 16K tokens up to
// 16M.
func longest(m Machine, a Arm, work func(tokens int) (Work, error)) (int, error) {
	const step = 16 << 10
	fits, low, high := 0, 1, 1<<10
	for low <= high {
		mid := (low + high) / 2
		w, err := work(mid * step)
		if err != nil {
			return 0, err
		}
		r, err := a.Run(m, m.Costs(w))
		if err != nil {
			return 0, err
		}
		if r.Misfit == "" {
			fits, low = mid, mid+1
		} else {
			high = mid - 1
		}
	}
	return fits * step, nil
}
