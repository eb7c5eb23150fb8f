package train

import (
	"math"
	"sync"
	"time"

	"github.com/athanor-llm/athanor/alert"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/job"
)

// alarms are a run's alerts: which fire, and who is told.
type alarms struct {
	sender   *alert.Sender // nil: there is nobody else to tell
	capacity [device.NumTiers]int64
	held     int64         // after the step before
	room     int64         // when held last grew
	stalls   []alert.Stall // of the measured step
	silence  silence
	notes    notes // of the sender
	again    *alert.Again

	mutex   sync.Mutex // guards what follows, for other goroutines
	watcher *alert.Watcher
	during  []alert.Event // of a step that has not ended
	closed  bool
}

// notes are texts from another goroutine.
type notes struct {
	mutex sync.Mutex
	list  []string
}

func (n *notes) add(text string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.list = append(n.list, text)
}

// take returns the texts since it was last called.
func (n *notes) take() []string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	list := n.list
	n.list = nil
	return list
}

// newAlarms returns the alerts that a configuration asks for.
func newAlarms(spec *job.Spec, capacity [device.NumTiers]int64) (*alarms, error) {
	a := &alarms{capacity: capacity}
	var err error
	if a.watcher, err = alert.New(alert.Options{Rules: spec.Alerts.Rules, Off: spec.Alerts.Off}); err != nil {
		return nil, spec.Fault("alerts", err.Error())
	}
	a.sender = alert.NewSender(spec.Alerts.Webhook, spec.Alerts.Command, func(text string) {
		a.notes.add(text)
	})
	return a, nil
}

// PlannedAgain says what planning again has found for device memory that the plan does not use, before the first step.
func PlannedAgain(t *Run, brings string) { t.alarms.again = &alert.Again{Brings: brings} }

// begin watches the step that begins. o may be told of it from another goroutine.
func (a *alarms) begin(t *Run, o Observer) {
	a.silence.begin(t.Step+1, t.expected, func(step int, after time.Duration) {
		a.mutex.Lock()
		var events []alert.Event
		if !a.closed {
			events = a.watcher.Silent(step, after)
			a.sender.Send(events...)
		}
		a.during = append(a.during, events...)
		a.mutex.Unlock()
		tell(events, o)
	})
}

// add takes a step, and records in it what fires and what is over.
func (a *alarms) add(t *Run, m *Metrics, o Observer) {
	a.silence.end(m.StepSeconds)
	p := a.point(t, m)
	a.mutex.Lock()
	events := a.watcher.Add(p)
	a.sender.Send(events...)
	m.Alerts = append(a.during, events...)
	a.during = nil
	a.mutex.Unlock()
	tell(events, o)
	for _, n := range a.notes.take() {
		o.Event("WARNING: " + n)
	}
}

// tell tells the run's user of events.
func tell(events []alert.Event, o Observer) {
	for _, e := range events {
		if e.Firing {
			o.Event("ALERT: " + e.Text)
		} else {
			o.Event("alert " + e.Text)
		}
	}
}

// point returns what rules look at. Devices of other hosts are not asked after each step.
func (a *alarms) point(t *Run, m *Metrics) alert.Point {
	p := alert.Point{Step: m.Step, Loss: m.Loss, ValLoss: math.NaN(), GradNorm: m.GradNorm, Rate: m.Rate, MFU: m.MFU, Seconds: m.StepSeconds,
		Held: sysmem.Mapped(), Stalls: a.stalls, Again: a.again}
	if m.ValLoss != 0 {
		p.ValLoss, p.ValBroken = m.ValLoss, !stat.Finite(m.ValLoss)
	}
	if p.Held > a.held {
		if mem, err := sysmem.Read(); err == nil {
			a.room = mem.Available
		}
	}
	a.held, p.Room = p.Held, a.room
	for r, d := range t.devices {
		meter, ok := d.(device.Meter)
		if !ok || d.Info().Host != "" {
			continue
		}
		reached := meter.Stats().Peak
		for tier := range device.NumTiers {
			if planned := t.programs[r].Height[tier]; planned > 0 {
				p.Memory = append(p.Memory, alert.Tier{Rank: r, Name: tier.String(), Planned: planned, Reached: reached[tier], Capacity: a.capacity[tier]})
			}
		}
	}
	return p
}

// close waits until everybody has been told.
func (a *alarms) close() {
	if a != nil {
		a.silence.end(0)
		a.mutex.Lock()
		a.closed = true
		a.mutex.Unlock()
		a.sender.Close()
	}
}

// leastBusy is the share of a step for which a stream has to be busy to be called slow.
const leastBusy = 0.02

// waited returns which part of a measured step computing waits for each stream, and what was predicted: those of the rank
// where it is most. It also says how much longer streams were busy.
func waited(predicted, measured []draw.Run) (list []alert.Stall) {
	most := func(runs []draw.Run) (share, busy [device.NumStreams]float64) {
		for _, r := range runs {
			for s, x := range shares(r) {
				share[s] = max(share[s], x)
				busy[s] = max(busy[s], r.Timeline.Busy[s])
			}
		}
		return share, busy
	}
	before, predictedBusy := most(predicted)
	now, busy := most(measured)
	makespan := 0.0
	for _, r := range measured {
		makespan = max(makespan, r.Timeline.Makespan)
	}
	for s := range device.NumStreams {
		stall := alert.Stall{On: s.String(), Measured: now[s], Predicted: before[s]}
		if s != device.Compute && predictedBusy[s] > 0 && busy[s] > leastBusy*makespan {
			stall.Slower = busy[s] / predictedBusy[s]
		}
		if stall.Measured > 0 || stall.Slower > 0 {
			list = append(list, stall)
		}
	}
	return list
}

// shares returns which part of a step computing waits for each stream.
func shares(r draw.Run) (share [device.NumStreams]float64) {
	for _, stall := range r.Stalls(device.Compute) {
		if s, err := device.ParseStream(stall.On); err == nil {
			share[s] += (stall.End - stall.Start) / r.Timeline.Makespan
		}
	}
	return share
}
