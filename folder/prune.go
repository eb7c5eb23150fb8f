package folder

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/float16"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/kernel"
	"github.com/athanor-llm/athanor/kernel/gemm"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/prune"
)

// Pruning says how a model is made sparse.
type Pruning struct {
	Pattern   prune.Pattern
	Magnitude bool      // the smallest weights go, and the others stay as they are; else SparseGPT
	Rows      [][]int32 // texts of equal length whose inputs to each matrix are taken into account
	Layer     func(PrunedLayer)
	Progress  Progress
}

// PrunedLayer is what became of a layer.
type PrunedLayer struct {
	Layer    int            `json:"layer"`
	Error    float64        `json:"error"` // of its matrices' outputs, the squares of the change over the squares, on the texts
	Zeros    int64          `json:"zeros"`
	Weights  int64          `json:"weights"` // of these matrices
	Seconds  float64        `json:"seconds"`
	Matrices []PrunedMatrix `json:"matrices"`
}

// PrunedMatrix is what became of a matrix, or of that of an expert.
type PrunedMatrix struct {
	Name    string  `json:"name"`
	Expert  *int    `json:"expert,omitempty"`
	Error   float64 `json:"error"`
	Zeros   int64   `json:"zeros"`
	Weights int64   `json:"weights"`
}

// Prune writes a model folder whose layers' matrices are sparse; embedding, head, norms, biases and what chooses experts stay as
// they are. to must not exist; it appears when it is complete. Layers are read, pruned and written one after the other, each
// with the inputs that it has after those before it have been pruned.
func (f *Folder) Prune(ctx context.Context, to string, o Pruning) error {
	if _, err := os.Lstat(to); err == nil { // a link to nothing, too
		return misuse{fmt.Errorf("%s already exists; hint: name a new folder", to)}
	}
	p, err := newPruner(ctx, f, o)
	if err != nil {
		return err
	}
	defer p.walk.env.Close()
	list, err := p.tensors()
	if err != nil {
		return err
	}
	if err := sysmem.Enough(p.memory()); err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	files, err := checkpoint.ModelFiles(f.base)
	if err != nil {
		return err
	}
	size := int64(0)
	for _, t := range list {
		size += t.Bytes()
	}
	return checkpoint.WriteFolder(checkpoint.Disk{}, to, size, func(create checkpoint.Create) error {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := checkpoint.CreateFile(create, name, files[name]); err != nil {
				return err
			}
		}
		return safetensors.WriteSet(create, "model", ShardBytes, map[string]string{"format": "pt"}, list)
	})
}

// pruner prunes the layers of a folder in turn, as what is written asks for them.
type pruner struct {
	Pruning
	ctx     context.Context
	f       *Folder
	walk    *walk
	targets [][]target       // by segment of the graph
	done    int              // segments that the texts have passed
	weights *segmentWeights  // of the latest
	files   map[string]dtype // of tensors that are pruned, by their name in files
}

type dtype struct {
	part
	as safetensors.DType
}

// target is a matrix that is pruned.
type target struct {
	param   int
	expert  int  // whose matrix it is, of those in the parameter; -1: there are none
	at      int  // element of the parameter at which it begins
	out, in int  // extents
	inOut   bool // it is stored [in, out]
	node    *graph.Node
	input   graph.Use // its inputs: targets with the same have the same products
}

func newPruner(ctx context.Context, f *Folder, o Pruning) (*pruner, error) {
	if f.weights.Adapter != nil {
		return nil, misuse{fmt.Errorf("%s is an adapter, whose model is pruned without it; hint: merge it first: athanor merge %[1]s NEW", f.Path)}
	}
	w, err := newWalk(f.Model, o.Rows)
	if err != nil {
		return nil, misuse{err}
	}
	p := &pruner{Pruning: o, ctx: ctx, f: f, walk: w, files: map[string]dtype{}}
	for s := range w.g.Segments {
		p.targets = append(p.targets, nil)
		if s > 0 && s < w.g.Head() {
			p.targets[s] = p.find(&w.g.Segments[s])
		}
	}
	for _, t := range slices.Concat(p.targets...) {
		if err := o.Pattern.Check(t.in); err != nil {
			return nil, misuse{fmt.Errorf("%s: %w", w.g.Params[t.param].Name, err)}
		}
	}
	return p, nil
}

// find lists the matrices of a layer: weights of its products but those whose results choose experts.
func (p *pruner) find(seg *graph.Segment) (list []target) {
	g := p.walk.g
	chooses := map[int]bool{}
	for i := range seg.Forward {
		if n := &seg.Forward[i]; n.Op == graph.Route {
			chooses[n.Args[graph.RouteLogits].Value] = true
		}
	}
	for i := range seg.Forward {
		n := &seg.Forward[i]
		switch {
		case n.Op == graph.Linear && !chooses[n.Args[graph.LinearY].Value]:
			w := g.Values[n.Args[graph.LinearW].Value]
			for k := w.Param; k < w.Param+w.Params; k++ {
				list = append(list, matrixOf(n, g.Params[k], target{param: k, expert: -1, input: n.Args[graph.LinearX]}))
			}
		case n.Op == graph.ExpertLinear:
			k := g.ParamOf(n.Args[graph.ExpertLinearW].Value)
			q := g.Params[k]
			if q.Vector { // a gain of each expert
				continue
			}
			q.Rows /= q.Experts
			for e := range q.Experts {
				list = append(list, matrixOf(n, q, target{param: k, expert: e, at: e * q.Rows * q.Cols, input: n.Args[graph.ExpertLinearX]}))
			}
		}
	}
	return list
}

func matrixOf(n *graph.Node, p model.Param, t target) target {
	t.node, t.out, t.in, t.inOut = n, p.Rows, p.Cols, !n.Attr.WT
	if t.inOut {
		t.out, t.in = t.in, t.out
	}
	return t
}

// tensors lists what is written, layers in order: the first tensor of a layer has it pruned.
func (p *pruner) tensors() (list []safetensors.Tensor, err error) {
	f, stored := p.f, map[int]bool{}
	for _, t := range slices.Concat(p.targets...) {
		if stored[t.param] {
			continue
		}
		stored[t.param] = true
		q := p.walk.g.Params[t.param]
		for _, tensor := range q.Tensors() {
			info, ok := lookup(f.weights.Base, tensor)
			if !ok || !info.DType.Float() {
				return nil, misuse{fmt.Errorf("%s: %s is not stored as plain numbers, so it cannot be pruned; hint: use a folder of the model in bf16", f.base, tensor.Name)}
			}
			p.files[info.Name] = dtype{part{q, tensor}, info.DType}
		}
	}
	var first *dtype
	for _, info := range f.weights.Base.Tensors() {
		d, pruned := p.files[info.Name]
		if pruned && first == nil {
			first = &d
		}
		if pruned && d.as.Size() != first.as.Size() { // files have wide types first, so layers would not be in order
			return nil, misuse{fmt.Errorf("%s: %s is in %s, but %s in %s; hint: athanor export it with --precision first", f.base, d.tensor.Name, d.as, first.tensor.Name, first.as)}
		}
		list = append(list, safetensors.Tensor{Info: info, Data: func(w io.Writer) error {
			if pruned {
				return p.write(w, d)
			}
			return f.weights.Base.CopyBytes(w, info)
		}})
	}
	layer := func(t safetensors.Tensor) int { // what is no matrix of a layer comes first
		if d, ok := p.files[t.Name]; ok {
			return d.Layer
		}
		return -1
	}
	slices.SortStableFunc(list, func(a, b safetensors.Tensor) int { return cmp.Compare(layer(a), layer(b)) })
	return list, nil
}

// memory bounds the bytes that pruning takes: of the widest segment its weights twice and the products of its inputs, what the
// texts pass on, and the factor of one matrix.
func (p *pruner) memory() int64 {
	g, most, factor := p.walk.g, int64(0), int64(0)
	for s, list := range p.targets[:g.Head()] {
		bytes := int64(0)
		for _, k := range g.Segments[s].Params {
			bytes += 2 * 4 * g.Params[k].Elems()
		}
		inputs := map[productKey]bool{}
		for _, t := range list {
			if !inputs[t.key()] {
				bytes += 4 * int64(t.in) * int64(t.in)
			}
			inputs[t.key()] = true
			factor = max(factor, 12*int64(t.in)*int64(t.in)+4*4*int64(t.in)*int64(t.out)+24*int64(t.in)*int64(t.out))
		}
		most = max(most, bytes)
	}
	return most + factor + int64(len(p.Rows))*4*int64(g.Seq*p.f.Model.Width) + exportBytes
}

// write writes a tensor of a layer, which is pruned first if it has not been.
func (p *pruner) write(w io.Writer, d dtype) error {
	for p.done <= d.Layer+1 {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if err := p.segment(); err != nil {
			return WeightsError(p.f.Path, err)
		}
	}
	k := slices.IndexFunc(p.walk.g.Params, func(q model.Param) bool { return q.Name == d.Name })
	values := p.weights.of(k, 1)
	if d.Reordered() {
		theirs := make([]float32, len(values))
		d.ToFile(theirs, values)
		values = theirs
	}
	return safetensors.WriteFloat32(w, d.as, values[d.tensor.First:][:d.tensor.Elems()])
}

// segment takes the texts through the next segment, and prunes it on the way.
func (p *pruner) segment() (err error) {
	s := p.done
	p.done++
	p.Progress("layers", int64(max(s-1, 0)), int64(p.f.Model.Layers))
	p.weights = nil // before others are read
	if p.weights, err = p.walk.readWeights(s, p.f.weights.Read); err != nil {
		return err
	}
	if len(p.targets[s]) > 0 {
		start := time.Now()
		report, err := p.layer(s)
		if err != nil {
			return err
		}
		report.Layer, report.Seconds = s-1, time.Since(start).Seconds()
		p.Layer(report)
	}
	if s+1 < p.walk.g.Head() { // of the last layer nobody reads the outputs
		p.walk.pass(s, p.weights, true, nil)
	}
	return nil
}

// productKey names the inputs of matrices.
type productKey struct {
	input  graph.Use
	expert int
}

func (t target) key() productKey { return productKey{t.input, t.expert} }

// layer prunes a layer.
func (p *pruner) layer(s int) (report PrunedLayer, err error) {
	products := p.products(s)
	var lost, all float64
	for _, t := range p.targets[s] {
		if err := p.ctx.Err(); err != nil {
			return report, err
		}
		m, change, energy, err := p.matrix(t, products[t.key()])
		if err != nil {
			return report, fmt.Errorf("%s: %w", m.Name, err)
		}
		lost, all = lost+change, all+energy
		report.Zeros, report.Weights = report.Zeros+m.Zeros, report.Weights+m.Weights
		report.Matrices = append(report.Matrices, m)
	}
	report.Error = lost / all
	return report, nil
}

// products returns the sums of x.x^T [in, in] over all inputs x that matrices of a segment have on the texts.
func (p *pruner) products(s int) map[productKey][]float32 {
	all := map[productKey][]float32{}
	first := map[*graph.Node]bool{} // operators that read inputs before any other does
	for _, t := range p.targets[s] {
		if all[t.key()] == nil {
			all[t.key()] = make([]float32, t.in*t.in)
			first[t.node] = true
		}
	}
	p.walk.pass(s, p.weights, false, func(n *graph.Node, args []kernel.Tensor) {
		switch {
		case !first[n]:
		case n.Op == graph.ExpertLinear:
			p.addExperts(all, n, args)
		default:
			x := args[graph.LinearX]
			addProducts(p.walk.env.Gemm, all[productKey{n.Args[graph.LinearX], -1}], x.F32, x.Rows, x.Cols, x.Stride)
		}
	})
	return all
}

// addExperts adds the inputs of each expert to its products.
func (p *pruner) addExperts(all map[productKey][]float32, n *graph.Node, args []kernel.Tensor) {
	x, ids := args[graph.ExpertLinearX], args[graph.ExpertLinearExperts]
	in := x.Cols
	if n.Attr.Slots {
		in /= ids.Cols
	}
	rows := make([][]float32, n.Attr.Experts)
	for r := range ids.Rows {
		for k, e := range ids.I32[r*ids.Stride:][:ids.Cols] {
			at := r * x.Stride
			if n.Attr.Slots {
				at += k * in
			}
			rows[e] = append(rows[e], x.F32[at:][:in]...)
		}
	}
	for e, list := range rows {
		addProducts(p.walk.env.Gemm, all[productKey{n.Args[graph.ExpertLinearX], e}], list, len(list)/in, in, in)
	}
}

// addProducts adds x^T.x of rows of inputs to h.
func addProducts(e *gemm.Engine, h, x []float32, rows, in, stride int) {
	if rows == 0 {
		return
	}
	m, c := gemm.Matrix{Data: x, Stride: stride}, gemm.Matrix{Data: h, Stride: in}
	e.Gemm(gemm.TN, in, in, rows, m, m, c, gemm.Init{Residual: c})
}

// matrix prunes a matrix with the products of its inputs. It returns also the squares of its outputs, and of how they change.
func (p *pruner) matrix(t target, h []float32) (m PrunedMatrix, change, energy float64, err error) {
	q := p.walk.g.Params[t.param]
	m.Name, m.Weights = q.Name, int64(t.out)*int64(t.in)
	if t.expert >= 0 {
		m.Expert = &t.expert
	}
	weights := p.weights.of(t.param, 1)[t.at:][:t.out*t.in]
	w := prune.Matrix{Rows: t.out, Cols: t.in, Data: slices.Clone(weights)}
	if t.inOut {
		w.Data = transposed(weights, t.in, t.out)
	}
	before := w
	before.Data = slices.Clone(w.Data)
	if p.Magnitude {
		p.Pattern.Magnitude(w)
	} else {
		damped := slices.Clone(h)
		prune.Damp(damped, t.in)
		u, err := prune.Factor(damped, t.in)
		if err != nil {
			return m, 0, 0, err
		}
		p.Pattern.SparseGPT(p.walk.env.Gemm, w, u)
	}
	p.round(w.Data, q)
	copy(weights, w.Data)
	if t.inOut {
		copy(weights, transposed(w.Data, t.out, t.in))
	}
	energy = prune.Energy(p.walk.env.Gemm, before, h)
	for i, v := range w.Data {
		before.Data[i] -= v
		if v == 0 {
			m.Zeros++
		}
	}
	change = prune.Energy(p.walk.env.Gemm, before, h)
	m.Error = change / max(energy, smallestEnergy)
	return m, change, energy, nil
}

// smallestEnergy keeps the error of a matrix that has no inputs, such as that of an expert that no token went to, a number.
const smallestEnergy = 1e-300

// round rounds weights as the files will have them, which is how the layers that follow see them.
func (p *pruner) round(values []float32, q model.Param) {
	info, _ := lookup(p.f.weights.Base, q.Tensors()[0])
	for i, v := range values {
		switch info.DType {
		case safetensors.BF16:
			values[i] = float16.FromBF16(float16.ToBF16(v))
		case safetensors.F16:
			values[i] = float16.FromF16(float16.ToF16(v))
		}
	}
}
