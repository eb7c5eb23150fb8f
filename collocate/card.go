package collocate

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/hardware"
)

// Place is where a job runs, and how it does there.
type Place struct {
	On        string  `json:"on"` // the card or an instance of it
	TokenRate float64 `json:"tokens_per_second"`
	Share     float64 `json:"share"` // of its rate alone on the whole
	Device    int64   `json:"device_bytes"`
	Host      int64   `json:"host_bytes"`
	Limit     int64   `json:"device_limit,omitempty"` // that its plan keeps to; 0: what there is
}

// Way is one to run all jobs.
type Way struct {
	Name      string   `json:"way"` // exclusive, mps, mig or cores
	Layout    []string `json:"layout,omitempty"`
	Places    []Place  `json:"jobs,omitempty"` // nil: it is not possible
	Why       string   `json:"why,omitempty"`  // it is not
	Aggregate float64  `json:"aggregate"`      // the sum of shares; one after another it is 1
}

// Report compares the ways.
type Report struct {
	Machine string   `json:"machine"`
	Jobs    []string `json:"jobs"`
	Ways    []Way    `json:"ways"`
	Best    int      `json:"best"` // of Ways
}

// Need is what a job may take of a device. A limit of 0 is what there is.
type Need struct {
	On           string
	Device, Host int64
}

// Planner plans a job. A nil Run says that it does not fit, and why.
type Planner func(job int, need Need) (run *Run, why string, err error)

// Card is a card with its host.
type Card struct {
	Name         string
	Device, Host int64 // bytes that one process may use
}

// worthwhile is the least aggregate for which jobs are not run one after another, which disturbs nobody.
const worthwhile = 1.05

// Compare plans the jobs in all ways.
func (c *Card) Compare(jobs []string, plan Planner) (*Report, error) {
	r := &Report{Machine: c.Name, Jobs: jobs}
	alone := make([]*Run, len(jobs))
	for i := range jobs {
		run, why, err := plan(i, Need{On: c.Name})
		if err != nil {
			return nil, err
		}
		if run == nil {
			return nil, fmt.Errorf("%s does not fit %s even alone: %s", jobs[i], c.Name, why)
		}
		alone[i] = run
	}
	exclusive := Way{Name: "exclusive"}
	for i, run := range alone {
		exclusive.add(Place{On: c.Name}, run, alone[i], 1/float64(len(jobs)))
	}
	r.Ways = []Way{exclusive}
	s := sharing{Card: c, jobs: jobs, alone: alone, plan: plan}
	for _, try := range []func() (Way, error){s.mps, s.mig} {
		w, err := try()
		if err != nil {
			return nil, err
		}
		r.Ways = append(r.Ways, w)
	}
	r.choose()
	return r, nil
}

// choose finds the best way.
func (r *Report) choose() {
	for i, w := range r.Ways {
		if w.Places != nil && w.Aggregate > max(worthwhile, r.Ways[r.Best].Aggregate) {
			r.Best = i
		}
	}
}

// add adds a job, which has a share of the time, or of its rate on its device.
func (w *Way) add(p Place, run, alone *Run, part float64) {
	p.Device, p.Host, p.TokenRate = run.Device, run.Host, part*run.Rate()
	p.Share = p.TokenRate / alone.Rate()
	w.Places, w.Aggregate = append(w.Places, p), w.Aggregate+p.Share
}

// sharing is the jobs on a card at the same time.
type sharing struct {
	*Card
	jobs  []string
	alone []*Run
	plan  Planner
}

// mps is all jobs together on the whole card. Each process has its own context. Where their plans do not fit beside each
// other, each gets an equal share of the memory.
func (s *sharing) mps() (Way, error) {
	w := Way{Name: "mps"}
	n := int64(len(s.jobs))
	room := s.Device - (n-1)*hardware.ContextBytes
	need, runs := Need{On: s.Name}, s.alone
	if device, host := sums(runs); device > room || host > s.Host {
		if room <= 0 {
			w.Why = fmt.Sprintf("the contexts of %d processes take the card's memory", n)
			return w, nil
		}
		if device > room {
			need.Device = room / n
		}
		if host > s.Host {
			need.Host = s.Host / n
		}
		runs = nil
		for i, j := range s.jobs {
			run, why, err := s.plan(i, need)
			if err != nil {
				return w, err
			}
			if run == nil {
				w.Why = fmt.Sprintf("with an equal share of the memory %s does not fit: %s", j, why)
				return w, nil
			}
			runs = append(runs, run)
		}
	}
	for i, rate := range FairRates(runs, [numResources]bool{true, true, true, true, true}) {
		w.add(Place{On: s.Name, Limit: need.Device}, runs[i], s.alone[i], rate)
	}
	return w, nil
}

// sums returns what runs take together.
func sums(runs []*Run) (device, host int64) {
	for _, r := range runs {
		device, host = device+r.Device, host+r.Host
	}
	return device, host
}

// mig is each job on an instance, by the layout of which the aggregate is greatest. Instances share the links and the host.
func (s *sharing) mig() (Way, error) {
	w := Way{Name: "mig"}
	layouts := hardware.Layouts(s.Name)
	if len(layouts) == 0 {
		w.Why = "this card cannot be divided"
		return w, nil
	}
	runs, missing, err := s.onInstances(0)
	if err != nil {
		return w, err
	}
	best, host := s.bestLayout(layouts, runs)
	if host > s.Host {
		if runs, missing, err = s.onInstances(s.Host / int64(len(s.jobs))); err != nil {
			return w, err
		}
		best, _ = s.bestLayout(layouts, runs)
	}
	if best.Places == nil {
		best.Why = fmt.Sprintf("no layout has an instance for each of the %d jobs in which it fits%s", len(s.jobs), missing)
	}
	return best, nil
}

// onInstances plans each job for each instance.
func (s *sharing) onInstances(host int64) (runs map[string][]*Run, missing string, err error) {
	runs = map[string][]*Run{}
	for _, in := range hardware.Instances(s.Name) {
		for i, j := range s.jobs {
			run, why, err := s.plan(i, Need{On: s.Name + "/" + in.Name, Host: host})
			if err != nil {
				return nil, "", err
			}
			if run == nil {
				missing = fmt.Sprintf("; %s on %s: %s", j, in.Name, why)
			}
			runs[in.Name] = append(runs[in.Name], run)
		}
	}
	return runs, missing, nil
}

// bestLayout returns the layout with the greatest aggregate, and the host's memory that its jobs take.
func (s *sharing) bestLayout(layouts [][]string, runs map[string][]*Run) (best Way, host int64) {
	best.Name = "mig"
	value := func(j int, on string) float64 {
		run := runs[on][j]
		if run == nil {
			return math.Inf(-1)
		}
		return s.alone[j].Seconds / run.Seconds
	}
	for _, l := range layouts {
		_, on := Assign(len(s.jobs), l, value)
		if on == nil {
			continue
		}
		w, placed := Way{Name: "mig", Layout: l}, make([]*Run, len(on))
		for j, name := range on {
			placed[j] = runs[name][j]
		}
		for j, rate := range FairRates(placed, [numResources]bool{ToDevice: true, ToHost: true, Host: true, Disk: true}) {
			w.add(Place{On: on[j]}, placed[j], s.alone[j], rate)
		}
		if w.Aggregate > best.Aggregate {
			_, host = sums(placed)
			best = w
		}
	}
	return best, host
}

// Cores compares jobs one after another on all cores of a host with jobs on equal shares of them at the same time.
func Cores(machine string, jobs []string, alone, together []*Run) *Report {
	r := &Report{Machine: machine, Jobs: jobs, Ways: []Way{{Name: "exclusive"}, {Name: "cores"}}}
	for i := range jobs {
		r.Ways[0].add(Place{On: "all cores"}, alone[i], alone[i], 1/float64(len(jobs)))
		r.Ways[1].add(Place{On: fmt.Sprintf("1/%d of the cores", len(jobs))}, together[i], alone[i], 1)
	}
	r.choose()
	return r
}

// Environment returns the variables of a job's process, in the order of its names, and what of its configuration has to be
// set. The lines of a shell: an instance is looked up when they are read, since its name is drawn when it is made.
func (r *Report) Environment(w Way, job, cores int) (variables, overrides []string) {
	p := w.Places[job]
	switch w.Name {
	case "mps":
		limit := (p.Device+hardware.ContextBytes)>>20 + 1
		variables = append(variables, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", limit))
		if p.Limit > 0 {
			overrides = append(overrides, fmt.Sprintf("limits.device=%d", p.Limit))
		}
	case "mig":
		before := 0 // jobs on instances of the same kind
		for _, q := range w.Places[:job] {
			if q.On == p.On {
				before++
			}
		}
		variables = append(variables, fmt.Sprintf(`CUDA_VISIBLE_DEVICES=$(nvidia-smi -L | sed -n 's/.*MIG %s .*UUID: \(MIG-[^)]*\).*/\1/p' | sed -n %dp)`, strings.ReplaceAll(p.On, ".", `\.`), before+1))
	case "cores":
		variables = append(variables, fmt.Sprintf("GOMAXPROCS=%d", max(1, cores/len(w.Places))))
	}
	return variables, overrides
}

// Commands are what an administrator does before the jobs begin.
func (w Way) Commands() []string {
	switch w.Name {
	case "mps":
		return []string{"nvidia-cuda-mps-control -d"}
	case "mig":
		list := slices.Clone(w.Layout)
		return []string{"nvidia-smi -mig 1", "nvidia-smi mig -cgi " + strings.Join(list, ",") + " -C"}
	}
	return nil
}
