package folder

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// ShardBytes bounds one file of weights, as Hugging Face does.
const ShardBytes = 5e9

// Merge writes an adapter's model, with the adapter merged into it, as a model folder:
// W + s.B.A for each adapted weight, what the adapter has whole, and everything else unchanged, in the types of the
// model's files. to must not exist; it appears when it is complete.
func Merge(ctx context.Context, adapter, to string, progress Progress) error {
	if paths.Exists(adapter) && !IsAdapter(adapter) {
		return misuse{fmt.Errorf("%s has no %s; hint: name a checkpoint of a run with lora, or a PEFT adapter", adapter, AdapterFile)}
	}
	return Export(ctx, adapter, to, "", progress)
}

// Export writes a model folder with the weights and files of another, and nothing else: no optimizer state, and an adapter merged
// into its model. Floating-point weights get the given type or, if that is "", keep their files'; those in FP8 become bf16.
func Export(ctx context.Context, from, to string, as safetensors.DType, progress Progress) error {
	if _, err := os.Lstat(to); err == nil { // a link to nothing, too
		return misuse{fmt.Errorf("%s already exists; hint: name a new folder", to)}
	}
	f, err := OpenAny(from)
	if err != nil {
		return err
	}
	defer f.Close()
	bytes := int64(0)
	for _, t := range f.weights.Base.Tensors() {
		bytes += t.Bytes()
		if _, _, ok := scalesOf(t); ok { // which becomes twice as large
			bytes += t.Bytes()
		}
	}
	if err := f.roomToExport(); err != nil {
		return err
	}
	return checkpoint.WriteFolder(checkpoint.Disk{}, to, bytes, func(create checkpoint.Create) error {
		return f.export(ctx, create, as, progress)
	})
}

// exportBytes is what an export takes besides what it merges: pieces that are read, converted, checked and written.
const exportBytes = 24 << 20

// roomToExport returns an error if there is too little memory, where the system would kill the process.
func (f *Folder) roomToExport() error {
	most := 0 // elements of a weight that is merged
	for _, p := range f.Model.Params() {
		if _, _, adapted := f.Model.Factors(p.Name); !adapted && !p.Whole && p.Source == "" {
			continue
		}
		for _, t := range p.Merged().Tensors() {
			most = max(most, t.Elems())
		}
	}
	need := exportBytes + 2*4*int64(most) // in fp32, and once more as files order it
	if err := sysmem.Enough(need); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// export writes the files of the model, adapted if there is an adapter.
func (f *Folder) export(ctx context.Context, create checkpoint.Create, as safetensors.DType, progress Progress) error {
	files, err := checkpoint.ModelFiles(f.base)
	if err != nil {
		return err
	}
	own, err := checkpoint.ModelFiles(f.Path)
	if err != nil {
		return err
	}
	maps.Copy(files, own) // the tokenizer that the adapter was trained with
	if as == "" && len(inFP8(f.weights.Base)) > 0 {
		as = safetensors.BF16
	}
	if as != "" {
		if files["config.json"], err = family.Retyped(files["config.json"], as == safetensors.BF16); err != nil {
			return err
		}
	}
	f = f.parted()
	if f.Model.Files != (model.Files{}) {
		if files["config.json"], err = family.Resized(f.Model, files["config.json"]); err != nil {
			return err
		}
	}
	if model.Classifies(f.Model) {
		if err := f.labelFiles(files); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := checkpoint.CreateFile(create, name, files[name]); err != nil {
			return err
		}
	}
	m, err := newMerger(f)
	if err != nil {
		return err
	}
	list := m.tensors(as)
	for i := range list {
		write := list[i].Data
		list[i].Data = func(w io.Writer) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress("writing", int64(i), int64(len(list)))
			return write(w)
		}
	}
	return safetensors.WriteSet(create, "model", ShardBytes, map[string]string{"format": "pt"}, list)
}

// labelFiles changes files to those of a model with labels, if they are those of the language model that an adapter with labels was made of.
func (f *Folder) labelFiles(files map[string][]byte) error {
	delete(files, "generation_config.json")
	tokenizer, err := f.Tokenizer()
	if err != nil {
		return err
	}
	text, err := family.Labelled(f.Model, files["config.json"])
	if end, ok := tokenizer.EndOfText(); err == nil && ok {
		text, err = family.Padded(text, end)
	}
	files["config.json"] = text
	return err
}

// parted returns the folder as it is merged: if the head is the embedding and one of the two has an adapter, they become two matrices.
func (f *Folder) parted() *Folder {
	_, _, embedding := f.Model.Factors(f.Model.Params()[0].Name)
	_, _, head := f.Model.Factors(f.Model.HeadName())
	if !f.Model.Tied || !embedding && !head {
		return f
	}
	two, m := *f, *f.Model
	m.Tied, m.Files.Tied = false, true
	two.Model = &m
	return &two
}

// merger adds adapters to weights. A tensor in files is a whole weight, or some rows of one: those
// of an expert.
type merger struct {
	*Folder
	parts   map[string]part // tensors that the adapter changes, by name in the model's files
	added   []part          // those that the model's files lack
	params  map[string]model.Param
	factors map[string][]float32 // by name, of one layer at a time: an adapter's factors for experts are read once for all experts
	layer   int
	piece   []float32 // memory that tensors pass through
}

// exportPiece is the size of a piece in numbers.
const exportPiece = 1 << 18

// part is a tensor of a parameter.
type part struct {
	model.Param
	tensor model.Tensor
}

func newMerger(f *Folder) (*merger, error) {
	m := &merger{Folder: f, parts: map[string]part{}, params: map[string]model.Param{}}
	for _, p := range f.Model.Params() {
		m.params[p.Name] = p
		if _, _, adapted := f.Model.Factors(p.Name); !adapted && !p.Whole && p.Source == "" && f.weights.rows[p.Name].tensor == "" {
			continue
		}
		for _, t := range p.Merged().Tensors() {
			info, ok := lookup(f.weights.Base, t)
			switch {
			case ok:
				m.parts[info.Name] = part{p, t}
			case p.Source != "" || model.Classifies(f.Model) && p.Name == f.Model.HeadName():
				m.added = append(m.added, part{p, t})
			default:
				return nil, fmt.Errorf("%s: %s is not stored as plain numbers, so the adapter cannot be merged into it; hint: use a folder of the model in bf16", f.base, t.Name)
			}
		}
	}
	if embedding := f.Model.Params()[0]; f.Model.Tied && (embedding.Whole || f.weights.rows[embedding.Name].tensor != "") { // files may have the head nevertheless
		head := model.Tensor{Name: f.Model.HeadName(), Shape: embedding.Merged().Tensors()[0].Shape}
		if info, ok := lookup(f.weights.Base, head); ok {
			m.parts[info.Name] = part{embedding, head}
		}
	}
	return m, nil
}

// tensors lists the tensors of the merged model.
func (m *merger) tensors(as safetensors.DType) (list []safetensors.Tensor) {
	scales := inFP8(m.weights.Base)
	for _, info := range m.weights.Base.Tensors() {
		if scales[info.Name] || model.Classifies(m.Model) && slices.Contains(model.WordHead(m.Model), info.Name) {
			continue
		}
		written := info
		if _, _, ok := scalesOf(info); as != "" && (ok || info.DType.Float()) {
			written.DType = as
		}
		p, changed := m.parts[info.Name]
		if changed {
			written.Shape = p.tensor.Shape
		}
		list = append(list, safetensors.Tensor{Info: written, Data: func(w io.Writer) error {
			switch {
			case changed:
				return m.write(w, written, p)
			case written.DType == info.DType:
				return m.weights.Base.CopyBytes(w, info)
			}
			return m.convertTensor(w, info, as)
		}})
	}
	for _, p := range m.added {
		source, ok := lookup(m.weights.Base, p.Original().Tensors()[0])
		if !ok { // a head with labels, of a language model
			source, _ = lookup(m.weights.Base, m.Model.Params()[0].Tensors()[0])
		}
		info := safetensors.Info{Name: p.tensor.Name, DType: source.DType, Shape: p.tensor.Shape}
		if as != "" {
			info.DType = as
		}
		list = append(list, safetensors.Tensor{Info: info, Data: func(w io.Writer) error { return m.write(w, info, p) }})
	}
	return list
}

// write writes a tensor of the merged model, in the type of the file.
func (m *merger) write(w io.Writer, info safetensors.Info, p part) error {
	weight := make([]float32, p.tensor.Elems())
	if err := WeightsError(m.Path, m.read(p, weight)); err != nil {
		return err
	}
	if _, _, adapted := m.Model.Factors(p.Name); !adapted {
		return safetensors.WriteFloat32(w, info.DType, weight)
	}
	if p.Transposed {
		ours := make([]float32, len(weight))
		p.FromFile(ours, weight)
		weight = ours
	}
	if err := m.add(weight, p.Param, p.tensor.First/p.Cols); err != nil {
		return err
	}
	if p.Transposed {
		theirs := make([]float32, len(weight))
		p.ToFile(theirs, weight)
		weight = theirs
	}
	return safetensors.WriteFloat32(w, info.DType, weight)
}

// read reads a tensor of the model before factors are added.
func (m *merger) read(p part, weight []float32) error {
	if p.Whole || p.Source != "" || m.weights.rows[p.Name].tensor != "" {
		return m.weights.Read(p.Param, 0, weight)
	}
	return ReadParam(m.weights.Base, p.Param, p.tensor.First, weight)
}

// add adds an adapter to rows of its weight, from row first on.
func (m *merger) add(weight []float32, p model.Param, first int) error {
	if m.factors == nil || m.layer != p.Layer {
		m.factors, m.layer = map[string][]float32{}, p.Layer
	}
	nameA, nameB, _ := m.Model.Factors(p.Name)
	a, err := m.factor(nameA, 1)
	if err != nil {
		return err
	}
	b, err := m.factor(nameB, m.Model.LoRA.Scale(p.Name))
	if err != nil {
		return err
	}
	inOut := m.Model.InOut() && p.Layer >= 0 && p.Layer < m.Model.Layers
	if table := m.params[nameA]; table.Transposed { // of an embedding, whose rows are its inputs
		a, b = transposed(b, p.Cols, m.Model.LoRA.Rank), a
	}
	rank, each := m.Model.LoRA.Of(p.Name).Rank, p.Rows/max(p.Experts, 1)
	for row, end := first, first+len(weight)/p.Cols; row < end; {
		n := min(end-row, each-row%each)
		addProduct(weight[(row-first)*p.Cols:], a[row/each*rank*p.Cols:], b[row*rank:], [3]int{n, p.Cols, rank}, inOut)
		row += n
	}
	if name, ok := model.MagnitudeOf(m.Model, p.Name); ok {
		magnitudes, err := m.factor(name, 1)
		if err != nil {
			return err
		}
		direct(weight, magnitudes[first:], p.Cols)
	}
	return nil
}

// direct gives each row of a weight its magnitude as length.
func direct(weight, magnitudes []float32, cols int) {
	for r := range len(weight) / cols {
		row, sum := weight[r*cols:][:cols], 0.0
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		by := float32(float64(magnitudes[r]) / math.Sqrt(sum))
		for i := range row {
			row[i] *= by
		}
	}
}

// factor reads a factor of an adapter, or the magnitudes, multiplied by a scale.
func (m *merger) factor(name string, scale float64) ([]float32, error) {
	if values, ok := m.factors[name]; ok {
		return values, nil
	}
	p := m.params[name]
	values := make([]float32, p.Elems())
	if err := WeightsError(m.Path, m.weights.Read(p, 0, values)); err != nil {
		return nil, err
	}
	for i := range values {
		values[i] *= float32(scale)
	}
	if (p.Experts > 0 || p.Transposed) && p.Reordered() { // files order them differently from their weights, while GPT-NeoX's factors are ordered like its weights
		ours := make([]float32, len(values))
		p.FromFile(ours, values)
		values = ours
	}
	m.factors[name] = values
	return values, nil
}

// addProduct adds B.A to a weight [out, in], or its transpose to one [in, out]. size has the weight's rows and columns, and the rank.
func addProduct(weight, a, b []float32, size [3]int, inOut bool) {
	rows, cols, rank := size[0], size[1], size[2]
	form, in := gemm.NN, cols
	left, right := gemm.Matrix{Data: b, Stride: rank}, gemm.Matrix{Data: a, Stride: in}
	if inOut {
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

// convertTensor writes a tensor's numbers as another type, rounded to the nearest.
func (m *merger) convertTensor(w io.Writer, info safetensors.Info, as safetensors.DType) error {
	if m.piece == nil {
		m.piece = make([]float32, exportPiece)
	}
	for at := 0; at < info.Elements(); at += exportPiece {
		piece := m.piece[:min(exportPiece, info.Elements()-at)]
		if err := readTensor(m.weights.Base, info, at, piece); err != nil {
			return err
		}
		if err := safetensors.WriteFloat32(w, as, piece); err != nil {
			return err
		}
	}
	return nil
}
