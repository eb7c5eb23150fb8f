package nv

import (
	"encoding/binary"
	"fmt"
	"runtime"
)

// Lt is cublasLt: products of column-major matrices.
type Lt struct {
	Lib Library

	GetVersion          Proc `sym:"cublasLtGetVersion"` // returns the version, not a status
	Create              Proc `sym:"cublasLtCreate"`
	Destroy             Proc `sym:"cublasLtDestroy"`
	DescCreate          Proc `sym:"cublasLtMatmulDescCreate"`
	DescSetAttribute    Proc `sym:"cublasLtMatmulDescSetAttribute"`
	DescDestroy         Proc `sym:"cublasLtMatmulDescDestroy"`
	LayoutCreate        Proc `sym:"cublasLtMatrixLayoutCreate"`
	LayoutDestroy       Proc `sym:"cublasLtMatrixLayoutDestroy"`
	PreferenceCreate    Proc `sym:"cublasLtMatmulPreferenceCreate"`
	PreferenceAttribute Proc `sym:"cublasLtMatmulPreferenceSetAttribute"`
	PreferenceDestroy   Proc `sym:"cublasLtMatmulPreferenceDestroy"`
	AlgoGetHeuristic    Proc `sym:"cublasLtMatmulAlgoGetHeuristic"`
	AlgoCheck           Proc `sym:"cublasLtMatmulAlgoCheck"`
	Matmul              Proc `sym:"cublasLtMatmul"`
}

// OpenLt opens cublasLt.
func OpenLt(p Places) (*Lt, error) {
	l := &Lt{}
	lib, err := p.openFirst(l, "the matrix library cublasLt (libcublasLt.so.13 or .12)", "pip install nvidia-cublas, or install the CUDA toolkit", p.CublasLt)
	if err != nil {
		return nil, err
	}
	l.Lib = lib
	return l, nil
}

// Element types, compute types and attributes, with their numbers in cublasLt.h.
const (
	LtF32       = 0
	LtBF16      = 14
	LtE4M3      = 28
	ltCompute32 = 68

	descTransA      = 3
	descTransB      = 4
	descEpilogue    = 7
	descBiasPointer = 8
	descAuxPointer  = 11
	descAuxLead     = 12
	descBiasType    = 26

	prefWorkspace = 1
	prefReduction = 3 // allowed split-k reduction schemes; 0: none
	prefAlignment = 5 // of A, then B, C, D

	AlgoBytes       = 64
	resultBytes     = 96 // of a heuristic's result: algo, workspace size, state, ...
	resultWorkspace = 64
	resultState     = 72
)

var ltErrors = map[int32]string{1: "not initialised", 3: "allocation failed", 7: "invalid value", 8: "architecture mismatch", 13: "execution failed", 15: "not supported"}

// Check turns a status into an error.
func (l *Lt) Check(call string, code int32) error {
	if code == Success {
		return nil
	}
	return &Error{"cublasLt" + call, code, ltErrors[code]}
}

// LtMatrix is a column-major matrix: Rows x Cols elements, Lead elements from column to
// column, aligned to Align bytes.
type LtMatrix struct {
	Type       int
	Rows, Cols int
	Lead       int
	Align      int
}

// Epilogue is what is done with a product before it is written, with its number in cublasLt.h.
type Epilogue int

const (
	LtNothing Epilogue = 0
	LtBias    Epilogue = 4   // adds a vector to each column of D
	LtDGELU   Epilogue = 192 // multiplies by the derivative of GELU (by tanh) at a matrix as large as D
)

// Product describes D = op(A).op(B) + C, and what follows.
type Product struct {
	TransA, TransB bool
	Epilogue       Epilogue
	Lead           int  // of the matrix that LtDGELU reads, of D's type
	Align          int  // of what the epilogue reads, in bytes
	Whole          bool // no split-k: one chain per element whatever B's extent
	A, B, C, D     LtMatrix
}

// Plan is a prepared product. Its handles live until Close.
type Plan struct {
	lt      *Lt
	desc    uintptr
	layouts [4]uintptr
	Algo    [AlgoBytes]byte
}

// Plan creates the handles of a product. extra is the address of what its epilogue reads.
func (l *Lt) Plan(p Product, extra uintptr) (*Plan, error) {
	pl := &Plan{lt: l}
	if err := l.Check("MatmulDescCreate", l.DescCreate(Addr(&pl.desc), ltCompute32, LtF32)); err != nil {
		return nil, err
	}
	err := l.set("MatmulDescSetAttribute", l.DescSetAttribute, pl.desc, p.attributes(extra))
	for i, m := range []LtMatrix{p.A, p.B, p.C, p.D} {
		if err == nil {
			err = l.Check("MatrixLayoutCreate", l.LayoutCreate(Addr(&pl.layouts[i]), uintptr(m.Type), uintptr(m.Rows), uintptr(m.Cols), uintptr(m.Lead)))
		}
	}
	if err != nil {
		pl.Close()
		return nil, err
	}
	return pl, nil
}

// attribute is a value of an object of the library, with its size in bytes.
type attribute struct {
	number int
	value  uint64
	size   int
}

func (l *Lt) set(call string, proc Proc, object uintptr, list []attribute) error {
	for _, a := range list {
		b := make([]byte, 8)
		binary.LittleEndian.PutUint64(b, a.value)
		err := l.Check(fmt.Sprintf("%s %d", call, a.number), proc(object, uintptr(a.number), Addr(&b[0]), uintptr(a.size)))
		runtime.KeepAlive(b)
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Product) attributes(extra uintptr) []attribute {
	list := []attribute{{descTransA, bit(p.TransA), 4}, {descTransB, bit(p.TransB), 4}}
	if p.Epilogue != LtNothing {
		list = append(list, attribute{descEpilogue, uint64(p.Epilogue), 4})
	}
	switch p.Epilogue {
	case LtBias:
		list = append(list, attribute{descBiasPointer, uint64(extra), 8}, attribute{descBiasType, uint64(p.D.Type), 4})
	case LtDGELU:
		list = append(list, attribute{descAuxPointer, uint64(extra), 8}, attribute{descAuxLead, uint64(p.Lead), 8})
	}
	return list
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Algorithms returns at most this many algorithms, starting with the one that the library expects to be
// fastest.
func (pl *Plan) Algorithms(handle uintptr, p Product, workspace int64, most int) ([][AlgoBytes]byte, error) {
	l := pl.lt
	var pref uintptr
	if err := l.Check("MatmulPreferenceCreate", l.PreferenceCreate(Addr(&pref))); err != nil {
		return nil, err
	}
	defer l.PreferenceDestroy(pref)
	list := []attribute{{prefWorkspace, uint64(workspace), 8}}
	if p.Whole {
		list = append(list, attribute{prefReduction, 0, 4})
	}
	for i, m := range []LtMatrix{p.A, p.B, p.C, p.D} {
		list = append(list, attribute{prefAlignment + i, uint64(m.Align), 4})
	}
	if err := l.set("MatmulPreferenceSetAttribute", l.PreferenceAttribute, pref, list); err != nil {
		return nil, err
	}
	results, got := make([]byte, most*resultBytes), int32(0)
	err := l.Check("MatmulAlgoGetHeuristic", l.AlgoGetHeuristic(handle, pl.desc, pl.layouts[0], pl.layouts[1], pl.layouts[2], pl.layouts[3], pref, uintptr(most), Addr(&results[0]), Addr(&got)))
	if err != nil {
		return nil, err
	}
	var algos [][AlgoBytes]byte
	err = &Error{"cublasLtMatmulAlgoGetHeuristic", 15, "no algorithm"}
	for i := range int(got) {
		r := results[i*resultBytes:]
		if state := l.Check("MatmulAlgoGetHeuristic", int32(binary.LittleEndian.Uint32(r[resultState:]))); state != nil {
			err = state
			continue
		}
		algos = append(algos, [AlgoBytes]byte(r))
	}
	if len(algos) == 0 {
		return nil, err
	}
	return algos, nil
}

// Adopt uses an algorithm chosen for another extent, if it supports this one and the
// workspace suffices.
func (pl *Plan) Adopt(handle uintptr, algo [AlgoBytes]byte, workspace int64) error {
	result := make([]byte, resultBytes)
	pl.Algo = algo
	err := pl.lt.Check("MatmulAlgoCheck", pl.lt.AlgoCheck(handle, pl.desc, pl.layouts[0], pl.layouts[1], pl.layouts[2], pl.layouts[3], Addr(&pl.Algo), Addr(&result[0])))
	if need := binary.LittleEndian.Uint64(result[resultWorkspace:]); err == nil && need > uint64(workspace) {
		err = &Error{"cublasLtMatmulAlgoCheck", 15, fmt.Sprintf("it needs a workspace of %d bytes", need)}
	}
	return err
}

// Operands are the operands of a product D = Alpha * A B + Beta * C, by address, and memory for it to work in. Alpha and
// Beta must live as long as the plan.
type Operands struct {
	Alpha, Beta *float32
	A, B, C, D  uintptr
	Workspace   uintptr
	Bytes       int64 // of Workspace
}

// Args returns the arguments of Matmul.
func (pl *Plan) Args(handle uintptr, o Operands, stream uintptr) []uintptr {
	l := pl.layouts
	return []uintptr{handle, pl.desc, Addr(o.Alpha), o.A, l[0], o.B, l[1], Addr(o.Beta), o.C, l[2], o.D, l[3], Addr(&pl.Algo), o.Workspace, uintptr(o.Bytes), stream}
}

// Close destroys the handles.
func (pl *Plan) Close() {
	for _, h := range pl.layouts {
		if h != 0 {
			pl.lt.LayoutDestroy(h)
		}
	}
	if pl.desc != 0 {
		pl.lt.DescDestroy(pl.desc)
	}
}
