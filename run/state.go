package run

import (
	"io"
	"slices"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/program"
)

// A checkpoint has weights and moments as the run holds them, in fp32 or in bf16 (optimizer_state), so it takes 12, 8 or 6
// bytes per trained parameter. Frozen weights, which operators may read rounded, are copied from where the run has them.

// weights is the source of the initial parameters, which can be read again during
// the run. Checkpoints copy frozen parameters from it bit for bit, since in bf16
// the arenas hold them rounded. Its files stay open, so that removing them does no
// harm.
type weights struct {
	read func(p model.Param, dst []float32) error
	in   func(p model.Param) *safetensors.Set // the files with a parameter; nil: there are none, it began as random numbers
	file io.Closer                            // nil: none
}

func (w *weights) close() error {
	if w.file == nil {
		return nil
	}
	file := w.file
	w.file = nil
	return file.Close()
}

// half reports whether a parameter is stored in bf16 where it comes from, or in a format whose numbers all are.
func (w *weights) half(p model.Param) bool {
	if w.in == nil || w.in(p) == nil {
		return false
	}
	set := w.in(p)
	if _, _, ok := packed(set, p); ok {
		return true
	}
	return !slices.ContainsFunc(p.Tensors(), func(part model.Tensor) bool {
		info, ok := lookup(set, part)
		return !ok || info.DType != safetensors.BF16
	})
}

// rounded reports whether the arenas hold a parameter in fewer bits than
// checkpoints do. That is never so for trained parameters.
func (t *Trainer) rounded(p model.Param) bool {
	return p.Frozen && (p.NF4 || t.Setup.Graph.DType != graph.F32) && t.saves(p)
}

// saves reports whether checkpoints contain a parameter: of adapters, only their own.
func (t *Trainer) saves(p model.Param) bool { return t.lora() == nil || p.Adapter }

// storedAs returns the type in which checkpoints have one kind of a parameter's state: the one in which the run has it, or
// for what the arenas hold rounded one that loses nothing.
func (t *Trainer) storedAs(p model.Param, kind string) safetensors.DType {
	master, moments := program.StateTypes(t.Plan.Plan.State)
	half := moments == graph.BF16
	if kind == "p" {
		half = master == graph.BF16 && (!t.rounded(p) || t.origin.half(p))
	}
	if half {
		return safetensors.BF16
	}
	return safetensors.F32
}

// halfWeights reports whether all weights of a checkpoint are in bf16.
func (t *Trainer) halfWeights() bool {
	return !slices.ContainsFunc(t.tensors("p"), func(w safetensors.Tensor) bool { return w.DType != safetensors.BF16 })
}

// moments returns the optimizer's first and second moments.
func (t *Trainer) moments() []checkpoint.Group {
	return []checkpoint.Group{{Name: "m", Tensors: t.tensors("m")}, {Name: "v", Tensors: t.tensors("v")}}
}

// tensors returns one kind of state, read lazily from where it lives. Frozen
// parameters have weights only.
func (t *Trainer) tensors(kind string) []safetensors.Tensor {
	var list []safetensors.Tensor
	from := &stateReader{trainer: t, kind: kind}
	for i, p := range t.Setup.Graph.Params {
		if p.Frozen && kind != "p" || !t.saves(p) {
			continue
		}
		list = append(list, from.tensors(i)...)
	}
	return list
}

// stateReader reads one kind of state for files: in pieces, into memory that is used again, so that a checkpoint
// needs no second copy of anything.
type stateReader struct {
	trainer *Trainer
	kind    string
	param   int       // that was read last
	first   int       // the element at which values begin
	values  []float32 // nil: nothing has been read
}

// readAtOnce is the number of elements of a piece.
const readAtOnce = 1 << 20

// tensors returns a parameter's state as tensors of files.
func (r *stateReader) tensors(i int) (list []safetensors.Tensor) {
	p := r.trainer.Setup.Graph.Params[i]
	as, write := r.trainer.storedAs(p, r.kind), writeFloat32
	if as == safetensors.BF16 {
		write = safetensors.WriteBF16
	}
	for _, part := range p.Tensors() {
		list = append(list, safetensors.Tensor{
			Info: safetensors.Info{Name: part.Name, DType: as, Shape: part.Shape},
			Data: func(w io.Writer) error {
				for at, end := part.First, part.First+part.Elems(); at < end; {
					values, err := r.from(i, at)
					if err != nil {
						return err
					}
					values = values[:min(len(values), end-at)]
					if err := write(w, values); err != nil {
						return err
					}
					at += len(values)
				}
				return nil
			},
		})
	}
	return list
}

func writeFloat32(w io.Writer, values []float32) error {
	return safetensors.WriteFloat32(w, safetensors.F32, values)
}

// from returns a parameter's elements from index at on, as many as are read at once. They are valid until the next call.
func (r *stateReader) from(i, at int) ([]float32, error) {
	p := r.trainer.Setup.Graph.Params[i]
	size, whole := readAtOnce, p.Reordered() || r.trainer.rounded(p)
	if whole {
		size = int(p.Elems())
	}
	if first := at / size * size; r.values == nil || r.param != i || r.first != first {
		n := min(size, int(p.Elems())-first)
		values := slices.Grow(r.values[:0], n)[:n]
		r.values = nil
		if err := r.trainer.readState(i, r.kind, first, values); err != nil {
			return nil, err
		}
		r.param, r.first, r.values = i, first, values
	}
	return r.values[at-r.first:], nil
}

// readState reads one kind of a parameter's state: what files have in another order as a whole, what the arenas hold rounded
// from where it came, also as a whole.
func (t *Trainer) readState(i int, kind string, first int, dst []float32) error {
	switch p := t.Setup.Graph.Params[i]; {
	case t.rounded(p):
		return t.origin.read(p, dst)
	case p.Reordered():
		return t.Session.Read(i, kind, dst)
	}
	return t.Session.ReadPart(i, kind, first, dst)
}
