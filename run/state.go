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
	for i, p := range t.Setup.Graph.Params {
		if p.Frozen && kind != "p" || !t.saves(p) {
			continue
		}
		list = append(list, t.stored(i, kind)...)
	}
	return list
}

// stored returns one kind of a parameter's state as tensors of files. They are written one
// after the other, so the parameter is read with the first and given up with the last.
func (t *Trainer) stored(i int, kind string) (list []safetensors.Tensor) {
	p := t.Setup.Graph.Params[i]
	as, write := t.storedAs(p, kind), writeFloat32
	if as == safetensors.BF16 {
		write = safetensors.WriteBF16
	}
	var whole []float32
	parts := p.Tensors()
	for n, part := range parts {
		list = append(list, safetensors.Tensor{
			Info: safetensors.Info{Name: part.Name, DType: as, Shape: part.Shape},
			Data: func(w io.Writer) error {
				if whole == nil {
					whole = make([]float32, p.Elems())
					if err := t.readState(i, kind, whole); err != nil {
						return err
					}
				}
				values := whole[part.First:][:part.Elems()]
				if n == len(parts)-1 {
					whole = nil
				}
				return write(w, values)
			},
		})
	}
	return list
}

func writeFloat32(w io.Writer, values []float32) error {
	return safetensors.WriteFloat32(w, safetensors.F32, values)
}

// readState reads one kind of a parameter's state, and what the arenas hold rounded from
// where it came.
func (t *Trainer) readState(i int, kind string, dst []float32) error {
	if p := t.Setup.Graph.Params[i]; t.rounded(p) {
		return t.origin.read(p, dst)
	}
	return t.Session.Read(i, kind, dst)
}
