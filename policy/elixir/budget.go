package elixir

import "fmt"

// Budget is the memory of a GPU in bytes, and the deductions before the search
// begins. The original also deducts the model's buffers, which no model here has.
type Budget struct {
	GPU         int64
	Fraction    float64 // of the GPU that may be used; 1: all
	Activations int64   // peak of forward and backward
}

const (
	driver     = 2 << 30 // bytes
	fragmented = 1.25    // ratio of the allocator's peak to the activations' sum
	safety     = 0.95
)

// Elements returns the capacity for Machine: the remaining memory, in parameters of
// the format, without the area in which an operator's parameters are laid out.
func (b Budget) Elements(t *Trace, f Format) (int64, error) {
	if !(b.Fraction > 0 && b.Fraction <= 1) {
		return 0, fmt.Errorf("elixir: impossible fraction %v of the GPU's memory; hint: use a fraction above 0 and at most 1", b.Fraction)
	}
	bytes := safety * (float64(b.GPU)*b.Fraction - driver - fragmented*float64(b.Activations))
	elems := int64(bytes)/f.Bytes - t.Hook()
	if bytes < 0 || elems < 0 {
		return 0, fmt.Errorf("elixir: %w: %d bytes of activations leave nothing for parameters; hint: use a smaller batch", ErrMemory, b.Activations)
	}
	return elems, nil
}
