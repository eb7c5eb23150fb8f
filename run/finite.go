package run

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// notFinite is an error about numbers that are not finite outside of a training step.
type notFinite struct{ error }

func (notFinite) Is(target error) bool { return target == ErrNumeric }
func (e notFinite) Unwrap() error      { return e.error }

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// blame adds to an error about numbers that are not finite which of the weights, if any, is not finite either.
func (f *Folder) blame(err error) error {
	if !errors.Is(err, ErrNumeric) {
		return err
	}
	for _, p := range f.Model.Params() {
		values := make([]float32, p.Elems())
		if failed := f.weights.read(p, values); failed != nil {
			return errors.Join(err, failed)
		}
		if k := slices.IndexFunc(values, func(x float32) bool { return !finite(float64(x)) }); k >= 0 {
			return fmt.Errorf("%w, and neither are the weights in %s: parameter %s has a %v; hint: use another copy of the weights", err, f.folderOf(p), p.Name, values[k])
		}
	}
	return fmt.Errorf("%w, although all weights in %s are: activations have grown too large; hint: check that config.json belongs to these weights", err, f.Path)
}

// Number formats a loss or a perplexity with the given number of decimals or, from a million on, where decimals
// say nothing, as a power of ten.
func Number(x float64, decimals int) string {
	if x >= 1e6 {
		return fmt.Sprintf("%.3g", x)
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}
