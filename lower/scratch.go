package lower

import (
	"sync"

	"github.com/athanor-llm/athanor/alloc"
)

// Scratch is memory that Lower needs only while it runs. A search lowers thousands of programs: what one leaves, the next
// takes, instead of clearing new pages and keeping the garbage collector busy. It is safe for concurrent use; nil keeps
// nothing. Programs own all that they consist of.
type Scratch struct{ pool sync.Pool }

// take returns memory that nobody uses.
func (s *Scratch) take() *workspace {
	if s != nil {
		if w, ok := s.pool.Get().(*workspace); ok {
			return w
		}
	}
	return &workspace{}
}

// give returns memory that is no longer used.
func (s *Scratch) give(w *workspace) {
	if s != nil {
		w.reset()
		s.pool.Put(w)
	}
}

// workspace is the memory of one call of Lower.
type workspace struct {
	ops      slab[op]
	refs     slab[ref]
	operands operands
	buffers  slab[alloc.Buffer]
	clocks   slab[clock]
	accesses slab[access]
}

func (w *workspace) reset() {
	w.ops.reset()
	w.refs.reset()
	w.buffers.reset()
	w.clocks.reset()
	w.accesses.reset()
}

// slab hands out zeroed slices, many per allocation, but not so many that clearing them would matter to a small program.
type slab[T any] struct {
	free   []T
	chunks [][]T
	taken  int // of chunks
}

// take returns n elements, which nobody else has until reset is called.
func (s *slab[T]) take(n int) []T {
	if n > len(s.free) {
		s.free = s.chunk(n)
	}
	list := s.free[:n:n]
	s.free = s.free[n:]
	return list
}

// chunk returns at least n zeros: a chunk taken before reset was called, if there is one that is large enough.
func (s *slab[T]) chunk(n int) []T {
	const many = 512
	at := s.taken
	s.taken++
	switch {
	case at == len(s.chunks):
		s.chunks = append(s.chunks, make([]T, max(n, many)))
	case n > len(s.chunks[at]):
		s.chunks[at] = make([]T, n)
	default:
		clear(s.chunks[at])
	}
	return s.chunks[at]
}

// reset takes back all that was handed out.
func (s *slab[T]) reset() { s.free, s.taken = nil, 0 }
