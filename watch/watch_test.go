package watch

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/testkit"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes the folder of a run with so many steps, whose losses are their numbers.
func write(t *testing.T, dir string, steps int) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, configFile), []byte("max_steps: 1000\nlimits:\n  device: 64MiB\ndata: [a, b]\n"), 0o644))
	var text strings.Builder
	for i := 1; i <= steps; i++ {
		text.WriteString(line(i))
	}
	must(t, os.WriteFile(filepath.Join(dir, metricsFile), []byte(text.String()), 0o644))
}

func line(step int) string {
	return fmt.Sprintf(`{"step":%d,"tokens":%d,"loss":%d,"step_seconds":0.5,"predicted_step_seconds":0.25,"tokens_per_second":20,"mfu":0.1}`+"\n", step, 10*step, step)
}

func add(t *testing.T, dir, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, metricsFile), os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
}

// renew has the next request look at the files, whatever the time.
func renew(s *Set) {
	s.mutex.Lock()
	s.read = time.Time{}
	s.mutex.Unlock()
}

// ask returns the answer to a request, which change may change.
func ask(s *Server, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	r.Host = "127.0.0.1:7007"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// listed returns the list of runs.
func listed(t *testing.T, s *Server) []runState {
	t.Helper()
	var v struct{ Runs []runState }
	renew(s.set)
	must(t, json.Unmarshal(ask(s, "/api/runs", nil).Body.Bytes(), &v))
	return v.Runs
}

// TestFollow: lines count once they are whole; damaged lines, lines that go back and absurdly long ones are counted and
// left out; a file that is cut, as by a resumed run, or replaced is read anew; and a run that begins later is found.
func TestFollow(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "first")
	write(t, dir, 5)
	set, err := Open([]string{top})
	must(t, err)
	s := New(set, Options{})
	expect := func(what string, rows, damaged int, loss float64) {
		t.Helper()
		if r := listed(t, s)[0]; r.Rows != rows || r.Damaged != damaged || float64(r.Latest["loss"]) != loss {
			t.Errorf("%s: %d steps, %d damaged lines, loss %v", what, r.Rows, r.Damaged, r.Latest["loss"])
		}
	}
	expect("at first", 5, 0, 5)
	half := line(6)
	add(t, dir, half[:20])
	expect("half a line", 5, 0, 5)
	add(t, dir, half[20:])
	expect("the other half", 6, 0, 6)
	add(t, dir, line(3)+"{\"step\":7,\"lo\n"+strings.Repeat("x", 3*longestLine)+"\n"+line(8))
	if r := listed(t, s)[0]; r.Rows != 7 || r.Damaged < 3 || r.Latest["loss"] != 8 {
		t.Errorf("after damage: %+v", r)
	}
	write(t, dir, 2) // shorter
	expect("a shorter file", 2, 0, 2)
	must(t, os.Rename(filepath.Join(dir, metricsFile), filepath.Join(dir, "old")))
	write(t, dir, 9) // longer, and another file
	expect("another file", 9, 0, 9)
	write(t, filepath.Join(top, "second"), 1)
	if list := listed(t, s); len(list) != 2 || list[1].Name != "second" || list[0].Config["limits.device"] != "64MiB" || list[0].Config["data"] != "a, b" {
		t.Errorf("with a second run: %+v", list)
	}
}

// TestAlerts: alerts are read from the lines that have them, the page and Prometheus are told which fire, and the address
// of a webhook, which is a password, is not shown.
func TestAlerts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 2)
	must(t, os.WriteFile(filepath.Join(dir, configFile), []byte("alerts:\n  webhook: https://example.org/password\n"), 0o644))
	add(t, dir, `{"step":3,"loss":1,"alerts":[{"rule":"leak","step":3,"firing":true,"text":"leak: it grows"},{"rule":"a \u003e \"b\"","step":3,"firing":true,"text":"x"}]}`+"\n"+
		`{"step":4,"loss":1,"alerts":[{"rule":"leak","step":4,"firing":false,"text":"leak: is over"}]}`+"\n")
	set, err := Open([]string{dir})
	must(t, err)
	s := New(set, Options{})
	r, before := listed(t, s)[0], ask(s, "/metrics", nil).Body.String()
	if r.Rows != 4 || len(r.Alerts) != 3 || r.Alerts[2].Text != "leak: is over" || r.Firing != 1 {
		t.Errorf("%+v", r)
	}
	if all := ask(s, "/api/runs", nil).Body.String(); strings.Contains(all, "password") {
		t.Errorf("the webhook is shown: %s", all)
	}
	write(t, dir, 1)
	if renew(set); !strings.Contains(ask(s, "/api/runs", nil).Body.String(), `"alerts":[]`) {
		t.Error("no alerts are no list")
	}
	if text := before; !strings.Contains(text, `rule="leak"} 0`) || !strings.Contains(text, `rule="a > \"b\""} 1`) {
		t.Errorf("Prometheus is told\n%s", text)
	}
}

// TestSeries: curves are those of the file, with derived columns: predicted rates are what the predicted time of a step
// gives. A narrow spike among many steps is in the answer, whatever the width.
func TestSeries(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 5000)
	add(t, dir, `{"step":5001,"loss":1e9}`+"\n"+`{"step":5002,"loss":null}`+"\n")
	for i := 5003; i < 9000; i++ {
		add(t, dir, line(i))
		i += 30
	}
	set, err := Open([]string{dir})
	must(t, err)
	s := New(set, Options{})
	curves := func(query string) (v struct {
		Curves []struct {
			Key  string
			X    []float64
			Y    []*float64
			Rows int
		}
	}) {
		t.Helper()
		w := ask(s, "/api/series?run=0&"+query, nil)
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", query, w.Code, w.Body)
		}
		must(t, json.Unmarshal(w.Body.Bytes(), &v))
		return v
	}
	for _, pixels := range []int{1, 7, 300} {
		c := curves(fmt.Sprintf("key=loss&pixels=%d", pixels)).Curves[0]
		most, broken := 0.0, false
		for i, y := range c.Y {
			if y == nil {
				broken = broken || c.X[i] == 5002
			} else {
				most = max(most, *y)
			}
		}
		if most != 1e9 || !broken || len(c.X) > 5*pixels+2 {
			t.Errorf("%d pixels: %d points, the greatest %v, one not finite: %v", pixels, len(c.X), most, broken)
		}
	}
	v := curves("key=predicted_tokens_per_second&key=predicted_mfu&key=loss&from=10&to=12&x=elapsed_seconds")
	if len(v.Curves) != 3 || *v.Curves[0].Y[0] != 40 || math.Abs(*v.Curves[1].Y[0]-0.2) > 1e-12 {
		t.Errorf("predicted rates: %+v", v)
	}
	if x := v.Curves[2].X; !slices.Equal(x, []float64{9.5, 10, 10.5, 11, 11.5, 12, 12.5}) {
		t.Errorf("a range of times has %v", x)
	}
	if n := len(curves("key=nothing").Curves); n != 0 {
		t.Errorf("an unknown column has %d curves", n)
	}
}

// TestGuard: only the page itself, users and programs on this machine are answered, or those with the key where there is
// one. No path leads to a file that is not part of the page, and no request changes anything.
func TestGuard(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 3)
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o644))
	set, err := Open([]string{dir})
	must(t, err)
	open, locked := New(set, Options{}), New(set, Options{Key: "opensesame"})
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for _, c := range []struct {
		server *Server
		path   string
		change func(*http.Request)
		code   int
	}{
		{open, "/", nil, 200},
		{open, "/page.js", nil, 200},
		{open, "/", host("localhost"), 200},
		{open, "/", host("[::1]:7007"), 200},
		{open, "/", host("evil.example:7007"), 403}, // DNS rebinding
		{open, "/", host("127.0.0.1.evil.example"), 403},
		{open, "/", host("localhost.evil.example"), 403},
		{open, "/", host("192.168.1.7:7007"), 403},
		{open, "/", host(""), 403},
		{open, "/api/runs", header("Origin", "http://127.0.0.1:7007"), 200},
		{open, "/api/runs", header("Origin", "http://evil.example"), 403},
		{open, "/api/runs", header("Origin", "http://127.0.0.1:8000"), 403},
		{open, "/api/runs", header("Origin", "null"), 403},
		{open, "/api/runs", header("Sec-Fetch-Site", "cross-site"), 403},
		{open, "/api/runs", header("Sec-Fetch-Site", "same-site"), 403},
		{open, "/metrics", header("Sec-Fetch-Site", "cross-site"), 403},
		{open, "/secret", nil, 404},
		{open, "/../secret", nil, 307}, // to /secret
		{open, "/..%2fsecret", nil, 404},
		{open, "/%2e%2e/%2e%2e/etc/passwd", nil, 404},
		{open, "/api/step?run=0", nil, 404}, // it has none
		{open, "/api/step?run=-1", nil, 404},
		{open, "/api/step?run=99999999999999999999", nil, 404},
		{open, "/api/step?run=../secret", nil, 404},
		{open, "/api/series?run=7&key=loss", nil, 404},
		{open, "/api/series?run=-1&key=loss", nil, 400},
		{open, "/api/series?run=0&key=loss&from=NaN", nil, 400},
		{open, "/api/series?run=0&key=loss&smooth=Inf", nil, 400},
		{open, "/api/series?run=0&key=loss&smooth=-1e308&pixels=1e300&from=1e308&to=-1e308", nil, 200},
		{open, "/api/series?run=0&key=loss&x=../../secret", nil, 400},
		{open, "/api/series?" + strings.Repeat("run=0&key=loss&", 17), nil, 400}, // 289 curves
		{open, "/", func(r *http.Request) { r.Method = "POST" }, 405},
		{open, "/api/runs", func(r *http.Request) { r.Method = "DELETE" }, 405},
		{locked, "/", nil, 401},
		{locked, "/api/runs", header("Authorization", "Bearer wrong"), 401},
		{locked, "/api/runs", header("Authorization", "Bearer opensesame"), 200},
		{locked, "/api/runs", header("Cookie", cookieName+"=opensesame"), 200},
		{locked, "/api/runs", header("Cookie", cookieName+"="), 401},
		{locked, "/?key=wrong", nil, 401},
		{locked, "/?key=opensesame", nil, 303},
		{locked, "/metrics", nil, 401},
		{locked, "/api/changes", nil, 401},
	} {
		w := ask(c.server, c.path, c.change)
		if w.Code != c.code {
			t.Errorf("%.80s: %d, expected %d: %.80s", c.path, w.Code, c.code, w.Body)
		}
		if strings.Contains(w.Body.String(), "secret") && w.Code == 200 {
			t.Errorf("%s gives a file away", c.path)
		}
		if !strings.Contains(w.Header().Get("Content-Security-Policy"), "script-src 'self'") || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%.80s: headers %v", c.path, w.Header())
		}
	}
	if c := ask(locked, "/?key=opensesame", nil).Header().Get("Set-Cookie"); !strings.Contains(c, "HttpOnly") || !strings.Contains(c, "SameSite=Strict") {
		t.Errorf("the cookie is %s", c)
	}
}

// TestLinks: files that are links out of the run's folder, folders or pipes are not read.
func TestLinks(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "run")
	write(t, dir, 3)
	secret := filepath.Join(top, "secret")
	must(t, os.WriteFile(secret, []byte("secret"), 0o644))
	if err := os.Symlink(secret, filepath.Join(dir, stepFile)); err != nil {
		t.Skip("no links here: ", err)
	}
	must(t, os.Mkdir(filepath.Join(dir, samplesFile), 0o755))
	set, err := Open([]string{dir})
	must(t, err)
	s := New(set, Options{})
	for _, path := range []string{"/api/step?run=0", "/api/samples?run=0"} {
		if w := ask(s, path, nil); w.Code == 200 || strings.Contains(w.Body.String(), "secret\n") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestChanges: a page is told of a change over a connection that stays open, and Serve ends with its context although
// pages are open.
func TestChanges(t *testing.T) {
	testkit.Needs(t, testkit.Usual)
	dir := t.TempDir()
	write(t, dir, 3)
	set, err := Open([]string{dir})
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(set, Options{}).Serve(ctx, l) }()
	answer, err := http.Get("http://" + l.Addr().String() + "/api/changes")
	must(t, err)
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	told := func() {
		t.Helper()
		for lines.Scan() {
			if lines.Text() == "data: changed" {
				return
			}
		}
		t.Fatal("the connection ended: ", lines.Err())
	}
	told()
	add(t, dir, line(4))
	told()
	stop()
	must(t, <-ended)
	if _, err := io.Copy(io.Discard, answer.Body); err != nil && !strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
}

// TestGrafana: what the dashboard of examples asks Prometheus for is there.
func TestGrafana(t *testing.T) {
	text, err := os.ReadFile("../examples/grafana.json")
	must(t, err)
	known := []string{alertFiring.Name, plannedBytes.Name, reachedBytes.Name}
	for _, e := range exported {
		known = append(known, e.Name)
	}
	names := regexp.MustCompile(`athanor_\w+`).FindAllString(string(text), -1)
	for _, n := range names {
		if !slices.Contains(known, n) {
			t.Errorf("the dashboard asks for %s, which nobody writes", n)
		}
	}
	if !json.Valid(text) || len(names) < 10 {
		t.Errorf("%d metrics in the dashboard, valid JSON: %v", len(names), json.Valid(text))
	}
}

// TestMetrics: Prometheus' page has each metric's lines together, counters that end in _total, labels whose values are
// escaped, and NaN for a loss that is not finite.
func TestMetrics(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "a"), 3)
	write(t, filepath.Join(top, "b"), 1)
	add(t, filepath.Join(top, "b"), `{"step":2,"loss":null}`+"\n")
	set, err := Open([]string{top})
	must(t, err)
	text := ask(New(set, Options{}), "/metrics", nil).Body.String()
	for _, want := range []string{
		"# TYPE athanor_steps_total counter\nathanor_steps_total{run=\"a\"} 3\nathanor_steps_total{run=\"b\"} 2\n",
		"# TYPE athanor_loss gauge\nathanor_loss{run=\"a\"} 3\nathanor_loss{run=\"b\"} NaN\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
}
