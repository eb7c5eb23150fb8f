package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/model"
)

// Merge writes what an adapter makes of its model as a model folder: W + s.B.A for each
// adapted weight, all else as it is, in the types of the model's files. to must not
// exist; it appears when it is complete.
func Merge(ctx context.Context, adapter, to string, progress Progress) error {
	if exists(to) {
		return misuse{fmt.Errorf("%s exists; hint: name a new folder", to)}
	}
	f, err := OpenFolder(adapter)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.weights.adapter == nil {
		return misuse{fmt.Errorf("%s has no %s; hint: a checkpoint of a run with lora, or an adapter of PEFT", adapter, adapterFile)}
	}
	temp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(to)), ".tmp-merge-*")
	if err != nil {
		return err
	}
	if err := f.merge(ctx, temp, progress); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	if err = os.Chmod(temp, 0o755); err == nil {
		err = os.Rename(temp, to)
	}
	return err
}

// merge writes the files of the merged model.
func (f *Folder) merge(ctx context.Context, to string, progress Progress) error {
	files, err := checkpoint.ModelFiles(f.base)
	if err != nil {
		return err
	}
	own, err := checkpoint.ModelFiles(f.Path)
	if err != nil {
		return err
	}
	maps.Copy(files, own) // the tokenizer that the adapter was trained with
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(to, name), content, 0o644); err != nil {
			return err
		}
	}
	params := map[string]model.Param{} // by the name in the model's files; factors by their own
	for _, p := range f.Model.Params() {
		if p.Adapter {
			params[p.Name] = p
		} else if info, ok := lookup(f.weights.base, p.Tensors()[0]); ok { // what is adapted is one tensor
			params[info.Name] = p
		}
	}
	all := f.weights.base.Tensors()
	var list []safetensors.Tensor
	for i, info := range all {
		p := params[info.Name]
		list = append(list, safetensors.Tensor{Info: info, Data: func(w io.Writer) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress("merging", int64(i), int64(len(all)))
			if a, b, ok := f.Model.Factors(p.Name); ok {
				return f.writeMerged(w, info, p, params[a], params[b])
			}
			return copyTensor(w, f.weights.base, info)
		}})
	}
	create := func(name string) (io.WriteCloser, error) {
		file, err := os.Create(filepath.Join(to, name))
		if err != nil {
			return nil, err
		}
		return &buffered{bufio.NewWriterSize(file, 1<<20), file}, nil
	}
	return safetensors.WriteSet(create, "model", shardBytes, map[string]string{"format": "pt"}, list)
}

// writeMerged writes an adapted weight with its adapter added, in the type of the file.
func (f *Folder) writeMerged(w io.Writer, info safetensors.Info, p, factorA, factorB model.Param) error {
	read := func(p model.Param) ([]float32, error) {
		buf := make([]float32, p.Elems())
		return buf, inFolder(f.Path, f.weights.read(p, buf))
	}
	weight, err := read(p)
	if err != nil {
		return err
	}
	a, err := read(factorA)
	if err != nil {
		return err
	}
	b, err := read(factorB)
	if err != nil {
		return err
	}
	s := float32(f.Model.LoRA.Scale())
	for i := range b {
		b[i] *= s
	}
	addProduct(weight, a, b, p, f.Model)
	return safetensors.WriteFloat32(w, info.DType, weight)
}

// addProduct adds B.A to a weight [out, in], or its transpose to one [in, out].
func addProduct(weight, a, b []float32, p model.Param, m *model.Model) {
	rank := m.LoRA.Rank
	form, in := gemm.NN, p.Cols
	left, right := gemm.Matrix{Data: b, Stride: rank}, gemm.Matrix{Data: a, Stride: in}
	if m.InOut() {
		form, in = gemm.TN, p.Rows
		left, right = gemm.Matrix{Data: a, Stride: in}, gemm.Matrix{Data: transposed(b, p.Cols, rank), Stride: p.Cols}
	}
	c := gemm.Matrix{Data: weight, Stride: p.Cols}
	gemm.NewSerial().Gemm(form, p.Rows, p.Cols, rank, left, right, c, gemm.Init{Residual: c})
}

// transposed returns a copy of a matrix [rows, cols] as [cols, rows].
func transposed(x []float32, rows, cols int) []float32 {
	y := make([]float32, len(x))
	for r := range rows {
		for c := range cols {
			y[c*rows+r] = x[r*cols+c]
		}
	}
	return y
}

// copyTensor writes a tensor's bytes as they are.
func copyTensor(w io.Writer, set *safetensors.Set, info safetensors.Info) error {
	piece := make([]byte, min(info.Bytes(), 1<<20))
	for at := int64(0); at < info.Bytes(); at += int64(len(piece)) {
		piece = piece[:min(int64(len(piece)), info.Bytes()-at)]
		if err := set.ReadBytes(info.Name, at, piece); err != nil {
			return err
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// buffered is a file that is written in large pieces.
type buffered struct {
	*bufio.Writer
	file *os.File
}

// Close writes the rest and closes the file.
func (b *buffered) Close() error { return errors.Join(b.Flush(), b.file.Close()) }
