package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/athanor-llm/athanor/generation"
)

// queue bounds the texts that are under way or waiting.
type queue struct {
	requests chan *generation.Request
	mutex    sync.Mutex
	room     int
}

func (q *queue) begin(room int) {
	q.room, q.requests = room, make(chan *generation.Request, room)
}

// take takes room for n texts, all of them or none.
func (q *queue) take(n int) error {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	switch {
	case n > cap(q.requests):
		return bad("the request is for %d texts, but at most %d can wait; hint: send fewer at once", n, cap(q.requests))
	case n > q.room:
		return &fault{http.StatusTooManyRequests, fmt.Sprintf("%d texts are under way or waiting, and there is no room for %d more; hint: try again later", cap(q.requests)-q.room, n)}
	}
	q.room -= n
	return nil
}

func (q *queue) give() {
	q.mutex.Lock()
	q.room++
	q.mutex.Unlock()
}

// taken returns the number of texts under way or waiting.
func (q *queue) taken() int {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	return cap(q.requests) - q.room
}

// job is a text under way. What comes waits here until the client has read it, so that nobody waits for clients.
type job struct {
	request *generation.Request
	mutex   sync.Mutex
	parts   []generation.Part
	result  *generation.Result
	err     error
	ended   bool
	news    chan struct{} // holds one element if there is something new
}

// submit starts requests. A text ends when the context does.
func (s *Server) submit(ctx context.Context, list []*generation.Request) ([]*job, error) {
	for _, r := range list {
		if err := s.batch.Check(r); err != nil {
			return nil, bad("%w", err)
		}
	}
	if err := s.queue.take(len(list)); err != nil {
		return nil, err
	}
	var jobs []*job
	for _, r := range list {
		j := &job{request: r, news: make(chan struct{}, 1)}
		r.Context = ctx
		r.Each = func(p generation.Part) { j.add(func() { j.parts = append(j.parts, p) }) }
		r.Done = func(result *generation.Result, err error) {
			s.queue.give()
			s.counts.done(result, err)
			j.add(func() { j.result, j.err, j.ended = result, err, true })
		}
		jobs = append(jobs, j)
		s.queue.requests <- r // never waits: there is room
	}
	return jobs, nil
}

// add changes what has come.
func (j *job) add(change func()) {
	j.mutex.Lock()
	change()
	j.mutex.Unlock()
	select {
	case j.news <- struct{}{}:
	default:
	}
}

// next waits for more of the text, and returns all that has come. ended reports that this is the end.
func (j *job) next(ctx context.Context) (parts []generation.Part, ended bool, err error) {
	for {
		j.mutex.Lock()
		parts, ended, err = j.parts, j.ended, j.err
		j.parts = nil
		j.mutex.Unlock()
		if ended || len(parts) > 0 {
			return parts, ended, err
		}
		select {
		case <-j.news:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// wait waits for the end of the text.
func (j *job) wait(ctx context.Context) (*generation.Result, error) {
	for {
		_, ended, err := j.next(ctx)
		if ended || err != nil {
			return j.result, err
		}
	}
}
