package graph

// Weights in 4 bits: NF4, the format of QLoRA (Dettmers et al., 2305.14314, section 3).
//
// A row of a matrix is divided into blocks of NF4Block elements. Each element is stored as the
// index of one of 16 levels, the quantiles of a normal distribution, and is that level times the
// block's largest magnitude:
//
//	row   [ 32 bytes of indices a block ... | scale f32 a block ... ]      4.5 bits an element
//
// Byte i of a block has the index of element 2i in its lower half and that of 2i+1 in its upper.
// The last block of a row is padded with zeros.
//
// To programs such a row is NF4Cols elements of the weights' type: bytes that are moved and placed
// like any others. Only the operators of linear layers read them, where Attr.NF4 is set, and round
// what they read to the weights' type.
//
// Known weakness: the scales are not quantised once more (the paper's double quantisation would
// save 0.37 bits an element), so that values are those of the plain format bit for bit.

// NF4Block is the number of elements that share a scale.
const NF4Block = 64

// nf4Bytes is the size of a block.
const nf4Bytes = NF4Block/2 + 4

// NF4Cols returns the number of elements of type d that a row of cols elements takes.
func NF4Cols(cols int, d DType) int {
	return (cols + NF4Block - 1) / NF4Block * nf4Bytes / int(d.Size())
}

// NF4Levels are the levels in ascending order, from the paper's appendix E.
var NF4Levels = [16]float32{
	-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
	-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
	0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
	0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
}

// Held returns the rows and columns of parameter i, or of what a rank has of it, in numbers, however they are stored.
func (g *Graph) Held(i int) (rows, cols int) { return g.held[i].Rows, g.held[i].Cols }

// Narrowest returns the narrowest type in which there are weights that are not packed.
func (g *Graph) Narrowest() DType {
	if g.Model.Int8 {
		return I8
	}
	return g.DType
}

// Stored returns the extents of parameter i as a rank stores it, in elements of g.DType or, in int8, of that.
func (g *Graph) Stored(i int) Dim {
	p := &g.held[i]
	d := Dim{DType: g.DType, Rows: p.Rows, Cols: p.Cols}
	if p.NF4 {
		d.Cols = NF4Cols(p.Cols, g.DType)
	}
	if p.Unit > 0 {
		d.DType = I8
	}
	if p.State {
		d.Rows = StateRows(g.DType)
	}
	return d
}
