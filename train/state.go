package train

import (
	"io"
	"slices"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/session"
)

// A checkpoint stores weights and moments as the run holds them, in fp32, bf16 or 8 bits (optimizer_state), so it takes 12, 8 or 6
// bytes per trained parameter. Frozen weights, which operators may read rounded, are copied from the run's source of them.

// weights is the source of the initial parameters, which can be read again during
// the run. Checkpoints copy frozen parameters from it bit for bit, since in bf16
// the arenas hold them rounded. Its files stay open, so that removing them does no
// harm.
type weights struct {
	// read reads elements from index first on, see session.Loader; places says where in files they are.
	read   func(p model.Param, first int, dst []float32) error
	places func(p model.Param, first, n int) []safetensors.Place
	half   func(p model.Param) bool // whether it holds a parameter in bf16, or in a format whose numbers are all exact in bf16; nil: no
	own    *safetensors.Set         // the model's own weights, by whose names checkpoints are written; nil: none
	file   io.Closer                // nil: none
}

// supply returns where a parameter's weights come from.
func (w *weights) supply(p model.Param) session.Supply {
	return session.Supply{
		Read:   func(first int, dst []float32) error { return w.read(p, first, dst) },
		Places: func(first, n int) []safetensors.Place { return w.places(p, first, n) },
	}
}

// nameOf returns the name of a tensor of a model in checkpoints: of models that also see or hear, the one in the files.
func (w *weights) nameOf(m *model.Model, t model.Tensor) string {
	if w.own != nil && m.Inside != "" {
		if name, ok := t.NameIn(func(name string) bool { _, ok := w.own.Lookup(name); return ok }); ok {
			return name
		}
	}
	return t.Name
}

// withOtherParts adds to a model's tensors those of its parts that are not text, as files have them. Adapters are of the text part alone.
func (w *weights) withOtherParts(m *model.Model, list []safetensors.Tensor) []safetensors.Tensor {
	if w.own == nil || m.LoRA != nil {
		return list
	}
	for _, info := range w.own.Tensors() {
		if model.Carried(m, info.Name) {
			list = append(list, safetensors.Tensor{Info: info, Data: func(out io.Writer) error { return w.own.CopyBytes(out, info) }})
		}
	}
	return list
}

// carries reports whether files have tensors that checkpoints copy.
func (w *weights) carries(m *model.Model) bool {
	return w.own != nil && slices.ContainsFunc(w.own.Tensors(), func(info safetensors.Info) bool { return model.Carried(m, info.Name) })
}

func (w *weights) close() error {
	if w.file == nil {
		return nil
	}
	file := w.file
	w.file = nil
	return file.Close()
}

// rounded reports whether the arenas hold a parameter in fewer bits than
// checkpoints do. That is never so for trained parameters.
func (s *Setup) rounded(p model.Param) bool {
	return p.Frozen && (p.NF4 || p.Unit > 0 || s.Graph.DType != graph.F32) && s.saves(p)
}

// saves reports whether checkpoints contain a parameter: those of adapters contain only what is the adapters' own.
func (s *Setup) saves(p model.Param) bool { return s.lora() == nil || p.InAdapter() }

// storedAs returns the type in which checkpoints store one kind of a parameter's state: the type in which the run holds it or,
// if the arenas hold it rounded, one that loses nothing. Weights in int8 are exact in bf16.
func (t *Run) storedAs(p model.Param, kind optimizer.Kind) safetensors.DType {
	master, moments := t.Plan.Plan.State.Types()
	half := moments == graph.BF16
	if kind == optimizer.Weights {
		half = p.Unit > 0 && !t.Setup.rounded(p) || master == graph.BF16 && (!t.Setup.rounded(p) || t.origin.half != nil && t.origin.half(p))
	}
	if half {
		return safetensors.BF16
	}
	return safetensors.F32
}

// halfWeights reports whether all trained weights of a checkpoint are in bf16.
func (t *Run) halfWeights() bool {
	return !slices.ContainsFunc(t.tensors(optimizer.Weights), func(w safetensors.Tensor) bool { return w.DType != safetensors.BF16 })
}

// moments returns the optimizer's moments.
func (t *Run) moments() (list []checkpoint.Group) {
	for _, kind := range t.Plan.Plan.Optimizer.Moments() {
		list = append(list, checkpoint.Group{Name: kind.String(), Tensors: t.tensors(kind)})
	}
	return list
}

// keeps reports whether an optimizer has a kind of state of a parameter between steps.
func keeps(o optimizer.Optimizer, p model.Param, kind optimizer.Kind) bool {
	return kind == optimizer.Weights || !p.Frozen && slices.Contains(o.For(p.Indivisible).Moments, kind)
}

// tensors returns one kind of state, read lazily from where it lives. Frozen
// parameters have weights only.
func (t *Run) tensors(kind optimizer.Kind) []safetensors.Tensor {
	var list []safetensors.Tensor
	r := &stateReader{run: t, kind: kind}
	for i, p := range t.Session.Graph.Params {
		if !keeps(t.Plan.Plan.Optimizer, p, kind) || !t.Setup.saves(p) {
			continue
		}
		for _, q := range model.CopiesOf(t.Session.Graph.Model, p) {
			if session.MomentOf(t.Session, i, kind).Packed() {
				list = append(list, r.packed(i, q))
				continue
			}
			parts := q.Tensors()
			if kind == optimizer.Weights {
				parts = t.Setup.Graph.Model.PEFT().Stored(q)
			}
			for _, part := range parts {
				if kind == optimizer.Weights {
					part.Name = t.origin.nameOf(t.Setup.Model, part)
				}
				list = append(list, r.tensor(i, part))
			}
		}
	}
	return list
}

// divideMoment makes a moment of layers that shared parameters one of each of them. What they shared had the sum of their n
// gradients, which are alike as long as the layers are: so their mean is an n-th of the sum's, and the mean of their squares an n²-th.
func divideMoment(kind optimizer.Kind, n int, values []float32) {
	by := float32(n)
	switch {
	case !kind.Moment():
		return
	case kind == optimizer.SecondMoment:
		by *= by
	}
	for i := range values {
		values[i] /= by
	}
}

// stateReader reads one kind of state for files, in pieces and into reused memory, so that nothing large is in memory
// twice.
type stateReader struct {
	run    *Run
	kind   optimizer.Kind
	values []float32
	halves []byte
	whole  int // 1 + the parameter that values holds completely; 0: none
}

// tensor returns a part of a parameter's state as a tensor of files.
func (r *stateReader) tensor(i int, part model.Tensor) safetensors.Tensor {
	p := r.run.Session.Graph.Params[i]
	as := r.run.storedAs(p, r.kind)
	data := func(w io.Writer) error {
		return inPieces(part, func(at, n int) error { return r.writeFloats(w, i, at, n) })
	}
	switch {
	case r.run.Setup.rounded(p) && !p.Reordered() && p.Grown == 0:
		data = func(w io.Writer) error {
			return inPieces(part, func(at, n int) error { return r.writeOriginal(w, i, at, n, as) })
		}
	case r.writtenApart(i):
		data = func(w io.Writer) error { return r.writeDivided(w, i, part, as) }
	case p.Reordered() || r.run.Session.Graph.Divided(i) || r.run.Setup.rounded(p) || p.Unit > 0:
		data = func(w io.Writer) error { return r.writeWhole(w, i, part, as) }
	case as == safetensors.BF16:
		data = func(w io.Writer) error {
			return inPieces(part, func(at, n int) error { return r.writeHalves(w, i, at, n) })
		}
	}
	return safetensors.Tensor{Info: safetensors.Info{Name: part.Name, DType: as, Shape: part.Shape}, Data: data}
}

// inPieces calls write for one piece of a part after another, each of n elements from index at on.
func inPieces(part model.Tensor, write func(at, n int) error) error {
	const most = 1 << 20
	for at, end := part.First, part.First+part.Elems(); at < end; at += most {
		if err := write(at, min(most, end-at)); err != nil {
			return err
		}
	}
	return nil
}

// divide writes elements, or has other processes write them, if the file is one of which they write parts.
func (r *stateReader) divide(w io.Writer, s device.StateRange) (done bool, err error) {
	to, ok := w.(safetensors.Divided)
	if !ok || r.run.savers == nil {
		return false, nil
	}
	return true, r.run.savers.Write(to, s)
}

// writeFloats writes elements in fp32.
func (r *stateReader) writeFloats(w io.Writer, i, at, n int) error {
	if done, err := r.divide(w, device.StateRange{Param: i, Kind: r.kind, As: graph.F32, First: at, N: n}); done {
		return err
	}
	r.values, r.whole = slices.Grow(r.values[:0], n)[:n], 0
	if err := r.run.Session.ReadPart(i, r.kind, at, r.values); err != nil {
		return err
	}
	return safetensors.WriteFloat32(w, safetensors.F32, r.values)
}

// writeHalves writes elements in bf16 as the run stores them.
func (r *stateReader) writeHalves(w io.Writer, i, at, n int) error {
	if done, err := r.divide(w, device.StateRange{Param: i, Kind: r.kind, As: graph.BF16, First: at, N: n}); done {
		return err
	}
	bytes := n * safetensors.BF16.Size()
	r.halves = slices.Grow(r.halves[:0], bytes)[:bytes]
	if err := r.run.Session.ReadHalves(i, r.kind, at, r.halves); err != nil {
		return err
	}
	_, err := w.Write(r.halves)
	return err
}

// writeOriginal writes elements of a parameter that the arenas hold rounded, from its source.
func (r *stateReader) writeOriginal(w io.Writer, i, at, n int, as safetensors.DType) error {
	r.values, r.whole = slices.Grow(r.values[:0], n)[:n], 0
	if err := r.run.origin.read(r.run.Session.Graph.Params[i], at, r.values); err != nil {
		return err
	}
	return writeExactly(w, as, r.values)
}

// writeWhole writes a parameter that files order differently, or one that the arenas hold rounded, which is read from its source.
// The parameter is read for its first tensor; the others follow.
func (r *stateReader) writeWhole(w io.Writer, i int, part model.Tensor, as safetensors.DType) error {
	t := r.run
	p := t.Session.Graph.Params[i]
	if r.whole != i+1 {
		r.whole, r.values = 0, slices.Grow(r.values[:0], int(p.Elems()))[:p.Elems()]
		var err error
		if t.Setup.rounded(p) {
			err = t.origin.read(p, 0, r.values)
		} else {
			err = t.Session.Read(i, r.kind, r.values)
		}
		if err != nil {
			return err
		}
		r.whole = i + 1
	}
	return writeExactly(w, as, r.values[part.First:][:part.Elems()])
}

// writtenApart reports whether a parameter that is not in files as it is here can be written by those who hold its elements.
func (r *stateReader) writtenApart(i int) bool {
	g := r.run.Session.Graph
	p := &g.Params[i]
	return (g.Divided(i) || p.Reordered()) && session.WrittenApart(g, i) && !r.run.Setup.rounded(*p)
}

// writeDivided writes such a parameter, or has other processes write what they have of it.
func (r *stateReader) writeDivided(w io.Writer, i int, part model.Tensor, as safetensors.DType) error {
	to, ok := w.(safetensors.Divided)
	if !ok || r.run.savers == nil {
		return r.writeWhole(w, i, part, as)
	}
	s := device.StateRange{Param: i, Kind: r.kind, As: graph.F32, First: part.First, N: part.Elems()}
	if as == safetensors.BF16 {
		s.As = graph.BF16
	}
	return r.run.savers.WriteDivided(to, s)
}

// writeExactly writes values in a type that loses nothing of them.
func writeExactly(w io.Writer, as safetensors.DType, values []float32) error {
	if as == safetensors.BF16 {
		return safetensors.WriteBF16(w, values)
	}
	return safetensors.WriteFloat32(w, as, values)
}
