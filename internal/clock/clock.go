// Package clock tells the time finely enough to measure calls of microseconds.
//
// That is package time's own on all systems but Windows, where [time.Now] is read from a
// counter that the system moves on at its timer's interrupts, every half to sixteen
// milliseconds. There it is the performance counter, added to the time at the start.
package clock

import "time"

// Since returns the time that has passed since one that Now returned.
func Since(t time.Time) time.Duration { return Now().Sub(t) }

// Until returns the time that is left until one that was reckoned from what Now returned.
func Until(t time.Time) time.Duration { return t.Sub(Now()) }
