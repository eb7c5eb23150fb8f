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
	ltCompute32 = 68

	descTransA      = 3
	descTransB      = 4
	descEpilogue    = 7
	descBiasPointer = 8
	descBiasType    = 26
	epilogueBias    = 4

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

// Product describes D = op(A).op(B) + C (+ a bias per row of D).
type Product struct {
	TransA, TransB bool
	Bias           bool
	BiasType       int
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

// Plan creates the handles of a product. bias is the address of the bias vector.
func (l *Lt) Plan(p Product, bias uintptr) (*Plan, error) {
	pl := &Plan{lt: l}
	if err := l.Check("MatmulDescCreate", l.DescCreate(Addr(&pl.desc), ltCompute32, LtF32)); err != nil {
		return nil, err
	}
	set := func(attr int, v uint64, size int) error {
		b := make([]byte, 8)
		binary.LittleEndian.PutUint64(b, v)
		err := l.Check(fmt.Sprintf("MatmulDescSetAttribute %d", attr), l.DescSetAttribute(pl.desc, uintptr(attr), Addr(&b[0]), uintptr(size)))
		runtime.KeepAlive(b)
		return err
	}
	err := set(descTransA, bit(p.TransA), 4)
	if err == nil {
		err = set(descTransB, bit(p.TransB), 4)
	}
	if p.Bias && err == nil {
		if err = set(descEpilogue, epilogueBias, 4); err == nil {
			err = set(descBiasPointer, uint64(bias), 8)
		}
		if err == nil {
			err = set(descBiasType, uint64(p.BiasType), 4)
		}
	}
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

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Choose selects the algorithm that the library expects to be fastest.
func (pl *Plan) Choose(handle uintptr, p Product, workspace int64) error {
	l := pl.lt
	var pref uintptr
	if err := l.Check("MatmulPreferenceCreate", l.PreferenceCreate(Addr(&pref))); err != nil {
		return err
	}
	defer l.PreferenceDestroy(pref)
	set := func(attr int, v uint64, size int) error {
		b := make([]byte, 8)
		binary.LittleEndian.PutUint64(b, v)
		err := l.Check(fmt.Sprintf("MatmulPreferenceSetAttribute %d", attr), l.PreferenceAttribute(pref, uintptr(attr), Addr(&b[0]), uintptr(size)))
		runtime.KeepAlive(b)
		return err
	}
	err := set(prefWorkspace, uint64(workspace), 8)
	if p.Whole && err == nil {
		err = set(prefReduction, 0, 4)
	}
	for i, m := range []LtMatrix{p.A, p.B, p.C, p.D} {
		if err == nil {
			err = set(prefAlignment+i, uint64(m.Align), 4)
		}
	}
	if err != nil {
		return err
	}
	result, got := make([]byte, resultBytes), int32(0)
	err = l.Check("MatmulAlgoGetHeuristic", l.AlgoGetHeuristic(handle, pl.desc, pl.layouts[0], pl.layouts[1], pl.layouts[2], pl.layouts[3], pref, 1, Addr(&result[0]), Addr(&got)))
	if err == nil && got < 1 {
		err = &Error{"cublasLtMatmulAlgoGetHeuristic", 15, "no algorithm"}
	}
	if err == nil {
		err = l.Check("MatmulAlgoGetHeuristic", int32(binary.LittleEndian.Uint32(result[resultState:])))
	}
	copy(pl.Algo[:], result)
	return err
}

// Adopt uses an algorithm chosen for another extent, if it supports this one and the
// workspace suffices.
func (pl *Plan) Adopt(handle uintptr, algo [AlgoBytes]byte, workspace int64) error {
	result := make([]byte, resultBytes)
	pl.Algo = algo
	err := pl.lt.Check("MatmulAlgoCheck", pl.lt.AlgoCheck(handle, pl.desc, pl.layouts[0], pl.layouts[1], pl.layouts[2], pl.layouts[3], Addr(&pl.Algo), Addr(&result[0])))
	if need := binary.LittleEndian.Uint64(result[resultWorkspace:]); err == nil && need > uint64(workspace) {
		err = &Error{"cublasLtMatmulAlgoCheck", 15, fmt.Sprintf("a workspace of %d bytes", need)}
	}
	return err
}

// Args returns the arguments of Matmul. alpha and beta must live as long as the plan.
func (pl *Plan) Args(handle uintptr, alpha, beta *float32, a, b, c, d, workspace uintptr, bytes int64, stream uintptr) []uintptr {
	l := pl.layouts
	return []uintptr{handle, pl.desc, Addr(alpha), a, l[0], b, l[1], Addr(beta), c, l[2], d, l[3], Addr(&pl.Algo), workspace, uintptr(bytes), stream}
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
