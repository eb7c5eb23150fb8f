// Package prune sets weights of a matrix to zero, and moves the others so that its outputs change little.
//
//	p, _ := prune.Parse("2:4")
//	u, _ := prune.Factor(h)             h [in, in]: sum of x.x^T over the inputs that the matrix has
//	p.SparseGPT(engine, w, u)           w [out, in]
//	p.Magnitude(w)                      or, without inputs, the smallest weights
//
// SparseGPT (Frantar and Alistarh, 2301.00774) goes through the inputs from the first to the last. A weight that is set to
// zero changes the outputs by its product with its input. What of that the inputs that follow can make up for, their
// weights do: the least change of the outputs, over the inputs that were seen, is a product with a row of the Cholesky
// factor of the inverse of h. Which weights go is decided for a block of inputs at a time, or for each group of a pattern
// such as 2:4, by the change that each of them would leave.
//
// Rows of a matrix are independent but for that choice, so cores share them and no bit depends on how.
//
// Known weakness: factors are computed in float64 without blocking, in time that grows with the cube of the inputs: a
// matrix of 4096 inputs takes half a minute of two cores, one of 16384 half an hour.
package prune

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Matrix is a weight: Rows outputs by Cols inputs, row by row. It does not own the memory.
type Matrix struct {
	Rows, Cols int
	Data       []float32
}

func (w Matrix) row(r int) []float32 { return w.Data[r*w.Cols:][:w.Cols] }

// Pattern says which share of a matrix's weights become zero.
type Pattern struct {
	Share float64 // of all weights of a matrix, wherever they are, unless Of is set
	// Keep of each Of consecutive inputs of an output stay.
	Keep, Of int
}

// mostOf bounds groups, which must not exceed a block.
const mostOf = block

// Parse reads a pattern: a share of the weights, such as 0.5, or how many of a group stay, such as 2:4.
func Parse(s string) (Pattern, error) {
	p, ok := Pattern{}, false
	if keep, of, grouped := strings.Cut(s, ":"); grouped {
		k, errK := strconv.Atoi(keep)
		n, errN := strconv.Atoi(of)
		p.Keep, p.Of, ok = k, n, errK == nil && errN == nil && k >= 1 && k < n && n <= mostOf
	} else {
		share, err := strconv.ParseFloat(s, 64)
		p.Share, ok = share, err == nil && share > 0 && share < 1
	}
	if !ok {
		return Pattern{}, fmt.Errorf("%q is no sparsity; hint: use the share of weights that become zero, such as 0.5, or how many of a group of inputs stay, such as 2:4, with groups of at most %d", s, mostOf)
	}
	return p, nil
}

func (p Pattern) String() string {
	if p.Of > 0 {
		return fmt.Sprintf("%d:%d", p.Keep, p.Of)
	}
	return strconv.FormatFloat(p.Share, 'g', -1, 64)
}

// Check returns an error if a matrix of cols inputs cannot have the pattern.
func (p Pattern) Check(cols int) error {
	if p.Of > 0 && cols%p.Of != 0 {
		return fmt.Errorf("%d inputs cannot be divided into groups of %d; hint: use a share, such as %v, or another group", cols, p.Of, 1-float64(p.Keep)/float64(p.Of))
	}
	return nil
}

// Magnitude sets the weights with the smallest magnitudes to zero: of the matrix, or of each group.
func (p Pattern) Magnitude(w Matrix) {
	score := func(r, c int) float64 { return math.Abs(float64(w.Data[r*w.Cols+c])) }
	if p.Of == 0 {
		for i, gone := range smallest(w.Rows, 0, w.Cols, p.gone(w.Rows*w.Cols), score) {
			if gone {
				w.Data[i] = 0
			}
		}
		return
	}
	inRows(w.Rows, func(r int) {
		for at := 0; at < w.Cols; at += p.Of {
			for i, gone := range smallest(1, at, at+p.Of, p.Of-p.Keep, func(_, c int) float64 { return score(r, c) }) {
				if gone {
					w.row(r)[at+i] = 0
				}
			}
		}
	})
}

// gone returns how many of n weights become zero.
func (p Pattern) gone(n int) int { return int(math.Round(p.Share * float64(n))) }

// smallest marks the n elements with the smallest scores, the first among equals, of rows x [lo, hi), row by row.
func smallest(rows, lo, hi, n int, score func(r, c int) float64) []bool {
	width := hi - lo
	type entry struct {
		score float64
		at    int
	}
	list := make([]entry, rows*width)
	for i := range list {
		list[i] = entry{score(i/width, lo+i%width), i}
	}
	slices.SortFunc(list, func(a, b entry) int { return cmp.Or(cmp.Compare(a.score, b.score), a.at-b.at) })
	gone := make([]bool, len(list))
	for _, e := range list[:n] {
		gone[e.at] = true
	}
	return gone
}

// inRows calls f for all rows, on all cores.
func inRows(rows int, f func(r int)) {
	workers := min(runtime.GOMAXPROCS(0), rows)
	var all sync.WaitGroup
	for k := range workers {
		all.Go(func() {
			for r := k; r < rows; r += workers {
				f(r)
			}
		})
	}
	all.Wait()
}
