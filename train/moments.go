package train

import (
	"io"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/folder"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/session"
)

// Moments in 8 bits are in checkpoints as the run has them: of each parameter the bytes of its blocks, in the order of operators,
// as a tensor of type U8 that has the parameter's name. So a run that goes on has the same bits.
//
// Known weakness: where several processes write a checkpoint, the first one gathers and writes these alone.

// packedPiece is how many bytes are read or written at once.
const packedPiece = 4 << 20

// inBytes calls do for one piece of n bytes after another.
func inBytes(n int, room []byte, do func(at int, b []byte) error) error {
	for at := 0; at < n; at += len(room) {
		if err := do(at, room[:min(len(room), n-at)]); err != nil {
			return err
		}
	}
	return nil
}

// packed returns a moment in 8 bits as a tensor of files.
func (r *stateReader) packed(i int, p model.Param) safetensors.Tensor {
	n := graph.PackedMoments(int(p.Elems()))
	data := func(w io.Writer) error {
		return inBytes(n, make([]byte, packedPiece), func(at int, b []byte) error {
			if err := session.MomentOf(r.run.Session, i, r.kind).Read(at, b); err != nil {
				return err
			}
			_, err := w.Write(b)
			return err
		})
	}
	return safetensors.Tensor{Info: safetensors.Info{Name: p.Name, DType: safetensors.U8, Shape: []int{n}}, Data: data}
}

// loadPacked loads a moment that a checkpoint or the run has in 8 bits; of others it reports that it is not done.
func loadPacked(t *Run, set *safetensors.Set, i int, kind optimizer.Kind) (done bool, err error) {
	m := session.MomentOf(t.Session, i, kind)
	p := t.Session.Graph.Params[i]
	n := graph.PackedMoments(int(p.Elems()))
	info, there := set.Lookup(p.Name)
	there = there && info.DType == safetensors.U8 && len(info.Shape) == 1 && info.Shape[0] == n
	switch here := m.Packed(); {
	case there && here:
		return true, inBytes(n, make([]byte, packedPiece), func(at int, b []byte) error {
			if err := set.ReadBytes(p.Name, int64(at), b); err != nil {
				return err
			}
			return m.Write(at, b)
		})
	case there:
		b, values := make([]byte, n), make([]float32, p.Elems())
		if err := set.ReadBytes(p.Name, 0, b); err != nil {
			return true, err
		}
		kernel.UnpackMoments(kind == optimizer.SecondMoment, values, b)
		if p.Reordered() {
			ours := values
			values = make([]float32, len(ours))
			p.ToFile(values, ours)
		}
		return true, t.Session.Write(i, kind, values)
	case here:
		values := make([]float32, p.Elems())
		if err := folder.ReadParam(set, p, 0, values); err != nil {
			return true, err
		}
		return true, t.Session.Write(i, kind, values)
	}
	return false, nil
}
