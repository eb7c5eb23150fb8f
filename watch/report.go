package watch

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/roofline"
)

// Row is a run in a table of runs on different machines. Speeds are medians of the latest steps; what is not known is 0.
type Row struct {
	Run       string  `json:"run"`
	Machine   string  `json:"machine"`
	Ranks     int     `json:"ranks"`
	Precision string  `json:"precision"`
	Steps     int     `json:"steps"`
	Seconds   float64 `json:"step_seconds"`
	Predicted float64 `json:"predicted_step_seconds"`
	TokenRate float64 `json:"tokens_per_second"`
	MFU       float64 `json:"mfu"`
	// Ridge is the FLOPs that the device does in the time in which it moves a byte, Intensity those of the step's calls by
	// the bytes that these have to move. Roof is the share of the rate that the lower of both limits allows at that
	// intensity: unlike MFU it compares machines of different balance.
	Ridge     float64 `json:"ridge"`
	Intensity float64 `json:"intensity"`
	Roof      float64 `json:"of_roof"`
	Planned   int64   `json:"planned_bytes"` // on the device of the rank that takes most
	Reached   int64   `json:"reached_bytes"` // 0: no step was measured
	Loss      number  `json:"loss"`
	ValLoss   number  `json:"val_loss"`
}

// latestSteps are those of which medians are taken.
const latestSteps = 200

// Rows returns the runs as a table, those with the highest share of their roof first.
func (s *Set) Rows() []Row {
	s.refresh()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var list []Row
	for _, r := range s.runs {
		list = append(list, r.row())
	}
	slices.SortStableFunc(list, func(a, b Row) int { return cmp.Compare(b.Roof, a.Roof) })
	return list
}

func (r *run) row() Row {
	h := &r.history
	row := Row{Run: r.name, Precision: r.config["precision"], Ranks: 1, Steps: len(h.steps), Seconds: h.median("step_seconds"),
		Predicted: h.median("predicted_step_seconds"), TokenRate: h.median("tokens_per_second"), MFU: h.median("mfu"), Loss: h.last("loss"), ValLoss: h.last("val_loss")}
	for _, b := range r.bytes {
		row.Ranks = max(row.Ranks, b.rank+1)
		if b.tier == "device" {
			row.Planned, row.Reached = max(row.Planned, b.planned), max(row.Reached, b.reached)
		}
	}
	if roof := r.readRoof(); roof != nil {
		row.Machine = roof.Machine
		row.normalise(roof)
	}
	return row
}

// normalise compares what was reached with what the machine's device allows.
func (row *Row) normalise(roof *roofline.Report) {
	const device = "compute"
	products := row.Precision
	switch products {
	case "int8": // weights are converted before they are multiplied
		products = "fp32"
	case "fp8": // of a CPU
		products = "bf16"
	}
	i := slices.IndexFunc(roof.Ridges, func(l roofline.Ridge) bool { return l.Stream == device && l.DType == products })
	if i < 0 {
		return
	}
	limit := roof.Ridges[i]
	row.Ridge = limit.Ridge
	flops, bytes := 0.0, 0.0
	for _, k := range roof.Kinds {
		if k.Stream == device {
			flops, bytes = flops+float64(k.FLOPs), bytes+float64(k.Bytes)
		}
	}
	if bytes > 0 {
		row.Intensity = flops / bytes
	}
	if row.Seconds > 0 && row.Intensity > 0 {
		row.Roof = flops / row.Seconds / min(limit.Peak, row.Intensity*limit.Bandwidth)
	}
}

// readRoof reads roofline.json; nil if that cannot be done.
func (r *run) readRoof() *roofline.Report {
	text, err := r.content(roofFile, mostRoof)
	roof := &roofline.Report{}
	if err != nil || json.Unmarshal(text, roof) != nil {
		return nil
	}
	return roof
}

// median returns the median of the latest values of a column; 0: there are none.
func (h *history) median(key string) float64 {
	column := h.columns[key]
	var list []float64
	for _, x := range column[max(0, len(column)-latestSteps):] {
		if stat.Finite(x) {
			list = append(list, x)
		}
	}
	if len(list) == 0 {
		return 0
	}
	return stat.Median(list)
}

// last returns the last value of a column; NaN: there is none.
func (h *history) last(key string) number {
	if column := h.columns[key]; len(column) > 0 {
		return number(column[len(column)-1])
	}
	return number(math.NaN())
}
