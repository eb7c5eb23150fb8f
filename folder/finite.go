package folder

import (
	"errors"
	"fmt"
	"slices"

	"github.com/athanor-llm/athanor/internal/stat"
)

// ErrNumeric reports a loss or gradient norm, or logits, that are NaN or infinite.
var ErrNumeric = errors.New("the loss or the gradient is not finite")

// notFinite is an error about numbers that are not finite outside of a training step.
type notFinite struct{ error }

// NotFinite makes an error about such numbers, outside of a training step, one that is ErrNumeric.
func NotFinite(err error) error { return notFinite{err} }

func (notFinite) Is(target error) bool { return target == ErrNumeric }
func (e notFinite) Unwrap() error      { return e.error }

// Blame adds to an error about numbers that are not finite which of the weights, if any, is not finite either.
func (f *Folder) Blame(err error) error {
	if !errors.Is(err, ErrNumeric) {
		return err
	}
	for _, p := range f.Model.Params() {
		values := make([]float32, p.Elems())
		if failed := f.weights.Read(p, 0, values); failed != nil {
			return errors.Join(err, failed)
		}
		if k := slices.IndexFunc(values, func(x float32) bool { return !stat.Finite(float64(x)) }); k >= 0 {
			return fmt.Errorf("%w, and neither are the weights in %s: parameter %s has a %v; hint: use another copy of the weights", err, f.folderOf(p), p.Name, values[k])
		}
	}
	return fmt.Errorf("%w, although all weights in %s are: activations have grown too large; hint: check that config.json belongs to these weights", err, f.Path)
}
