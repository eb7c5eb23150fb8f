package train

import (
	"math"
	"sync"

	"github.com/athanor-llm/athanor/alert"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/internal/stat"
	"github.com/athanor-llm/athanor/internal/sysmem"
	"github.com/athanor-llm/athanor/job"
)

// alarms are a run's alerts: which fire, and who is told.
type alarms struct {
	watcher  *alert.Watcher
	sender   *alert.Sender // nil: there is nobody else to tell
	capacity [device.NumTiers]int64
	held     int64         // after the step before
	room     int64         // when held last grew
	stalls   []alert.Stall // of the measured step

	mutex sync.Mutex
	notes []string // of the sender, whose goroutine is another
}

// newAlarms returns the alerts that a configuration asks for.
func newAlarms(spec *job.Spec, capacity [device.NumTiers]int64) (*alarms, error) {
	a := &alarms{capacity: capacity}
	var err error
	if a.watcher, err = alert.New(alert.Options{Rules: spec.Alerts.Rules, Off: spec.Alerts.Off}); err != nil {
		return nil, spec.Fault("alerts", err.Error())
	}
	a.sender = alert.NewSender(spec.Alerts.Webhook, spec.Alerts.Command, func(text string) {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		a.notes = append(a.notes, text)
	})
	return a, nil
}

// add takes a step, and records in it what fires and what is over.
func (a *alarms) add(t *Run, m *Metrics, o Observer) {
	m.Alerts = a.watcher.Add(a.point(t, m))
	for _, e := range m.Alerts {
		if e.Firing {
			o.Event("ALERT: " + e.Text)
		} else {
			o.Event("alert " + e.Text)
		}
	}
	a.sender.Send(m.Alerts...)
	a.mutex.Lock()
	notes := a.notes
	a.notes = nil
	a.mutex.Unlock()
	for _, n := range notes {
		o.Event("WARNING: " + n)
	}
}

// point returns what rules look at. Devices of other hosts are not asked after each step.
func (a *alarms) point(t *Run, m *Metrics) alert.Point {
	p := alert.Point{Step: m.Step, Loss: m.Loss, ValLoss: math.NaN(), GradNorm: m.GradNorm, Rate: m.Rate, MFU: m.MFU, Seconds: m.StepSeconds,
		Held: sysmem.Mapped(), Stalls: a.stalls}
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
		a.sender.Close()
	}
}

// waited returns which part of a measured step computing waits for each stream, and what was predicted: those of the rank
// where it is most.
func waited(predicted, measured []draw.Run) (list []alert.Stall) {
	most := func(runs []draw.Run) (share [device.NumStreams]float64) {
		for _, r := range runs {
			for s, x := range shares(r) {
				share[s] = max(share[s], x)
			}
		}
		return share
	}
	before, now := most(predicted), most(measured)
	for s := range device.NumStreams {
		if now[s] > 0 {
			list = append(list, alert.Stall{On: s.String(), Measured: now[s], Predicted: before[s]})
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
