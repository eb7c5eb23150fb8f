// Package clock tells the time finely enough to measure calls of microseconds.
//
// On all systems but Windows the clock is package time's own. On Windows [time.Now] reads a
// counter that the system advances at its timer's interrupts, every half to sixteen
// milliseconds; the clock there is the performance counter, added to the time at the start.
package clock

import "time"

// Since returns the time that has passed since t, which Now returned.
func Since(t time.Time) time.Duration { return Now().Sub(t) }

// Until returns the time that is left until t, which was computed from what Now returned.
func Until(t time.Time) time.Duration { return t.Sub(Now()) }
