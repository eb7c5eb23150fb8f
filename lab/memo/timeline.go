package memo

// The timeline of a step on three streams: compute, copies to the host, copies from it. Layer i's activations occupy
// slot i mod K while they are computed, copied or read.
//
//	forward i    after forward i-1, and when the slot is free: the copy out of layer i-K is done
//	out i        after forward i and out i-1
//	backward i   after backward i+1, and when the copy in of layer i is done
//	in i         after in i+1, when the slot's content is dead: backward i+K is done; and after out i
//
// Example: two slots, 32 layers that compute for 1 forward and 2 backward and copy for 1.5. The forward takes 2 +
// 30*1.5, the backward 64: a backward is longer than a copy. Known weakness: no other traffic on the links.

// Load is one layer's durations in seconds. Backward includes recomputation.
type Load struct{ Forward, Backward, Out, In float64 }

// Span is a time from start to end.
type Span struct{ Start, End float64 }

// Timeline is the schedule of a step, by layer.
type Timeline struct {
	Forward, Out, Backward, In []Span
	End                        float64
	Stall                      float64 // seconds that the compute stream waits
}

// Run schedules a step with K slots; turn is the time between the last forward and the first backward: head and loss.
func Run(loads []Load, slots int, turn float64) Timeline {
	n := len(loads)
	t := Timeline{Forward: make([]Span, n), Out: make([]Span, n), Backward: make([]Span, n), In: make([]Span, n)}
	var compute, out, in float64 // when each stream is free
	put := func(stream *float64, ready, seconds float64) Span {
		start := max(*stream, ready)
		*stream = start + seconds
		return Span{start, *stream}
	}
	busy := turn
	for i, l := range loads {
		drained := 0.0
		if i >= slots {
			drained = t.Out[i-slots].End
		}
		t.Forward[i] = put(&compute, drained, l.Forward)
		t.Out[i] = put(&out, t.Forward[i].End, l.Out)
		busy += l.Forward + l.Backward
	}
	compute += turn
	for i := n - 1; i >= 0; i-- {
		ready := t.Out[i].End
		if i+slots < n {
			ready = max(ready, t.Backward[i+slots].End)
		}
		if loads[i].In > 0 {
			t.In[i] = put(&in, ready, loads[i].In)
		} else { // nothing to wait for
			t.In[i] = Span{in, in}
		}
		t.Backward[i] = put(&compute, t.In[i].End, loads[i].Backward)
	}
	t.End, t.Stall = compute, max(0, compute-busy)
	return t
}
