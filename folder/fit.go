package folder

import (
	"fmt"
	"math"
)

// Fit collects what a regression says of texts beside their values.
type Fit struct{ said, values []float64 }

// Add adds the texts of a batch: of its tokens' logits, one each, and values those where a target is not negative.
func (f *Fit) Add(logits []float32, targets []int32, values []float32) {
	for row, target := range targets {
		if target >= 0 {
			f.said, f.values = append(f.said, float64(logits[row])), append(f.values, float64(values[row]))
		}
	}
}

// Closeness says how close to the values of texts a regression is. Both numbers are 0 where the values are all the same.
type Closeness struct {
	Pearson float64 `json:"pearson"` // correlation of what it says and the values
	R2      float64 `json:"r2"`      // 1 - the mean squared error over the values' variance: what is explained
}

// Closeness sums up what was added.
func (f *Fit) Closeness() *Closeness {
	n := float64(max(len(f.said), 1))
	var meanX, meanY, xx, yy, xy, off float64
	for i, x := range f.said {
		meanX, meanY = meanX+x/n, meanY+f.values[i]/n
	}
	for i, x := range f.said {
		y := f.values[i]
		xx, yy, xy = xx+(x-meanX)*(x-meanX), yy+(y-meanY)*(y-meanY), xy+(x-meanX)*(y-meanY)
		off += (x - y) * (x - y)
	}
	c := &Closeness{}
	if yy > 0 {
		c.R2 = 1 - off/yy
	}
	if xx > 0 && yy > 0 {
		c.Pearson = xy / math.Sqrt(xx*yy)
	}
	return c
}

// MeanSquare returns the mean squared error.
func (f *Fit) MeanSquare() (sum float64) {
	for i, x := range f.said {
		sum += (x - f.values[i]) * (x - f.values[i]) / float64(len(f.said))
	}
	return sum
}

func (c *Closeness) String() string {
	return fmt.Sprintf("Pearson's r %.4f, R² %.4f", c.Pearson, c.R2)
}
