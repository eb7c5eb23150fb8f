package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/athanor-llm/athanor/alert"
)

// Bounds of a request for curves.
const (
	mostPixels = 4096
	mostCurves = 256
)

// changed returns a number that grows with each change.
func (s *Set) changed() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.grown
}

// runState is a run as the page lists it.
type runState struct {
	ID      int               `json:"id"`
	Name    string            `json:"name"`
	Rows    int               `json:"rows"`
	Latest  map[string]number `json:"latest"` // of each column
	Keys    []string          `json:"keys"`
	Config  map[string]string `json:"config"`
	Updated int64             `json:"updated_ms"` // when metrics.jsonl was written, since 1970; 0: never
	Live    bool              `json:"live"`
	Step    int64             `json:"step_stamp"`    // changes with step.json; 0: there is none
	Samples int64             `json:"samples_stamp"` // likewise
	Roof    int64             `json:"roof_stamp"`    // likewise
	Damaged int               `json:"damaged_lines,omitempty"`
	Problem string            `json:"problem,omitempty"`
	Alerts  []alert.Event     `json:"alerts"`                   // the latest, the oldest first
	Firing  int               `json:"firing"`                   // alerts that fire now
	Silent  float64           `json:"silent_seconds,omitempty"` // since the latest step of a run that is not at its end
}

// number is written as JSON, which has none that is not finite.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(n), 'g', -1, 64), nil
}

// quiet is after how many times its step a run is taken to have ended, if that is longer than least.
const (
	quiet      = 20
	quietLeast = 15 * time.Second
)

// shownAlerts is how many of a run's alerts are listed.
const shownAlerts = 100

func (s *Server) listRuns(w http.ResponseWriter, _ *http.Request) error {
	s.set.mutex.Lock()
	states := make([]runState, len(s.set.runs))
	for i, r := range s.set.runs {
		states[i] = r.state(i)
	}
	s.set.mutex.Unlock()
	return reply(w, map[string]any{"runs": states})
}

func (r *run) state(id int) runState {
	v := runState{ID: id, Name: r.name, Rows: len(r.history.steps), Latest: map[string]number{}, Keys: r.history.keys(), Config: r.config, Damaged: r.history.damaged,
		Step: stampOf(r.stamps[stepFile]), Samples: stampOf(r.stamps[samplesFile]), Roof: stampOf(r.stamps[roofFile])}
	latest := r.history.latest()
	for key, x := range latest {
		v.Latest[key] = number(x)
	}
	if r.history.file != nil {
		at := r.history.file.ModTime()
		v.Updated = at.UnixMilli()
		if since := time.Since(at); latest["step"] < r.lastStep() {
			v.Live = since < max(quietLeast, time.Duration(quiet*latest["step_seconds"]*float64(time.Second)))
			if !v.Live {
				v.Silent = since.Seconds()
			}
		}
	}
	v.Alerts = append([]alert.Event{}, r.history.alerts[max(0, len(r.history.alerts)-shownAlerts):]...) // a list, even if empty
	for _, on := range r.history.firing() {
		if on {
			v.Firing++
		}
	}
	if r.err != nil {
		v.Problem = r.err.Error()
	}
	if r.history.cut {
		v.Problem = fmt.Sprintf("only the first %d steps are shown", mostRows)
	}
	return v
}

// lastStep returns the step at which the run ends.
func (r *run) lastStep() float64 {
	if n, err := strconv.ParseFloat(r.config["max_steps"], 64); err == nil {
		return n
	}
	return math.Inf(1)
}

func stampOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano() / 1e3 // JavaScript's numbers hold it
}

// curve is a column of a run, reduced to what a picture shows.
type curve struct {
	Run  int      `json:"run"`
	Key  string   `json:"key"`
	X    []number `json:"x"`
	Y    []number `json:"y"` // null: not finite
	Rows int      `json:"rows"`
}

// curveQuery says which curves are asked for.
type curveQuery struct {
	runs      []int
	keys      []string
	x         string
	from, to  float64
	pixels    int
	smoothing float64
}

// series answers with curves.
func (s *Server) series(w http.ResponseWriter, r *http.Request) error {
	q, err := parseCurves(r.URL.Query())
	if err != nil {
		return err
	}
	s.set.mutex.Lock()
	defer s.set.mutex.Unlock()
	list := []curve{}
	for _, id := range q.runs {
		if id >= len(s.set.runs) {
			return &badRequest{http.StatusNotFound, fmt.Sprintf("there is no run %d", id)}
		}
		h := &s.set.runs[id].history
		for _, key := range q.keys {
			if h.column(key) != nil {
				c := q.curve(h, key)
				c.Run = id
				list = append(list, c)
			}
		}
	}
	var text bytes.Buffer // so that a slow reader holds no lock
	if err := json.NewEncoder(&text).Encode(map[string]any{"curves": list}); err != nil {
		return err
	}
	return send(w, "application/json", text.Bytes())
}

// parseCurves reads a query such as run=0&run=1&key=loss&x=step&from=10&to=500&pixels=800&smooth=50.
func parseCurves(v url.Values) (*curveQuery, error) {
	q := &curveQuery{keys: v["key"], x: "step", from: math.Inf(-1), to: math.Inf(1), pixels: 800}
	for _, text := range v["run"] {
		id, err := strconv.Atoi(text)
		if err != nil || id < 0 {
			return nil, &badRequest{http.StatusBadRequest, fmt.Sprintf("run=%.40q is not a number", text)}
		}
		q.runs = append(q.runs, id)
	}
	if n := len(q.runs) * len(q.keys); n > mostCurves {
		return nil, &badRequest{http.StatusBadRequest, fmt.Sprintf("%d curves are asked for, and at most %d are given at once", n, mostCurves)}
	}
	if x := v.Get("x"); x != "" {
		q.x = x
	}
	if !slices.Contains([]string{"step", "tokens", elapsed}, q.x) {
		return nil, &badRequest{http.StatusBadRequest, fmt.Sprintf("x=%.40q is none of step, tokens and %s", q.x, elapsed)}
	}
	pixels := float64(q.pixels)
	for _, f := range []struct {
		key string
		to  *float64
	}{{"from", &q.from}, {"to", &q.to}, {"pixels", &pixels}, {"smooth", &q.smoothing}} {
		text := v.Get(f.key)
		if text == "" {
			continue
		}
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, &badRequest{http.StatusBadRequest, fmt.Sprintf("%s=%.40q is not a number", f.key, text)}
		}
		*f.to = x
	}
	q.pixels = int(min(max(pixels, 1), mostPixels))
	return q, nil
}

// curve returns one column.
func (q *curveQuery) curve(h *history, key string) curve {
	x, y := h.column(q.x), h.column(key)
	from, to := q.from, q.to
	if n := min(len(x), len(y)); n > 0 {
		from, to = max(from, x[0]), min(to, x[n-1])
	}
	if q.smoothing > 0 {
		y = smooth(y, q.smoothing)
	}
	c := curve{Key: key, X: []number{}, Y: []number{}, Rows: len(y)}
	for _, i := range decimate(x, y, from, to, q.pixels) {
		c.X, c.Y = append(c.X, number(x[i])), append(c.Y, number(y[i]))
	}
	return c
}

// step answers with a run's step.json.
func (s *Server) step(w http.ResponseWriter, r *http.Request) error {
	return s.file(w, r, stepFile, "application/json")
}

// samples answers with a run's samples.jsonl.
func (s *Server) samples(w http.ResponseWriter, r *http.Request) error {
	return s.file(w, r, samplesFile, "application/x-ndjson")
}

// roof answers with a run's roofline.json.
func (s *Server) roof(w http.ResponseWriter, r *http.Request) error {
	return s.file(w, r, roofFile, "application/json")
}

// roofPicture answers with a picture of it.
func (s *Server) roofPicture(w http.ResponseWriter, r *http.Request) error {
	of, err := s.runOf(r)
	if err != nil {
		return err
	}
	roof := of.readRoof()
	if roof == nil {
		return &badRequest{http.StatusNotFound, "the run has no " + roofFile}
	}
	var picture bytes.Buffer
	if err := roof.Draw(&picture); err != nil {
		return err
	}
	return send(w, "image/svg+xml", picture.Bytes())
}

// runOf returns the run that a request asks for.
func (s *Server) runOf(r *http.Request) (*run, error) {
	id, err := strconv.Atoi(r.URL.Query().Get("run"))
	s.set.mutex.Lock()
	defer s.set.mutex.Unlock()
	if err != nil || id < 0 || id >= len(s.set.runs) {
		return nil, &badRequest{http.StatusNotFound, "there is no such run"}
	}
	return s.set.runs[id], nil
}

func (s *Server) file(w http.ResponseWriter, r *http.Request, name, kind string) error {
	of, err := s.runOf(r)
	if err != nil {
		return err
	}
	text, err := of.content(name, mostStep)
	if errors.Is(err, fs.ErrNotExist) {
		return &badRequest{http.StatusNotFound, "the run has no " + name}
	}
	if err != nil {
		return err
	}
	return send(w, kind, text)
}

func reply(w http.ResponseWriter, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return send(w, "application/json", text)
}

// send sends an answer. What goes wrong then is that nobody reads it.
func send(w http.ResponseWriter, kind string, text []byte) error {
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text)
	return nil
}
