package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/athanor-llm/athanor/draw"
	"github.com/athanor-llm/athanor/internal/suggest"
)

// The files of a run's folder that are shown.
const (
	metricsFile = "metrics.jsonl"
	configFile  = "config.yaml"
	stepFile    = "step.json"
	samplesFile = "samples.jsonl"
	roofFile    = "roofline.json"
)

const (
	mostRuns   = 256
	mostConfig = 1 << 20  // bytes
	mostStep   = 64 << 20 // bytes
	mostRoof   = 1 << 20  // bytes
)

// Set is the runs that are watched. Its methods may be called at the same time.
type Set struct {
	paths []string // as named: folders of runs, or folders that hold some
	mutex sync.Mutex
	runs  []*run
	read  time.Time // when files were last looked at
	grown int       // counts changes
}

// readEvery is how long what was read of files is taken for new.
const readEvery = 500 * time.Millisecond

// run is what is known of one run.
type run struct {
	name, dir string
	history   history
	config    map[string]string // flat: limits.device
	bytes     []tierBytes
	stamps    map[string]time.Time
	err       error // why the metrics cannot be read
}

// Open finds the runs of the given folders. A folder that is no run is looked through for runs, also for later ones.
func Open(paths []string) (*Set, error) {
	s := &Set{paths: paths}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a folder", p)
		}
		if err != nil {
			return nil, suggest.Add(err, "name the folder `out` of a run, or a folder that holds some")
		}
	}
	s.refresh()
	return s, nil
}

// Names returns the names of the runs.
func (s *Set) Names() (list []string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, r := range s.runs {
		list = append(list, r.name)
	}
	return list
}

// refresh reads what is new, unless that was done a moment ago.
func (s *Set) refresh() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if time.Since(s.read) < readEvery {
		return
	}
	for _, dir := range s.folders() {
		if len(s.runs) < mostRuns && !slices.ContainsFunc(s.runs, func(r *run) bool { return r.dir == dir }) {
			s.runs = append(s.runs, &run{name: s.nameOf(dir), dir: dir, stamps: map[string]time.Time{}})
			s.grown++
		}
	}
	for _, r := range s.runs {
		if r.refresh() {
			s.grown++
		}
	}
	s.read = time.Now()
}

// folders lists the folders of runs.
func (s *Set) folders() (list []string) {
	for _, p := range s.paths {
		p = filepath.Clean(p)
		if isRun(p) {
			list = append(list, p)
			continue
		}
		entries, _ := os.ReadDir(p) // one that is gone has none
		for _, e := range entries {
			if dir := filepath.Join(p, e.Name()); isRun(dir) {
				list = append(list, dir)
			}
		}
	}
	return list
}

// isRun reports whether a folder is that of a run.
func isRun(dir string) bool {
	for _, name := range []string{metricsFile, configFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// nameOf returns the name of a run: of its folder, with those above it if another run is called so.
func (s *Set) nameOf(dir string) string {
	if full, err := filepath.Abs(dir); err == nil {
		dir = full
	}
	name := filepath.Base(dir)
	for slices.ContainsFunc(s.runs, func(r *run) bool { return r.name == name }) && filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
		name = filepath.ToSlash(filepath.Join(filepath.Base(dir), name))
	}
	return name
}

// open opens a file of the run, if it is there and a file: what a link outside the folder leads to is not.
func (r *run) open(name string) (*os.File, error) {
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", name)
	}
	return root.Open(name)
}

// refresh reads what is new of the run, and reports whether anything is.
func (r *run) refresh() (changed bool) {
	f, err := r.open(metricsFile)
	if err == nil {
		changed, err = r.history.read(f)
		f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) { // it has not begun
		err = nil
	}
	r.err = err
	for _, name := range []string{configFile, stepFile, samplesFile, roofFile} {
		if r.stamp(name) {
			changed = true
			switch name {
			case configFile:
				r.config = r.readConfig()
			case stepFile:
				r.bytes = r.readBytes()
			}
		}
	}
	return changed
}

// stamp reports whether a file is another than when it was last looked at.
func (r *run) stamp(name string) bool {
	var at time.Time
	if f, err := r.open(name); err == nil {
		if info, err := f.Stat(); err == nil {
			at = info.ModTime()
		}
		f.Close()
	}
	if at.Equal(r.stamps[name]) {
		return false
	}
	r.stamps[name] = at
	return true
}

// content returns a file of the run, up to a size.
func (r *run) content(name string, most int64) ([]byte, error) {
	f, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}

// readConfig reads the configuration; nil if that cannot be done.
func (r *run) readConfig() map[string]string {
	text, err := r.content(configFile, mostConfig)
	var root yaml.Node
	if err != nil || yaml.Unmarshal(text, &root) != nil || len(root.Content) == 0 {
		return nil
	}
	flat := map[string]string{}
	flatten(flat, "", root.Content[0])
	for _, secret := range []string{"alerts.webhook", "alerts.command"} { // addresses of webhooks are passwords
		if flat[secret] != "" {
			flat[secret] = "(not shown)"
		}
	}
	return flat
}

// tierBytes is what one rank takes of a tier.
type tierBytes struct {
	rank             int
	tier             string
	planned, reached int64 // reached: 0 before a step was measured
}

// readBytes reads them from step.json; nil if that cannot be done.
func (r *run) readBytes() (list []tierBytes) {
	text, err := r.content(stepFile, mostStep)
	var step struct {
		Runs []struct {
			Name  string
			Rank  int
			Tiers []struct {
				Name    string
				Planned int64 `json:"planned_bytes"`
				Reached int64 `json:"reached_bytes"`
			}
		}
	}
	if err != nil || json.Unmarshal(text, &step) != nil {
		return nil
	}
	for _, of := range step.Runs {
		for _, t := range of.Tiers {
			i := slices.IndexFunc(list, func(b tierBytes) bool { return b.rank == of.Rank && b.tier == t.Name })
			if i < 0 {
				i = len(list)
				list = append(list, tierBytes{rank: of.Rank, tier: t.Name, planned: t.Planned})
			}
			if of.Name != draw.Predicted {
				list[i].reached = t.Reached
			}
		}
	}
	return list
}

// flatten adds the scalars below a node by their keys, such as limits.device. Lists stay together. Nodes that only
// refer to others are left out.
func flatten(flat map[string]string, key string, n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		for pair := range slices.Chunk(n.Content, 2) {
			name := pair[0].Value
			if key != "" {
				name = key + "." + name
			}
			flatten(flat, name, pair[1])
		}
	case yaml.ScalarNode:
		flat[key] = n.Value
	case yaml.SequenceNode:
		var text bytes.Buffer
		for i, c := range n.Content {
			if i > 0 {
				text.WriteString(", ")
			}
			if c.Kind == yaml.ScalarNode {
				text.WriteString(c.Value)
			} else if list, err := yaml.Marshal(c); err == nil {
				text.Write(bytes.TrimSpace(list))
			}
		}
		flat[key] = text.String()
	}
}
