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
	m := newMerger(f)
	all := f.weights.base.Tensors()
	var list []safetensors.Tensor
	for i, info := range all {
		list = append(list, safetensors.Tensor{Info: info, Data: func(w io.Writer) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress("merging", int64(i), int64(len(all)))
			if p, ok := m.parts[info.Name]; ok {
				return m.write(w, info, p)
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

// merger adds adapters to weights. A tensor of files is a whole weight, or rows of one: those
// of an expert.
type merger struct {
	*Folder
	parts   map[string]part // what is adapted, by the name in the model's files
	params  map[string]model.Param
	factors map[string][]float32 // by name; those of one layer, since those of experts are read once for all of them
	layer   int
}

// part is a tensor of a parameter.
type part struct {
	model.Param
	tensor model.Tensor
}

func newMerger(f *Folder) *merger {
	m := &merger{Folder: f, parts: map[string]part{}, params: map[string]model.Param{}}
	for _, p := range f.Model.Params() {
		m.params[p.Name] = p
		if _, _, ok := f.Model.Factors(p.Name); !ok {
			continue
		}
		for _, t := range p.Tensors() {
			if info, ok := lookup(f.weights.base, t); ok {
				m.parts[info.Name] = part{p, t}
			}
		}
	}
	return m
}

// write writes part of an adapted weight with its adapter added, in the type of the file.
func (m *merger) write(w io.Writer, info safetensors.Info, p part) error {
	weight := make([]float32, p.tensor.Elems())
	if err := inFolder(m.Path, readPart(m.weights.base, p.Param, p.tensor.First, weight)); err != nil {
		return err
	}
	if m.factors == nil || m.layer != p.Layer {
		m.factors, m.layer = map[string][]float32{}, p.Layer
	}
	first, second, _ := m.Model.Factors(p.Name)
	a, err := m.factor(first)
	if err != nil {
		return err
	}
	b, err := m.factor(second)
	if err != nil {
		return err
	}
	rank, rows, row := m.Model.LoRA.Rank, len(weight)/p.Cols, p.tensor.First/p.Cols
	if p.Experts > 0 {
		expert := row / (p.Rows / p.Experts)
		a, b = a[expert*rank*p.Cols:][:rank*p.Cols], b[row*rank:][:rows*rank]
	}
	addProduct(weight, a, b, rows, p.Cols, m.Model)
	return safetensors.WriteFloat32(w, info.DType, weight)
}

// factor reads a factor of an adapter, the second one multiplied by the scale.
func (m *merger) factor(name string) ([]float32, error) {
	if values, ok := m.factors[name]; ok {
		return values, nil
	}
	p := m.params[name]
	values := make([]float32, p.Elems())
	if err := inFolder(m.Path, m.weights.read(p, values)); err != nil {
		return nil, err
	}
	if p.Second() {
		s := float32(m.Model.LoRA.Scale())
		for i := range values {
			values[i] *= s
		}
	}
	if p.Experts > 0 && p.Reordered() { // other than their weights, which have GPT-NeoX's order in files, as its factors do
		ours := make([]float32, len(values))
		p.FromFile(ours, values)
		values = ours
	}
	m.factors[name] = values
	return values, nil
}

// addProduct adds B.A to a weight [out, in], or its transpose to one [in, out].
func addProduct(weight, a, b []float32, rows, cols int, m *model.Model) {
	rank := m.LoRA.Rank
	form, in := gemm.NN, cols
	left, right := gemm.Matrix{Data: b, Stride: rank}, gemm.Matrix{Data: a, Stride: in}
	if m.InOut() {
		form, in = gemm.TN, rows
		left, right = gemm.Matrix{Data: a, Stride: in}, gemm.Matrix{Data: transposed(b, cols, rank), Stride: cols}
	}
	c := gemm.Matrix{Data: weight, Stride: cols}
	gemm.NewSerial().Gemm(form, rows, cols, rank, left, right, c, gemm.Init{Residual: c})
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
