package search

import (
	"fmt"

	"github.com/athanor-llm/athanor/internal/size"
)

// Wear is how fast a run uses up the disk of the host that writes most. Flash bears only so many writes: makers state a
// disk's endurance in bytes (TBW, "terabytes written").
type Wear struct {
	PerStep   int64   `json:"bytes_per_step"` // written by all ranks of that host
	PerDay    int64   `json:"bytes_per_day"`
	Endurance int64   `json:"endurance,omitempty"` // bytes; 0: the disk does not wear
	Days      float64 `json:"days,omitempty"`      // until the endurance is used up
	// Spared is the fastest plan found that does not use the disk, where the endurance ends within Month days.
	Spared *WhatIf `json:"without,omitempty"`
}

// Month is the number of days below which a disk's end is the first thing to say about a plan.
const Month = 30

// secondsPerDay turns rates per second into rates per day.
const secondsPerDay = 24 * 60 * 60

// NewWear returns the wear of steps of so many seconds in which each rank writes that many bytes to its host's disk;
// nil if none does. host is the host of each rank; endurance is that of each disk.
func NewWear(written []int64, host func(rank int) int, seconds float64, endurance int64) *Wear {
	w, perHost := &Wear{Endurance: endurance}, map[int]int64{}
	for r, n := range written {
		perHost[host(r)] += n
		w.PerStep = max(w.PerStep, perHost[host(r)])
	}
	if w.PerStep == 0 {
		return nil
	}
	perDay := float64(w.PerStep) * secondsPerDay / seconds
	w.PerDay, w.Days = int64(perDay), float64(endurance)/perDay
	return w
}

// Soon reports whether the disk is used up within a month.
func (w *Wear) Soon() bool { return w != nil && w.Endurance > 0 && w.Days < Month }

// Text says how fast the disk is used up.
func (w *Wear) Text() string {
	text := size.Decimal(w.PerDay) + " a day are written to the disk"
	if w.Endurance > 0 {
		text += fmt.Sprintf(", whose endurance of %s lasts %s", size.Decimal(w.Endurance), days(w.Days))
	}
	return text
}

// Warning is the first line about a plan that uses up the disk soon, with the alternative.
func (w *Wear) Warning() string {
	if s := w.Spared; s != nil {
		return fmt.Sprintf("warning: %s; without the disk (%s) %s", w.Text(), s.Set, s.Brings)
	}
	return "warning: " + w.Text() + "; hint: limits.disk=none plans without it, limits.disk_endurance says what the disk bears"
}

// days formats a number of days in the unit that people would use.
func days(n float64) string { return Days(n * secondsPerDay) }

// Days formats seconds in the unit in which people count what takes hours, days or years.
func Days(seconds float64) string {
	switch n := seconds / secondsPerDay; {
	case n >= 2*365:
		return fmt.Sprintf("%.0f years", n/365)
	case n >= 2:
		return fmt.Sprintf("%.3g days", n)
	case seconds >= 2*60*60:
		return fmt.Sprintf("%.3g hours", 24*n)
	case seconds >= 2*60:
		return fmt.Sprintf("%.3g minutes", seconds/60)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
