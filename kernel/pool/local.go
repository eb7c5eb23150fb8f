package pool

import (
	"sync"
	"sync/atomic"
)

// loners allocates worker indices, from first upwards, to Runs that work alone. It reuses freed indices, the most
// recently freed first, so there are never more than the greatest number of such Runs at one time.
type loners struct {
	mu    sync.Mutex
	first int
	given int
	free  []int
}

func (l *loners) take() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		w := l.free[n-1]
		l.free = l.free[:n-1]
		return w
	}
	l.given++
	return l.first + l.given - 1
}

func (l *loners) put(w int) {
	l.mu.Lock()
	l.free = append(l.free, w)
	l.mu.Unlock()
}

// Local keeps one value of type T per worker: scratch memory that tasks use without locks. The worker's first Get
// creates its value, which lives as long as the Local, so in the steady state Get allocates nothing.
type Local[T any] struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*T]
	New  func() *T // creates a worker's value; nil means new(T)
}

// Get returns the value of the given worker.
func (l *Local[T]) Get(worker int) *T {
	if list := l.list.Load(); list != nil && worker < len(*list) {
		if v := (*list)[worker]; v != nil {
			return v
		}
	}
	return l.add(worker)
}

// add creates the value of a worker. It replaces the list by a copy, since others read it without the lock.
func (l *Local[T]) add(worker int) *T {
	l.mu.Lock()
	defer l.mu.Unlock()
	var old []*T
	if list := l.list.Load(); list != nil {
		old = *list
	}
	list := make([]*T, max(len(old), worker+1))
	copy(list, old)
	if l.New != nil {
		list[worker] = l.New()
	} else {
		list[worker] = new(T)
	}
	l.list.Store(&list)
	return list[worker]
}
